"""Engines: ways to deliver an ask to clients. They never import a method, and no method imports them."""

from coterie.engines.engine import Engine, Job, Outcome, RunContext, TaskError
from coterie.engines.inline import Inline
from coterie.engines.processes import Processes

__all__ = ["Engine", "Inline", "Job", "Outcome", "Processes", "RunContext", "TaskError"]
