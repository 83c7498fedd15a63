"""The ClientApp: takes a letter to the participant's own process on this machine, and its answer back.

Flower starts a process for every message. This one imports neither torch nor data: the participant (`coterie deploy client`) has them in
memory and listens on a socket in its own folder. On a SuperNode that somebody else has started there is no such process; the
letter is then answered here, with the data that the node's own configuration names.
"""

from __future__ import annotations

import socket
from typing import Any

from coterie import framing
from coterie.deployment.grid import content_of, letter_of
from coterie.framing import Letter, send

__all__ = ["answer", "client_app", "relay"]

LIMIT = 2**40


def relay(where: str, letter: Letter) -> Letter:
    """What the participant at a socket answers."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as end:
        end.connect(where)
        send(end, dict(letter.fields), letter.body)
        return framing.letter(end, LIMIT)


def answer(message: Any, context: Any) -> Any:
    """Answer one of Flower's messages."""
    from flwr.app import Message

    letter, node = letter_of(message.content, LIMIT), context.node_config
    if "socket" in node:
        said = relay(str(node["socket"]), letter)
    else:
        from coterie.deployment.participant import Participant

        said = Participant.of(node).answer(letter)
    return Message(content_of(said), reply_to=message)


def client_app() -> Any:
    """The app, as Flower wants it."""
    from flwr.clientapp import ClientApp

    made = ClientApp()
    made.train()(answer)
    made.query()(answer)
    return made
