"""What one client can do to a run: behaviours, each with the sentence it is dropped with, for `coterie.testing.check_engine`.

A behaviour is a function of the client's Site, its honest reply and what it keeps; it does its worst, and may answer. One that has no
sentence is let in: what it does must not matter to anybody else.
"""

from __future__ import annotations

import ctypes
import gc
import itertools
import math
import os
import random
import resource
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from torch import Tensor

from coterie.method import task
from coterie.methods.fedavg import FedAvg
from coterie.record import Record
from coterie.settings import spec
from coterie.site import Observation, Site, Work
from coterie.training.score import Scores

__all__ = ["BEHAVIOURS", "Behaviour", "Crowd"]

Answer: TypeAlias = tuple[Record, Record]
Act: TypeAlias = Callable[[Site, Record, Record], Any]


@dataclass(frozen=True)
class Behaviour:
    """What a client does, and what should come of it."""

    name: str
    act: Act
    reason: str | None
    """A regular expression that the sentence must match with which it is dropped; None where it is let in."""
    isolated: bool = False
    """Whether only an engine can survive it that has clients run in processes of their own."""


BEHAVIOURS: dict[str, Behaviour] = {}
"""By name."""


@spec
class Crowd(FedAvg):
    """FedAvg among clients of which the first ones misbehave in the first round, each in its own way.

    >>> Crowd(behaviours=("raises SystemExit",)).name, BEHAVIOURS["raises SystemExit"].reason
    ('crowd', 'SystemExit: 0')
    """

    name: ClassVar[str] = "crowd"

    behaviours: tuple[str, ...] = ()
    """What client 0 does, what client 1 does, and so on; all others are honest."""

    @task
    def train(self, site: Site, memory: Record, message: Record) -> Answer:
        """Local training, and then the worst."""
        reply, kept = super().train(site, memory, message)
        if site.round != 1 or site.id >= len(self.behaviours):
            return reply, kept
        answer: Answer = BEHAVIOURS[self.behaviours[site.id]].act(site, reply, kept)
        return answer


def _add(name: str, reason: str | None, act: Act, *, isolated: bool = False) -> None:
    BEHAVIOURS[name] = Behaviour(name, act, reason, isolated)


def _ends(name: str, reason: str, do: Callable[[], object]) -> None:
    """Something that does not come back, or takes the process with it."""
    _add(name, reason, lambda site, reply, kept: do(), isolated=True)


def _raises(name: str, reason: str, make: Callable[[], BaseException]) -> None:
    def act(site: Site, reply: Record, kept: Record) -> object:
        raise make()

    _add(name, reason, act)


def _answers(name: str, reason: str | None, make: Callable[[Record], object]) -> None:
    """Another reply than the honest one."""
    _add(name, reason, lambda site, reply, kept: (make(reply), kept))


def _adds(name: str, reason: str, value: Callable[[], Any], under: str = "evil/x") -> None:
    """Something beside the honest reply."""
    _answers(name, reason, lambda reply: reply | Record({under: value()}))


def _says(name: str, reason: str | None, do: Callable[[Site], object], *, isolated: bool = False) -> None:
    """An honest reply, and something else that is said or done."""

    def act(site: Site, reply: Record, kept: Record) -> Answer:
        do(site)
        return reply, kept

    _add(name, reason, act, isolated=isolated)


def _leaves(name: str, do: Callable[[Site], object], *, isolated: bool = False) -> None:
    """Something is changed for whoever comes next in this process."""
    _says(name, None, do, isolated=isolated)


# What never comes back: a deadline ends it.

LATE = "late: it took more than"


def _spin() -> None:
    while True:
        pass


def _deaf() -> None:
    for number in set(signal.valid_signals()) - {signal.SIGKILL, signal.SIGSTOP}:
        with suppress(OSError, ValueError):
            signal.signal(number, signal.SIG_IGN)
    time.sleep(10**6)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    time.sleep(10**6)


_ends("sleeps for ever", LATE, lambda: time.sleep(10**6))
_ends("spins for ever", LATE, _spin)
_ends("computes for ever without a break", LATE, lambda: sum(itertools.repeat(0)))
_ends("stops itself", LATE, _stop)
_ends("is deaf to signals and sleeps", LATE, _deaf)

# What takes its process down.


def _alarm() -> None:
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    time.sleep(10**6)


def _babble() -> None:
    for descriptor in range(3, 256):
        with suppress(OSError):
            os.write(descriptor, b"A cuckoo's egg. " * 64)
    time.sleep(10**6)


_ends("exits with 9", r"died 3 times \(exit code 9\)", lambda: os._exit(9))
_ends("exits with 0", r"died 3 times \(exit code 0\)", lambda: os._exit(0))
_ends("crashes", r"died 3 times \(SIGSEGV\)", lambda: ctypes.string_at(0))
_ends("aborts", r"died 3 times \(SIGABRT\)", os.abort)
_ends("kills itself", r"died 3 times \(SIGKILL; out of memory\?\)", lambda: os.kill(os.getpid(), signal.SIGKILL))
_ends("terminates itself", r"died 3 times \(SIGTERM\)", lambda: os.kill(os.getpid(), signal.SIGTERM))
_ends("sets an alarm and sleeps", r"died 3 times \(SIGALRM\)", _alarm)
_ends("closes its descriptors", r"died 3 times \(exit code \d+\)", lambda: os.closerange(0, 256))
_ends("writes into every descriptor", r"died 3 times \(it sent something that is no answer\)", _babble)

# What is raised.


class _Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("no words")


class _NotAnError(BaseException):
    """Not even an Exception."""


def _recurse(depth: int = 0) -> int:
    return _recurse(depth + 1) + 1


_raises("raises ValueError", "ValueError: my bug", lambda: ValueError("my bug"))
_raises("raises SystemExit", "SystemExit: 0", lambda: SystemExit(0))
_raises("raises KeyboardInterrupt", "KeyboardInterrupt: ", KeyboardInterrupt)
_raises("raises GeneratorExit", "GeneratorExit: ", GeneratorExit)
_raises("raises StopIteration", "StopIteration: ", StopIteration)
_raises("raises MemoryError", "MemoryError: ", MemoryError)
_raises("raises what is no error", "_NotAnError: ", _NotAnError)
_raises("raises what cannot be shown", r"_Unspeakable: its message cannot be shown \(RuntimeError\)", _Unspeakable)
_raises("raises half a character", r"ValueError: half a \\ud83d", lambda: ValueError("half a \ud83d"))
_raises("raises what clears a terminal", r"ValueError: \\x1b\[2J", lambda: ValueError("\x1b[2J"))
_raises("raises 14 MB of words", r"ValueError: ha(ha)+\.\.\. \(14,000,000 characters\)", lambda: ValueError("ha" * 7_000_000))
_raises("raises what holds a lock", "ValueError: ", lambda: ValueError(threading.Lock()))
_add("recurses without end", "RecursionError: ", lambda site, reply, kept: _recurse())
_add("asks for more memory than there is", "RuntimeError: .*allocate", lambda site, reply, kept: torch.empty(2**60, dtype=torch.uint8))

# What is no answer, or cannot travel.


def _gigabyte() -> Tensor:
    return torch.empty(10**9, dtype=torch.uint8)


def _many() -> Record:
    return Record({f"g{at}/x": torch.ones(1) for at in range(20_000)})


def _quantised() -> Tensor:
    with warnings.catch_warnings(action="ignore"):  # that this kind will be gone some day
        return torch.quantize_per_tensor(torch.ones(2), 0.1, 0, torch.quint8)


_add("answers nothing", "two Records, not NoneType", lambda site, reply, kept: None)
_add("answers a reply alone", "two Records, not Record", lambda site, reply, kept: reply)
_add("answers three things", "two Records, not tuple", lambda site, reply, kept: (reply, kept, kept))
_add("answers tables", "two Records, not tuple", lambda site, reply, kept: ({}, {}))
_add("answers a generator", "two Records, not generator", lambda site, reply, kept: (each for each in (reply, kept)))
_adds("sends a sparse tensor", "is a sparse_coo float32 tensor", lambda: torch.ones(2, 2).to_sparse())
_adds("sends a tensor without data", "is a meta strided float32 tensor", lambda: torch.empty(2, device="meta"))
_adds("sends a quantised tensor", "is a strided quint8 tensor", _quantised)
_adds("sends complex numbers", "is a strided complex128 tensor", lambda: torch.ones(2, dtype=torch.complex128))
_adds("sends eight-bit floats", "is a strided float8_e4m3fn tensor", lambda: torch.ones(2).to(torch.float8_e4m3fn))
_adds("sends 65 dimensions", "evil/x has 65 dimensions, more than the 16 allowed", lambda: torch.ones([1] * 65))
_adds("sends a number of 5,000 digits", "is a whole number of 16610 bits", lambda: 10**5000)
_adds("sends half a character", "holds half a character", lambda: "\ud83d")
_adds("sends a name that is half a character", "is not a name", lambda: 1, under="\ud83d")
_adds("sends a name without a group", "is not a name", lambda: torch.ones(1), under="/x")
_adds("sends a name with a hole", "is not a name", lambda: torch.ones(1), under="a//b")
_adds("sends a name that clears a terminal", "is not a name", lambda: 1, under="\x1b[2J")
_adds("sends a name of a million letters", "a name of more than 500 characters", lambda: 1, under="x" * 10**6)
_answers("sends 20,000 groups", "has 20,004 tensors, more than the 10,032 entries allowed", lambda reply: reply | _many())
_adds("sends a gigabyte", "its reply has 1,000,.* allowed", _gigabyte)
_adds("sends 200 MB of text", "its reply has 200,.* allowed", lambda: "x" * (200 * 10**6))
_add("keeps a gigabyte", "what it keeps has 1,000,000,000 bytes", lambda site, reply, kept: (reply, Record(x=_gigabyte())))
_adds("sends a value where a group is", "model is a value, so there cannot also be model/", lambda: 1, under="model")


def _smuggles(name: str, reason: str, **entries: Any) -> None:
    """A record that was changed behind its back."""

    def make(reply: Record) -> Record:
        reply._flat.update(entries)
        return reply

    _answers(name, reason, make)


_smuggles("smuggles a name", "'/x' is not a name", **{"/x": torch.ones(1)})
_smuggles("smuggles eight-bit floats", "KeyError: torch.float8", x=torch.ones(1).to(torch.float8_e4m3fn))
_smuggles("smuggles a number of 5,000 digits", "ValueError: Exceeds the limit", x=10**5000)
_smuggles("smuggles what is nothing", "TypeError: ", x=object())
_smuggles("smuggles a value where a group is", "model is a value, so there cannot also be model/", model=1)

# What is another reply than was expected.


def _first(reply: Record, change: Callable[[Tensor], Tensor]) -> Record:
    name, value = next(iter(reply.tensors.items()))
    return reply | Record({name: change(value)})


def _poisoned(value: Tensor, poison: float) -> Tensor:
    value = value.clone()
    value.view(-1)[0] = poison
    return value


_answers("sends what is not a number", "is not finite", lambda reply: _first(reply, lambda value: _poisoned(value, math.nan)))
_answers("sends what is infinite", "is not finite", lambda reply: _first(reply, lambda value: _poisoned(value, math.inf)))
_answers("sends weights of 1e38", "too large to compute with", lambda reply: reply.map(lambda value: torch.full_like(value, 1e38)))
_answers("sends weights of 1e15", "is over 1000 times the norm", lambda reply: reply.map(lambda value: torch.full_like(value, 1e15)))
_answers("sends weights a million times as large", "is over 1000 times the norm", lambda reply: reply.map(lambda value: -(10**6) * value))
_answers("sends another shape", r"expected float32\[", lambda reply: _first(reply, lambda value: value.T.contiguous()))
_answers("sends another precision", "is float64.*expected float32", lambda reply: reply.map(Tensor.double))
_answers("sends whole numbers", "is int64.*expected float32", lambda reply: reply.map(Tensor.long))
_answers("sends a part", "is missing", lambda reply: Record(dict(list(reply.items())[1:])))
_answers("sends nothing", "is missing", lambda reply: Record())
_adds("sends a tensor too many", "model/more was not expected", lambda: torch.ones(1), under="model/more")
_adds("sends a group too many", "evil/x was not expected", lambda: torch.ones(1))
_adds("sends a scalar that is not a number", "loss = nan is not finite", lambda: math.nan, under="loss")


def _counts(name: str, reason: str, count: object) -> None:
    _answers(name, reason, lambda reply: Record(model=reply.group("model"), **({} if count is None else {"examples": count})))  # type: ignore[arg-type]


_counts("counts no examples at all", "examples is missing", None)
_counts("counts 0 examples", "examples = 0, expected a whole number from 1", 0)
_counts("counts -4 examples", "examples = -4, expected a whole number from 1", -4)
_counts("counts half an example", "examples = 2.5, expected a whole number from 1", 2.5)
_counts("counts True", "examples = True, expected a whole number from 1", True)
_counts("counts nan", "examples = nan is not finite", math.nan)
_counts("counts in words", "examples is missing, a number", "many")
_counts("counts in a tensor", "examples was not expected", torch.tensor(7))
_counts("counts ten million examples", "examples = 10000000, expected at most", 10**7)
_counts("counts 1e18 examples", "examples = 10{18}, expected at most", 10**18)
_add("counts one example too many", "expected at most", lambda site, reply, kept: (reply | Record(examples=len(site.train) + 1), kept))

# What is said beside a reply, which the ledger must be able to hold.

_says("logs what is no number", "what it logs", lambda site: site.logs.update(evil=object()))
_says("logs a hundred megabytes", "what it logs has", lambda site: site.logs.update(evil="x" * 10**8))
_says("logs under a new name", None, lambda site: site.logs.update(new=[1.0, 2.0]))
_says("forges a measurement", "measure", lambda site: site.observations.append(Observation("global", Scores(1, 1, 1, 0.0))))
_says("measures in words", "measure|TypeError", lambda site: site.observations.append("good"))  # type: ignore[arg-type]
_says("trains in words", "training", lambda site: site.work.append(Work("train", "many", 1, None)))  # type: ignore[arg-type]
_says("trains a negative number of steps", "training", lambda site: site.work.append(Work("train", -(10**30), 1, None)))

# What is left behind for whoever comes next.


def _in_a_hole(site: Site) -> None:
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)


def _limit_memory(site: Site) -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2**30, resource.getrlimit(resource.RLIMIT_AS)[1]))


def _hook(site: Site) -> None:
    site.model().register_forward_hook(lambda net, x, y: 0 * y)


def _bypass(site: Site) -> None:
    site.model().forward = lambda x: torch.zeros(len(x), 10, requires_grad=True)


def _seed(site: Site) -> None:
    torch.manual_seed(3)
    np.random.seed(3)  # noqa: NPY002
    random.seed(3)


def _print(site: Site) -> None:
    sys.stdout.write('{"ticket": 0}\n')
    sys.stdout.flush()


def _edit(site: Site) -> None:
    with torch.no_grad():
        for value in site.model().parameters():
            value.fill_(math.nan)


_leaves("turns gradients off", lambda site: torch.set_grad_enabled(False))
_leaves("turns inference mode on", lambda site: torch.inference_mode().__enter__())
_leaves("takes four threads", lambda site: torch.set_num_threads(4))
_leaves("computes in double precision", lambda site: torch.set_default_dtype(torch.float64))
_leaves("computes on no device", lambda site: torch.set_default_device("meta"))
_leaves("wants deterministic algorithms", lambda site: torch.use_deterministic_algorithms(True))
_leaves("computes in bfloat16", lambda site: torch.set_autocast_enabled("cpu", True))
_leaves("turns mkldnn off", lambda site: torch._C._set_mkldnn_enabled(False))
_leaves("flushes denormals", lambda site: torch.set_flush_denormal(True))
_leaves("looks for anomalies", lambda site: torch.set_anomaly_enabled(True))
_leaves("seeds the global generators", _seed)
_leaves("hooks the network", _hook)
_leaves("bypasses the network", _bypass)
_leaves("halves the network", lambda site: site.model().half())
_leaves("fills the network with nan", _edit)
_leaves("goes to a folder that goes", _in_a_hole)
_leaves("empties the environment", lambda site: os.environ.clear())
_leaves("lets no file be read", lambda site: os.umask(0o777))
_leaves("handles signals", lambda site: signal.signal(signal.SIGTERM, lambda number, frame: None))
_leaves("blocks signals", lambda site: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM, signal.SIGALRM}))
_leaves("leaves an alarm set", lambda site: signal.setitimer(signal.ITIMER_REAL, 0.2))
_leaves("makes warnings errors", lambda site: warnings.simplefilter("error"))
_leaves("limits recursion", lambda site: sys.setrecursionlimit(150))
_leaves("limits memory", _limit_memory)
_leaves("stops collecting garbage", lambda site: gc.disable())
_leaves("traces every line", lambda site: sys.settrace(lambda frame, event, argument: None))
_leaves("takes standard output away", lambda site: setattr(sys, "stdout", None))
_leaves("prints what looks like an answer", _print)
_leaves("forks, and both go on", lambda site: os.fork())
_leaves("leaves a bomb", lambda site: threading.Timer(0.1, os._exit, [7]).start(), isolated=True)
