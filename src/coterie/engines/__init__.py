"""Engines: ways to deliver an ask to clients. They never import a method, and no method imports them."""

from __future__ import annotations

import inspect
from typing import Any

from coterie.engines.engine import Engine, Job, Outcome, RunContext, TaskError
from coterie.engines.inline import Inline
from coterie.engines.processes import Processes
from coterie.engines.ray import Ray
from coterie.errors import UserError, nearest
from coterie.own import imported

__all__ = ["ENGINES", "Engine", "Inline", "Job", "Outcome", "Processes", "Ray", "RunContext", "TaskError", "build_engine", "known"]

ENGINES: dict[str, type[Engine]] = {"inline": Inline, "processes": Processes, "ray": Ray}


def build_engine(name: str, **options: Any) -> Engine:
    """An engine by its name, or a user's own by `package.module:Class`; options are what it is called with.

    >>> build_engine("processes", workers=2).workers
    2
    >>> build_engine("proceses")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: engine.name = 'proceses': no such engine, did you mean 'processes'? Valid: inline, processes, ray (or ...)
    """
    found = _find(name)
    try:
        inspect.signature(found).bind(**options)
    except TypeError as error:
        raise UserError(f"engine.name = '{name}' cannot be had with {', '.join(options) or 'no options'}: {error}") from None
    return found(**options)


def known(name: str) -> str:
    """The name itself, if it is that of an engine, or a path that may lead to one."""
    if ":" not in name and name not in ENGINES:
        raise UserError(f"engine.name = '{name}': no such engine, {nearest(name, ENGINES)} (or package.module:Class)")
    return name


def _find(name: str) -> type[Engine]:
    if known(name) in ENGINES:
        return ENGINES[name]
    found = imported(name, f"engine.name = '{name}'")
    if not (isinstance(found, type) and issubclass(found, Engine)):
        raise UserError(f"engine.name = '{name}' is not a subclass of coterie.engines.Engine")
    return found
