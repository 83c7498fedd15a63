"""What a participant is shown before it takes part."""

from __future__ import annotations

from tests import digests

from coterie.deployment.declaration import declared
from coterie.running.experiment import Experiment


def test_it_names_kinds_bytes_and_samples_and_what_is_refused() -> None:
    plan = Experiment.parse(digests.BASE | digests.CASES["split-metadata"])
    lines = {line.split(":")[0].strip(): line for line in declared(plan, frozenset({"activations", "lables"}))}
    assert lines["activations"].endswith("- NOT SENT (--never-send): it will be dropped")
    assert "about single samples (in a trial: " in lines["labels"]
    assert "NOT SENT" not in lines["labels"]
    assert lines["weights"].endswith(" bytes")


def test_a_kind_that_is_mistyped_is_told_from_one_that_is_refused() -> None:
    plan = Experiment.parse(digests.BASE | digests.CASES["split-metadata"])
    assert "  lables: nothing is called so in this experiment (--never-send)" in list(declared(plan, frozenset({"lables"})))
