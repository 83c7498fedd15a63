"""Flower's messages as letters: what comes back whole, and what Flower itself says in the place of an answer."""

from __future__ import annotations

import pytest

from coterie.deployment.grid import GridPost, content_of, letter_of
from coterie.engines.flower import Lost
from coterie.framing import Letter

pytest.importorskip("flwr")


class Grid:
    """Flower's Grid, as far as it is used; every message has one fate."""

    def __init__(self, reply) -> None:
        self.pushed: list = []
        self._reply = reply

    def push_messages(self, messages) -> list[str]:
        for at, message in enumerate(messages):
            message.metadata.__dict__["_message_id"] = f"message-{len(self.pushed) + at}"
        self.pushed.extend(messages)
        return [message.metadata.message_id for message in messages]

    def pull_messages(self, names: list[str]) -> list:
        return [self._reply(message) for message in self.pushed if message.metadata.message_id in names]


@pytest.mark.parametrize("code", range(9))
def test_an_error_of_flowers_is_nothing_that_a_participant_has_said(code, monkeypatch) -> None:
    from flwr.app import Error, Message

    for name in ("_run_id", "_node_id", "_task_id"):  # what Flower's own process would know of itself
        monkeypatch.setattr(f"flwr.supercore.task_identity.TaskIdentity.{name}", 1)
    post = GridPost(Grid(lambda message: Message(Error(code, "Node Unavailable"), reply_to=message)))
    name = post.send(7, Letter({"kind": "job"}, b"weights"), 30.0)
    assert post.answers([name], 100) == {name: Lost("Flower says: Node Unavailable")}


def test_a_letter_is_the_same_after_its_way() -> None:
    letter = Letter({"kind": "job", "round": 3}, bytes(range(256)))
    assert letter_of(content_of(letter), 256) == letter
