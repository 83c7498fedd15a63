"""A frame is whole, short enough and a table, or it is an error; nothing that the other end does holds anybody up."""

from __future__ import annotations

import json
import socket

import pytest

from coterie import framing
from coterie.framing import LENGTHS, FrameError, receive, send


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield ours, theirs


def test_frames_come_as_they_were_sent_one_after_the_other(ends) -> None:
    ours, theirs = ends
    for header, body in (({"ready": True}, b""), ({"ticket": 3, "logs": {"é": [0.5]}}, b"reply")):
        send(ours, header, body)
    assert [receive(theirs, limit=5) for _ in range(2)] == [({"ready": True}, b""), ({"ticket": 3, "logs": {"é": [0.5]}}, b"reply")]


@pytest.mark.parametrize(
    ("data", "complaint"),
    [
        (b"A cuckoo's egg. ", "a frame of .* bytes"),
        (LENGTHS.pack(2, 11) + b"{}", "a frame of 2 and 11 bytes"),
        (LENGTHS.pack(2**40, 0), "a frame of 1,099,511,627,776 and 0 bytes"),
        (LENGTHS.pack(3, 0) + b"{x}", "a header that is none"),
        (LENGTHS.pack(1, 0) + b"\xff", "a header that is none"),
        (LENGTHS.pack(20_000, 0) + b"[" * 20_000, "a header that is none"),
        (LENGTHS.pack(6000, 0) + b"9" * 6000, "a header that is none"),
        (LENGTHS.pack(2, 0) + b"[]", "a header that is no table"),
    ],
)
def test_what_is_no_frame_is_an_error(ends, data, complaint) -> None:
    ours, theirs = ends
    ours.sendall(data)
    with pytest.raises(FrameError, match=complaint):
        receive(theirs, limit=10)


@pytest.mark.parametrize("sent", [0, 1, LENGTHS.size, LENGTHS.size + 1, LENGTHS.size + 3])
def test_an_end_that_is_closed_is_the_end(ends, sent) -> None:
    ours, theirs = ends
    ours.sendall((LENGTHS.pack(2, 5) + json.dumps({}).encode() + b"reply")[:sent])
    ours.close()
    with pytest.raises(EOFError):
        receive(theirs, limit=10)


@pytest.mark.parametrize("sent", [1, LENGTHS.size, LENGTHS.size + 1, LENGTHS.size + 3])
def test_what_is_begun_and_not_ended_is_not_waited_for_for_ever(ends, sent, monkeypatch) -> None:
    monkeypatch.setattr(framing, "PATIENCE", 0.05)
    ours, theirs = ends
    ours.sendall((LENGTHS.pack(2, 5) + b"{}reply")[:sent])
    with pytest.raises(FrameError, match="a frame that does not end"):
        receive(theirs, limit=10)
