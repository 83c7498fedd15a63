"""Split training with metadata selection: Shi & Radu, "Data Selection for Efficient Model Update in Federated Learning", EuroMLSys 2022
(arXiv 2111.03512).

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
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import BeforeValidator
from torch import Tensor, nn

from coterie.aggregation import Private
from coterie.data.maps import Maps, Precision, pack
from coterie.data.selection import Floats, KMeansSelection, Selected, sketch
from coterie.errors import UserError, nearest
from coterie.method import Federation, Method, aggregate
from coterie.methods.fedavg import FedAvg
from coterie.methods.few_shot import FewShot, prototypes
from coterie.models import staged
from coterie.models.fused import last_map
from coterie.population import Population
from coterie.protocols import Model
from coterie.record import Record
from coterie.replies import Replies, Reply, Weighting
from coterie.seeds import seed_of
from coterie.settings import Count, spec
from coterie.site import SERVER, ModelCache, Site
from coterie.training.loop import Fitted, Frozen, frozen, outputs_of
from coterie.training.optimisers import Sgd
from coterie.training.settings import Training

__all__ = ["SplitMetadata"]

MEGABYTE = 2**20
BATCH = 16
"""Images that go through the lower part at once: their maps stay in a core's cache."""
USUAL: dict[str, Any] = {"epochs": 100, "batch": 50, "optimiser": {"name": "sgd", "lr": 0.1, "weight_decay": 5e-4}}
"""How the paper trains the upper part."""


def _completed(value: Any) -> Any:
    """What is left out of the server's training is as in the paper."""
    return {**USUAL, **value} if isinstance(value, Mapping) else value


@spec
class SplitMetadata(FedAvg):
    """FedAvg whose upper part the server trains on selected activation maps.

    >>> SplitMetadata(level="G1", selection="k-centre", precision="uint8").protocols[:2]
    ('composed', 'global')
    """

    name: ClassVar[str] = "split-metadata"
    evaluates: ClassVar[tuple[Model, ...]] = ("composed", *FedAvg.evaluates)

    weighting: Weighting = "uniform"
    level: str | None = None
    """The last stage of the lower part; None for the last one that gives maps."""
    selection: Selected = field(default_factory=KMeansSelection)
    """How a client chooses the samples whose maps it sends."""
    budget: Count = 20
    """How many maps of a class a client sends at most."""
    precision: Precision = "float32"
    """What maps are sent in; `uint8` adds the least value and the step of each map, eight bytes."""
    upload: Literal["always", "evaluated"] = "always"
    """Whether maps are sent in every round, as in the paper, or only in rounds in which the composed model is evaluated."""
    memory_mb: Count = 16
    """What a client chooses by is kept in so many MB, in float32: beyond that maps are projected (`coterie.data.selection.sketch`) as
    they come, a batch at a time. PCA works on copies, a few times as much. The maps that are sent are in RAM too, in the precision they
    are sent in; with `full` those are all of them."""
    server: Annotated[Training, BeforeValidator(_completed)] = Training(epochs=100, batch=50, optimiser=Sgd(lr=0.1, weight_decay=5e-4))
    """How the upper part is trained, once; by default as in the paper."""
    upper: FewShot = field(default_factory=FewShot)
    """How the upper part learns from few maps: a table with `freeze`, `head` and more."""

    def check(self, population: Population) -> None:
        site = population.site(SERVER, 0, ModelCache())
        net, cut = staged(site.model()), self.cut(site)
        for key, stage in (("level", self.level), ("upper.freeze", self.upper.freeze)):
            if stage is not None and stage not in net.levels[:-1]:
                raise UserError(f"method.{key} = '{stage}': no such stage to cut after, {nearest(stage, net.levels[:-1])}")
        if self.upper.freeze is not None and net.levels.index(self.upper.freeze) <= net.levels.index(cut):
            raise UserError(f"method.upper.freeze = '{self.upper.freeze}': expected a stage above the cut, which is '{cut}'")
        if self.upper.head != "trained" and not (isinstance(net[-1], nn.Linear) and net[-1].bias is not None):
            raise UserError(f"method.upper.head = '{self.upper.head}': expected a model whose head is one linear layer with a bias")
        if isinstance(self.aggregation, Private):
            raise UserError("method.aggregation = 'private': activation maps of single samples are sent too, to which no noise is added")
        if self.server.augment != "none":
            raise UserError(f"method.server.augment = '{self.server.augment}': the server has maps, not images; expected 'none'")

    def cut(self, site: Site) -> str:
        """The level this site's network is cut at."""
        net = staged(site.model())
        return self.level or last_map(net, site.train.shape) or net.levels[-2]

    def round(self, state: Record, fed: Federation) -> Record:
        below, evaluated = state.group("model"), "composed" in fed.protocols
        asked = evaluated or self.upload == "always"
        replies = self._asked(fed, below) if asked else fed.ask("train", Record(model=below), like=Record(model=below))
        parts = list[tuple[Record, Tensor]]()
        heard = _noting(replies, parts) if evaluated else replies
        merged = aggregate(self.aggregation, fed, heard, Record(model=below), "model", weighting=self.weighting)
        if not evaluated:
            return merged
        return merged | Record(composed=self.compose(fed.server, below, Maps.join(parts, fed.server.dtype)))

    def _asked(self, fed: Federation, below: Record) -> Replies:
        """Models, and maps with their labels: as many rows of each as a client sends, labels of classes that there are."""
        one = pack(self._blank(fed.server, self.lower(fed.server, below)), self.precision)
        any_rows = Record({name: value[:0] for name, value in one.tensors.items()})
        like = Record(model=below, activations=any_rows, labels=torch.empty(0, dtype=torch.int64))
        classes = fed.server.train.classes

        def outside(reply: Record) -> str | None:
            labels = reply.tensors["labels"]
            return None if bool(((labels >= 0) & (labels < classes)).all()) else f"labels are not all from 0 to {classes - 1}"

        return fed.ask("train", Record(model=below, metadata=True), like=like, check=outside).needing("examples")

    def returned(self, site: Site, memory: Record, message: Record, fitted: Fitted) -> tuple[Record, Record]:
        """FedAvg's, and the maps and labels of the samples that stand for this client's, as the received model sees them."""
        reply, kept = super().returned(site, memory, message, fitted)
        return (reply | self.metadata(site, message.group("model")) if "metadata" in message else reply), kept

    def metadata(self, site: Site, model: Record) -> Record:
        """The chosen samples' maps, packed, and labels."""
        chosen = self.choose(site, model)
        run, labels = self.lower(site, model), site.train.labels[chosen]
        parts = (pack(site.fetch(run(site.train.batch(some)[0])), self.precision) for some in torch.split(chosen, BATCH))
        return Record(activations=Maps.join((part, labels[:0]) for part in parts).packed, labels=labels)

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
            rows[start : start + len(x)] = sketch(site.fetch(run(x)).flatten(1).float().numpy(), rows.shape[1], seed)
            start += len(x)
        return rows

    def lower(self, site: Site, model: Record) -> Frozen:
        """The lower part under a model, in a network of its own."""
        level = self.cut(site)
        return site.frozen(model, "lower", lambda net, x: staged(net).lower(level)(x))

    def _blank(self, site: Site, run: Frozen) -> Tensor:
        """What comes of one blank image."""
        return site.fetch(run(site.blank()))

    def compose(self, server: Site, below: Record, maps: Maps) -> Record:
        """[lower part of `below`, upper part trained on maps that came from it]: what is tested, and never sent."""
        net, cut = staged(server.model()), self.cut(server)
        frozen_to = self.upper.freeze or cut
        passed = net.levels[net.levels.index(cut) + 1 : net.levels.index(frozen_to) + 1]
        above = net.levels[net.levels.index(frozen_to) + 1 :]
        if passed:
            middle = frozen(net, below, lambda net, x: _through(net, passed, x))
            maps = Maps(pack(server.fetch(outputs_of(middle, maps)), "float32"), maps.labels, server.dtype)
        start = (server.fresh() if self.upper.start == "initial" else below).select(*above)
        upper = net.upper(frozen_to)
        trained = server.fit(start, self.upper.objective(), training=self.server, data=maps, model=upper, purpose="compose").params
        if self.upper.head != "trained":
            features = outputs_of(frozen(upper, trained, lambda net, x: net[:-1](x)), maps)  # type: ignore[index]
            trained = trained | prototypes(features, maps.labels, server.train.classes, self.upper.head)
        return below | trained

    def unevaluated(self) -> Method | None:
        """FedAvg, where maps are sent for the composed model only: runs that differ in how they cut, choose and compose share it."""
        if type(self) is not SplitMetadata or self.upload == "always":
            return None
        return FedAvg(weighting=self.weighting, aggregation=self.aggregation, regularisers=self.regularisers)

    def models(self, state: Record, site: Site) -> Mapping[Model, Record]:
        plain = super().models(state, site)
        return {**plain, "composed": state.group("composed")} if "composed" in state else plain


def _noting(replies: Replies, parts: list[tuple[Record, Tensor]]) -> Iterator[Reply]:
    """The same replies; their maps and labels are put aside as they pass."""
    for reply in replies:
        parts.append((reply.record.group("activations"), reply.record.tensors["labels"]))
        yield reply


def _through(net: nn.Module, stages: Sequence[str], x: Tensor) -> Tensor:
    """What comes of `x` in some stages of a network."""
    for name in stages:
        x = net.get_submodule(name)(x)
    return x
