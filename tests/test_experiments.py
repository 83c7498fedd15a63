"""The experiments that come with Coterie: each parses, fits its data, and FedAvg takes a step on those that can be made small."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import pytest

from coterie.data.sources import SOURCES
from coterie.data.sources.domains import DigitDomains
from coterie.data.sources.usps import Usps
from coterie.running.experiment import Experiment
from coterie.running.files import embedded
from coterie.running.rounds import run

NAMES = sorted(embedded())
ROOT = Path(__file__).resolve().parents[1]


@pytest.fixture(scope="module", autouse=True)
def read_once() -> Iterator[None]:
    """The two data sets that take seconds to read are read once for all tests here."""
    with pytest.MonkeyPatch.context() as patch:
        for spec in (Usps, DigitDomains):
            patch.setattr(spec, "load", functools.cache(spec.load))
        yield


def present(experiment: Experiment, folder: Path) -> None:
    """Skip the test where data of the experiment are missing."""
    public = [] if experiment.data.public is None else [experiment.data.public.source]
    for source in (*experiment.data.source, *public):
        if source.found(folder) is None:
            pytest.skip(f"no real data: {source.name} is missing in {folder} ({source.advice()})")


def test_every_promised_experiment_is_there() -> None:
    wanted = {
        "digits-two-class",
        "mnist-shards",
        "mnist-writers",
        "mnist-permuted",
        "cifar10-two-class",
        "cifar10-iid",
        "usps-dirichlet",
        "svhn-dirichlet",
        "digit-domains",
        "pacs-domains",
        "digit-styles",
        "fccl-digits",
    }
    assert wanted <= set(NAMES)


def test_the_top_level_folder_is_the_embedded_one() -> None:
    assert {path.name for path in (ROOT / "experiments").glob("*.toml")} == {f"{name}.toml" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_parses_and_describes_itself(name: str) -> None:
    experiment = Experiment.load(name)
    assert experiment.name == name
    alone = experiment.model_copy(update={"methods": {}})  # settings of others decide no result of this one
    assert Experiment.parse(experiment.resolved()) == alone
    first = embedded()[name].read_text(encoding="utf-8").splitlines()[0]
    assert first.startswith("# ")
    assert first.endswith(".")
    assert all(type(source).name in SOURCES for source in experiment.data.source)


@pytest.mark.parametrize("name", NAMES)
def test_builds_its_population(name: str, data_folder: Path) -> None:
    experiment = Experiment.load(name)
    present(experiment, data_folder)
    population = experiment.population(data_folder)
    partition, pool = population.partition, population.pool
    assert partition.train.sizes.min() > 0
    assert partition.train.flat.max() < pool.train
    assert experiment.cohort_size(partition.clients) <= partition.clients
    for words in STAND_INS.get(name, ()):
        assert words in pool.note


STAND_INS = {
    "digit-domains": ("MNIST-M in place of SYN",),
    "fccl-digits": ("MNIST-M in place of SYN",),
    "pacs-domains": ("PACS in place of Office-Home",),
}
SCALED_DOWN = {
    "cifar10-iid": ("data.train=200", "data.test=100", "cohort=2"),
    "cifar10-two-class": ("data.train=100", "data.test=100", "cohort=2"),
    "usps-dirichlet": ("data.train=400", "data.test=200", "cohort=2"),
    "svhn-dirichlet": ("data.train=400", "data.test=200", "cohort=2"),
    "digit-domains": ("data.train=800", "data.test=200", "cohort=2", "partition.samples=[60, 40, 100, 80]"),
}


@pytest.mark.parametrize("name", SCALED_DOWN)
def test_fedavg_takes_a_step(name: str, data_folder: Path, tmp_path: Path) -> None:
    experiment = Experiment.load(name, [*SCALED_DOWN[name], "rounds=1", "engine.name=inline"])
    present(experiment, data_folder)
    summary = run(experiment, tmp_path / "run", data=data_folder).summary
    assert summary["rounds"] == 1
    assert summary["bytes"]["up"] > 0
    assert set(summary["protocols"]) == set(experiment.protocols)
    assert all(0 <= found["accuracy"]["last"] <= 1 for found in summary["protocols"].values())
