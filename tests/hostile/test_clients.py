"""What one client can do to a run: it is dropped and named, the others go on, and the bits are those of a run without it.

All behaviours are in one run of each engine, a client each; `python -m tests.hostile.clients` (`make hostile`) runs each by itself, some
times over, and writes the table of `docs/reliability.md`.
"""

from __future__ import annotations

import importlib
import re

import pytest

from coterie import forking
from coterie.engines import Inline, Processes
from coterie.engines.engine import Engine
from coterie.hostile import BEHAVIOURS
from coterie.testing import ConformanceError, Trial, check_engine, try_engine

SLOW = {
    "spins for ever",
    "computes for ever without a break",
    "is deaf to signals and sleeps",
    "exits with 0",
    "aborts",
    "terminates itself",
    "sets an alarm and sleeps",
}
"""Left to the long form: each is like another one, and costs a deadline or three workers."""
SHORT = [name for name in BEHAVIOURS if name not in SLOW]
ENGINES = {"inline": Inline, "processes": lambda: Processes(2)}


@pytest.fixture(scope="module")
def trials() -> dict[str, Trial]:
    importlib.import_module("torch._dynamo")  # deterministic algorithms do, for longer than the deadline where the machine is busy
    forking.begin("torch._dynamo")
    return {name: try_engine(build, SHORT, deadline=8.0) for name, build in ENGINES.items()}


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("behaviour", SHORT)
def test_a_client_that(behaviour, engine, trials) -> None:
    names = [each.name for each in trials[engine].behaviours]
    if behaviour not in names:
        pytest.skip("only a process of its own survives this")
    assert trials[engine].complaint(names.index(behaviour)) is None


@pytest.mark.parametrize("engine", ENGINES)
def test_honest_clients_are_let_in_and_the_bits_are_those_of_a_run_without_the_others(engine, trials) -> None:
    assert list(trials[engine].complaints()) == []
    assert trials[engine].same


class Forgetful(Inline):
    """An engine that says that nobody answered, whatever they did."""

    def deliver(self, jobs):
        return (job.failed("no idea") if outcome.error else outcome for job, outcome in zip(jobs, super().deliver(jobs), strict=True))


class Leaky(Inline):
    """An engine that lets what a task changes stay."""

    def open(self, context) -> None:
        super().open(context)
        self._performer._cache.sweep = lambda: None


@pytest.mark.parametrize(
    ("engine", "behaviour", "complaint"),
    [
        (Forgetful, "raises ValueError", "a client that raises ValueError was dropped with '.*no idea', expected 'ValueError: my bug'"),
        (Leaky, "hooks the network", "the result is not that of a run in which the dropped clients are missing"),
    ],
)
def test_the_suite_finds_engines_that_do_not_survive(engine: type[Engine], behaviour, complaint) -> None:
    with pytest.raises(ConformanceError, match=complaint):
        check_engine(engine, [behaviour])


def test_every_behaviour_says_what_should_come_of_it() -> None:
    assert len(BEHAVIOURS) >= 82
    for behaviour in BEHAVIOURS.values():
        re.compile(behaviour.reason or "")
    assert set(BEHAVIOURS) >= SLOW
