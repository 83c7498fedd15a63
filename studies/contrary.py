"""Why three claims are shown contrary here: arms beside a recipe's own, with its own seeds.

    python studies/contrary.py QUESTION OUT [--seeds 11 12 13] [--runs FOLDER] [--data FOLDER]

QUESTION is `why-public` (003.7: FCCL learns less from Fashion-MNIST as public data than from CIFAR-100; is that its lack of colour, of
detail, its dark background, or that it has ten categories and not a hundred?), `why-mnist` (004.1: FML is behind FedAvg on MNIST; is that
half of the labels' weight, which is half of the rate?) or `why-noisy` (004.7: a fifth client with random labels costs the other four more
than a point; do they miss what a fifth would have known, or does it do them harm?). All arms of a question are run by the same code, those
of the recipe too. OUT gets `QUESTION.json` and `QUESTION.png`.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from pilot import plans_of, values_of
from selected_maps import compared, draw

from coterie import spec
from coterie.data.compose import resize
from coterie.data.pool import Pool
from coterie.data.sources import Found
from coterie.data.sources.cifar import Cifar100
from coterie.data.sources.idx import FashionMnist
from coterie.studies.recipe import CellPlan, Recipe
from coterie.style import styled


@spec
class GreyCifar100(Cifar100):
    """CIFAR-100 without its colours."""

    name: ClassVar[str] = "cifar100-grey"

    def read(self, found: Found) -> Pool:
        pool = super().read(found)
        return resize(pool, pool.shape[-1], channels=1)


@spec
class BlurredCifar100(Cifar100):
    """CIFAR-100 without detail: eight by eight pixels, drawn large."""

    name: ClassVar[str] = "cifar100-blurred"

    def read(self, found: Found) -> Pool:
        pool = super().read(found)
        return resize(resize(pool, 8, channels=3), pool.shape[-1], channels=3)


@spec
class FashionNegatives(FashionMnist):
    """Fashion-MNIST, dark on white."""

    name: ClassVar[str] = "fashion-mnist-negatives"

    def read(self, found: Found) -> Pool:
        pool = super().read(found)
        return replace(pool, x=255 - pool.x, mean=tuple(1 - each for each in pool.mean))


class Question(NamedTuple):
    """What is asked, and of which recipe."""

    recipe: str
    on: str
    what: str
    """Whose accuracy is measured, and on which data."""
    arms: Mapping[str, tuple[str, Mapping[str, Any]]]
    """By name: a cell of the recipe, and what is changed in it."""


FIGURE_7, MNIST, CATFISH = "Figure 7: public data / {} / inter", "MNIST mlp / {} / best global", "MNIST / {} / last accuracy"
QUESTIONS = {
    "why-public": Question(
        "fccl-digits",
        "digit domains",
        "FCCL on other domains",
        {
            "CIFAR-100": (FIGURE_7.format("CIFAR-100"), {}),
            "CIFAR-100 in grey": (
                FIGURE_7.format("CIFAR-100"),
                {"data.public.source": {"name": "contrary:GreyCifar100", "part": True}},
            ),
            "CIFAR-100 blurred": (
                FIGURE_7.format("CIFAR-100"),
                {"data.public.source": {"name": "contrary:BlurredCifar100", "part": True}},
            ),
            "CIFAR-10": (FIGURE_7.format("CIFAR-100"), {"data.public.source": {"name": "cifar10", "part": True}}),
            "Fashion-MNIST in negatives": (
                FIGURE_7.format("Fashion-MNIST"),
                {"data.public.source": {"name": "contrary:FashionNegatives"}},
            ),
            "Fashion-MNIST": (FIGURE_7.format("Fashion-MNIST"), {}),
        },
    ),
    "why-mnist": Question(
        "fml-table1",
        "MNIST, five IID clients",
        "the best global model",
        {
            "FedAvg": (MNIST.format("FedAvg"), {}),
            "FedAvg, half the rate": (MNIST.format("FedAvg"), {"training.optimiser.lr": 0.005}),
            "FML, beta = 0.9": (MNIST.format("FML"), {"method.beta": 0.9}),
            "FML, twice the rate": (MNIST.format("FML"), {"training.optimiser.lr": 0.02}),
            "FML": (MNIST.format("FML"), {}),
        },
    ),
    "why-noisy": Question(
        "fml-catfish",
        "MNIST",
        "four weak clients' models",
        {
            "five clients": (CATFISH.format("weak"), {}),
            "four clients": (CATFISH.format("weak"), {"new_clients": {"count": 1, "epochs": 1}}),
            "five clients, one with random labels": (CATFISH.format("weak, noisy labels"), {}),
        },
    ),
}


def plans_for(question: Question, scale: str) -> list[CellPlan]:
    """The cells that the arms are, as they are changed.

    >>> plans = plans_for(QUESTIONS["why-mnist"], "study")
    >>> [plan.experiment.training.optimiser.lr for plan in plans]
    [0.01, 0.005, 0.01, 0.02, 0.01]
    """
    cells, changes = zip(*question.arms.values(), strict=True)
    plans = plans_of(Recipe.load(question.recipe), scale, cells)
    return [replace(plan, experiment=plan.experiment.overridden(more)) for plan, more in zip(plans, changes, strict=True)]


def told(question: Question, values: Sequence[Sequence[float]], seeds: Sequence[int]) -> dict[str, Any]:
    """What was found, and what the arms differ by."""
    found = dict(zip(question.arms, map(list, values), strict=True))
    return {"seeds": list(seeds), "accuracy": found, **compared(found)}


def main() -> None:
    """Run, write and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", choices=QUESTIONS)
    parser.add_argument("out", type=Path)
    parser.add_argument("--scale", default="study")
    parser.add_argument("--seeds", type=int, nargs="+")
    parser.add_argument("--runs", type=Path, default=Path("runs/contrary"))
    parser.add_argument("--data", type=Path)
    options = parser.parse_args()
    question = QUESTIONS[options.question]
    seeds = options.seeds or Recipe.load(question.recipe).scales[options.scale].seeds
    values = values_of(plans_for(question, options.scale), list(question.arms), seeds, options.runs, options.data)
    answer = told(question, values, seeds)
    (options.out / f"{options.question}.json").write_text(json.dumps(answer, indent=2) + "\n")
    with styled():
        draw(answer["accuracy"], question.what, options.out / f"{options.question}.png", f"{question.on}: a line for each seed")
    print(json.dumps(answer, indent=2))


if __name__ == "__main__":
    main()
