"""Randomness by counters: every draw is a function of (run, round, client, purpose), never of what was drawn before.

So a run gives the same bits in any order of execution, on any number of workers, and after a resume.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager

import torch

__all__ = ["generator", "scoped", "seed_of"]


def seed_of(*counters: int | str) -> int:
    """A 63-bit seed from counters and words.

    >>> seed_of(0, 1, 7, "train") == seed_of(0, 1, 7, "train")
    True
    >>> seed_of(0, 1, 7, "train") == seed_of(0, 1, 8, "train")
    False
    """
    digest = hashlib.blake2b(json.dumps(counters).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


def generator(*counters: int | str) -> torch.Generator:
    """A torch generator of its own.

    >>> torch.randint(10, (3,), generator=generator(0, "demo")).tolist()
    [4, 9, 5]
    """
    return torch.Generator().manual_seed(seed_of(*counters))


@contextmanager
def scoped(seed: int) -> Iterator[None]:
    """Seed torch's default generator inside a block and put it back after.

    Layers such as `nn.Dropout`, and every initialiser, draw from that generator and take no other.
    """
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        yield
