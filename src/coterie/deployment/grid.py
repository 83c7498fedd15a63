"""Letters as Flower's messages: fields as JSON in a ConfigRecord, bytes in one Array, which Flower cuts in chunks: any size fits."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from coterie.framing import Letter

if TYPE_CHECKING:  # torch comes with it
    from coterie.engines.flower import Answer

__all__ = ["GridPost", "content_of", "letter_of"]

HOUR = 3600.0
MOST = 64 * 2**20
"""Characters of a letter's fields."""


def content_of(letter: Letter) -> Any:
    """A letter as the content of a Flower message."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    body = Array("uint8", (len(letter.body),), "coterie", letter.body)
    return RecordDict({"letter": ConfigRecord({"json": json.dumps(letter.fields)}), "body": ArrayRecord({"bytes": body})})


def letter_of(content: Any, limit: int) -> Letter:
    """The letter in a Flower message; whatever else it is raises."""
    text, body = content["letter"]["json"], content["body"]["bytes"].data
    if not isinstance(text, str) or len(text) > MOST or len(body) > limit:
        raise ValueError(f"an answer of {len(body):,} bytes, more than the {limit:,} allowed")
    fields = json.loads(text)
    if not isinstance(fields, dict):
        raise ValueError("an answer without fields")
    return Letter(fields, bytes(body))


class GridPost:
    """Flower's Grid as a `Post`."""

    def __init__(self, grid: Any) -> None:
        self._grid = grid

    def nodes(self) -> set[int]:
        """Who is connected."""
        return set(self._grid.get_node_ids())

    def send(self, node: int, letter: Letter, seconds: float | None) -> str:
        """Post a letter."""
        from flwr.app import Message

        kind = "query" if letter.fields["kind"] == "hello" else "train"
        message = Message(content_of(letter), node, kind, ttl=HOUR if seconds is None else max(seconds, 1.0))
        (name,) = self._grid.push_messages([message])
        return str(name)

    def answers(self, names: Sequence[str], limit: int) -> dict[str, Answer]:
        """The answers that have come."""
        from coterie.engines.flower import Lost

        found: dict[str, Answer] = {}
        for message in self._grid.pull_messages(list(names)):
            name = message.metadata.reply_to_message_id
            if message.has_error():
                found[name] = Lost(f"Flower says: {message.error.reason}")  # whoever was asked is gone, or ended while it was at it
                continue
            try:
                found[name] = letter_of(message.content, limit)
            except Exception as error:  # whatever it is that was sent
                found[name] = f"it sent something that is no answer: {type(error).__name__}: {error}"
        return found
