"""The ways to fail: a user's mistake (exit code 2), a run that could not go on (1), one that was stopped from outside (130)."""

from __future__ import annotations

import difflib
import functools
import os
import sysconfig
import traceback
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import ClassVar, ParamSpec, TypeVar

__all__ = ["CoterieError", "Interrupted", "RunError", "UserError", "counted", "nearest", "place_of", "without_ours"]

P = ParamSpec("P")
R = TypeVar("R")

NOT_THE_USERS = tuple(f"{folder}{os.sep}" for folder in (Path(__file__).parent, *map(sysconfig.get_path, ("stdlib", "purelib"))))
"""Where code lies that is ours, Python's or a library's."""


class CoterieError(Exception):
    """Base of every error that Coterie raises on purpose; its text is one sentence for a person.

    >>> UserError.exit_code, RunError.exit_code, Interrupted.exit_code
    (2, 1, 130)
    """

    exit_code: ClassVar[int] = 1
    """What a program that ends in it returns."""


class UserError(CoterieError, ValueError):
    """What the user wrote cannot be done: the sentence names the key, the value and what was expected.

    >>> from coterie import Experiment
    >>> Experiment.load("digits-two-class", ["rounds=0"])
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: rounds = 0: should be greater than or equal to 1
    """

    exit_code: ClassVar[int] = 2


class RunError(CoterieError, RuntimeError):
    """A run that was well described but failed: a task that raised, a quorum that was missed."""


class Interrupted(RunError):
    """Stopped from outside, by Ctrl-C or a signal; what was done is on disk."""

    exit_code: ClassVar[int] = 130


def counted(number: int, noun: str) -> str:
    """So many of a thing, in words.

    >>> counted(1, "round"), counted(1200, "client")
    ('1 round', '1,200 clients')
    """
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def nearest(name: str, valid: Iterable[str]) -> str:
    """A half sentence that leads from a misspelt `name` to a valid one.

    >>> nearest("fedavgg", ["fedavg", "fedprox"])
    "did you mean 'fedavg'? Valid: fedavg, fedprox"
    >>> nearest("fed", ["fedora", "fez"])
    "did you mean 'fedora'? Valid: fedora, fez"
    >>> nearest("net", ["MyNet", "NET2"])
    "did you mean 'NET2'? Valid: MyNet, NET2"
    >>> nearest("nu", ["lam", "mu"])  # of a short name half is much
    "did you mean 'mu'? Valid: lam, mu"
    >>> nearest("bogus", ["fedavg", "rounds"])
    'valid: fedavg, rounds'
    """
    known, given = {each.lower(): each for each in sorted(valid)}, name.lower()
    longer = [each for each in known if given and each.startswith(given)]
    close = sorted(longer, key=len) or difflib.get_close_matches(given, known, n=1, cutoff=0.6 if len(given) > 3 else 0.5)
    listed = ", ".join(known.values())
    return f"did you mean '{known[close[0]]}'? Valid: {listed}" if close else f"valid: {listed}"


def place_of(error: BaseException) -> str:
    """The innermost line of the user's own code that an error came through, as the end of a sentence; nothing where there is none.

    >>> place_of(ValueError("nobody raised it"))
    ''
    """
    passed = [(frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)]
    own = [place for place in passed if not place[0].startswith((*NOT_THE_USERS, "<frozen"))]
    return f" ({Path(own[-1][0]).name}:{own[-1][1]})" if own else ""


def without_ours(function: Callable[P, R]) -> Callable[P, R]:
    """Have errors that are raised on purpose leave a function at once: their sentence says all, and forty lines of ours would hide it.

    >>> @without_ours
    ... def outer():
    ...     return inner()
    >>> def inner():
    ...     raise RunError("too few replies")
    >>> try:
    ...     outer()
    ... except RunError as error:
    ...     print([frame.name for frame in traceback.extract_tb(error.__traceback__)])
    ['<module>', 'called']
    """

    @functools.wraps(function)
    def called(*given: P.args, **named: P.kwargs) -> R:
        try:
            return function(*given, **named)
        except CoterieError as error:
            raise error.with_traceback(None) from error.__cause__

    return called
