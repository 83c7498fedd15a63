"""Why a claim fails, one figure for each answer: the arms that a question is about, against one that it names, out of committed results.

    python studies/answers.py [RESULTS-FOLDER]

Of every recipe that a question is about it reads `RECIPE/result.json`, which has each seed's value of each arm, and draws
`RECIPE/answer.png`; what cannot be drawn it says in a sentence. An effect is paired by seed and has its 95% interval, each by itself, where
`result.md` corrects for their number: of accuracies the mean difference with Student's t, of rounds the median ratio with the interval of
the sign test. A seed that was not there when it stopped is drawn where it would be at the least, one whose reference was not there where it
would be at the most, and one of which nothing is known, because neither was, not at all. An interval that is open goes on to the edge.

What results cannot tell: whether half of the labels' weight is what FML lacks on MNIST (`contrary.py` asks), or with another alpha (no
such arms were run); what torch's start does to conv without the bias that comes with it; and what lambda does in Figure 4c, where only one
was run.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from textwrap import fill
from typing import Any, NamedTuple

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, MaxNLocator, NullLocator

from coterie.results.verdicts import Censored, Differences, Effect, Finding, Ratios, Region, decide
from coterie.studies.judging import worded
from coterie.studies.recipe import COUNTS, Key
from coterie.style import WIDTH, colour, styled, write_figure

RESULTS = Path(__file__).resolve().parents[1] / "results"
GREY = "#8c8c8c"
RATIOS = (0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 1, 1.2, 1.5, 2, 3, 5)
"""Where a logarithmic axis has numbers."""
BENT = (-25, -5, -1, -0.5, 0, 0.5, 1, 5, 25)
"""Where one with a bend has them, as multiples of it."""
LETTERS = 20
"""In a line of what an arm is called."""

Cells = Mapping[Key, Mapping[str, Any]]


class Arm(NamedTuple):
    """A row of a table, and what it is called in the figure."""

    table: str
    row: str
    label: str


class Panel(NamedTuple):
    """A column."""

    column: str
    title: str
    bend: float | None = None
    """Points beyond which the axis is logarithmic, where arms lie so far apart that the near ones could not be read."""


class Question(NamedTuple):
    """What is asked of a recipe's result."""

    recipe: str
    asked: str
    against: Arm
    arms: tuple[Arm, ...]
    panels: tuple[Panel, ...]


CNN1, IID, SHARDS, PERMUTED = "CIFAR-10 cnn1", "CIFAR-10 cnn1, IID", "MNIST, 100 clients", "permuted MNIST"
TABLE_3 = "one architecture, parameters averaged"
LAMBDA, BACK = "ours: does lambda matter in 4d?", "ours: what holds FCCL back?"
QUESTIONS = (
    Question(
        "fml-dynamic",
        "Is FML behind where data are IID because half of the labels' weight is gone?",
        Arm(IID, "fixed", "FML with weights of 0.5"),
        (Arm(IID, "beta = 0.9", "FML, beta = 0.9"), Arm(IID, "twice the rate", "FML, twice the rate"), Arm(IID, "FedAvg", "FedAvg")),
        (Panel("global", "last accuracy of the global model"), Panel("local", "last accuracy of the local models")),
    ),
    Question(
        "fml-table1",
        "Does FML need more rounds because half of the labels' weight is gone?",
        Arm(CNN1, "FedAvg", "FedAvg"),
        (Arm(CNN1, "FML", "FML"), Arm(CNN1, "FML, beta = 0.9", "FML, beta = 0.9"), Arm(CNN1, "FML, twice the rate", "FML, twice the rate")),
        (Panel("rounds", "rounds"), Panel("best global", "best accuracy of the global model")),
    ),
    Question(
        "fedmmd-figure4d",
        "Does MMD matter at any lambda?",
        Arm(SHARDS, "FedAvg", "FedAvg"),
        (
            Arm(LAMBDA, "FedMMD, 0.01", "lambda = 0.01"),
            Arm(SHARDS, "FedMMD, 0.1", "lambda = 0.1"),
            Arm(LAMBDA, "FedMMD, 1", "lambda = 1"),
            Arm(LAMBDA, "FedMMD, 10", "lambda = 10"),
        ),
        (Panel("rounds", "rounds"), Panel("last accuracy", "last accuracy", bend=2.0)),
    ),
    Question(
        "fedfusion-table2",
        "Does conv's gain come from its start?",
        Arm(PERMUTED, "FedAvg", "FedAvg"),
        (
            Arm(PERMUTED, "FedFusion conv", "conv, from the identity"),
            Arm(PERMUTED, "FedFusion conv, torch's start and bias", "conv, from torch's start, with a bias"),
        ),
        (
            Panel("rounds to the first milestone", "rounds"),
            Panel("rounds to the second milestone", "rounds"),
            Panel("last accuracy", "last accuracy"),
        ),
    ),
    Question(
        "fccl-table3",
        "What holds FCCL back where parameters are averaged?",
        Arm(TABLE_3, "FCCL", "FCCL"),
        (
            *(Arm(BACK, row, row) for row in ("w/o CON", "without the correlation", "only averaged", "not averaged")),
            *(Arm(TABLE_3, row, row) for row in ("RCFL", "FedDF", "FedAvg")),
        ),
        (Panel("inter", "last accuracy on other domains", bend=5.0), Panel("intra", "last accuracy on the own domain", bend=5.0)),
    ),
)


def main(folder: Path) -> None:
    """Draw what can be drawn; print every effect, or what is missing."""
    for question in QUESTIONS:
        path = folder / question.recipe / "result.json"
        cells = cells_of(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else {}
        missing = dict.fromkeys(arm.row for key, arm in wanted(question) if key not in cells)
        if missing:
            print(f"{question.recipe}: not drawn, because its result has nothing of: {'; '.join(missing)}.")
            continue
        with styled():
            write_figure(figure_of(question, cells), path.with_name("answer.png"))
        print("\n".join([f"{question.recipe}: {question.asked}", *told(question, cells)]))


def cells_of(result: Mapping[str, Any]) -> Cells:
    """What a result has, by table, row and column."""
    return {Key(cell["table"], cell["row"], cell["column"]): cell for cell in result["cells"]}


def wanted(question: Question) -> Iterator[tuple[Key, Arm]]:
    """Every cell that a question needs."""
    for panel in question.panels:
        yield from ((Key(arm.table, arm.row, panel.column), arm) for arm in (question.against, *question.arms))


def effects(question: Question, panel: Panel, cells: Cells) -> list[Effect]:
    """What each arm has more than the reference, or how many times its rounds, seed by seed."""
    theirs, *ours = (cells[Key(arm.table, arm.row, panel.column)] for arm in (question.against, *question.arms))
    return [effect_of(each, theirs) for each in ours]


def effect_of(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> Effect:
    """Of two cells; values stand in the order of the seeds."""
    if ours["measure"] in COUNTS:
        return Ratios.of(*([Censored(value, cell["rounds"]) for value in cell["values"]] for cell in (ours, theirs)))
    return Differences([mine - other for mine, other in zip(ours["values"], theirs["values"], strict=True)])


def found_of(effect: Effect) -> Finding:
    """Its middle and its 95% interval: one comparison by itself is not corrected."""
    [found] = decide([(effect, Region(nothing(effect), math.inf))])
    return found


def nothing(effect: Effect) -> float:
    """Where there is no difference."""
    return 1.0 if isinstance(effect, Ratios) else 0.0


def told(question: Question, cells: Cells) -> Iterator[str]:
    """A line for each panel and arm."""
    for panel in question.panels:
        for arm, effect in zip(question.arms, effects(question, panel, cells), strict=True):
            measure = cells[Key(arm.table, arm.row, panel.column)]["measure"]
            yield f"  {panel.column}, {arm.label} against {question.against.label}: {worded(found_of(effect), measure)}"


def figure_of(question: Question, cells: Cells) -> Figure:
    """One panel below the other, so that it can be read in one column; panels of one unit have one axis."""
    kept = [effects(question, panel, cells) for panel in question.panels]
    labels = [fill(arm.label, LETTERS) for arm in question.arms]
    height = 0.4 + sum(0.15 + 0.11 * (label.count("\n") + 1) for label in labels)
    figure = Figure(figsize=(WIDTH, 0.9 + height * len(kept)), layout="constrained")
    for axes, panel, mine in zip(figure.subplots(len(kept), squeeze=False)[:, 0], question.panels, kept, strict=True):
        alike = [others for others in kept if isinstance(others[0], type(mine[0]))]
        draw(axes, mine, [each for others in alike for each in others], panel.bend)
        axes.set_yticks(range(len(labels)), labels)
        target = cells[Key(question.against.table, question.against.row, panel.column)]["target"]
        axes.set_title(panel.title if target is None else f"{panel.title} to {100 * target:g}%", loc="left")
        axes.set_xlabel(unit(mine[0], panel.bend) if mine is alike[-1] else "")
    title = f"{fill(question.asked, 52)}\n{question.against.table}: against {question.against.label}"
    figure.suptitle(title, x=0.01, ha="left", fontsize=8)
    marks = legend([each for mine in kept for each in mine])
    figure.legend(handles=marks, loc="outside lower center", ncols=3, columnspacing=1, handlelength=1.5, handletextpad=0.5)
    return figure


def draw(axes: Axes, mine: Sequence[Effect], alike: Sequence[Effect], bend: float | None) -> None:
    """An arm a line, its seeds below its interval, on an axis that has room for all that are alike."""
    _axis(axes, [nothing(mine[0]), *(number for each in alike for number in numbers(each))], isinstance(mine[0], Ratios), bend)
    axes.axvline(nothing(mine[0]), color="#000000", linewidth=0.8, zorder=1)
    for y, effect in enumerate(mine):
        _seeds(axes, y + 0.26, bounds(effect))
        _interval(axes, y - 0.08, found_of(effect))
    axes.set_ylim(len(mine) - 0.4, -0.6)
    axes.grid(axis="y", visible=False)


def unit(effect: Effect, bend: float | None) -> str:
    """What an axis counts."""
    if isinstance(effect, Ratios):
        return "ratio of rounds"
    return "difference in points" + (f" (logarithmic beyond ±{bend:g})" if bend else "")


def bounds(effect: Effect) -> list[tuple[float, float]]:
    """Between what each seed's effect lies, the same twice where it is known; differences in points."""
    if isinstance(effect, Ratios):
        return list(zip(effect.lows, effect.highs, strict=True))
    return [(100 * each, 100 * each) for each in effect.values]


def ends(found: Finding) -> tuple[float, float] | tuple[()]:
    """Of the interval, where there is one; differences in points."""
    scale = 1 if found.ratio else 100
    return () if found.low is None or found.high is None else (scale * found.low, scale * found.high)


def numbers(effect: Effect) -> list[float]:
    """All that an axis must have room for: what is censored has no number."""
    every = [end for pair in (*bounds(effect), ends(found_of(effect))) for end in pair]
    return [each for each in every if math.isfinite(each) and (each > 0 or isinstance(effect, Differences))]


def _axis(axes: Axes, room: Sequence[float], ratio: bool, bend: float | None) -> None:
    """Ratios on a logarithmic axis; where arms lie far apart, differences on one that is logarithmic beyond a bend."""
    axes.update_datalim([(each, 0) for each in room])
    axes.margins(x=0.05)
    axes.xaxis.set_major_locator(MaxNLocator(8, steps=[1, 2, 5, 10]))
    if ratio:
        axes.set_xscale("log")
        axes.xaxis.set_major_locator(FixedLocator(RATIOS))
    elif bend:
        axes.set_xscale("symlog", linthresh=bend)
        axes.xaxis.set_major_locator(FixedLocator([times * bend for times in BENT]))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"×{value:g}" if ratio else f"{value:+g}" if value else "0"))
    axes.autoscale_view(scaley=False)
    axes.set_xlim(axes.get_xlim())


def _seeds(axes: Axes, y: float, seeds: Sequence[tuple[float, float]]) -> None:
    kinds = {
        "o": [low for low, high in seeds if low == high],
        ">": [low for low, high in seeds if 0 < low < high == math.inf],
        "<": [high for low, high in seeds if low == 0 < high < math.inf],
    }
    for marker, values in kinds.items():
        axes.plot(values, [y] * len(values), marker, color=GREY, markersize=3, alpha=0.7, markeredgewidth=0)


def _interval(axes: Axes, y: float, found: Finding) -> None:
    """An end that is open goes on to the edge, with an arrow."""
    left, right = axes.get_xlim()
    look: dict[str, Any] = {"color": colour(0), "clip_on": False}
    if both := ends(found):
        axes.plot([max(both[0], left), min(both[1], right)], [y, y], linewidth=1.5, solid_capstyle="butt", **look)
        for edge, mark in [*([(left, "<")] if both[0] < left else []), *([(right, ">")] if both[1] > right else [])]:
            axes.plot([edge], [y], mark, markersize=4.5, markeredgewidth=0, **look)
    if found.middle is not None:
        axes.plot([found.middle * (1 if found.ratio else 100)], [y], "|", markersize=7, markeredgewidth=1.6, **look)


def legend(mine: Sequence[Effect]) -> list[Line2D]:
    """What marks mean, of those that are there."""
    middle = " or ".join(name for kind, name in ((Differences, "mean"), (Ratios, "median")) if any(isinstance(each, kind) for each in mine))
    grey: dict[str, Any] = {"linestyle": "", "color": GREY, "markersize": 3.5, "markeredgewidth": 0}
    blue: dict[str, Any] = {"color": colour(0), "linewidth": 1.5, "markersize": 7, "markeredgewidth": 1.6}
    marks = [Line2D([], [], marker="|", label=f"{middle}, 95% interval", **blue), Line2D([], [], marker="o", label="a seed", **grey)]
    if any(low < high for each in mine for low, high in bounds(each)):
        marks.append(Line2D([], [], marker=">", label="a seed, or beyond", **grey))
    return marks


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else RESULTS)
