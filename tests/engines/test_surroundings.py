"""Whatever a task changes in its process is as before for the next one."""

from __future__ import annotations

import gc
import os
import random
import resource
import signal
import sys
import warnings

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from coterie.engines.surroundings import CleanCache, Generators, Surroundings, seed_generators
from coterie.models import MLP


def handler(number, frame) -> None:
    """Does nothing."""


CHANGES = {
    "grad mode": (torch.is_grad_enabled, lambda: torch.set_grad_enabled(False)),
    "inference mode": (torch.is_inference_mode_enabled, lambda: KEPT.append(torch._C._InferenceMode(True))),
    "threads": (torch.get_num_threads, lambda: torch.set_num_threads(torch.get_num_threads() + 1)),
    "default dtype": (torch.get_default_dtype, lambda: torch.set_default_dtype(torch.float64)),
    "default device": (torch.get_default_device, lambda: torch.set_default_device("meta")),
    "a device that is not left": (lambda: torch.empty(0).device, lambda: torch.device("meta").__enter__()),
    "a mode that is not left": (torch._C._len_torch_dispatch_stack, lambda: FlopCounterMode(display=False).__enter__()),
    "hooks of all modules": (
        lambda: nn.ReLU()(torch.ones(())).item(),
        lambda: nn.modules.module.register_module_forward_hook(lambda net, given, answer: 2 * answer),
    ),
    "deterministic": (torch.are_deterministic_algorithms_enabled, lambda: torch.use_deterministic_algorithms(True)),
    "deterministic, with a warning": (torch.get_deterministic_debug_mode, lambda: torch.set_deterministic_debug_mode("warn")),
    "matmul precision": (torch.get_float32_matmul_precision, lambda: torch.set_float32_matmul_precision("medium")),
    "autocast": (lambda: torch.is_autocast_enabled("cpu"), lambda: torch.set_autocast_enabled("cpu", True)),
    "mkldnn": (torch._C._get_mkldnn_enabled, lambda: torch._C._set_mkldnn_enabled(False)),
    "anomalies": (torch.is_anomaly_enabled, lambda: torch.set_anomaly_enabled(True)),
    "recursion": (sys.getrecursionlimit, lambda: sys.setrecursionlimit(sys.getrecursionlimit() + 7)),
    "switching": (sys.getswitchinterval, lambda: sys.setswitchinterval(1.0)),
    "profiling": (sys.getprofile, lambda: sys.setprofile(lambda *about: None)),
    "garbage": (gc.isenabled, gc.disable),
    "warnings": (lambda: list(warnings.filters), lambda: warnings.simplefilter("ignore")),
    "streams": (lambda: (sys.stdin, sys.stdout, sys.stderr), lambda: setattr(sys, "stderr", None)),
    "environment": (lambda: dict(os.environ), lambda: os.environ.update(OMP_NUM_THREADS="7", COTERIE="evil")),
    "empty environment": (lambda: dict(os.environ), lambda: os.environ.clear()),
    "folder": (os.getcwd, lambda: os.chdir("/")),
    "umask": (lambda: (os.umask(now := os.umask(0o22)), now)[1], lambda: os.umask(0o777)),
    "handlers": (lambda: signal.getsignal(signal.SIGTERM), lambda: signal.signal(signal.SIGTERM, handler)),
    "alarm": (lambda: signal.getitimer(signal.ITIMER_REAL), lambda: signal.setitimer(signal.ITIMER_REAL, 60)),
    "blocked": (
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, ()),
        lambda: signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1}),
    ),
    "open files": (
        lambda: resource.getrlimit(resource.RLIMIT_NOFILE),
        lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (100, resource.getrlimit(resource.RLIMIT_NOFILE)[1])),
    ),
}
KEPT: list[object] = []


@pytest.mark.parametrize("what", CHANGES)
def test_it_is_put_back(what) -> None:
    look, change = CHANGES[what]
    before, surroundings = look(), Surroundings()
    change()
    changed = look() != before
    assert surroundings.restore()
    assert changed
    assert look() == before


def test_a_device_that_a_person_has_chosen_stays() -> None:
    torch.set_default_device("cpu")
    try:
        surroundings = Surroundings()
        torch.set_default_device("meta")
        assert surroundings.restore()
        assert torch.empty(0).device.type == "cpu"
    finally:
        torch.set_default_device(None)


def test_what_cannot_be_put_back_is_said(tmp_path, monkeypatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    surroundings = Surroundings()
    os.chdir(tmp_path)
    gone.rmdir()
    assert not surroundings.restore()


def test_generators_are_seeded_for_a_job_and_a_persons_own_are_put_back() -> None:
    def draw() -> tuple[float, ...]:
        return random.random(), float(np.random.rand()), float(torch.rand(()))  # noqa: NPY002

    before = Generators()
    own = draw()
    seed_generators(2**62 + 3)
    drawn = draw()
    seed_generators(2**62 + 3)
    assert draw() == drawn
    before.restore()
    assert draw() == own != drawn


@pytest.mark.parametrize(
    "change",
    [
        lambda net: net.register_forward_hook(lambda net, x, y: 0 * y),
        lambda net: net[0].register_forward_pre_hook(lambda net, x: None),
        lambda net: net.half(),
        lambda net: setattr(net, "forward", lambda x: x),
        lambda net: setattr(net, "head", torch.nn.Identity()),
        lambda net: setattr(net.head, "weight", torch.nn.Parameter(torch.zeros(1))),
        lambda net: setattr(net.head, "in_features", 3),
        lambda net: net.head.register_buffer("more", torch.zeros(1)) or setattr(net.head, "extra", 1),
    ],
)
def test_a_network_that_a_task_has_changed_is_built_anew(change) -> None:
    networks = CleanCache()

    def ask() -> torch.nn.Module:
        return networks.model(MLP(), (1, 8, 8), 10, torch.float32, "model")

    first = ask()
    with torch.no_grad():
        first.train(False)
        next(first.parameters()).zero_()
    networks.sweep()
    assert ask() is first, "evaluating and other weights are no change"
    change(first)
    networks.sweep()
    assert ask() is not first
