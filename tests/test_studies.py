"""The scripts of `studies/`: their parts on little data, so that they run when somebody wants them."""

from __future__ import annotations

import importlib.util
import json
import math
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
import torch

from coterie.data.compose import grey
from coterie.data.maps import Maps
from coterie.data.selection import SELECTIONS
from coterie.methods import SplitMetadata
from coterie.record import Record
from coterie.results.statistics import paired
from coterie.results.verdicts import Censored, Ratios
from coterie.running.experiment import Experiment
from coterie.running.result import Result
from coterie.running.rounds import run
from coterie.site import SERVER, ModelCache
from coterie.studies.arms import arms_of
from coterie.studies.recipe import Recipe
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


def test_rounds_that_runs_begin_with_cost_once(monkeypatch, tmp_path) -> None:
    costs = study("costs")
    monkeypatch.setattr(costs, "seconds", lambda experiment, data, rounds, epochs=None: float(rounds))
    plan = Experiment.load("digits-two-class", ["model=cnn", "evaluation.every=30"])
    split = {"name": "split-metadata", "upload": "evaluated", "server": {"epochs": 1}}
    arms = arms_of(
        plan, [{"name": "fedavg", "weighting": "uniform"}, {**split, "budget": 2}, {**split, "budget": 3}, "local"], [0], tmp_path
    )
    assert list(costs.costs_of(arms, tmp_path).values()) == [30.0, 1.0, 1.0, 30.0]


def test_selected_maps_are_measured_on_the_runs_of_the_recipe(digits, monkeypatch, tmp_path, capsys) -> None:
    """Every arm on the last model of every FedAvg run that is there; numbers, intervals and a picture come out."""
    study("metadata_frontier")  # which it measures by
    selected = study("selected_maps")
    plan, _ = digits
    for seed in (1, 2):
        run(plan.replace(seed=seed, rounds=1, evaluation=plan.evaluation.model_copy(update={"every": 1})), tmp_path / f"fedavg-s{seed}-x")
    arms = {"few": ("kmeans", 1, 1), "more": ("kmeans", 3, 1), "all": ("full", 3, 1)}
    monkeypatch.setattr(sys, "argv", ["selected_maps", str(tmp_path), str(tmp_path)])
    selected.asked("why", None, {name: partial(selected.accuracy, arm) for name, arm in arms.items()}, "the composed model")
    told = json.loads((tmp_path / "why.json").read_text())
    assert told["seeds"] == [1, 2]
    assert {name: len(values) for name, values in told["accuracy"].items()} == {"few": 2, "more": 2, "all": 2}
    assert told["less few, in points"] == selected.differences(told["accuracy"])
    assert set(told["less all, in points"]) == {"few", "more"}
    assert (tmp_path / "why.png").stat().st_size > 1000
    assert capsys.readouterr().out.count("seed") == 6


def test_what_is_behind_in_fedavg_is_measured_piece_by_piece(digits) -> None:
    """The last normalisation alone moves no weight, the head alone nothing else, and both are split training with all maps."""
    study("metadata_frontier")
    study("selected_maps")
    behind = study("all_maps_and_fedavg")
    plan, _ = digits
    population, cache = plan.population(), ModelCache()
    server = population.site(SERVER, 1, cache)
    model = server.fresh()
    assert behind.plain(population, model, cache) == server.score(model).metrics()["accuracy"]
    sent = behind.gather(behind.ALL, population, model, cache, budget=1)
    maps = Maps.join((each.group("activations"), each.tensors["labels"]) for each in sent)
    assert len(maps) == sum(len(population.site(client, 1, cache).train) for client in range(population.clients))
    changed = {}
    for name, method in behind.COMPOSED.items():
        after = replace(method, server=replace(method.server, epochs=1)).compose(server, model, maps).tensors
        changed[name] = {each for each, value in model.tensors.items() if not torch.allclose(value, after[each], rtol=0, atol=1e-20)}
    normalisation, head, both = changed.values()
    assert normalisation
    assert all(
        each.startswith("pool.") and each.split(".")[-1] in ("running_mean", "running_var", "num_batches_tracked") for each in normalisation
    )
    assert head == {"head.weight", "head.bias"}
    assert both > normalisation | head


def test_a_pilot_runs_two_cells_on_other_seeds(monkeypatch, capsys, tmp_path) -> None:
    pilot = study("pilot")
    cells = [f"d: IID / {row} / last accuracy" for row in ("FedFusion conv, torch's start and bias", "FedAvg")]
    line = ["pilot", "fedfusion-table1", *cells, "--scale", "smoke", "--runs", str(tmp_path), "--effect", "0.03", "--comparisons", "17"]
    monkeypatch.setattr(sys, "argv", [*line, "--seeds", "900", "901"])
    pilot.main()
    differences, spread, seeds = capsys.readouterr().out.splitlines()
    values = {path.name.split("-s")[0]: [] for path in tmp_path.iterdir()}
    for path in sorted(tmp_path.iterdir(), key=lambda path: path.name.split("-s")[1]):
        values[path.name.split("-s")[0]].append(Result.load(path).accuracy("local_post"))
    expected = [a - b for a, b in zip(values["fedfusion"], values["fedavg"], strict=True)]
    assert differences == f"differences: {', '.join(f'{each:+.4f}' for each in expected)}"
    assert spread == f"spread: {abs(expected[0] - expected[1]) / 2**0.5:.4f}"
    assert seeds.startswith("0.03 in 17 comparisons: ")
    monkeypatch.setattr(sys, "argv", [*line, "--seeds", "0", "901"])  # 0 is what the recipe is judged by
    with pytest.raises(SystemExit):
        pilot.main()


def test_costs_of_a_recipe_are_measured_run_by_run(monkeypatch, capsys) -> None:
    costs = study("costs")
    monkeypatch.setattr(sys, "argv", ["costs.py", "fedfusion-figure6", "fccl-office-home", "--scale", "smoke"])
    monkeypatch.setattr(costs, "seconds", lambda experiment, data, rounds, epochs=None: float(rounds))
    costs.main()
    told = capsys.readouterr().out
    assert told.count("fedfusion-figure6: ") == 8, "seven rows and their sum"


ROUNDS = {
    "FedAvg": [20, 25, 30, 20, None, 40],
    "FedMMD, 0.01": [20, 20, 24, 22, 30, 30],
    "FedMMD, 0.1": [10, 15, 15, 10, 30, 24],
    "FedMMD, 1": [None] * 6,
    "FedMMD, 10": [50, 50, 60, 40, None, 60],
}
LAST = {
    "FedAvg": [0.80, 0.82, 0.81, 0.83, 0.79, 0.80],
    "FedMMD, 0.01": [0.81, 0.82, 0.80, 0.85, 0.80, 0.79],
    "FedMMD, 0.1": [0.83, 0.84, 0.82, 0.87, 0.83, 0.85],
    "FedMMD, 1": [0.30, 0.22, 0.25, 0.20, 0.31, 0.28],
    "FedMMD, 10": [0.10, 0.12, 0.15, 0.11, 0.13, 0.12],
}


def made_up(folder: Path, answers: ModuleType) -> Any:
    """A result of FedMMD's Figure 4d, of six seeds: some were not there after 60 rounds."""
    question = next(each for each in answers.QUESTIONS if each.recipe == "fedmmd-figure4d")
    about = {"rounds": ("rounds", 0.85, ROUNDS), "last accuracy": ("last", None, LAST)}
    cells = []
    for key, _ in answers.wanted(question):
        measure, target, values = about[key.column]
        cells.append({**key._asdict(), "measure": measure, "target": target, "values": values[key.row], "rounds": 60})
    path = folder / question.recipe / "result.json"
    path.parent.mkdir(parents=True)
    path.write_text(json.dumps({"cells": cells}))
    return question


def lines_of(axes, marker: str) -> list[list[float]]:
    return [list(map(float, line.get_xdata())) for line in axes.lines if line.get_marker() == marker and len(line.get_xdata())]


def intervals_of(axes) -> list[list[float]]:
    """The thick lines: one for each arm."""
    return [list(map(float, line.get_xdata())) for line in axes.lines if line.get_linewidth() == 1.5 and line.get_linestyle() == "-"]


def test_answers_plot_the_intervals_of_the_statistics_and_every_seed(tmp_path, capsys) -> None:
    answers = study("answers")
    question = made_up(tmp_path, answers)
    answers.main(tmp_path)
    assert [path.name for path in tmp_path.rglob("*.png")] == ["answer.png"]
    assert "lambda = 0.1 against FedAvg: +3.2 [" in capsys.readouterr().out
    rounds, last = answers.figure_of(question, answers.cells_of(json.loads((tmp_path / question.recipe / "result.json").read_text()))).axes
    arms = [arm.row for arm in question.arms]
    for row, seeds, middle, ends in zip(arms, lines_of(last, "o"), lines_of(last, "|"), intervals_of(last), strict=True):
        found = paired(dict(enumerate(LAST[row])), dict(enumerate(LAST["FedAvg"])))
        assert [*middle, *ends] == pytest.approx([100 * each for each in (found.mean, found.low, found.high)])
        assert seeds == pytest.approx([100 * (ours - theirs) for ours, theirs in zip(LAST[row], LAST["FedAvg"], strict=True)])
    for row, ends in zip(arms, intervals_of(rounds), strict=True):
        found = Ratios.of(*([Censored(value, 60) for value in ROUNDS[each]] for each in (row, "FedAvg")))
        low, high = found.interval(0.95)
        left, right = rounds.get_xlim()
        assert ends == pytest.approx([low if low > 0 else left, high if math.isfinite(high) else right]), row


def test_answers_show_what_was_not_reached_as_a_bound(tmp_path) -> None:
    """By hand: 60 rounds over those of FedAvg at the least; at the most 30 over 60; nothing where neither was there."""
    answers = study("answers")
    question = made_up(tmp_path, answers)
    axes, _ = answers.figure_of(question, answers.cells_of(json.loads((tmp_path / question.recipe / "result.json").read_text()))).axes
    longer = [each for each in lines_of(axes, ">") if len(each) > 1]
    assert longer == [pytest.approx([60 / 20, 60 / 25, 60 / 30, 60 / 20, 60 / 40])]
    assert [each for each in lines_of(axes, "<") if each != [axes.get_xlim()[0]]] == [[0.5], [0.5]]
    assert [len(each) for each in lines_of(axes, "o")] == [5, 5, 5]


def test_answers_say_what_is_missing(tmp_path, capsys) -> None:
    answers = study("answers")
    made_up(tmp_path, answers)
    path = tmp_path / "fedmmd-figure4d" / "result.json"
    cells = [cell for cell in json.loads(path.read_text())["cells"] if cell["row"] != "FedMMD, 10"]
    path.write_text(json.dumps({"cells": cells}))
    answers.main(tmp_path)
    assert "fedmmd-figure4d: not drawn, because its result has nothing of: FedMMD, 10.\n" in capsys.readouterr().out
    assert list(tmp_path.rglob("*.png")) == []


def test_every_question_is_of_cells_that_its_recipe_has() -> None:
    answers = study("answers")
    for question in answers.QUESTIONS:
        assert {key for key, _ in answers.wanted(question)} <= dict(Recipe.load(question.recipe).numbered()).keys()


def test_arms_beside_a_recipes_own_have_its_settings_but_for_what_is_asked(monkeypatch, tmp_path) -> None:
    for name in ("pilot", "metadata_frontier", "selected_maps"):
        study(name)
    contrary = study("contrary")
    np.savez(tmp_path / "cifar100-5k.npz", **_images(40, 3, 100))
    public = contrary.plans_for(contrary.QUESTIONS["why-public"], "study")
    first, *others = (plan.experiment.resolved() for plan in public)
    pools = [plan.experiment.data.public.source.load(tmp_path) for plan in public[:3]]
    assert [pool.shape for pool in pools] == [(3, 32, 32), (1, 32, 32), (3, 32, 32)]
    assert len(np.unique(pools[2].x)) < len(np.unique(pools[0].x))
    assert np.array_equal(pools[1].x, grey(pools[0].x))
    assert [each["data"]["public"]["source"]["name"] for each in others] == [
        "contrary:GreyCifar100",
        "contrary:BlurredCifar100",
        "cifar10",
        "contrary:FashionNegatives",
        "fashion-mnist",
    ]
    for each in others:
        each["data"]["public"]["source"] = first["data"]["public"]["source"]
        assert each == first
    monkeypatch.setattr(sys, "argv", ["contrary", "why-mnist", str(tmp_path), "--scale", "smoke", "--runs", str(tmp_path / "runs")])
    contrary.main()
    told = json.loads((tmp_path / "why-mnist.json").read_text())
    assert list(told["accuracy"]) == list(contrary.QUESTIONS["why-mnist"].arms)
    assert len(list((tmp_path / "runs").iterdir())) == 5
    assert (tmp_path / "why-mnist.png").stat().st_size > 1000


def _images(count: int, channels: int, classes: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y = rng.integers(0, 256, (count, 32, 32, channels), dtype=np.uint8), np.arange(count, dtype=np.uint8) % classes
    return {"x_train": x, "y_train": y, "x_test": x[:0], "y_test": y[:0]}


def test_milestones(tmp_path, data_folder) -> None:
    """Conv's rounds as parts of FedAvg's: fewer, the nearer a milestone is to where FedAvg's curve is flat; a figure comes out."""
    study("pilot")
    milestones = study("milestones")
    arms = milestones.arms_of([11], tmp_path, data_folder)
    assert [each.experiment.rounds for each in arms.values()] == [150] * 4
    assert {each.experiment.method.name for each in arms.values()} == {"fedavg", "fedfusion"}
    slow, fast = ({at: 0.8 * (1 - math.exp(-at / scale)) + more for at in range(1, 151)} for scale, more in ((20, 0.0), (18, 0.01)))
    found = dict.fromkeys(milestones.SETTINGS, [milestones.Pair(slow, fast)] * 8)
    near, far = (milestones.ratios(found["five clients, 800 images each"], below).middle for below in (0.2, 15.0))
    assert near < far < 1
    answer = milestones.told(found, range(8))
    assert answer["settings"]["five clients, 800 images each"]["ratio"]["0.2"].startswith(f"x{near:.2f} [{near:.2f}, {near:.2f}]")
    milestones.draw(found, tmp_path / "why-rounds.png")
    assert (tmp_path / "why-rounds.png").exists()
