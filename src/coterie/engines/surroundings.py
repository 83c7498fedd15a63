"""What outlives a task in the process that performs it: looked at before, put back after, so that a task leaves nothing behind.

Clients share a process, one after the other, and none may be able to change what the next one computes. Looking and putting back take
some tens of microseconds. Global random generators are not put back but seeded for every job, which is cheaper and says more: even a task
that draws from them draws the same on every engine. Code that means harm can still reach into a process; whoever must defend
against that runs clients elsewhere.
"""

from __future__ import annotations

import _signal  # type: ignore[import-not-found]  # what `signal` wraps: it turns every answer into an enumeration
import gc
import os
import random
import resource
import signal
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from itertools import islice, starmap
from operator import is_
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from coterie.devices import CPU, Device
from coterie.models import Architecture
from coterie.site import ModelCache

__all__ = ["CleanCache", "Generators", "Surroundings", "seed_generators"]

Setting: TypeAlias = tuple[Callable[[], Any], Callable[[Any], object]]
"""How to look at something, and how to put it back."""

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGALRM, signal.SIGCHLD)
LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_CPU, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE)
GLOBAL_HOOKS: list[dict[Any, Any]] = [
    table for name, table in vars(nn.modules.module).items() if name.startswith("_global_") and isinstance(table, dict)
]
_guards: list[Any] = []


def _leave_inference_mode(before: bool) -> None:
    """Inference mode has no switch, only guards: one more, for good."""
    _guards.append(torch._C._InferenceMode(before))


def _modes() -> tuple[Any, int, int]:
    """A default device is a mode that functions of torch pass through, and so is `with torch.device(...)` that nobody has left."""
    default = getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return default, torch._C._len_torch_function_stack(), torch._C._len_torch_dispatch_stack()


def _leave_modes(before: tuple[Any, int, int]) -> None:
    default, functions, dispatched = before
    torch.set_default_device(None if default is None else default.device)
    while torch._C._len_torch_function_stack() > functions:
        torch._C._pop_torch_function_stack()
    while torch._C._len_torch_dispatch_stack() > dispatched:
        torch._C._pop_torch_dispatch_stack(None)


def _hooks() -> list[dict[Any, Any]]:
    """Those that every module calls."""
    return [each.copy() for each in GLOBAL_HOOKS if each]


def _set_hooks(before: list[dict[Any, Any]]) -> None:
    """Without any, as it was: a worker that had some before its first task would be another than the next."""
    for each in GLOBAL_HOOKS:
        each.clear()
    if before:
        raise ValueError("hooks that were there before")


def _folder() -> str:
    with suppress(OSError):  # somebody removed it
        return os.getcwd()
    return ""


def _umask() -> int:
    now = os.umask(0o77)
    os.umask(now)
    return now


def _environment() -> dict[Any, Any]:
    return os.environ._data.copy()  # type: ignore[attr-defined, no-any-return]  # as bytes: decoding takes as long as all the rest


def _set_environment(before: dict[Any, Any]) -> None:
    os.environ.clear()
    os.environ.update({os.fsdecode(key): os.fsdecode(value) for key, value in before.items()})


def _set_filters(before: list[Any]) -> None:
    warnings.filters[:] = before  # type: ignore[index]
    warnings._filters_mutated()  # type: ignore[attr-defined]


def _handlers() -> tuple[Any, ...]:
    return tuple(map(_signal.getsignal, SIGNALS))


def _set_handlers(before: tuple[Any, ...]) -> None:
    for number, handler in zip(SIGNALS, before, strict=True):
        if handler is not None:  # else it was not set from Python, and cannot be
            signal.signal(number, handler)


def _stop_alarm(going: bool) -> None:
    if not going:
        signal.setitimer(signal.ITIMER_REAL, 0)


def _limits() -> list[tuple[int, int]]:
    return [resource.getrlimit(kind) for kind in LIMITS]


def _set_limits(before: list[tuple[int, int]]) -> None:
    for kind, limits in zip(LIMITS, before, strict=True):
        resource.setrlimit(kind, limits)


def _streams() -> tuple[Any, ...]:
    return sys.stdin, sys.stdout, sys.stderr


def _set_streams(before: tuple[Any, ...]) -> None:
    sys.stdin, sys.stdout, sys.stderr = before


SETTINGS: tuple[Setting, ...] = (
    (torch.is_inference_mode_enabled, _leave_inference_mode),
    (torch.is_grad_enabled, torch.set_grad_enabled),
    (torch.get_num_threads, torch.set_num_threads),
    (torch.get_default_dtype, torch.set_default_dtype),
    (_modes, _leave_modes),
    (_hooks, _set_hooks),
    (torch.get_deterministic_debug_mode, torch.set_deterministic_debug_mode),
    (torch.get_float32_matmul_precision, torch.set_float32_matmul_precision),
    (torch.is_anomaly_enabled, torch.set_anomaly_enabled),
    (lambda: torch.is_autocast_enabled("cpu"), lambda before: torch.set_autocast_enabled("cpu", before)),
    (torch._C._get_mkldnn_enabled, torch._C._set_mkldnn_enabled),
    (sys.getrecursionlimit, sys.setrecursionlimit),
    (sys.getswitchinterval, sys.setswitchinterval),
    (sys.gettrace, sys.settrace),
    (sys.getprofile, sys.setprofile),
    (gc.isenabled, lambda before: gc.enable() if before else gc.disable()),
    (lambda: list(warnings.filters), _set_filters),
    (_streams, _set_streams),
    (_environment, _set_environment),
    (_folder, os.chdir),
    (_umask, os.umask),
    (_handlers, _set_handlers),
    (lambda: signal.getitimer(signal.ITIMER_REAL)[0] > 0, _stop_alarm),
    (lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()), lambda before: signal.pthread_sigmask(signal.SIG_SETMASK, before)),
    (_limits, _set_limits),
)
"""In the order in which they are put back."""


class Surroundings:
    """A process as it is now.

    >>> before = Surroundings()
    >>> _ = torch.set_grad_enabled(False)
    >>> before.restore(), torch.is_grad_enabled()
    (True, True)
    """

    def __init__(self) -> None:
        self._before = [look() for look, _ in SETTINGS]

    def restore(self) -> bool:
        """Put everything back as it was; whether that was possible."""
        torch.set_flush_denormal(False)  # the one setting that cannot be looked at; nobody here wants it
        whole = True
        for (look, put_back), before in zip(SETTINGS, self._before, strict=True):
            if look() != before:
                try:
                    put_back(before)
                except (OSError, ValueError):  # such as a limit that only the superuser can raise again
                    whole = False
        return whole


def seed_generators(seed: int) -> None:
    """Seed Python's, NumPy's and torch's global generators.

    >>> seed_generators(3), random.random()
    (None, 0.23796462709189137)
    """
    random.seed(seed)
    np.random.seed(seed % 2**32)  # noqa: NPY002 (the global one is what this is about)
    torch.default_generator.manual_seed(seed)


class Generators:
    """The global generators as they are now, for a process that belongs to somebody else.

    >>> before, first = Generators(), random.random()
    >>> before.restore()
    >>> random.random() == first
    True
    """

    def __init__(self) -> None:
        self._states = random.getstate(), np.random.get_state(), torch.get_rng_state()  # noqa: NPY002

    def restore(self) -> None:
        """Put them back as they were."""
        python, numpy, pytorch = self._states
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        torch.set_rng_state(pytorch)


class CleanCache(ModelCache):
    """Networks that tasks share; one that a task has changed in more than its weights is built anew for the next.

    >>> from coterie.models import MLP
    >>> networks = CleanCache()
    >>> ask = lambda: networks.model(MLP(), (1, 8, 8), 10, torch.float32, "model")
    >>> first = ask()
    >>> networks.sweep()
    >>> ask() is first
    True
    >>> _ = first.register_forward_hook(lambda net, x, y: 0 * y)
    >>> networks.sweep()
    >>> ask() is first
    False
    """

    def __init__(self, device: Device = CPU) -> None:
        super().__init__(device)
        self._anatomies: dict[int, _Anatomy] = {}
        self._used: dict[int, nn.Module] = {}

    def model(self, architecture: Architecture, shape: tuple[int, ...], classes: int, dtype: torch.dtype, slot: str) -> nn.Module:
        net = super().model(architecture, shape, classes, dtype, slot)
        if id(net) not in self._anatomies:
            self._anatomies[id(net)] = _Anatomy(net)
        self._used[id(net)] = net
        return net

    def sweep(self) -> None:
        """Let go of the networks that were used since the last time and are no longer what was built."""
        for at, net in self._used.items():
            if self._anatomies[at].changed():
                self._built = {key: each for key, each in self._built.items() if each is not net}
                del self._anatomies[at]
        self._used.clear()


class _Anatomy:
    """What a network is beside its weights: its modules, their attributes, children and parameters, and the hooks they do not have."""

    def __init__(self, net: nn.Module) -> None:
        attributes = [module.__dict__ for module in net.modules()]
        dicts = [value for each in attributes for name, value in each.items() if isinstance(value, dict) and name != "_buffers"]
        self._empty = [each for each in dicts if not each]
        self._full = [(each, 1, list(each.values())[1:]) for each in attributes]  # the first, `training`, tasks may change
        self._full += [(each, 0, list(each.values())) for each in dicts if each]
        self._parameters = [(each, each.dtype) for each in net.parameters()]

    def changed(self) -> bool:
        """Whether it is another than it was: one that looks the same and is not, is."""
        return any(self._empty) or not all(starmap(_holds, self._full)) or any(each.dtype is not dtype for each, dtype in self._parameters)


def _holds(now: Mapping[str, Any], but: int, before: Sequence[Any]) -> bool:
    """Whether a table holds, but for its first few entries, the very same things as before."""
    return len(now) == but + len(before) and all(map(is_, islice(now.values(), but, None), before))
