"""The one fold of a ledger: what every event adds to it, with and without what newer ledgers tell."""

from __future__ import annotations

from statistics import mean

import pytest
from tests.results.ledgers import CLIENTS, ROUNDS, SET, accuracy, last_mean, of_client, write_run

from coterie.errors import RunError
from coterie.ledger import events
from coterie.results.statistics import fairness
from coterie.results.tally import Reached, Tally


@pytest.fixture(scope="module")
def tally(tmp_path_factory) -> Tally:
    return Tally.read(write_run(tmp_path_factory.mktemp("tally") / "run", "fedavg", 1) / "ledger.jsonl")


def seen(round: int, value: float, protocol: str = "local_post", client: int | None = None, **more: object) -> dict:
    return {"event": "evaluation", "round": round, "protocol": protocol, "client": client, "metric": "accuracy", "value": value, **more}


def test_curves_are_over_the_fixed_set_and_the_last_value_over_all_clients(tally) -> None:
    curve = tally.curve("local_post")
    assert list(curve) == list(range(1, ROUNDS + 1))
    assert curve[ROUNDS] == pytest.approx(mean(of_client("fedavg", 1, ROUNDS, client) for client in SET))
    last = tally.last("local_post")
    assert (last.round, last.clients) == (ROUNDS, CLIENTS)
    assert last.value == pytest.approx(last_mean("fedavg", 1))
    expected = fairness([of_client("fedavg", 1, ROUNDS, client) for client in range(CLIENTS)])
    assert (last.worst, last.worst_tenth, last.spread) == (expected.worst, expected.worst_tenth, expected.spread)


def test_the_servers_model_has_no_clients(tally) -> None:
    last = tally.last("global")
    assert (last.value, last.clients, last.worst) == (accuracy("fedavg", 1, ROUNDS), None, None)
    assert tally.last("inter") is None


def test_setup_and_rounds_up_and_down_stand_apart(tally) -> None:
    assert (tally.total("up"), tally.total("down")) == (4000 * CLIENTS * ROUNDS,) * 2
    assert (tally.total("up", setup=True), tally.total("down", setup=True)) == (0, 5000)
    assert tally.total("up", framed=True) == 4100 * CLIENTS * ROUNDS
    assert tally.by_kind() == {"weights": 2 * 4000 * CLIENTS * ROUNDS}
    assert tally.by_kind(setup=True) == {"public data": 5000}


def test_bytes_to_a_target_include_the_setup(tally) -> None:
    first = next(round for round in range(1, ROUNDS) if accuracy("fedavg", 1, round) >= 0.5)
    assert tally.reached("global", 0.5) == Reached(first, 5000 + first * 8000 * CLIENTS, 0.5 * first)
    assert tally.reached("global", 0.99) is None


def test_training_evaluation_and_pretraining_are_work_of_their_own(tally) -> None:
    assert tally.trained(setup=True).steps == 50
    assert tally.trained(setup=False).steps == 60 * ROUNDS
    assert (tally.trained().steps, tally.trained().samples) == (50 + 60 * ROUNDS, 10 * (50 + 60 * ROUNDS))
    assert tally.trained("evaluation").steps == 20 * ROUNDS
    assert tally.trained(site="server").steps == 0
    assert tally.losses() == pytest.approx({round: 2 * 0.8**round + 0.01 for round in range(1, ROUNDS + 1)})


def test_the_loss_of_a_round_is_weighted_by_samples() -> None:
    ask = {"event": "training", "round": 1, "task": "train", "purpose": "training", "site": "clients", "clients": 1, "steps": 1}
    found = Tally.of([{**ask, "samples": 30, "loss": 1.0}, {**ask, "samples": 10, "loss": 3.0}, {**ask, "samples": 99, "loss": None}])
    assert found.losses() == {1: 1.5}


def test_classes_logs_and_the_rest(tally) -> None:
    assert tally.classes["global"].accuracy[2] is None
    assert tally.classes["global"].confusion is not None
    assert [event["round"] for event in tally.logs["alpha and beta", None]] == [1, 2]
    assert len(tally.logs["public correlation", None]) == 1
    assert (tally.seed, tally.method, tally.rounds, tally.ended) == (1, "fedavg", ROUNDS, True)
    assert (len(tally.new_clients), tally.rejected, tally.resumes) == (1, [], [])
    assert sum(tally.seconds.values()) == 0.5 * ROUNDS
    assert Tally(keep_logs=False).logs == {}


def test_domains_are_no_headline() -> None:
    """A line with a domain is a part of a mean; taken for the mean, the last domain would win."""
    lines = [seen(1, 0.5, "intra"), seen(1, 0.9, "intra", domain="plain"), seen(1, 0.1, "intra", domain="noisy")]
    found = Tally.of([*lines, seen(1, 0.7, "domain", 3, domain="noisy")])
    assert found.last("intra").value == 0.5
    assert {domain: at.value for domain, at in found.domains["intra"]["accuracy"].items()} == {"plain": 0.9, "noisy": 0.1}
    assert found.on_domain["accuracy"][3, "noisy"].value == 0.7
    assert list(found.means) == ["intra"]
    assert found.clients == {}


def test_a_ledger_that_does_not_count_clients_is_counted() -> None:
    """Ledgers from before the fixed set: the mean of a round is over whoever was measured in it, not over all that ever were."""
    lines = [seen(1, 0.1, client=7), seen(1, 0.1), seen(2, 0.5, client=2), seen(2, 0.9, client=3), seen(2, 0.7)]
    last = Tally.of(lines).last("local_post")
    assert (last.value, last.clients, last.worst, last.spread) == (0.7, 2, 0.5, pytest.approx(0.2))
    assert set(Tally.of(lines).last_of_clients("local_post")) == {2, 3}


def test_a_new_clients_epochs_are_no_evaluation_of_the_run() -> None:
    assert Tally.of([seen(9, 0.2, "new_client", 4, epoch=0)]).clients == {}


def test_a_protocol_that_was_asked_for_and_never_measured_is_refused() -> None:
    start = {"event": "start", "experiment": {"evaluation": {"protocols": ["global", "local_post"]}}}
    lines = [start, seen(1, 0.5, "global")]
    Tally.of(lines).check_measured()  # still under way
    with pytest.raises(RunError, match="nothing was measured under 'local_post'"):
        Tally.of([*lines, {"event": "end"}]).check_measured()
    Tally.of([{"event": "end"}]).check_measured()  # a method without a model has nothing to measure


def test_looking_changes_nothing(tally) -> None:
    protocols = list(tally.means)
    assert tally.curve("inter") == {}
    assert tally.reached("inter", 0.5) is None
    assert tally.trained("nothing").steps == 0
    assert list(tally.means) == protocols


def test_event_by_event_is_the_whole_ledger(tally, tmp_path) -> None:
    found = Tally()
    for event in events(write_run(tmp_path / "run", "fedavg", 1) / "ledger.jsonl"):
        found.on_event(event)
    assert found == tally
