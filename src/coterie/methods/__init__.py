"""The methods, one file each. A method class that gives itself a `name` is found and registered; nothing else lists it."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterator

from coterie.method import Method
from coterie.settings import Registry

__all__ = ["METHODS"]


def _found() -> Iterator[type[Method]]:
    """Every method class of this package with a name of its own, file by file."""
    for module in sorted(each.name for each in pkgutil.iter_modules(__path__)):
        for found in vars(importlib.import_module(f"{__name__}.{module}")).values():
            here = isinstance(found, type) and found.__module__ == f"{__name__}.{module}"
            if here and issubclass(found, Method) and "name" in vars(found).get("__annotations__", {}):
                yield found


METHODS: Registry[Method] = Registry("method", Method, _found())
globals().update({each.__name__: each for each in METHODS.specs.values()})
