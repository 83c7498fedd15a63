"""A participant's process: takes letters from a SuperNode that it has started and watches, and gives back its answers.

Flower would start a process for every message, and run in it what the server has sent. With `--isolation process` a SuperNode only
keeps messages until somebody fetches them: that is done here, by this process, which has data and torch in memory. Of the app that
comes with a message nothing is installed or run.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

from coterie.deployment.flower import FlowerHome, free_port, near, start_supernode, started
from coterie.deployment.grid import content_of, letter_of
from coterie.deployment.keys import write_secret
from coterie.deployment.participant import Participant

__all__ = ["serve_participant"]

LIMIT = 2**40
POLL = 0.1
"""Seconds between looks for a message."""
AGAIN = 5.0
"""Seconds before a SuperNode that has ended is started again."""
SECRET = "supernode.secret"
"""By which the SuperNode knows that it is this process that fetches messages."""


def serve_participant(
    participant: Participant, server: str, keys: tuple[Path, Path] | None, over: Callable[[], bool] = lambda: False
) -> None:
    """Take part until told otherwise; a SuperNode that ends is started again."""
    flower, log = FlowerHome(participant.home / "flower"), participant.home / "supernode.log"
    participant.home.mkdir(parents=True, exist_ok=True)
    os.environ.update(near(os.environ))
    try:
        while True:
            port, secret = free_port(), secrets.token_bytes(32)
            write_secret(participant.home / SECRET, secret)
            with started(start_supernode(flower, server, keys, port, participant.home / SECRET, log)) as node:
                _carry(participant, port, secret, lambda: over() or node.poll() is not None)
            if over():
                return
            participant.say(f"Flower's SuperNode has ended (see {log}): are its key registered and this machine's clock right?")
            time.sleep(AGAIN)
    finally:
        participant.close()


def _carry(participant: Participant, port: int, secret: bytes, over: Callable[[], bool]) -> None:
    """Answer one message after another, as long as there is a SuperNode."""
    import httpx
    from flwr.proto.runtime_pb2 import AcquireTaskRequest
    from flwr.supercore.constant import TaskType
    from flwr.supercore.interceptors import SuperExecAuthHttpInterceptor

    signed = SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={"/flwr.proto.Runtime/AcquireTask"})
    desk = _desk(port, signed)
    while not over():
        with suppress(httpx.HTTPError):  # the SuperNode is not there yet, or not any more
            found = desk.AcquireTask(AcquireTaskRequest(supported_task_types=[TaskType.CLIENT_APP]))
            if found.token:
                _answer(participant, port, found.token)
        time.sleep(POLL)
    desk.close()


def _answer(participant: Participant, port: int, token: str) -> None:
    """One message: fetched, answered, and the answer handed to the SuperNode."""
    from flwr.app import Error, Message
    from flwr.common.constant import ErrorCode, SubStatus
    from flwr.supercore.heartbeat import HeartbeatSender
    from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor
    from flwr.supernode.runtime.run_clientapp import pull_task_input, push_message, push_task_output

    desk = _desk(port, RuntimeTokenHttpInterceptor(token))
    alive = HeartbeatSender(lambda: _beat(desk))
    alive.start()
    try:
        message, context, _, _ = pull_task_input(desk)
        try:
            said = Message(content_of(participant.answer(letter_of(message.content, LIMIT))), reply_to=message)
        except Exception as error:  # it is no letter: another app's message
            participant.say(f"a message that is none of ours: {type(error).__name__}: {error}")
            said = Message(Error(ErrorCode.CLIENT_APP_RAISED_EXCEPTION, "not a message of Coterie's"), reply_to=message)
        push_message(desk, said, context)
        push_task_output(desk, context, SubStatus.COMPLETED, "")
    finally:
        alive.stop()
        desk.close()


def _beat(desk: Any) -> bool:
    """Tell the SuperNode that its message is being worked on; whether it has heard is found out when it gets the answer."""
    import httpx
    from flwr.proto.runtime_pb2 import SendTaskHeartbeatRequest

    with suppress(httpx.HTTPError):
        desk.SendTaskHeartbeat(SendTaskHeartbeatRequest())
    return True


def _desk(port: int, proof: Any) -> Any:
    """Where a SuperNode on this machine hands out messages, to whoever has a proof."""
    from flwr.supercore.interceptors import RuntimeVersionHttpInterceptor
    from flwr.supercore.runtime import RuntimeHttpClient

    proofs = [RuntimeVersionHttpInterceptor(component_name="SuperExec"), proof]
    return RuntimeHttpClient.from_server_address(f"127.0.0.1:{port}", insecure=True, root_certificates=None, interceptors=proofs)
