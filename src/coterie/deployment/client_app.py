"""The ClientApp, for a SuperNode that somebody else has started: answers with the data that the node's own configuration names.

Flower starts a process for every message, which imports torch and loads the data anew. `coterie deploy client` does without: see
`coterie.deployment.resident`.
"""

from __future__ import annotations

from contextlib import closing
from typing import Any

from coterie.deployment.grid import content_of, letter_of

__all__ = ["answer", "client_app"]

LIMIT = 2**40


def answer(message: Any, context: Any) -> Any:
    """Answer one of Flower's messages."""
    from flwr.app import Message

    from coterie.deployment.participant import Participant

    with closing(Participant.of(context.node_config)) as participant:
        said = participant.answer(letter_of(message.content, LIMIT))
    return Message(content_of(said), reply_to=message)


def client_app() -> Any:
    """The app, as Flower wants it."""
    from flwr.clientapp import ClientApp

    made = ClientApp()
    made.train()(answer)
    made.query()(answer)
    return made
