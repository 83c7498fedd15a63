"""A user's own things, found where the user works: classes as `package.module:Name`, files by paths that are not absolute.

Python looks beside a script, not where a command is given. Coterie also looks in the current folder and beside the experiment file.
"""

from __future__ import annotations

import difflib
import importlib
import sys
from pathlib import Path
from typing import Any

from coterie.errors import UserError, nearest, place_of

__all__ = ["file_at", "imported", "look_in", "looked", "no_file", "places"]

_places: list[Path] = []


def look_in(*folders: Path) -> None:
    """From now on a user's own modules and files are also looked for here; what is installed comes first.

    >>> look_in(Path("."))
    >>> Path(".").resolve() in places()
    True
    """
    for folder in (each.resolve() for each in folders):
        if folder not in _places:
            _places.append(folder)
        if str(folder) not in sys.path:
            sys.path.append(str(folder))


def places() -> tuple[Path, ...]:
    """Where is looked, for a process that is to look there too."""
    return tuple(_places)


def file_at(path: str, folder: Path) -> Path:
    """What a path that is not absolute means: under the data folder, in the first of the places that has it, or in the current folder.

    >>> file_at("no/such.npz", Path("data")).as_posix()
    'data/no/such.npz'
    """
    given = Path(path).expanduser()
    return next((each / given for each in looked(path, folder) if (each / given).exists()), folder / given)


def looked(path: str, folder: Path) -> list[Path]:
    """The folders in which `file_at` looks for a path: the data folder first.

    >>> looked("mine.npz", Path("data"))[0].as_posix(), looked("/data/mine.npz", Path("data"))
    ('data', [PosixPath('/data')])
    """
    given = Path(path).expanduser()
    return [given.parent] if given.is_absolute() else list(dict.fromkeys((folder, *_places, Path.cwd())))


def no_file(folder: Path, expected: str) -> None:
    """Raise a UserError where a file lies in the place of a folder that is to be written, or of one above it.

    >>> no_file(Path(__file__) / "runs", "a folder for runs")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: ...own.py is a file: expected a folder for runs
    """
    for each in (folder, *folder.parents):
        if each.exists() and not each.is_dir():
            raise UserError(f"{each} is a file: expected {expected}")


def imported(path: str, what: str, kinds: tuple[type, ...] = (object,)) -> Any:
    """What `package.module:Name` leads to; `what` begins the sentence where it leads nowhere, which lists classes of these kinds.

    >>> imported("math:tau", "")
    6.283185307179586
    >>> imported("fractions:Fractoin", "model 'fractions:Fractoin'")
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: model 'fractions:Fractoin': no such class there, did you mean 'Fraction'? Valid: Fraction
    >>> imported("mth:tau", "method 'mth:tau'")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: method 'mth:tau' cannot be imported: No module named 'mth' (looked for in ...)
    >>> imported("nets/mine.py:Net", "model 'nets/mine.py:Net'")
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: model 'nets/mine.py:Net' names a file, expected its module: nets.mine:Net
    """
    module, _, name = path.partition(":")
    if module.endswith(".py"):
        raise UserError(f"{what} names a file, expected its module: {module.removesuffix('.py').replace('/', '.')}:{name}")
    try:
        found = importlib.import_module(module)
    except ModuleNotFoundError as error:
        first = module.split(".")[0]
        where = _looked_for(first) if error.name == first else place_of(error)
        raise UserError(f"{what} cannot be imported: {error}{where}") from None
    except (ImportError, SyntaxError) as error:
        raise UserError(f"{what} cannot be imported: {error}{place_of(error)}") from None
    except Exception as error:  # whatever a user's module does when it is imported
        raise UserError(f"{what} cannot be imported: {type(error).__name__}: {error}{place_of(error)}") from None
    if not hasattr(found, name):
        own = {each: value for each, value in vars(found).items() if isinstance(value, type) and value.__module__ == found.__name__}
        there = [each for each, value in own.items() if issubclass(value, kinds)]
        raise UserError(f"{what}: no such class there, {nearest(name, there) if there else 'nor any other that could be meant'}")
    return getattr(found, name)


def _looked_for(module: str) -> str:
    """Where a module was looked for, after one of a similar name that lies there."""
    folders = list(dict.fromkeys((Path.cwd(), *_places)))
    there = [each.stem for folder in folders for each in folder.iterdir() if each.suffix == ".py" or (each / "__init__.py").is_file()]
    close = difflib.get_close_matches(module, there, n=1)
    meant = f", did you mean '{close[0]}'?" if close else ""
    return f"{meant} (looked for in {', '.join(map(str, folders))} and where Python looks)"
