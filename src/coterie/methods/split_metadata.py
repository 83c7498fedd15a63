"""Split training with metadata selection: Shi & Radu, EuroMLSys 2022.

The network is cut at a level. Round t: each client takes the maps that the lower part of W_G(t-1) gives for its own images (evaluation
mode, not augmented), keeps the few that stand for the others, trains the whole network, and sends model, maps and labels. The server
takes the plain mean of the models for the next round, and trains the upper part, from its very first weights, on the maps; what is
tested is [lower part of W_G(t-1), that upper part], the old lower part because the maps came from it. This composed model never feeds
back, so it is trained only in rounds in which it is evaluated, and the global model's bits are the same either way.

Maps and labels are private data that leave the client; the ledger books them as `activations` and `labels`, in bytes and samples.
The paper leaves open: momentum (none here), schedule (none), augmentation (as `training` says, in local training only), how BatchNorm is
treated (batch statistics in the server's training), the scope of PCA and k-means' start (see `coterie.data.selection`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import field
from typing import Annotated, ClassVar, Literal

import numpy as np
import torch
from pydantic import BeforeValidator, Field, PlainSerializer
from pydantic.dataclasses import dataclass
from torch import Tensor, nn
from torch.nn import functional as F

from coterie.data.maps import Maps, Precision, pack
from coterie.data.selection import Floats, KMeansSelection, Selected, sketch
from coterie.errors import UserError, nearest
from coterie.method import Federation, Reply, Weighting, task, weighted_mean
from coterie.methods.fedavg import FedAvg
from coterie.methods.fedfusion import parts_of
from coterie.models import staged
from coterie.models.fused import last_map
from coterie.population import Population
from coterie.record import Record
from coterie.seeds import seed_of
from coterie.settings import STRICT
from coterie.site import SERVER, ModelCache, Site
from coterie.training.loop import Frozen, frozen, outputs_of
from coterie.training.objectives import CrossEntropy, Objective, Step
from coterie.training.optimisers import OPTIMISERS, Optimiser, Sgd
from coterie.training.settings import Training

__all__ = ["FewShot", "MetaTraining", "SplitMetadata", "Upper", "prototypes"]

Count = Annotated[int, Field(ge=1)]
MEGABYTE = 2**20
BATCH = 16
"""Images that go through the lower part at once: their maps stay in a core's cache."""


@dataclass(frozen=True, config=STRICT)
class MetaTraining(Training):
    """How the server trains the upper part, once; by default as in the paper."""

    epochs: Annotated[int, Field(ge=0)] = 100
    batch: Annotated[int, Field(ge=1)] | Literal["all"] = 50
    optimiser: Annotated[
        Optimiser,
        BeforeValidator(lambda value: OPTIMISERS.resolve(value, "method.server.optimiser")),
        PlainSerializer(OPTIMISERS.dump),
    ] = field(default_factory=lambda: Sgd(lr=0.1, weight_decay=5e-4))


@dataclass(frozen=True, config=STRICT)
class Upper:
    """What few-shot learning offers an upper part that has few maps to learn from; by default nothing of it, as in the paper."""

    start: Literal["initial", "global"] = "initial"
    """Where its training starts: from the first weights of all, or from those of the global model that gave the maps."""
    freeze: str | None = None
    """Its stages up to this one stay as they are in that global model; maps go through them once, in evaluation mode."""
    head: Literal["trained", "nearest-mean", "cosine"] = "trained"
    """Or made, after the training, of the mean features of each class: the nearest mean wins, or the smallest angle."""
    mixup: Annotated[float, Field(ge=0)] = 0.0
    """Maps and labels are mixed in pairs, with shares from Beta(mixup, mixup) (Zhang et al. 2018)."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability of dropping a feature before the head."""

    def objective(self) -> Objective:
        """What the server minimises."""
        return FewShot(self.mixup, self.dropout) if self.mixup or self.dropout else CrossEntropy()


@dataclass(frozen=True, config=STRICT)
class FewShot(Objective):
    """Cross-entropy with inputs mixed in pairs and features dropped."""

    mixup: float
    dropout: float

    def __call__(self, step: Step) -> Tensor:
        net = step.model
        assert isinstance(net, nn.Sequential)
        other = torch.randperm(len(step.x))
        share = torch.distributions.Beta(self.mixup, self.mixup).sample().item() if self.mixup else 1.0
        mixed = share * step.x + (1 - share) * step.x[other] if self.mixup else step.x
        logits = net[-1](F.dropout(net[:-1](mixed), self.dropout))
        return share * F.cross_entropy(logits, step.y) + (1 - share) * F.cross_entropy(logits, step.y[other])


def prototypes(features: Tensor, labels: Tensor, classes: int, kind: Literal["nearest-mean", "cosine"]) -> Record:
    """A linear head that says whose mean feature is nearest, or has the smallest angle; classes that were not seen never win.

    |f - m|^2 = |f|^2 - 2 f.m + |m|^2, and |f|^2 is the same for all classes, so that nearness is linear in f.

    >>> head = prototypes(torch.tensor([[0.0, 1.0], [0.0, 3.0], [4.0, 0.0]]), torch.tensor([0, 0, 1]), 2, "nearest-mean").tensors
    >>> head["head.weight"].tolist(), head["head.bias"].tolist()
    ([[0.0, 4.0], [8.0, 0.0]], [-4.0, -16.0])
    """
    present = [label for label in range(classes) if bool((labels == label).any())]
    weight = features.new_zeros(classes, features.shape[1])
    bias = features.new_full((classes,), torch.finfo(features.dtype).min / 2)
    for label in present:
        mean = features[labels == label].mean(0)
        weight[label] = 2 * mean if kind == "nearest-mean" else F.normalize(mean, dim=0)
        bias[label] = -mean.square().sum() if kind == "nearest-mean" else 0.0
    return Record({"head.weight": weight, "head.bias": bias})


@dataclass(frozen=True, config=STRICT)
class SplitMetadata(FedAvg):
    """FedAvg whose upper part the server trains on selected activation maps.

    >>> SplitMetadata(level="G1", selection="k-centre", precision="uint8").offers[:2]
    ('composed', 'global')
    """

    name: ClassVar[str] = "split-metadata"
    offers: ClassVar[tuple[str, ...]] = ("composed", *FedAvg.offers)
    kinds: ClassVar[Mapping[str, str]] = {"model": "weights", "maps": "activations", "labels": "labels"}
    per_sample: ClassVar[tuple[str, ...]] = ("maps", "labels")

    weighting: Weighting = "uniform"
    level: str | None = None
    """The last stage of the lower part; None for the last one that gives maps."""
    selection: Selected = field(default_factory=KMeansSelection)
    budget: Count = 20
    """How many maps of a class a client sends at most."""
    precision: Precision = "float32"
    """What maps are sent in; `uint8` adds the least value and the step of each map, eight bytes."""
    upload: Literal["always", "evaluated"] = "always"
    """Whether maps are sent in every round, as in the paper, or only in rounds in which the composed model is evaluated."""
    memory_mb: Count = 16
    """What a client chooses by is kept in so many MB, in float32: beyond that maps are projected (`coterie.data.selection.sketch`) as they
    come, a batch at a time. PCA works on copies, a few times as much. The maps that are sent are in RAM too, in the precision they are
    sent in; with `full` those are all of them."""
    server: MetaTraining = field(default_factory=MetaTraining)
    upper: Upper = field(default_factory=Upper)

    def check(self, population: Population) -> None:
        site = population.site(SERVER, 0, ModelCache())
        net = staged(site.model())
        for key, stage in (("level", self.level), ("upper.freeze", self.upper.freeze)):
            if stage is not None and stage not in net.levels[:-1]:
                raise UserError(f"method.{key} = '{stage}': no such stage to cut after, {nearest(stage, net.levels[:-1])}")
        if self.upper.freeze is not None and net.levels.index(self.upper.freeze) <= net.levels.index(self.cut(site)):
            raise UserError(f"method.upper.freeze = '{self.upper.freeze}': expected a stage above the cut, which is '{self.cut(site)}'")
        if self.upper.head != "trained" and not (isinstance(net[-1], nn.Linear) and net[-1].bias is not None):
            raise UserError(f"method.upper.head = '{self.upper.head}': expected a model whose head is one linear layer with a bias")
        if self.server.augment != "none":
            raise UserError(f"method.server.augment = '{self.server.augment}': the server has maps, not images; expected 'none'")

    def cut(self, site: Site) -> str:
        """The level this site's network is cut at."""
        net = staged(site.model())
        return self.level or last_map(net, site.train.shape) or net.levels[-2]

    def round(self, state: Record, fed: Federation) -> Record:
        below, wanted = state.group("model"), "composed" in fed.wanted
        asked = wanted or self.upload == "always"
        example = pack(self._blank(fed.server, self.lower(fed.server, below)), self.precision)
        classes, parts = fed.server.train.classes, list[tuple[Record, Tensor]]()

        def heard() -> Iterator[Reply]:
            for reply in fed.ask(
                "train",
                Record(model=below, metadata=asked),
                like=Record(model=below),
                check=lambda reply: misfit(reply, example, classes) if asked else None,
            ):
                if wanted:
                    parts.append((reply.record.group("maps"), reply.record.tensors["labels"]))
                yield reply

        model = weighted_mean(heard(), "model", self.weighting)
        if not wanted:
            return Record(model=model)
        return Record(model=model, composed=self.compose(fed.server, below, Maps.join(parts, fed.server.dtype)))

    @task
    def train(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """FedAvg's, and the maps and labels of the samples that stand for this client's, as the received model sees them."""
        reply, kept = super().train(site, memory, message)
        return (reply | self.metadata(site, message.group("model")) if message["metadata"] else reply), kept

    def metadata(self, site: Site, model: Record) -> Record:
        """The chosen samples' `maps`, packed, and `labels`."""
        chosen = self.choose(site, model)
        run, labels = self.lower(site, model), site.train.labels[chosen]
        parts = (pack(run(site.train.batch(some)[0]), self.precision) for some in torch.split(chosen, BATCH))
        return Record(maps=Maps.join((part, labels[:0]) for part in parts).packed, labels=labels)

    def choose(self, site: Site, model: Record) -> Tensor:
        """The positions of the chosen samples among this site's."""
        labels = site.train.labels.numpy()
        seed = seed_of(site.seed, site.round, site.id, "selection")
        return torch.from_numpy(self.selection.select(self.features(site, model), labels, self.budget, seed))

    def features(self, site: Site, model: Record) -> Floats:
        """What the selection looks at, a row for each of this site's samples, in no more than `memory_mb`."""
        n = len(site.train)
        if self.selection.sees == "nothing":
            return np.empty((n, 0), np.float32)
        if self.selection.sees == "logits":
            return site.predict(model, site.train).float().numpy()
        seed = seed_of(site.seed, site.round, site.id, "sketch")
        run, start = self.lower(site, model), 0
        rows = np.empty((n, min(self._blank(site, run).numel(), max(1, self.memory_mb * MEGABYTE // (4 * max(n, 1))))), np.float32)
        for x, _ in site.train.batches(BATCH):
            rows[start : start + len(x)] = sketch(run(x).flatten(1).float().numpy(), rows.shape[1], seed)
            start += len(x)
        return rows

    def lower(self, site: Site, model: Record) -> Frozen:
        """The lower part under a model, in a network of its own whose tensors lie as convolutions are fastest without gradients."""
        level, net = self.cut(site), site.model("lower").to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        return frozen(net, model, lambda net, x: staged(net).lower(level)(x.contiguous(memory_format=torch.channels_last)))

    def _blank(self, site: Site, run: Frozen) -> Tensor:
        """What comes of one blank image."""
        return run(torch.zeros(1, *site.train.shape, dtype=site.dtype))

    def compose(self, server: Site, below: Record, maps: Maps) -> Record:
        """[lower part of `below`, upper part trained on maps that came from it]: what is tested, and never sent."""
        net, cut = staged(server.model()), self.cut(server)
        frozen_to = self.upper.freeze or cut
        passed = net.levels[net.levels.index(cut) + 1 : net.levels.index(frozen_to) + 1]
        above = net.levels[net.levels.index(frozen_to) + 1 :]
        if passed:
            middle = frozen(net, below, lambda net, x: through(net, passed, x))
            maps = Maps(pack(outputs_of(middle, maps), "float32"), maps.labels, server.dtype)
        start = parts_of(server.fresh() if self.upper.start == "initial" else below, *above)
        upper = net.upper(frozen_to)
        trained = server.fit(start, self.upper.objective(), training=self.server, data=maps, model=upper, purpose="compose").params
        if self.upper.head != "trained":
            features = outputs_of(frozen(upper, trained, lambda net, x: net[:-1](x)), maps)  # type: ignore[index]
            trained = trained | prototypes(features, maps.labels, server.train.classes, self.upper.head)
        return below | trained

    def models(self, state: Record, memory: Record, site: Site) -> Mapping[str, Record]:
        composed = {"composed": state.group("composed")} if site.id == SERVER and "composed" in state else {}
        return {**super().models(state, memory, site), **composed}

    def welcome(self, state: Record) -> Record:
        return Record(model=state.group("model"))


def through(net: nn.Module, stages: Sequence[str], x: Tensor) -> Tensor:
    """What comes of `x` in some stages of a network."""
    for name in stages:
        x = net.get_submodule(name)(x)
    return x


def misfit(reply: Record, example: Record, classes: int) -> str | None:
    """What is wrong with the maps and labels of a reply; `example` is one map as it should be packed."""
    maps, labels = reply.group("maps").tensors, reply.tensors.get("labels")
    if labels is None or labels.dtype != torch.int64 or labels.dim() != 1:
        return "labels are not a list of int64"
    if len(labels) and not (int(labels.min()) >= 0 and int(labels.max()) < classes):
        return f"labels go from {int(labels.min())} to {int(labels.max())}, expected 0 to {classes - 1}"
    wrong = [
        name
        for name, like in example.tensors.items()
        if name not in maps or maps[name].dtype != like.dtype or maps[name].shape != (len(labels), *like.shape[1:])
    ]
    return f"maps do not fit {len(labels)} labels and {example}: see {wrong[0]}" if wrong else None
