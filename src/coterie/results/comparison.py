"""Arms side by side, in numbers: means and spreads over seeds, what targets took, paired differences, bytes and local work.

An arm is what is compared: runs of one method and setting that differ in their seed. Tables, page and figures all take their numbers
of arms from here. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean

from coterie.errors import RunError, UserError, nearest
from coterie.results.read import Run, read_whole
from coterie.results.statistics import Difference, Estimate, estimate, paired
from coterie.results.tally import USUAL, Mean, Reached

__all__ = [
    "ArmRuns",
    "Contrast",
    "Gap",
    "OverClients",
    "Reach",
    "Standing",
    "check_baseline",
    "contrast",
    "differences",
    "last_score",
    "means_of",
    "measured",
    "over_clients",
    "reached",
    "read_arms",
    "stopped_early",
    "unequal_work",
    "unlike_clients",
]

BOUNDS = ("centralised",)
"""Methods that are no rivals: they show what is possible with all data in one place."""
EQUAL = 0.01
"""Local work may differ by this share before it is told."""


@dataclass
class ArmRuns:
    """The runs of one arm, each with a seed of its own."""

    label: str
    runs: list[Run]

    @property
    def bound(self) -> bool:
        """Whether it is a bound and no rival, so that it neither wins nor loses."""
        return any(run.tally.method in BOUNDS for run in self.runs)

    @property
    def sends(self) -> bool:
        """Whether anything crosses the network in its rounds: not where one trains alone, or where all data lies in one place."""
        return any(run.tally.total("up") or run.tally.total("down") for run in self.runs)

    @property
    def stopped(self) -> list[int]:
        """The rounds in which runs stopped that reached `evaluation.stop_at`."""
        return sorted(run.tally.rounds for run in self.runs if run.tally.stopped)

    @property
    def steps(self) -> int:
        """Gradient steps of its clients in a run, pretraining included."""
        return round(mean(run.tally.trained().steps for run in self.runs))


@dataclass(frozen=True)
class OverClients:
    """How the clients under one protocol stand, over seeds."""

    clients: tuple[int, int]
    """The fewest and the most that a mean is over; the same but for ledgers that measure whoever was drawn."""
    worst: Estimate
    worst_tenth: Estimate
    spread: Estimate


@dataclass(frozen=True)
class Standing:
    """One arm: last accuracy under every protocol, how its clients stand, and what it cost."""

    label: str
    accuracy: Mapping[str, Estimate]
    over_clients: Mapping[str, OverClients]
    up: float
    down: float
    setup: float
    steps: int
    """Of clients' training, pretraining included."""
    server_steps: int
    evaluation_steps: int
    """Training that only was done to measure personal models."""
    seconds: Estimate
    own: Mapping[str, Mapping[str, Estimate]] = field(default_factory=dict)
    """Protocol -> metric of the user's own -> its last value."""
    bound: bool = False
    stopped: bool = False
    """Whether a run of it ended early, at `evaluation.stop_at`."""


@dataclass(frozen=True)
class Reach:
    """What it took one arm to reach a target."""

    label: str
    protocol: str
    target: float
    found: tuple[Reached | None, ...]
    """For each seed."""
    fewer_rounds: float | None = None
    """Rounds of the baseline for one of this, where every seed of both got there."""
    fewer_bytes: float | None = None

    @property
    def there(self) -> list[Reached]:
        """The seeds that reached it."""
        return [each for each in self.found if each is not None]

    @property
    def everywhere(self) -> bool:
        """Whether every seed did."""
        return None not in self.found

    def took(self, what: str) -> Estimate | None:
        """Rounds (`round`), `bytes` or `seconds` of the seeds that reached it."""
        return estimate(getattr(each, what) for each in self.there) if self.there else None


@dataclass(frozen=True)
class Gap:
    """Accuracy of one arm less the baseline's."""

    label: str
    protocol: str
    difference: Difference


@dataclass(frozen=True)
class Contrast:
    """A whole comparison."""

    baseline: str
    standings: Sequence[Standing]
    reaches: Sequence[Reach]
    gaps: Sequence[Gap]
    warnings: Sequence[str] = field(default=())
    """What makes arms less comparable than they look."""


def read_arms(labelled: Iterable[tuple[str, Path]]) -> list[ArmRuns]:
    """The arms of some runs, each given by what it is called and where it lies; runs of one label are seeds of one arm."""
    arms: dict[str, ArmRuns] = {}
    for label, folder in labelled:
        arms.setdefault(label, ArmRuns(label, [])).runs.append(read_whole(folder))
    return list(arms.values())


def contrast(arms: Sequence[ArmRuns], baseline: str | None = None) -> Contrast:
    """Everything about a comparison; the baseline is the first arm if none is named.

    >>> from coterie.results.tally import Mean, Tally
    >>> def run(seed, accuracy):
    ...     found = Tally({"seed": seed})
    ...     found.means["global"]["accuracy"][1] = Mean(1, accuracy)
    ...     return Run(Path(), found)
    >>> arms = [ArmRuns("a", [run(0, 0.5), run(1, 0.25)]), ArmRuns("b", [run(0, 0.75), run(1, 0.75)])]
    >>> gap = contrast(arms).gaps[0]
    >>> gap.label, gap.difference.mean, gap.difference.verdict
    ('b', 0.375, 'too few seeds')
    """
    _check(arms)
    labels = [arm.label for arm in arms]
    check_baseline(baseline, labels)
    base = arms[labels.index(baseline)] if baseline else arms[0]
    protocols = measured(arms)
    targets = sorted({target for arm in arms for run in arm.runs for target in run.tally.targets})
    reaches = [_compared(arm, base, protocol, target) for protocol in protocols for target in targets for arm in arms]
    gaps = [Gap(arm.label, protocol, found) for protocol in protocols for arm, found in differences(arms, base, protocol)]
    warnings = [
        *filter(None, (unlike_clients(arms, protocol) for protocol in protocols)),
        *stopped_early(arms),
        *unequal_work(arms),
        *_apart(arms, base),
    ]
    return Contrast(base.label, [_standing(arm) for arm in arms], [each for each in reaches if each.found], gaps, warnings)


def check_baseline(baseline: str | None, labels: Collection[str]) -> None:
    """A UserError where nothing of that name is compared.

    >>> check_baseline("locl", ["fedavg", "local"])
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: baseline 'locl': not one of what is compared, did you mean 'local'? Valid: fedavg, local
    """
    if baseline is not None and baseline not in labels:
        raise UserError(f"baseline '{baseline}': not one of what is compared, {nearest(baseline, labels)}")


def _apart(arms: Sequence[ArmRuns], base: ArmRuns) -> list[str]:
    """Arms that were measured under nothing that the baseline was measured under."""
    shared = {arm.label: set(measured([arm])) & set(measured([base])) for arm in arms}
    lost = [label for label, protocols in shared.items() if not protocols]
    what = f"{', '.join(lost)} and {base.label} were measured under no protocol in common and cannot be compared"
    return [f"{what}: say one that all have, such as evaluation.protocols = ['local_post']"] if lost else []


def stopped_early(arms: Sequence[ArmRuns]) -> list[str]:
    """Arms that ended as soon as they were good enough: what they ended with says nothing, when they did does."""
    rounds = {arm.label: list(map(str, dict.fromkeys(arm.stopped))) for arm in arms if arm.stopped}
    told = "; ".join(f"{label} in round{'s' if len(those) > 1 else ''} {', '.join(those)}" for label, those in rounds.items())
    what = "their last accuracies are not compared; when they got there stands under rounds to targets"
    return [f"runs stopped at evaluation.stop_at ({told}): {what}"] if told else []


def _check(arms: Sequence[ArmRuns]) -> None:
    for arm in arms:
        for run in arm.runs:
            try:
                run.tally.check_measured()
            except RunError as error:
                raise RunError(f"{arm.label} seed {run.tally.seed}: {error}") from None
    if not measured(arms):
        raise RunError("nothing was measured in any of these runs")


def measured(arms: Iterable[ArmRuns]) -> list[str]:
    """Protocols with a curve: first what most arms were measured under, then in the experiment's order."""
    counts: dict[str, set[str]] = {}
    for arm in arms:
        for tally in (run.tally for run in arm.runs):
            for protocol in [*(each for each in tally.asked if each in tally.means), *tally.means]:
                counts.setdefault(protocol, set()).add(arm.label)
    return sorted(counts, key=lambda protocol: -len(counts[protocol]))


def means_of(arm: ArmRuns, protocol: str, metric: str = "accuracy") -> dict[int, Mean]:
    """Seed -> what the run ended with, for those that were measured so."""
    found = {run.tally.seed: run.tally.last(protocol, metric) for run in arm.runs}
    return {seed: last for seed, last in found.items() if last is not None}


def last_score(arm: ArmRuns, protocol: str, metric: str = "accuracy") -> Estimate | None:
    """The last value of a metric, over seeds."""
    found = means_of(arm, protocol, metric)
    return estimate(last.value for last in found.values()) if found else None


def over_clients(arm: ArmRuns, protocol: str) -> OverClients | None:
    """How clients stand at the end; None for what is measured at the server."""
    found = [last for last in means_of(arm, protocol).values() if last.clients is not None and last.worst is not None]
    if not found:
        return None
    counts = [last.clients for last in found if last.clients is not None]
    spreads = (estimate(getattr(last, key) for last in found) for key in ("worst", "worst_tenth", "spread"))
    return OverClients((min(counts), max(counts)), *spreads)


def reached(arm: ArmRuns, protocol: str, target: float, running: int = 1) -> Reach:
    """What reaching a target took, for every seed that was measured under a protocol."""
    tallies = [run.tally for run in arm.runs if "accuracy" in run.tally.means.get(protocol, ())]
    return Reach(arm.label, protocol, target, tuple(tally.reached(protocol, target, running) for tally in tallies))


def differences(arms: Sequence[ArmRuns], base: ArmRuns, protocol: str, metric: str = "accuracy") -> list[tuple[ArmRuns, Difference]]:
    """Every other arm's last value less the baseline's, where they share a seed, are measured on as many clients and ran to the end."""

    def values(arm: ArmRuns) -> dict[int, float]:
        return {seed: last.value for seed, last in means_of(arm, protocol, metric).items()}

    def clients(arm: ArmRuns) -> set[int | None]:
        return {last.clients for last in means_of(arm, protocol, metric).values()}

    alike = [arm for arm in arms if arm is not base and clients(arm) == clients(base) and not (arm.stopped or base.stopped)]
    found = ((arm, paired(values(arm), values(base))) for arm in alike)
    return [(arm, difference) for arm, difference in found if difference is not None]


def unlike_clients(arms: Sequence[ArmRuns], protocol: str) -> str:
    """A sentence where arms are measured on different numbers of clients, which only ledgers before the fixed set are."""
    found = {arm.label: over.clients for arm in arms if (over := over_clients(arm, protocol))}
    if len(set(found.values())) < 2:
        return ""
    told = ", ".join(f"{label} {low if low == high else f'{low} to {high}'}" for label, (low, high) in found.items())
    return f"means under {protocol} are not over the same clients ({told}): they do not compare"


def unequal_work(arms: Sequence[ArmRuns]) -> list[str]:
    """A sentence where the clients of some arms trained more than those of others; bounds and what stopped early do not count.

    >>> from coterie.results.tally import Tally
    >>> def trained(label, steps):
    ...     event = {"event": "training", "round": 1, "purpose": "training", "site": "clients", "steps": steps, "samples": 0, "loss": None}
    ...     return ArmRuns(label, [Run(Path(), Tally.of([event]))])
    >>> unequal_work([trained("local", 2400), trained("fedmd", 8400), trained("fccl", 8400)])
    ['local work differs: local 2,400 steps, others 8,400; a difference may come from more training and not from the method']
    """
    steps = {arm.label: arm.steps for arm in arms if arm.steps and not (arm.bound or arm.stopped)}
    usual = max(steps.values(), key=lambda count: sum(_equal(count, other) for other in steps.values()), default=0)
    unlike = {label: count for label, count in steps.items() if not _equal(usual, count)}
    if not unlike:
        return []
    told = ", ".join(f"{label} {count:,} steps" for label, count in unlike.items())
    rest = [label for label in steps if label not in unlike]
    whose = rest[0] if len(rest) == 1 else "others"
    return [f"local work differs: {told}, {whose} {usual:,}; a difference may come from more training and not from the method"]


def _equal(usual: int, count: int) -> bool:
    return abs(count - usual) <= EQUAL * usual


def _standing(arm: ArmRuns) -> Standing:
    tallies = [run.tally for run in arm.runs]
    protocols = measured([arm])
    accuracy = {protocol: found for protocol in protocols if (found := last_score(arm, protocol)) is not None}
    clients = {protocol: over for protocol in protocols if (over := over_clients(arm, protocol)) is not None}
    return Standing(
        arm.label,
        accuracy,
        clients,
        up=mean(tally.total("up") for tally in tallies),
        down=mean(tally.total("down") for tally in tallies),
        setup=mean(tally.total("up", setup=True) + tally.total("down", setup=True) for tally in tallies),
        steps=arm.steps,
        server_steps=round(mean(tally.trained(site="server").steps for tally in tallies)),
        evaluation_steps=round(mean(tally.trained("evaluation").steps for tally in tallies)),
        seconds=estimate(sum(tally.seconds.values()) for tally in tallies),
        own={protocol: own for protocol in protocols if (own := _own(arm, protocol))},
        bound=arm.bound,
        stopped=bool(arm.stopped),
    )


def _own(arm: ArmRuns, protocol: str) -> dict[str, Estimate]:
    metrics = dict.fromkeys(metric for run in arm.runs for metric in run.tally.means.get(protocol, ()) if metric not in USUAL)
    return {metric: found for metric in metrics if (found := last_score(arm, protocol, metric)) is not None}


def _compared(arm: ArmRuns, base: ArmRuns, protocol: str, target: float) -> Reach:
    ours, theirs = reached(arm, protocol, target), reached(base, protocol, target)
    if not (ours.found and theirs.found and ours.everywhere and theirs.everywhere):
        return ours
    fewer = [
        _ratio(mean(getattr(r, what) for r in theirs.there), mean(getattr(r, what) for r in ours.there)) for what in ("round", "bytes")
    ]
    return Reach(ours.label, protocol, target, ours.found, *fewer)


def _ratio(base: float, own: float) -> float | None:
    return base / own if base and own else None
