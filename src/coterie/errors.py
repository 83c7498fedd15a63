"""The ways to fail: a user's mistake (exit code 2), a run that could not go on (exit code 1), and one that was stopped (exit code 130)."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

__all__ = ["CoterieError", "Interrupted", "RunError", "UserError", "nearest"]


class CoterieError(Exception):
    """Base of every error that Coterie raises on purpose; its text is one sentence for a person.

    >>> issubclass(UserError, CoterieError) and issubclass(RunError, CoterieError)
    True
    """


class UserError(CoterieError, ValueError):
    """What the user wrote cannot be done: the sentence names the key, the value and what was expected.

    >>> str(UserError("rounds = 0: should be greater than or equal to 1"))
    'rounds = 0: should be greater than or equal to 1'
    """


class RunError(CoterieError, RuntimeError):
    """A run that was well described but failed: a task that raised, a quorum that was missed.

    >>> isinstance(RunError("client 3, task 'train', round 2: ..."), UserError)
    False
    """


class Interrupted(RunError):
    """Stopped from outside; what was done is on disk.

    >>> issubclass(Interrupted, RunError)
    True
    """


def nearest(name: str, valid: Iterable[str]) -> str:
    """A half sentence that leads from a misspelt `name` to a valid one.

    >>> nearest("fedavgg", ["fedavg", "fedprox"])
    "did you mean 'fedavg'? Valid: fedavg, fedprox"
    >>> nearest("fed", ["fedora", "fez"])
    "did you mean 'fedora'? Valid: fedora, fez"
    >>> nearest("zzz", ["fedavg", "fedprox"])
    'valid: fedavg, fedprox'
    """
    known, given = sorted(valid), name.lower()
    longer = [each for each in known if given and each.startswith(given)]
    close = sorted(longer, key=len) or difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    listed = ", ".join(known)
    return f"did you mean '{close[0]}'? Valid: {listed}" if close else f"valid: {listed}"
