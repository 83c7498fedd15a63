"""FedFusion: Yao et al., "Towards Faster and Better Federated Learning: A Feature Fusion Approach", ICIP 2019 (arXiv 1908.05891).

FedAvg with a fused network: a client keeps the extractor it received, E_g, frozen beside the one it trains, E_l, and learns how to
fuse their feature maps. What travels is E_l, the fusion F and the classifier C; E_g is the received E and costs no byte.

Where paper and authors' code disagree: models are weighted by samples (paper; the code takes the plain mean); the convolution has no
bias unless asked; F is averaged like the rest (Algorithm 2) unless it is `personal`; the server smooths lambda with the code's 0.9,
for multi and single only; a client is sent the new model whenever it takes part. Which E_g the merged model is tested with the paper
leaves open; the code takes the one before (`test_with = "previous"`).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar, Literal

from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from coterie.method import Exhibit, Federation, task, weighted_mean
from coterie.methods.fedavg import FedAvg
from coterie.models import Architecture
from coterie.models.fused import Fused, FusedNet, Operator, Start
from coterie.record import Record
from coterie.settings import STRICT
from coterie.site import SERVER, Site
from coterie.training.loop import Fitted, Frozen, frozen
from coterie.training.objectives import Step
from coterie.training.settings import Training

__all__ = ["FedFusion"]


class FusedStep(Step):
    """A batch whose features come from the fused maps; E_g's are looked up by sample."""

    model: FusedNet

    @cached_property
    def features(self) -> Tensor:
        return self.model.features(self.x, self.frozen["extractor"])

    @cached_property
    def logits(self) -> Tensor:
        return self.model.classify(self.features)


def parts_of(params: Record, *parts: str) -> Record:
    """The tensors of some top-level parts of a network."""
    return Record({name: value for name, value in params.items() if name.split(".")[0] in parts})


def without(params: Record, *parts: str) -> Record:
    """The tensors of a network, less those of some of its parts."""
    return Record({name: value for name, value in params.items() if name.split(".")[0] not in parts})


def beside(site: Site, params: Record, extractor: Record) -> Record:
    """The whole fused network: `params`, and as its E_g the extractor of `extractor`."""
    net = site.model()
    assert isinstance(net, FusedNet)
    return params | Record({f"past.{name}": value for name, value in parts_of(extractor, *net.below).items()})


@dataclass(frozen=True, config=STRICT)
class FedFusion(FedAvg):
    """FedAvg with feature fusion: `conv`, `multi` or `single`.

    >>> from coterie.models import CNN
    >>> FedFusion(operator="single").network(CNN(), 0).name
    'fused'
    """

    name: ClassVar[str] = "fedfusion"
    exhibits: ClassVar[Mapping[str, Exhibit]] = {
        **FedAvg.exhibits,
        "fusion": Exhibit("Weight of the global extractor per channel", "lines", x="round", y="weight"),
    }

    operator: Operator = "conv"
    level: str | None = None
    """After which stage of the network; None for the last one that gives maps."""
    start_as: Start = "identity"
    """How the convolution starts: passing the local maps on, or as the authors' code does (`xavier`), or as torch does."""
    bias: bool = False
    ema: Annotated[float, Field(ge=0, lt=1)] = 0.9
    """How much of the last lambda the server keeps (multi and single)."""
    personal: bool = False
    """Whether the fusion stays with the client, who then never uploads it."""
    fixed: bool = False
    """Whether the fusion stays as it starts; with multi or single this is FedAvg."""
    test_with: Literal["previous", "new"] = "previous"

    def network(self, base: Architecture, client: int) -> Architecture:
        return base if isinstance(base, Fused) else Fused(base, self.operator, self.level, self.bias, self.start_as)

    def start(self, fed: Federation) -> Record:
        whole = fed.server.fresh()
        model = without(whole, "past")
        return self._state(model, model, parts_of(whole, "fusion"))

    def round(self, state: Record, fed: Federation) -> Record:
        sent = Record(model=state.group("model"))
        merged = weighted_mean(fed.ask("train", sent, like=sent), "model", self.weighting)
        return self._state(self._smoothed(merged, sent.group("model")), sent.group("model"), state.group("fusion"))

    def _state(self, model: Record, before: Record, fusion: Record) -> Record:
        """The merged model, the model whose extractor it is tested with, and, where clients keep their own, a fusion for testing."""
        if self.personal:
            return Record(model=without(model, "fusion"), before=without(before, "fusion"), fusion=fusion)
        return Record(model=model, before=before)

    def _smoothed(self, merged: Record, before: Record) -> Record:
        """The server's exponential average of lambda; a convolution is averaged plainly."""
        if self.operator == "conv" or self.personal:
            return merged
        old, new = before.tensors["fusion.lam"], merged.tensors["fusion.lam"]
        return merged | Record({"fusion.lam": self.ema * old + (1 - self.ema) * new})

    @task
    def train(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """FedAvg's, with E_g beside; the fusion goes back with the model or stays here."""
        start = self.join(site, message | Record(fusion=memory.group("fusion")))
        site.observe("local_pre", start)
        fitted = self.tune(site, start, memory, site.training, "train")
        site.observe("local_post", fitted.params)
        self.show_terms(site, fitted)
        self._show(site, fitted.params)
        kept = Record(fusion=parts_of(fitted.params, "fusion")) if self.personal else Record()
        back = without(fitted.params, "past", *(["fusion"] if self.personal else []))
        return Record(model=back, examples=len(site.train)), kept | fitted.carried

    def join(self, site: Site, message: Record) -> Record:
        model = message.group("model")
        fusion = (message.group("fusion") or parts_of(site.fresh(), "fusion")) if self.personal else Record()
        return beside(site, model | fusion, model)

    def tune(self, site: Site, start: Record, carried: Record, training: Training, purpose: str) -> Fitted:
        return site.fit(
            start,
            self.objective(),
            carried=carried,
            training=training,
            frozen=self.frozen(site, start),
            purpose=purpose,
            trainable=lambda name: not name.startswith("past.") and not (self.fixed and name.startswith("fusion.")),
            step=FusedStep,
        )

    def frozen(self, site: Site, start: Record) -> dict[str, Frozen]:
        extractor = frozen(site.model("extractor"), start, lambda net, x: net.past(x))  # type: ignore[operator]
        return {"extractor": extractor, **super().frozen(site, start)}

    def _show(self, site: Site, params: Record) -> None:
        """Per channel, how much of E_g is let in: lambda, or the share of the weights that look at it."""
        if self.operator == "conv":
            local, past = params.tensors["fusion.mix.weight"].flatten(1).abs().chunk(2, dim=1)
            site.show("fusion", past.sum(1) / (local.sum(1) + past.sum(1)))
        else:
            site.show("fusion", params.tensors["fusion.lam"])

    def models(self, state: Record, memory: Record, site: Site) -> Mapping[str, Record]:
        model = state.group("model")
        extractor = state.group("before") if self.test_with == "previous" else model
        whole = beside(site, model | (memory.group("fusion") or state.group("fusion")), extractor)
        return {"global": whole} if site.id == SERVER else dict.fromkeys(("local_val", "intra", "inter"), whole)

    def welcome(self, state: Record) -> Record:
        return Record(model=state.group("model"))
