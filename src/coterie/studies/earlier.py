"""Seeds of a recipe that were run before, and are not run again: a study may take longer than a machine can be had for.

A result says which runs it comes from, and a run's name has the digests of its experiment, of the code and of the data. So what an earlier
result says of a seed stands for running it again, where the names are those that the runs would have now; bits may differ from one kind of
processor to another, but all arms of a seed come from one result.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from coterie.errors import UserError
from coterie.studies.arms import Arm
from coterie.studies.recipe import Key

__all__ = ["Earlier", "runs_by_seed"]


@dataclass(frozen=True)
class Earlier:
    """What an earlier result has, by seed.

    >>> Earlier().seeds
    ()
    """

    runs: Mapping[int, Sequence[str]] = field(default_factory=dict)
    """The names of the runs of each seed."""
    values: Mapping[Key, Mapping[int, float | None]] = field(default_factory=dict)
    about: Mapping[str, Any] = field(default_factory=dict)

    @property
    def seeds(self) -> tuple[int, ...]:
        """Those that need not be run again."""
        return tuple(self.runs)

    def told(self) -> dict[str, str]:
        """For who asks how a result came about."""
        if not self.seeds:
            return {}
        return {
            "of an earlier result": f"seeds {', '.join(map(str, self.seeds))}: {self.about.get('date')}, commit {self.about.get('commit')}"
        }

    @classmethod
    def read(cls, path: Path, arms: Sequence[Arm]) -> Earlier:
        """Of a `result.json`, the seeds of these arms; one whose runs would be others now is an error."""
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
            named = {int(seed): list(map(str, names)) for seed, names in found["runs"].items()}
            cells = {
                Key(each["table"], each["row"], each["column"]): dict(zip(found["seeds"], each["values"], strict=True))
                for each in found["cells"]
            }
            about = dict(found["about"])
        except OSError as error:
            raise UserError(f"--earlier {path}: cannot be read, {error.strerror}; expected the result.json of this recipe") from None
        except (ValueError, KeyError, TypeError, AttributeError):
            raise UserError(f"--earlier {path}: expected the result.json of this recipe, with the runs that it comes from") from None
        now = runs_by_seed(arms)
        for seed in named.keys() & now.keys():
            if others := sorted(set(named[seed]) ^ set(now[seed])):
                raise UserError(
                    f"--earlier {path}: of seed {seed} its runs are not those of this code, recipe and data (such as {others[0]})"
                )
        return cls({seed: named[seed] for seed in now if seed in named}, cells, about)


def runs_by_seed(arms: Iterable[Arm]) -> dict[int, list[str]]:
    """The names of some runs, by seed."""
    found: dict[int, list[str]] = {}
    for each in arms:
        found.setdefault(each.experiment.seed, []).append(each.folder.name)
    return found
