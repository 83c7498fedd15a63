"""The scripts of `studies/`: their parts on little data, so that they run when somebody wants them."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from coterie.data.selection import SELECTIONS
from coterie.methods import SplitMetadata
from coterie.record import Record
from coterie.running.experiment import Experiment
from coterie.running.rounds import run
from coterie.site import SERVER, ModelCache
from coterie.training.objectives import Step

FOLDER = Path(__file__).parents[1] / "studies"


def study(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, FOLDER / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses look there for their own module
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def digits() -> tuple[Experiment, Record]:
    table = {
        "name": "study",
        "data": {"source": "digits", "size": 8, "channels": 3, "train": 80, "test": 20},
        "partition": {"name": "classes", "clients": 4, "per_client": 3},
        "model": "wrn-10-1",
        "method": "fedavg",
    }
    plan = Experiment.parse(table)
    return plan, plan.population().site(SERVER, 0, ModelCache()).fresh()


def test_the_frontier(digits, tmp_path) -> None:
    """Every arm is a method that fits; some are measured; tables and figure come out."""
    frontier = study("metadata_frontier")
    plan, model = digits
    population, arms = plan.population(), list(frontier.arms())
    assert len(set(arms)) == len(arms) == 3 * (len(SELECTIONS.specs) + 4) + len(frontier.HELP)
    for arm in arms:
        arm.method(2).check(population)
    few = []
    for arm in (arms[0], arms[8], arms[-1]):
        sent = frontier.gather(arm, population, model, ModelCache(), budget=2)
        few.append(frontier.measure(arm, sent, population, model, ModelCache(), budget=2, steps=1))
    assert few[0].maps == few[1].maps == 6
    assert few[0].payload == 6 * (16 * 8 * 8 * 4 + 8)
    assert few[1].payload == 6 * (16 * 8 * 8 + 8 + 8)
    everything = [frontier.Found(arm, seed, 6, 1000 + place, 0.5 + seed / 10) for place, arm in enumerate(arms) for seed in (0, 1)]
    assert "55.00% ± 7.07" in frontier.markdown(everything, [0.4, 0.5])
    frontier.draw(everything, 0.4, 2000, tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"frontier.pdf", "frontier.svg", "frontier.png"}


def test_the_server_takes_as_many_steps_whatever_the_maps() -> None:
    frontier = study("metadata_frontier")
    arm = frontier.Arm("G1", "kmeans")
    assert [arm.training(maps, 100).epochs for maps in (10, 50, 200, 2000)] == [100, 100, 25, 3]


def test_the_reconstruction(digits, tmp_path) -> None:
    """Images come back to scale, equal ones score best, and the decoder gives images of the right shape for every level."""
    rebuild = study("reconstruction")
    plan, model = digits
    population = plan.population()
    site = population.site(0, 1, ModelCache())
    x, _ = site.train.one_batch()
    images = rebuild.images_of(x, population)
    assert (images * 255).round().to(torch.uint8).equal(torch.from_numpy(population.pool.x)[population.partition.train[0]])
    assert rebuild.ssim(images, images) == pytest.approx(1.0)
    worse, better = (rebuild.scores((images + noise).clamp(0, 1), images) for noise in (0.3, 0.03))
    assert worse["MSE"] > better["MSE"]
    assert worse["PSNR (dB)"] < better["PSNR (dB)"]
    assert worse["SSIM"] < better["SSIM"] < 1
    for level in rebuild.LEVELS:
        maps = SplitMetadata(level=level).lower(site, model)(x)
        net = rebuild.decoder(maps.shape[1], maps.shape[2], 8)
        assert net(maps).shape == images.shape
    assert rebuild.Reconstruction()(Step(torch.nn.Identity(), images, images, start={})).item() == 0
    rebuild.grid({"original": images, "G1": images}, tmp_path / "grid.png", columns=3)
    assert (tmp_path / "grid.png").stat().st_size > 1000


def test_the_figures_of_fccl(tmp_path) -> None:
    """From runs on digits in four styles: every client's embedding, matrices where the method shows them, curves."""
    figures = study("fccl_figures")
    runs = []
    for method in ("fccl", "local"):
        changes = ["rounds=2", f"method={method}", "pretraining=1", "engine.name=inline", "data.test=80"]
        runs.append(run(Experiment.load("digit-styles", changes), tmp_path / method).folder)
    places, classes, domains = figures.embedding(*next(figures.sites_and_models(runs[0], None)), 10)
    assert places.shape == (40, 2)
    assert sorted(set(domains)) == [0, 1, 2, 3]
    assert set(classes) <= set(range(10))
    assert len(figures.figure_4(runs, None, 8).axes) == 8
    assert len(figures.figure_5(runs[0]).axes) == 2 * 4 + 1
    assert figures.figure_5(runs[1]) is None
    left, right = figures.figure_6(runs).axes
    assert len(left.lines) == 2
    assert [len(line.get_xdata()) for line in right.lines] == [2]


def test_the_reconstruction_from_images_to_its_table(data_folder, monkeypatch, tmp_path) -> None:
    few = ["--images", "40", "--test", "20", "--rounds", "1", "--epochs", "1"]
    monkeypatch.setattr(sys, "argv", ["reconstruction.py", "--data", str(data_folder), "--out", str(tmp_path), *few])
    study("reconstruction").main()
    levels = [line.split("|")[1].strip() for line in (tmp_path / "reconstruction.md").read_text().splitlines()[2:]]
    assert levels == ["mean image", "G1", "G2", "G3"]
    assert (tmp_path / "reconstruction.png").stat().st_size > 1000


def test_the_page_on_privacy_has_the_numbers_that_were_measured() -> None:
    root = Path(__file__).parents[1]
    measured = (root / "results" / "split-reconstruction" / "reconstruction.md").read_text().splitlines()[2:]
    page = (root / "docs" / "privacy.md").read_text()
    assert [line for line in measured if line.split("|", 2)[2].strip() not in page] == []


def test_costs_are_a_round_times_the_rounds_and_an_epoch_times_the_epochs(monkeypatch, tmp_path) -> None:
    costs = study("costs")
    clock = {"rounds": 3.0, "epochs": 0.5, "once": 7.0}
    seen: list[tuple[int, int | None]] = []

    def made_up(experiment: Experiment, data: Path, rounds: int, epochs: int | None = None) -> float:
        seen.append((rounds, epochs))
        return clock["once"] + clock["rounds"] * rounds + clock["epochs"] * (epochs or 0)

    monkeypatch.setattr(costs, "seconds", made_up)
    plan = Experiment.load("digits-two-class")
    assert costs.whole(plan, tmp_path) == 7.0 + 3.0 * 30
    split = plan.overridden({"method": "split-metadata", "evaluation.protocols": ["composed"]})
    assert costs.whole(split, tmp_path) == 7.0 + 3.0 * 30 + 0.5 * 100
    assert seen == [(1, None), (2, None), (1, 1), (2, 1), (1, 2)]


def test_costs_of_a_recipe_are_measured_run_by_run(monkeypatch, capsys) -> None:
    costs = study("costs")
    monkeypatch.setattr(sys, "argv", ["costs.py", "fedfusion-figure6", "fccl-office-home", "--scale", "smoke"])
    monkeypatch.setattr(costs, "seconds", lambda experiment, data, rounds, epochs=None: float(rounds))
    costs.main()
    told = capsys.readouterr().out
    assert told.count("fedfusion-figure6: ") == 8, "seven rows and their sum"
