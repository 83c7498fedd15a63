"""The attack table of docs/deploy.md: what a letter can do to a participant, an answer to the server, and a stranger to both."""

from __future__ import annotations

import json
import shutil
import threading
from contextlib import contextmanager
from math import nan
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from tests.deployment.lies import LIES, ending
from tests.deployment.post import NAMES, Clock, Desk, deploy, files, people
from tests.deployment.processes import Stage
from tests.forms import long

from coterie.deployment.keys import make_keys
from coterie.deployment.participant import Participant, _Run
from coterie.deployment.resident import serve_participant
from coterie.deployment.server_app import Deployment, conduct, deployable
from coterie.engines import Inline
from coterie.engines.engine import RunContext
from coterie.engines.flower import Flower
from coterie.framing import Letter
from coterie.hostile import BEHAVIOURS
from coterie.methods import METHODS
from coterie.population import Population
from coterie.running.admission import Admission
from coterie.running.experiment import Experiment
from coterie.testing import Trial, small_experiment, try_engine

pytest.importorskip("flwr")


ODD = {
    "a task that is none": lambda fields: {**fields, "task": "__init__"},
    "a task that is private": lambda fields: {**fields, "task": "network"},
    "a run that leads out of the folder": lambda fields: {**fields, "run": "../../etc"},
    "a version that leads out of the folder": lambda fields: {**fields, "keep": "../../x"},
    "a memory that leads out of the folder": lambda fields: {**fields, "memory": "/etc/passwd"},
    "another client's job": lambda fields: {**fields, "client": 3},
    "a message that was changed": lambda fields: {**fields, "sha": "0" * 64},
    "fields that are missing": lambda fields: {"kind": "job", "run": fields["run"]},
    "a field too many": lambda fields: {**fields, "more": 1},
    "a kind that is none": lambda fields: {**fields, "kind": ["job"]},
    "a round that is none": lambda fields: {**fields, "visit": 3},
}


@pytest.mark.parametrize("odd", ODD)
def test_a_letter_that_is_odd_is_refused_in_words(odd, tmp_path) -> None:
    desk = Desk(people(tmp_path))
    deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("ditto"), rounds=1, cohort=1.0), desk)
    node, letter = next((node, letter) for node, letter in desk.asked if letter.fields["kind"] == "job")
    before = files(tmp_path)
    said = desk.participants[node].answer(Letter(ODD[odd](dict(letter.fields)), letter.body))
    assert said.fields["error"]
    assert said.body == b""
    assert files(tmp_path) == before


@pytest.mark.parametrize("lie", LIES)
def test_an_answer_that_is_odd_is_dropped_and_the_run_unharmed(lie, tmp_path) -> None:
    plan = small_experiment(METHODS.resolve("ditto"), rounds=2, cohort=1.0)

    given: list[Letter] = []

    def change(asked: Letter, answer: Letter) -> Letter:
        if asked.fields.get("client") == 1 and asked.fields["task"] == "train":
            given.append(answer)
        wrong = asked.fields.get("client") == 1 and asked.fields["round"] == 2
        return LIES[lie](answer, given[0]) if wrong else answer

    there = deploy(tmp_path / "deployment", plan, Desk(people(tmp_path), change))
    assert "round 2: east was dropped" in (tmp_path / "deployment" / "deployment.log").read_text()
    assert there.summary["rounds"] == 2
    assert not (tmp_path / "x").exists()


def test_who_answers_badly_three_times_is_no_longer_asked(tmp_path) -> None:
    desk = Desk(people(tmp_path), lambda asked, answer: Letter({}) if asked.fields.get("client") == 1 else answer)
    deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("fedavg"), rounds=5, cohort=1.0), desk)
    assert sum(node == 101 and letter.fields["kind"] == "job" for node, letter in desk.asked) == 3
    assert "no longer asked, after 3 bad answers in a row" in (tmp_path / "deployment" / "deployment.log").read_text()


def test_who_sends_what_is_not_let_in_three_times_is_no_longer_asked(tmp_path) -> None:
    """An answer that can be read, and of which the server's rules say no."""
    desk = Desk(people(tmp_path), lambda asked, answer: ending(nan)(answer, answer) if asked.fields.get("client") == 1 else answer)
    deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("fedavg"), rounds=5, cohort=1.0), desk)
    assert [letter.fields["round"] for node, letter in desk.asked if node == 101 and letter.fields["kind"] == "job"] == [1, 2, 3]
    assert "round 5: east was dropped: client 1, task 'train', round 5: it is no longer asked, after 3 bad answers in a row" in log(
        tmp_path
    )
    assert json.loads((tmp_path / "deployment" / "participants.json").read_text())["east"][0] == "no longer asked"


def test_a_good_answer_makes_up_for_two_bad_ones(tmp_path) -> None:
    def lie(asked: Letter, answer: Letter) -> Letter:
        wrong = asked.fields.get("client") == 1 and asked.fields["round"] != 3
        return ending(nan)(answer, answer) if wrong else answer

    deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("fedavg"), rounds=5, cohort=1.0), Desk(people(tmp_path), lie))
    assert [f"round {round}: east was dropped" in log(tmp_path) for round in range(1, 6)] == [True, True, False, True, True]
    assert "no longer asked" not in log(tmp_path)


@pytest.mark.parametrize(("claimed", "most"), [(10**12, "10,000,000"), (0, "10,000,000"), (61, "60")])
def test_who_registers_with_a_number_that_cannot_be_is_not_let_in(claimed, most, tmp_path) -> None:
    """Where the server has no data it knows of samples what participants say, makes a row for each, and weighs by them."""
    names = ["north", "south"]
    for at in range(100):
        where = tmp_path / "data" / names[at % 2] / str(at // 2 % 5)
        where.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.full((8, 8), 2 * at, np.uint8)).save(where / f"{at}.png")
    source = {"name": "participants", "labels": [str(label) for label in range(5)], "size": 8, "channels": 1}
    table = small_experiment(METHODS.resolve("fedavg"), rounds=1, cohort=1.0).resolved()
    admission = {} if most == "10,000,000" else {"max_examples": 60}
    plan = Experiment.parse(
        table | {"data": {"source": source}, "partition": "domains", "admission": admission, "evaluation": {"protocols": ["local_post"]}}
    )
    lied: list[Letter] = []

    def lie(asked: Letter, answer: Letter) -> Letter:
        if answer.fields.get("name") == "south" and not lied:
            lied.append(answer)
            return Letter({**answer.fields, "samples": claimed})
        return answer

    desk = Desk({at: Participant(name, tmp_path / name, tmp_path / "data" / name, engine=Inline) for at, name in enumerate(names)}, lie)
    Deployment.new(tmp_path / "deployment", deployable(plan, names), names, 2).begun()
    assert conduct(desk, tmp_path / "deployment").summary["rounds"] == 1
    words = f"'south' is not let in: it says it has {claimed:,} samples, expected 1 to {most} (admission.max_examples)"
    assert words in log(tmp_path)
    assert "south is in, with 40 samples" in log(tmp_path)
    assert "was dropped" not in log(tmp_path)


def test_answers_that_have_changed_places_are_not_believed(tmp_path) -> None:
    given: dict[int, Letter] = {}

    def swap(asked: Letter, answer: Letter) -> Letter:
        given[asked.fields.get("client", -1)] = answer
        return given[0] if asked.fields.get("client") == 1 else answer

    deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("fedavg"), rounds=1, cohort=1.0), Desk(people(tmp_path), swap))
    assert "east was dropped: client 1, task 'train', round 1: its answer cannot be used: it is one to another question" in log(tmp_path)


def test_who_has_anothers_key_does_not_get_its_name_even_when_that_has_gone(tmp_path) -> None:
    """With keys Flower says which node each key is: only from there a name is let in."""
    desk = Desk(people(tmp_path))
    nodes = {each.name: node for node, each in desk.participants.items()}
    desk.participants[900] = Participant("north", tmp_path / "elsewhere", engine=Inline)

    def leave(asked: Letter, answer: Letter) -> Letter:
        if asked.fields.get("round") == 2:
            desk.participants.pop(100, None)
        return answer

    desk.change = leave
    plan = small_experiment(METHODS.resolve("fedavg"), rounds=3, cohort=1.0, admission=Admission(deadline=8.0))
    Deployment.new(tmp_path / "deployment", deployable(plan, NAMES), NAMES, len(NAMES)).begun()
    there = conduct(desk, tmp_path / "deployment", nodes)
    assert "'north' is not let in: it came with another participant's key (node 900)" in log(tmp_path)
    assert "north has gone" in log(tmp_path)
    assert "round 3: north was dropped" in log(tmp_path)
    assert [letter for node, letter in desk.asked if node == 900 and letter.fields["kind"] == "job"] == []
    assert there.summary["rounds"] == 3


def log(folder: Path) -> str:
    return (folder / "deployment" / "deployment.log").read_text()


class Deployed(Flower):
    """The engine of a deployment with a desk for a network, for any population."""

    def __init__(self, home: Path) -> None:
        super().__init__(Desk({}), "0" * 32, [], {"experiment": small_experiment(METHODS.resolve("fedavg")).resolved(), "names": []})
        self._home = home

    def open(self, context: RunContext) -> None:
        super().open(context)
        self._names = [f"p{client}" for client in range(len(context.population.partition.train.sizes))]
        self._post = Desk({at: Member(name, self._home / name, context=context, client=at) for at, name in enumerate(self._names)})
        self.gather(len(self._names))


class Member(Participant):
    """A participant whose part of a population is given to it."""

    def __init__(self, name: str, home: Path, context: RunContext, client: int) -> None:
        super().__init__(name, home)
        self._context, self._client = context, client

    def _part(self, experiment, names) -> tuple[Population, int]:
        return self._context.population, self._client

    def _opened(self, run: str, experiment, population, client) -> _Run:
        (self.home / run / "live").mkdir(parents=True)
        engine = Inline()
        engine.open(RunContext(self._context.method, population, self.home / run))
        return _Run(self.home / run, client, engine, population)


SENT = [name for name, each in BEHAVIOURS.items() if not each.isolated and name.split()[0] in ("sends", "smuggles", "counts", "answers")]


@pytest.fixture(scope="module")
def trial(tmp_path_factory) -> Trial:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("coterie.engines.flower.time", Clock())
        return try_engine(lambda: Deployed(tmp_path_factory.mktemp("homes")), SENT, deadline=600.0)


@pytest.mark.parametrize("behaviour", SENT)
def test_a_participant_that(behaviour, trial) -> None:
    assert trial.complaint(SENT.index(behaviour)) is None


def test_honest_participants_are_let_in_and_the_bits_are_those_of_a_run_without_the_others(trial) -> None:
    assert list(trial.complaints()) == []
    assert trial.same


class Rogue(Participant):
    """Lies in two rounds of three."""

    def __init__(self, name: str, home: Path, lies: list[str]) -> None:
        super().__init__(name, home, engine=Inline)
        self._lies, self._given = iter(lies), {}
        self.told: dict[int, str] = {}

    def answer(self, letter: Letter) -> Letter:
        honest, round = super().answer(letter), letter.fields.get("round")
        if letter.fields["kind"] == "hello":
            return honest
        self._given[round] = honest
        if round % 3 and round not in self.told:
            self.told[round] = next(self._lies)
        return LIES[self.told[round]](honest, self._given.get(round - 1, honest)) if round in self.told else honest


@contextmanager
def taking_part(rogue: Rogue, server: str):
    """A SuperNode with somebody behind it who is not our program."""
    over = threading.Event()
    thread = threading.Thread(target=serve_participant, args=(rogue, server, None, over.is_set))
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


@long
@pytest.mark.parametrize("lies", [list(LIES)[at::3] for at in range(3)], ids=lambda lies: f"{lies[0]} and {len(lies) - 1} more")
def test_lies_through_flowers_own_messages_are_dropped_and_the_run_unharmed(lies, tmp_path) -> None:
    rounds = len(lies) + -(-len(lies) // 2)
    (tmp_path / "experiment.toml").write_text(TRIAL.format(rounds=rounds))
    rogue = Rogue("west", tmp_path / "home-west", lies)
    with Stage(tmp_path) as stage, taking_part(rogue, f"127.0.0.1:{stage.port}"):
        stage.server("--clients", "north,west", "--insecure")
        stage.client("north", "--insecure")
        assert stage.over() == 0, stage.words("server")
    assert sorted(rogue.told.values()) == sorted(lies)
    for round in range(1, rounds + 1):
        assert (f"round {round}: west was dropped" in stage.log()) == (round in rogue.told), stage.log()
    assert "north was dropped" not in stage.log()


TRIAL = """
name = "trial"
rounds = {rounds}
data = {{ source = "digits", train = 200, test = 100 }}
partition = {{ name = "iid", clients = 2 }}
model = {{ name = "mlp", hidden = [16] }}
method = "ditto"
admission = {{ quorum = 0.5 }}
"""


@long
def test_a_name_is_bound_to_its_key(tmp_path) -> None:
    """South, with its own key, would be north."""
    (tmp_path / "experiment.toml").write_text(TRIAL.format(rounds=1))
    keys = make_keys(tmp_path / "keys", ["north", "south"])
    (tmp_path / "mixed").mkdir()
    shutil.copy(keys.ca, tmp_path / "mixed")
    shutil.copy(keys.participant("south"), tmp_path / "mixed" / "north.key")
    with Stage(tmp_path) as stage:
        stage.server("--clients", "north,south")
        stage.until("listening", tmp_path / "server.out")
        stage.client("north", "--keys", "mixed", out="impostor")
        stage.until("'north' is not let in: it came with another participant's key")
        stage.kill("impostor")
        for name in ("north", "south"):
            stage.client(name)
        assert stage.over() == 0, stage.words("server")
        assert "was dropped" not in stage.log()
        assert not (tmp_path / "home-impostor" / "sent.jsonl").exists()


def test_strangers_stay_out(tmp_path) -> None:
    (tmp_path / "experiment.toml").write_text(TRIAL.format(rounds=1))
    make_keys(tmp_path / "keys", ["north", "stranger"])
    make_keys(tmp_path / "other", ["north"])
    with Stage(tmp_path) as stage:
        stage.server("--clients", "north", "--set", "partition.clients=1")
        stage.until("listening", tmp_path / "server.out")
        stage.intrude()
        stage.keeps_out()
        assert stage.log() == ""
