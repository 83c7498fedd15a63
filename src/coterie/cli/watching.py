"""What shows and tracks the arms of a comparison while they run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from coterie.cli.sentences import console

if TYPE_CHECKING:
    from coterie.cli.trackers import TrackerName
    from coterie.ledger import Listener
    from coterie.studies.arms import Arm
    from coterie.studies.compare import Watch

__all__ = ["watched"]


@contextmanager
def watched(arms: Sequence[Arm], track: TrackerName | None, *, quiet: bool, brief: bool = False) -> Iterator[Watch]:
    """What shows and tracks the arms of a comparison; `brief` is one line for each where there is no terminal."""
    from coterie.cli.progress import board
    from coterie.cli.trackers import tracking
    from coterie.studies.compare import finished

    with board(console, runs=sum(not finished(arm) for arm in arms), quiet=quiet, brief=brief) as show:

        @contextmanager
        def watch(arm: Arm) -> Iterator[list[Listener]]:
            with tracking(track, arm.folder, arm.title) as tracked:
                yield [*show(arm.title, arm.experiment.rounds), *tracked]

        yield watch
