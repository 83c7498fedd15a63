"""The demonstration: what this project is for, in two comparisons on data that need no fetching.

Settings were chosen on seeds from 100 on (the experiments' files say how), and are shown with other seeds. What a row says of a method is
what the method does; whether that helps here is for the interval beside it to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from coterie.running.experiment import Experiment
from coterie.studies.arms import Arm, arms_of

__all__ = ["PARTS", "Part"]


@dataclass(frozen=True)
class Part:
    """One comparison of the demonstration."""

    name: str
    """Of its experiment, or the path of one."""
    title: str
    what: str
    protocol: str
    """What it is about."""
    rows: Mapping[str, tuple[str, str]]
    """Method -> its paper, and in one sentence what it does."""
    baseline: str
    seeds: tuple[int, ...]
    instead: Mapping[str, str] = field(default_factory=dict)
    """Method -> the protocol that it is about, which stands in the place of `protocol`."""

    def arms(self, folder: Path, data: Path | None = None) -> list[Arm]:
        """Its runs.

        >>> [len(part.arms(Path("runs"))) for part in PARTS]
        [24, 12]
        """
        return arms_of(Experiment.load(self.name), list(self.rows), self.seeds, folder / Path(self.name).stem, data=data)


PARTS = (
    Part(
        "demo-classes",
        "Data that differ: ten clients, two digits each",
        "Every client knows two of ten digits. A server's model is tested on all, a client's own on its two. * not global, but composed.",
        "global",
        {
            "fedavg": ("McMahan et al. 2017", "averages the clients' models: what the others are compared with"),
            "fedmmd": ("Yao et al. 2018", "keeps the received model beside the trained one and pulls their outputs together"),
            "fedfusion": ("Yao et al. 2019", "fuses features of the received model with those of the trained one"),
            "fml": ("Shen et al. 2020", "every client keeps a model of its own, which learns from the shared one and back"),
            "split-metadata": ("Shi & Radu 2022", "clients send a few activation maps, on which the server trains the upper layers"),
            "scaffold": ("Karimireddy et al. 2020", "corrects every step by how the client drifts from the others"),
            "local": ("no federation", "every client alone: good at its own two digits, of no use for the others"),
            "centralised": ("no federation", "all data in one place: a bound, and no rival"),
        },
        "fedavg",
        (0, 1, 2),
        {"split-metadata": "composed"},
    ),
    Part(
        "demo-styles",
        "Models that differ: four styles of digits, four architectures",
        "Every client has digits in a style of its own and a network of its own; only predictions on unlabelled public images travel.",
        "inter",
        {
            "local": ("no federation", "every client alone, after the same pretraining: what the others are compared with"),
            "fedmd": ("Li & Wang 2019", "every client learns the mean of all predictions on public images"),
            "feddf-client": ("Lin et al. 2020", "the same with soft labels, as distillation"),
            "fccl": ("Huang et al. 2022", "correlates classes across models, and keeps each near what it knew"),
        },
        "local",
        (0, 1, 2),
    ),
)
"""Both comparisons, in their order."""
