"""A post without a network: letters go through Flower's own format to participants in this process, and may be lost or changed."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from coterie.deployment.grid import content_of, letter_of
from coterie.deployment.participant import Participant
from coterie.deployment.server_app import Deployment, conduct, deployable
from coterie.engines import Inline
from coterie.engines.flower import Answer
from coterie.framing import Letter
from coterie.running.experiment import Experiment
from coterie.running.rounds import Result

NAMES = ["north", "east", "south", "west", "far-away"]

Change = Callable[[Letter, Letter], Answer | None]
"""Given what was asked and what was answered, what arrives; None where nothing does."""


class Clock:
    """The engine's time where everybody sits in one room: nobody answers later than at once, so waiting takes none."""

    def __init__(self) -> None:
        self._now = 0.0

    def monotonic(self) -> float:
        return self._now

    def sleep(self, seconds: float) -> None:
        self._now += seconds

    def time(self) -> float:
        return time.time()


class Desk:
    """A `Post` whose participants sit in the same room."""

    def __init__(self, participants: dict[int, Participant], change: Change = lambda asked, answer: answer) -> None:
        self.participants = participants
        self.change = change
        self.asked: list[tuple[int, Letter]] = []
        self._names = itertools.count()
        self._answers: dict[str, Answer] = {}

    def nodes(self) -> set[int]:
        return set(self.participants)

    def send(self, node: int, letter: Letter, seconds: float | None) -> str:
        name = str(next(self._names))
        letter = letter_of(content_of(letter), 2**40)
        self.asked.append((node, letter))
        if node in self.participants:
            answer = self.change(letter, self.participants[node].answer(letter))
            if answer is not None:
                self._answers[name] = answer
        return name

    def answers(self, names: Sequence[str], limit: int) -> dict[str, Answer]:
        found = {}
        for name in names:
            answer = self._answers.pop(name, None)
            if isinstance(answer, Letter):
                try:
                    found[name] = letter_of(content_of(answer), limit)
                except Exception as error:
                    found[name] = f"it sent something that is no answer: {error}"
            elif answer is not None:
                found[name] = answer
        return found


def people(home: Path, **settings) -> dict[int, Participant]:
    """By node."""
    return {100 + at: Participant(name, home / name, engine=Inline, **settings) for at, name in enumerate(NAMES)}


def deploy(folder: Path, plan: Experiment, desk: Desk) -> Result:
    """Run an experiment with the participants at a desk."""
    Deployment.new(folder, deployable(plan, NAMES), NAMES, len(NAMES)).begun()
    return conduct(desk, folder)


def files(folder: Path) -> dict[Path, bytes]:
    """What participants keep."""
    return {path: path.read_bytes() for path in folder.glob("*/*/memory/*") if path.is_file()}
