"""Every byte that crosses the network, on the ledger: payload by kind of content, and as it is framed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from coterie.ledger import Ledger
from coterie.record import Record

__all__ = ["Direction", "Traffic", "kinds_of"]

Direction = Literal["up", "down"]
KINDS = {"model": "weights"}
"""Groups of a message whose content has another name in the ledger; others are called what they are."""
EMPTY_KIND = "empty"
"""What a message without tensors is called."""


@dataclass
class Traffic:
    """Writes `exchange` lines."""

    ledger: Ledger

    def message(
        self, round: int, task: str, client: int, direction: Direction, record: Record, framed: int, per_sample: set[str] | None = None
    ) -> None:
        """Count a message; of the groups that have a row for each sample, also how many samples that is."""
        rows = {KINDS.get(group, group): _rows(record, group) for group in per_sample or () if group in record}
        self.count(round, task, client, direction, kinds_of(record), framed, rows)

    def count(
        self,
        round: int,
        task: str,
        client: int,
        direction: Direction,
        kinds: Mapping[str, int],
        framed: int,
        samples: Mapping[str, int] | None = None,
    ) -> None:
        """One line for each kind of content; the framing is on the first."""
        overhead = framed - sum(kinds.values())
        for kind, payload in kinds.items():
            sizes = {"payload_bytes": payload, "framed_bytes": payload + overhead}
            sizes |= {"samples": samples[kind]} if samples and kind in samples else {}
            self.ledger.write("exchange", round=round, task=task, client=client, direction=direction, kind=kind, **sizes)
            overhead = 0

    def setup(self, client: int, direction: Direction, kind: str, payload: int) -> None:
        """Count bytes that moved before the first round and outside any message, such as public data handed out."""
        self.count(0, "setup", client, direction, {kind: payload}, payload)


def kinds_of(record: Record) -> dict[str, int]:
    """Payload bytes by kind of content, in an order that does not depend on how the record came to be: built, or read from a file.

    >>> import torch
    >>> kinds_of(Record(model={"w": torch.ones(2)}, logits=torch.ones(3), examples=600))
    {'logits': 12, 'weights': 8}
    """
    sizes: dict[str, int] = {}
    for name, value in record.tensors.items():
        group = name.split("/", 1)[0]
        kind = KINDS.get(group, group)
        sizes[kind] = sizes.get(kind, 0) + value.numel() * value.element_size()
    return {kind: size for kind, size in sorted(sizes.items()) if size} or {EMPTY_KIND: 0}


def _rows(record: Record, group: str) -> int:
    found = record[group]
    tensors = found.tensors.values() if isinstance(found, Record) else [found]
    return max(len(each) for each in tensors)  # type: ignore[arg-type]
