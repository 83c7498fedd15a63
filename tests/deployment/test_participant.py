"""Participants and the engine `flower`, with everything but the network: the same bits, and nothing that a letter can do harms."""

from __future__ import annotations

import errno
import hashlib
import json
from pathlib import Path
from typing import ClassVar

import pytest
from tests import digests
from tests.deployment.post import NAMES, Desk, deploy, files, people

from coterie import durable
from coterie.deployment.participant import Participant
from coterie.deployment.server_app import Deployment, conduct, deployable
from coterie.engines import Inline, Job
from coterie.engines.flower import Answer, Lost
from coterie.engines.serving import fields_of
from coterie.engines.worker import DiskError, Memories
from coterie.errors import Interrupted, UserError
from coterie.framing import Letter
from coterie.method import Method, task
from coterie.methods import METHODS
from coterie.record import EMPTY, NO_LIMITS, Record, decode, encode
from coterie.running.admission import Admission
from coterie.running.experiment import Experiment
from coterie.running.rounds import run
from coterie.settings import spec
from coterie.site import Site
from coterie.testing import small_experiment

pytest.importorskip("flwr")
CASES = {case["method"]["name"]: name for name, case in reversed(digests.CASES.items())}


@pytest.mark.parametrize("method", ["fedavg", "fedfusion", "fml", "fccl", "split-metadata", "ditto", "scaffold", "fedproto"])
def test_the_bits_are_those_of_inline(method, tmp_path) -> None:
    plan = Experiment.parse(digests.BASE | digests.CASES[CASES[method]])
    there = deploy(tmp_path / "deployment", plan, Desk(people(tmp_path)))
    here = run(plan, tmp_path / "here", engine=Inline())
    assert there.summary["digest"] == here.summary["digest"]
    assert there.summary["protocols"] == here.summary["protocols"]


def test_what_a_participant_keeps_is_on_its_own_disk_and_the_server_has_a_receipt(tmp_path) -> None:
    there = deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("ditto")), Desk(people(tmp_path)))
    own = [path for name in NAMES for path in (tmp_path / name).glob("*/memory/*.safetensors")]
    receipts = list((there.folder / "memory").iterdir())
    assert own
    assert receipts
    assert max(path.stat().st_size for path in receipts) < 400 < min(path.stat().st_size for path in own)


def test_what_left_is_written_down_where_it_left(tmp_path) -> None:
    deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("fedavg"), cohort=1.0), Desk(people(tmp_path)))
    lines = [json.loads(line) for line in (tmp_path / "north" / "sent.jsonl").read_text().splitlines()]
    assert [(line["round"], line["task"]) for line in lines] == [(1, "train"), (2, "train"), (3, "train")]
    assert [set(line["kinds"]) for line in lines] == [{"weights"}] * 3
    assert {line["kinds"]["weights"] for line in lines} == {4 * (64 * 16 + 16 + 16 * 10 + 10)}


def test_what_cannot_be_written_down_does_not_leave_now_or_later(tmp_path) -> None:
    north = Reader(tmp_path)
    (tmp_path / "sent.jsonl").mkdir()
    assert "Is a directory" in str(north.ask("hear", 1, 1, None, x=5))
    (tmp_path / "sent.jsonl").rmdir()
    assert north.ask("hear", 1, 1, None, x=5) == 0
    assert [json.loads(line)["exchange"] for line in (tmp_path / "sent.jsonl").read_text().splitlines()] == ["1-1"]


def test_a_letter_that_comes_twice_is_answered_twice_and_done_once(tmp_path) -> None:
    desk = Desk(people(tmp_path))
    deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("ditto"), rounds=2), desk)
    node, letter = next((node, letter) for node, letter in reversed(desk.asked) if letter.fields["kind"] == "job")
    before = files(tmp_path)
    first = desk.participants[node].answer(letter)
    assert first.fields["error"] is None
    assert desk.participants[node].answer(letter) == first
    assert files(tmp_path) == before


def test_an_old_letter_changes_nothing_that_a_new_one_builds_on(tmp_path) -> None:
    desk = Desk(people(tmp_path))
    deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("ditto"), rounds=2, cohort=1.0), desk)
    node, letter = next((node, letter) for node, letter in desk.asked if letter.fields["kind"] == "job")
    for path in tmp_path.glob("*/*/answers/*"):
        path.unlink()
    before = {path: data for path, data in files(tmp_path).items() if "memory" in str(path)}
    assert desk.participants[node].answer(letter).fields["error"] is None
    assert {path: data for path, data in files(tmp_path).items() if "memory" in str(path)} == before


def test_what_may_not_leave_does_not(tmp_path) -> None:
    plan = Experiment.parse(digests.BASE | digests.CASES[CASES["split-metadata"]])
    desk = Desk(people(tmp_path))
    for each in list(desk.participants.values())[:1]:
        each.never = frozenset({"activations"})
    seen = (tmp_path / "deployment" / "deployment.log", deploy(tmp_path / "deployment", plan.replace(cohort=1.0), desk))
    assert "'north' does not send activations (--never-send)" in seen[0].read_text()
    assert all("activations" not in json.loads(line)["kinds"] for line in (tmp_path / "north" / "sent.jsonl").read_text().splitlines())


def test_what_may_not_leave_any_more_is_not_said_again(tmp_path) -> None:
    desk = Desk(people(tmp_path))
    deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("fedavg"), rounds=1, cohort=1.0), desk)
    node, letter = next((node, letter) for node, letter in desk.asked if letter.fields["kind"] == "job")
    assert desk.participants[node].answer(letter).body
    desk.participants[node].never = frozenset({"weights"})
    said = desk.participants[node].answer(letter)
    assert "does not send weights (--never-send)" in str(said.fields["error"])
    assert said.body == b""


def test_who_does_not_agree_does_not_take_part_and_is_not_asked_twice(tmp_path) -> None:
    asked: list[Experiment] = []
    someone = Participant("north", tmp_path, consent=lambda experiment: bool(asked.append(experiment)))
    experiment = small_experiment(METHODS.resolve("fedavg")).resolved()
    for _ in range(2):
        said = someone.answer(Letter({"kind": "hello", "run": "0" * 32, "experiment": experiment, "names": ["north"]}))
        assert said.fields["error"] == "participant 'north': it does not take part"
    assert len(asked) == 1


def test_who_was_not_let_in_and_is_started_otherwise_on_the_same_node_is_let_in(tmp_path) -> None:
    """A key is always the same node: whoever has mistyped a name and starts again comes from where it came from."""
    desk = Desk(people(tmp_path))
    right, desk.participants[102] = desk.participants[102], Participant("suoth", tmp_path / "suoth", engine=Inline)

    def correct(asked: Letter, answer: Letter) -> Letter:
        if "'suoth'" in str(answer.fields.get("error")):
            desk.participants[102] = right
        return answer

    desk.change = correct
    there = deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("fedavg"), rounds=1, cohort=1.0), desk)
    log = (tmp_path / "deployment" / "deployment.log").read_text()
    assert "somebody is not let in: participant 'suoth': --name suoth: did you mean 'south'?" in log
    assert "south is in" in log
    assert there.summary["rounds"] == 1


def test_a_participant_that_comes_back_elsewhere_is_found_there(tmp_path) -> None:
    plan = small_experiment(METHODS.resolve("ditto"), rounds=3, cohort=1.0)
    desk = Desk(people(tmp_path))

    def move(asked: Letter, answer: Letter) -> Letter | None:
        if asked.fields.get("round") == 2 and asked.fields.get("client") == 2 and 102 in desk.participants:
            desk.participants.pop(102).close()
            desk.participants[202] = Participant("south", tmp_path / "south", engine=Inline)
            return None
        return answer

    desk.change = move
    there = deploy(tmp_path / "deployment", plan, desk)
    assert there.summary["digest"] == run(plan, tmp_path / "here", engine=Inline()).summary["digest"]


def test_a_question_that_is_lost_is_asked_again_and_costs_no_round(tmp_path) -> None:
    """A participant that is killed in mid-task: Flower then answers in its place, which is nothing that it has said."""
    plan = small_experiment(METHODS.resolve("ditto"), rounds=3, cohort=1.0)
    lost: list[Letter] = []

    def lose(asked: Letter, answer: Letter) -> Answer:
        if len(lost) < 5 and asked.fields.get("round") == 2 and asked.fields.get("client") == 2:
            lost.append(asked)
            return Lost("Flower says: Node Unavailable")
        return answer

    there = deploy(tmp_path / "deployment", plan, Desk(people(tmp_path), lose))
    assert len(lost) == 5
    assert there.summary["digest"] == run(plan, tmp_path / "here", engine=Inline()).summary["digest"]


def test_who_comes_back_to_the_same_node_is_asked_at_once(tmp_path) -> None:
    plan = small_experiment(METHODS.resolve("ditto"), rounds=2, cohort=1.0)
    desk = Desk(people(tmp_path))
    restarted: list[Participant] = []

    def restart(asked: Letter, answer: Letter) -> Answer:
        if asked.fields.get("round") == 2 and asked.fields.get("client") == 2 and not restarted:
            desk.participants.pop(102).close()
            restarted.append(Participant("south", tmp_path / "south", engine=Inline))
            return Lost("Flower says: Node Unavailable")
        return answer

    def nodes() -> set[int]:
        here = set(desk.participants)
        if restarted:
            desk.participants[102] = restarted[0]
        return here

    desk.change, desk.nodes = restart, nodes
    there = deploy(tmp_path / "deployment", plan, desk)
    assert there.summary["digest"] == run(plan, tmp_path / "here", engine=Inline()).summary["digest"]


@pytest.mark.parametrize("first", [Lost("Flower says: ClientApp crashed"), None], ids=["lost", "never answered"])
def test_who_was_killed_before_it_said_its_name_is_asked_again(first, tmp_path) -> None:
    greeted: list[Letter] = []

    def ignore(asked: Letter, answer: Letter) -> Answer | None:
        if answer.fields.get("name") == "west" and not greeted:
            greeted.append(asked)
            return first
        return answer

    there = deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("fedavg"), rounds=1), Desk(people(tmp_path), ignore))
    assert there.summary["rounds"] == 1


def test_who_was_started_again_is_known_before_flower_misses_the_first(tmp_path) -> None:
    plan = small_experiment(METHODS.resolve("ditto"), rounds=3, cohort=1.0)
    desk = Desk(people(tmp_path))

    def start_again(asked: Letter, answer: Letter) -> Answer | None:
        if asked.fields.get("round") == 2 and asked.fields.get("client") == 2 and 202 not in desk.participants:
            desk.participants[202] = Participant("south", tmp_path / "south", engine=Inline)
            return None
        return answer

    desk.change = start_again
    there = deploy(tmp_path / "deployment", plan, desk)
    assert "a second" not in (tmp_path / "deployment" / "deployment.log").read_text()
    assert there.summary["digest"] == run(plan, tmp_path / "here", engine=Inline()).summary["digest"]


def test_of_two_with_one_name_the_second_is_let_in_when_the_first_has_gone(tmp_path) -> None:
    desk = Desk(people(tmp_path))
    desk.participants[900] = Participant("north", tmp_path / "elsewhere", engine=Inline)

    def leave(asked: Letter, answer: Letter) -> Answer:
        if asked.fields.get("round") == 1 and asked.fields.get("client") == 0:
            desk.participants.pop(100, None)
        return answer

    desk.change = leave
    there = deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("fedavg"), rounds=2, cohort=1.0), desk)
    log = (tmp_path / "deployment" / "deployment.log").read_text()
    assert log.index("a second 'north' is not let in") < log.index("north has gone") < log.rindex("north is in")
    assert there.summary["rounds"] == 2
    assert "dropped" not in log


def test_of_two_with_one_name_the_first_stays(tmp_path) -> None:
    desk = Desk(people(tmp_path))
    desk.participants[900] = Participant("north", tmp_path / "impostor", engine=Inline)
    deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("fedavg"), rounds=1), desk)
    log = (tmp_path / "deployment" / "deployment.log").read_text()
    assert log.count("a second 'north' is not let in") == 1


def test_a_memory_that_is_damaged_is_noticed(tmp_path) -> None:
    desk = Desk(people(tmp_path))

    def damage(asked: Letter, answer: Letter) -> Letter:
        if asked.fields.get("round") == 1 and asked.fields.get("client") == 0:
            for path in (tmp_path / "north").glob("*/memory/*"):
                data = bytearray(path.read_bytes())
                data[-1] ^= 1
                path.write_bytes(data)
            desk.participants[100].close()
            desk.participants[100] = Participant("north", tmp_path / "north", engine=Inline)
            desk.participants[100].answer(desk.asked[0][1])
        return answer

    desk.change = damage
    deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("ditto"), rounds=2, cohort=1.0), desk)
    assert "is damaged: its bytes are not those that were written" in (tmp_path / "deployment" / "deployment.log").read_text()


def test_a_name_that_cannot_be_is_a_sentence() -> None:
    with pytest.raises(UserError, match="expected names of letters"):
        deployable(small_experiment(METHODS.resolve("fedavg")), ["../north"])


def test_who_does_not_answer_in_time_is_late_and_the_others_go_on(tmp_path) -> None:
    plan = small_experiment(METHODS.resolve("fedavg"), rounds=2, cohort=1.0, admission=Admission(deadline=8.0))
    desk = Desk(people(tmp_path), lambda asked, answer: None if asked.fields.get("client") == 1 else answer)
    there = deploy(tmp_path / "deployment", plan, desk)
    assert there.summary["rounds"] == 2
    assert "round 1: east was dropped: client 1, task 'train', round 1: late" in (tmp_path / "deployment" / "deployment.log").read_text()


def test_a_full_disk_at_a_participant_is_its_own_trouble(tmp_path, monkeypatch) -> None:
    honest = durable.sync_file

    def full(path: Path) -> None:
        if "/south/" in str(path):
            raise OSError(errno.ENOSPC, "No space left on device")
        honest(path)

    monkeypatch.setattr("coterie.durable.sync_file", full)
    there = deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("ditto"), rounds=2, cohort=1.0), Desk(people(tmp_path)))
    assert there.summary["rounds"] == 2
    assert "participant 'south': [Errno 28] No space left on device" in (tmp_path / "deployment" / "deployment.log").read_text()


def test_a_disk_that_is_full_when_a_memory_is_written_is_its_own_trouble_too(tmp_path, monkeypatch) -> None:
    """Where the memory is larger than the answer, the answer is still written, and says that the disk is full."""
    honest = Memories.put

    def full(self, client: int, version: str, memory: Record) -> str | None:
        if client == 1:
            raise DiskError("[Errno 28] No space left on device")
        return honest(self, client, version, memory)

    monkeypatch.setattr(Memories, "put", full)
    there = deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("ditto"), rounds=2, cohort=1.0), Desk(people(tmp_path)))
    assert there.summary["rounds"] == 2
    assert "DiskError: [Errno 28] No space left on device" in (tmp_path / "deployment" / "deployment.log").read_text()


def test_files_of_others_in_a_home_are_left_alone(tmp_path) -> None:
    plan, desk = small_experiment(METHODS.resolve("ditto"), rounds=4, cohort=1.0), Desk(people(tmp_path))
    strays = ["memory/.DS_Store", "memory/1.1-1 (copy).safetensors", "answers/x-1.json", "answers/notes.txt"]

    def littered(asked: Letter, answer: Letter) -> Letter:
        if asked.fields.get("round") == 1 and asked.fields.get("client") == 1:
            for folder in (tmp_path / "east").iterdir():
                for stray in strays if (folder / "memory").is_dir() else ():
                    (folder / stray).write_text("mine")
        return answer

    desk.change = littered
    there = deploy(tmp_path / "deployment", plan, desk)
    calm = deploy(tmp_path / "calm", plan, Desk(people(tmp_path / "others")))
    assert there.summary["rejected"] == 0
    assert there.state == calm.state
    assert {path.name for path in tmp_path.glob("east/*/*/*")} >= {Path(stray).name for stray in strays}


def test_a_participant_that_missed_a_round_catches_up(tmp_path) -> None:
    plan = small_experiment(METHODS.resolve("ditto"), rounds=3, cohort=1.0, admission=Admission(deadline=8.0))
    desk = Desk(people(tmp_path))
    away: list[Participant] = []

    def leave(asked: Letter, answer: Letter) -> Letter:
        if asked.fields.get("round") == 1 and asked.fields.get("client") == 4 and not away:
            away.append(desk.participants.pop(103))
        if asked.fields.get("round") == 3 and away and 103 not in desk.participants:
            desk.participants[103] = away[0]
        return answer

    desk.change = leave
    there = deploy(tmp_path / "deployment", plan, desk)
    rounds = [json.loads(line)["round"] for line in (tmp_path / "west" / "sent.jsonl").read_text().splitlines()]
    assert there.summary["rounds"] == 3
    assert rounds == [1, 3]


def test_who_joins_late_is_in_from_then_on(tmp_path) -> None:
    plan = small_experiment(METHODS.resolve("ditto"), rounds=3, cohort=1.0, admission=Admission(deadline=8.0))
    desk = Desk(people(tmp_path))
    west = desk.participants.pop(103)

    def join(asked: Letter, answer: Letter) -> Letter:
        if asked.fields.get("round") == 2:
            desk.participants[103] = west
        return answer

    desk.change = join
    Deployment.new(tmp_path / "deployment", deployable(plan, NAMES), NAMES, 4).begun()
    there = conduct(desk, tmp_path / "deployment")
    log = (tmp_path / "deployment" / "deployment.log").read_text()
    assert there.summary["rounds"] == 3
    assert "round 1: west was dropped: client 3, task 'train', round 1: late" in log
    assert log.index("round 1 took") < log.index("west is in")
    assert [json.loads(line)["round"] for line in (tmp_path / "west" / "sent.jsonl").read_text().splitlines()] == [2, 3]


def test_a_server_that_lost_its_last_round_finds_participants_that_did_not(tmp_path) -> None:
    """Killed after participants have answered and before its checkpoint: it goes on from the round before, and so do they."""
    plan = small_experiment(METHODS.resolve("ditto"), rounds=3, cohort=1.0)
    desk = Desk(people(tmp_path))

    def die(asked: Letter, answer: Letter) -> Letter:
        if asked.fields.get("round") == 3 and asked.fields.get("client") == 4:
            raise KeyboardInterrupt
        return answer

    desk.change = die
    with pytest.raises(Interrupted):
        deploy(tmp_path / "deployment", plan, desk)
    desk.change = lambda asked, answer: answer
    there = conduct(desk, tmp_path / "deployment")
    assert there.summary["digest"] == run(plan, tmp_path / "here", engine=Inline()).summary["digest"]


def test_a_run_goes_on_with_other_code_only_where_that_is_said(tmp_path, monkeypatch) -> None:
    plan, desk = small_experiment(METHODS.resolve("ditto"), rounds=2, cohort=1.0), Desk(people(tmp_path))

    def die(asked: Letter, answer: Letter) -> Letter:
        if asked.fields.get("round") == 2:
            raise KeyboardInterrupt
        return answer

    desk.change = die
    with pytest.raises(Interrupted):
        deploy(tmp_path / "deployment", plan, desk)
    desk.change = lambda asked, answer: answer
    monkeypatch.setattr("coterie.running.provenance._own_code", lambda: "another")
    with pytest.raises(UserError, match="the code changed since the run"):
        conduct(desk, tmp_path / "deployment")
    assert conduct(desk, tmp_path / "deployment", changed_code=True).summary["rounds"] == 2


def test_a_run_that_is_over_waits_for_nobody(tmp_path) -> None:
    there = deploy(tmp_path / "deployment", small_experiment(METHODS.resolve("fedavg"), rounds=1), Desk(people(tmp_path)))
    assert conduct(Desk({}), tmp_path / "deployment").summary == there.summary


@spec
class Notebook(Method):
    """Clients keep what they are told, and tell what they keep."""

    name: ClassVar[str] = "notebook"
    evaluates: ClassVar[tuple[str, ...]] = ()

    @task
    def hear(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        return EMPTY, Record(x=memory.number("x") + message.number("x") if memory else message.number("x"))

    @task
    def tell(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        return memory, memory


class Reader:
    """Asks a participant with a notebook, as a server would."""

    def __init__(self, home: Path) -> None:
        self.participant = Participant("north", home, engine=Inline)
        plan = small_experiment(Notebook(), cohort=1.0).resolved()
        method = plan["method"] | {"name": f"{__name__}:Notebook"}
        self.participant.answer(Letter({"kind": "hello", "run": "0" * 32, "experiment": plan | {"method": method}, "names": ["north"]}))

    def ask(self, task: str, round: int, exchange: int, memory: str | None, x: int = 0) -> int | str:
        """What it tells, or what is wrong."""
        body = bytes(encode(Record(x=x)))
        job = fields_of(0, Job(0, task, round, "", memory, f"{round}-{exchange}"))
        said = self.participant.answer(Letter({**job, "kind": "job", "run": "0" * 32, "sha": hashlib.sha256(body).hexdigest()}, body))
        return said.fields["error"] or int(decode(said.body, NO_LIMITS).scalars.get("x", 0))


def test_what_was_said_from_a_memory_that_is_now_another_is_not_said_again(tmp_path) -> None:
    """A server that goes back a round may then send something else: who was dropped the first time is not dropped now."""
    north = Reader(tmp_path)
    assert (north.ask("hear", 1, 1, None, x=5), north.ask("tell", 1, 2, "1-1")) == (0, 5)
    assert (north.ask("hear", 1, 1, None, x=7), north.ask("tell", 1, 2, "1-1")) == (0, 7)


def test_a_server_can_go_back_to_its_last_two_checkpoints_however_many_exchanges_a_round_has(tmp_path) -> None:
    north, before = Reader(tmp_path), None
    for round in (1, 2, 3):
        for exchange in range(1, 21):
            north.ask("hear", round, exchange, before, x=round)
            before = f"{round}-{exchange}"
    assert north.ask("tell", 3, 1, "2-20") == 20 * (1 + 2)
    assert north.ask("tell", 2, 1, "1-20") == 20
    assert len(list(tmp_path.glob("*/memory/*"))) <= 8
