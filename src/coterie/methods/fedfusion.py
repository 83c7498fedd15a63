"""FedFusion: Yao, Huang, Wu, Zhang & Sun, "Towards Faster and Better Federated Learning: A Feature Fusion Approach", ICIP 2019; in full,
with FedMMD: "Federated Learning with Additional Mechanisms on Clients to Reduce Communication Costs", arXiv 1908.05891 (cited below).

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
from typing import ClassVar, Literal

from torch import Tensor

from coterie.method import Federation, fine_tune, means, task
from coterie.methods.fedavg import FedAvg
from coterie.models import Architecture
from coterie.models.fused import Fused, FusedNet, Operator, Start
from coterie.protocols import Model
from coterie.record import EMPTY, Record
from coterie.settings import ShareBelowOne, spec
from coterie.site import Site
from coterie.training.loop import Fitted, Frozen
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


@spec
class FedFusion(FedAvg):
    """FedAvg with feature fusion: `conv`, `multi` or `single`.

    >>> from coterie.models import CNN
    >>> FedFusion(operator="single").network(CNN(), 0).name
    'fused'
    """

    name: ClassVar[str] = "fedfusion"

    operator: Operator = "conv"
    level: str | None = None
    """After which stage of the network; None for the last one that gives maps."""
    start_as: Start = "identity"
    """How the convolution starts: passing the local maps on, as Glorot & Bengio say, or as torch does. The authors' code has torch's
    start with a bias (`start_as = "torch", bias = true`): its Xavier start is given to extractor and classifier only."""
    bias: bool = False
    ema: ShareBelowOne = 0.9
    """How much of the last lambda the server keeps (multi and single); at 0 lambda is averaged plainly, as a convolution is."""
    personal: bool = False
    """Whether the fusion stays with the client, who then never uploads it."""
    fixed: bool = False
    """Whether the fusion stays as it starts; with multi or single this is FedAvg."""
    test_with: Literal["previous", "new"] = "previous"

    def network(self, base: Architecture, client: int) -> Architecture:
        return base if isinstance(base, Fused) else Fused(base, self.operator, self.level, self.bias, self.start_as)

    def start(self, fed: Federation) -> Record:
        whole = fed.server.fresh()
        return self._state(whole.drop("past"), whole.drop("past"), whole.select("fusion"))

    def round(self, state: Record, fed: Federation) -> Record:
        sent = Record(model=state.group("model"))
        merged = means(fed.ask("train", sent, like=sent), "model", weighting=self.weighting).group("model")
        model = self._smoothed(merged, sent.group("model"))
        if not self.personal:
            fed.server.log("global fusion", self._let_in(model))
        return self._state(model, sent.group("model"), state.group("fusion"))

    def _state(self, model: Record, before: Record, fusion: Record) -> Record:
        """The merged model, the model whose extractor it is tested with, and, where clients keep their own, a fusion for testing."""
        if self.personal:
            return Record(model=model.drop("fusion"), before=before.drop("fusion"), fusion=fusion)
        return Record(model=model, before=before)

    def _smoothed(self, merged: Record, before: Record) -> Record:
        """The server's exponential average of lambda; a convolution is averaged plainly."""
        if self.operator == "conv" or self.personal:
            return merged
        lam = before.select("fusion").combine(merged, lambda old, new: self.ema * old + (1 - self.ema) * new)
        return merged | lam

    def received(self, site: Site, memory: Record, message: Record) -> Record:
        """E_l, F and C as they were sent (F may be the client's own), and E_g beside them."""
        model, own = message.group("model"), EMPTY
        if self.personal:
            own = memory.group("fusion") or site.fresh().select("fusion")
        return beside(site, model | own, model)

    def trained(self, site: Site, memory: Record, message: Record, start: Record) -> Fitted:
        return self._one_fit(site, start, memory.group("optimiser"), site.training, "train")

    def _one_fit(self, site: Site, start: Record, optimiser: Record, training: Training, purpose: str) -> Fitted:
        """Everything moves but E_g."""
        still = ("past", "fusion") if self.fixed else ("past",)
        return site.fit(
            start,
            self.objective(),
            optimiser=optimiser,
            training=training,
            frozen=self.frozen(site, start),
            purpose=purpose,
            trainable=lambda name: name.split(".")[0] not in still,
            step=FusedStep,
        )

    def frozen(self, site: Site, start: Record) -> dict[str, Frozen]:
        extractor = site.frozen(start, "extractor", lambda net, x: net.past(x))  # type: ignore[operator]
        return {"extractor": extractor, **super().frozen(site, start)}

    def returned(self, site: Site, memory: Record, message: Record, fitted: Fitted) -> tuple[Record, Record]:
        site.log("fusion", self._let_in(fitted.params))
        kept = Record(optimiser=fitted.optimiser)
        if self.personal:
            model, kept = fitted.params.drop("past", "fusion"), kept | Record(fusion=fitted.params.select("fusion"))
        else:
            model = fitted.params.drop("past")
        return Record(model=model, examples=len(site.train)), kept

    def _let_in(self, params: Record) -> Tensor:
        """Per channel, how much of E_g is let in: lambda, or the share of the weights that look at it."""
        if self.operator != "conv":
            return params.tensors["fusion.lam"]
        local, past = params.tensors["fusion.mix.weight"].flatten(1).abs().chunk(2, dim=1)
        return past.sum(1) / (local.sum(1) + past.sum(1))

    @task
    def adapt(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """A new client trains with the received extractor beside its own."""
        start = self.received(site, EMPTY, message)
        return fine_tune(site, message, start, lambda *now: self._one_fit(site, *now)), memory

    def models(self, state: Record, site: Site) -> Mapping[Model, Record]:
        model = state.group("model")
        extractor = state.group("before") if self.test_with == "previous" else model
        return {"global": beside(site, model | state.group("fusion"), extractor)}


def beside(site: Site, params: Record, extractor: Record) -> Record:
    """The whole fused network: `params`, and as its E_g the extractor of `extractor`."""
    net = site.model()
    assert isinstance(net, FusedNet)
    return params | extractor.select(*net.below).prefixed("past")
