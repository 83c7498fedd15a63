"""A post without a network: letters go through Flower's own format to participants in this process, and may be lost or changed."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence

from coterie.deployment.grid import content_of, letter_of
from coterie.deployment.participant import Participant
from coterie.engines.flower import Answer
from coterie.framing import Letter

Change = Callable[[Letter, Letter], Answer | None]
"""Given what was asked and what was answered, what arrives; None where nothing does."""


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
