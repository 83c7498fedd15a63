"""Ctrl-C and SIGTERM, at any moment: the first stops what goes on, the second ends it at once; the exit code is 130 either way.

It comes before everything else is imported, so that a signal meanwhile is a sentence too; it needs nothing but Python's own.
"""

from __future__ import annotations

import atexit
import os
import signal
import sys
from collections.abc import Callable
from contextlib import suppress
from types import FrameType
from typing import Any, NoReturn

__all__ = ["CODE", "heard", "listen", "say", "until_the_end"]

CODE = 128 + signal.SIGINT
"""The exit code of what was stopped."""

_seen = {"heard": False, "over": False}


def heard() -> bool:
    """Whether there was a signal."""
    return _seen["heard"]


def listen() -> None:
    """From now on SIGTERM is what Ctrl-C is: a KeyboardInterrupt. A Ctrl-C that the shell ignores (a background job) stays ignored."""
    for number in (signal.SIGINT, signal.SIGTERM):
        if number == signal.SIGTERM or signal.getsignal(number) != signal.SIG_IGN:
            signal.signal(number, _stop)
    _seen["heard"] = False


def until_the_end(command: Callable[[], None]) -> NoReturn:
    """Do a command and end the process: whatever a signal breaks, on the way in or out, is one sentence and the exit code."""
    listen()
    sys.unraisablehook = _unraisable
    code: object = None
    try:
        command()
    except SystemExit as end:
        code = end.code
    except BaseException:
        if not heard():
            raise
    if heard() and code != CODE:  # else all is said
        say("stopped")
        code = CODE
    _leave(code if isinstance(code, int) else 0 if code is None else 1)


def _leave(code: int) -> NoReturn:
    """End here and now: while Python takes itself down, a signal would be a death without a word."""
    _seen["over"] = True
    atexit._run_exitfuncs()
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # whoever read our output is gone
        code = code or 1
    os._exit(code)


def say(sentence: str) -> None:
    """An error's sentence, where nothing may be imported any more."""
    with suppress(OSError, ValueError):
        sys.stderr.write(f"error: {sentence}\n")
        sys.stderr.flush()


def _stop(number: int, frame: FrameType | None) -> None:
    if heard() or _seen["over"]:
        show_cursor = "\x1b[?25h" if sys.stderr.isatty() else ""  # a progress bar hides it
        with suppress(OSError):
            os.write(2, f"{show_cursor}error: stopped at once\n".encode())
        os._exit(CODE)
    _seen["heard"] = True
    _interrupt(number, frame)


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Raise, but not into an import, which is waited for: torch imports modules in C++, where an exception ends the process."""
    if _importing(frame):
        signal.signal(signal.SIGALRM, _interrupt)
        signal.setitimer(signal.ITIMER_REAL, 0.02)
    else:
        raise KeyboardInterrupt


def _importing(frame: FrameType | None) -> bool:
    while frame is not None and not frame.f_code.co_filename.startswith("<frozen importlib"):
        frame = frame.f_back
    return frame is not None


def _unraisable(lost: Any) -> None:
    """A KeyboardInterrupt in a destructor goes nowhere: it is raised once more, where somebody hears it."""
    if lost.exc_type is KeyboardInterrupt:
        _seen["heard"] = False
        signal.raise_signal(signal.SIGTERM)
    else:
        sys.__unraisablehook__(lost)
