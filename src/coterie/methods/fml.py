"""FML: Shen et al., "Federated Mutual Learning", arXiv 2006.16765.

Two models per client: a private one, of any architecture, that never leaves, and a meme, forked from the global model every round.
For each batch, from one forward pass of both,

    L_private = alpha * CE(private, y) + (1 - alpha) * KL(meme || private)
    L_meme    = beta  * CE(meme, y)    + (1 - beta)  * KL(private || meme)

with the teacher detached, softmax at temperature 1, summed over classes and averaged over the batch; both models then step at once.
The global model is the plain mean of the memes (uniform by design). The private optimiser's state is kept between rounds, the meme's
is rebuilt at every fork. We follow the authors' commit 56793ce: at the head of their repository fork and merge are commented out, and
their merge adds the old BatchNorm statistics to the sum.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from typing import Annotated, ClassVar, Literal

import torch
from torch import Tensor

from coterie.aggregation import MEAN, Aggregator
from coterie.errors import UserError
from coterie.method import Federation, Method, aggregate, fine_tune, task
from coterie.models import MODELS, Architecture
from coterie.models.pair import Pair
from coterie.population import Population
from coterie.protocols import Model
from coterie.record import Record
from coterie.settings import field_of, spec
from coterie.site import SERVER, Site
from coterie.training.loop import Fitted
from coterie.training.objectives import CrossEntropy, Distillation, Objective, Step
from coterie.training.optimisers import WeightByRound, at_round
from coterie.training.settings import Training

__all__ = ["FML", "Mutual"]


@spec
class Mutual(Objective):
    """Both losses from one forward of both networks; no gradient crosses from one to the other."""

    alpha: float
    beta: float

    @property
    def stackable(self) -> bool:
        return True

    @cached_property
    def sides(self) -> Mapping[str, Objective]:
        return {"private": _taught("meme", self.alpha), "meme": _taught("private", self.beta)}

    def __call__(self, step: Step) -> Tensor:
        logits = {name: getattr(step.model, name)(step.x) for name in self.sides}
        steps = {name: Step(step.model, step.x, step.y, {}, {other: logits[other] for other in logits if other != name}) for name in logits}
        for name, each in steps.items():
            each.logits = logits[name]
        return self.sides["private"](steps["private"]) + self.sides["meme"](steps["meme"])


def _taught(teacher: str, weight: float) -> Objective:
    """weight * CE + (1 - weight) * KL(teacher || student); what has no weight is not computed."""
    return weight * CrossEntropy() + (1 - weight) * Distillation(teacher)


@spec
class FML(Method):
    """Federated mutual learning; beta = 1 is FedAvg with uniform weights on the meme, alpha = 1 leaves the private model alone.

    >>> FML().alpha, FML(alpha=0.9).beta
    (0.5, 0.5)
    """

    name: ClassVar[str] = "fml"
    evaluates: ClassVar[tuple[Model, ...]] = ("global", "personal", "start")
    mixes_architectures: ClassVar[bool] = True

    alpha: WeightByRound = 0.5
    """Weight of the labels in the private model's loss: a number, or a schedule over rounds."""
    beta: WeightByRound = 0.5
    """Weight of the labels in the meme's loss."""
    aggregation: Aggregator = MEAN
    """What is taken over memes."""
    meme: Annotated[Architecture, field_of(MODELS, "method.meme")] | None = None
    """The shared network; None where all clients have the same one, which it then is."""
    founder: Literal["own", "server"] = "own"
    """What the private model of a client in training starts as, when it first takes part: its own (pretrained as the experiment says),
    or "the model provided by central server" (section 3.3), of the round it joins in."""
    new_client: Literal["own", "server"] = "own"
    """A new client's private model: fresh, or a copy of the server's. A copy and the meme start as one: where alpha = beta (and
    without dropout) they stay one, so that mutual learning is then fine-tuning with alpha times the gradient."""

    def check(self, population: Population) -> None:
        models = population.plan.architectures
        if self.meme is None and len(set(models)) > 1:
            raise UserError("method.meme is missing: clients have different models, so the shared one must be named")
        if self.founder == "server":
            if population.plan.pretraining:
                raise UserError("method.founder = 'server': expected pretraining = 0, because clients then begin with the server's model")
            self._same(population, "founder", range(population.clients - len(population.new_clients)))
        if self.new_client == "server":
            self._same(population, "new_client", population.new_clients)

    def _same(self, population: Population, key: str, clients: range) -> None:
        """Who is given a copy of the server's model must have its architecture."""
        models = population.plan.architectures
        for client in clients:
            if models[population.architecture_of(client)] != (self.meme or models[0]):
                who = f"{key.replace('_', ' ')} {client}"
                raise UserError(f"method.{key} = 'server': {who} has another model than the meme, expected the same, or 'own'")

    def network(self, base: Architecture, client: int) -> Architecture:
        return (self.meme or base) if client == SERVER else base

    def start(self, fed: Federation) -> Record:
        return Record(model=fed.server.fresh())

    def round(self, state: Record, fed: Federation) -> Record:
        fed.server.log("alpha and beta", torch.tensor(self._weights(fed.round), dtype=torch.float64))
        return aggregate(self.aggregation, fed, fed.ask("train", state, like=state), state, "model", weighting="uniform")

    @task
    def train(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Fork the meme, learn from each other, send the meme back and keep the private model and its optimiser's state."""
        private = memory.group("model") or (message.group("model") if self.founder == "server" else site.initial())
        site.evaluate("start", private)
        fitted = self._mutual(site, _pair(private, message), memory.group("optimiser"), site.training, "train")
        private = fitted.params.under("private")
        site.evaluate("personal", private)
        return Record(model=fitted.params.under("meme")), Record(model=private, optimiser=fitted.optimiser.select("private"))

    def _mutual(self, site: Site, pair: Record, optimiser: Record, training: Training, purpose: str) -> Fitted:
        """Both networks, side by side."""
        return site.fit(
            pair,
            Mutual(*self._weights(site.round)),
            optimiser=optimiser,
            training=training.replace(state="kept"),
            model=site.model("pair", Pair(site.architecture, self.meme or site.architecture)),
            purpose=purpose,
            clip_apart=("private.", "meme."),
        )

    def _weights(self, round: int) -> tuple[float, float]:
        return at_round(self.alpha, round), at_round(self.beta, round)

    def for_new_client(self, state: Record, architecture: int) -> Record:
        return state

    @task
    def adapt(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """A new client's private model and a meme learn from each other; it is judged by the private one."""
        start = _pair(message.group("model") if self.new_client == "server" else site.fresh(), message)
        return fine_tune(site, message, start, lambda *now: self._mutual(site, *now), lambda pair: pair.under("private")), memory


def _pair(private: Record, message: Record) -> Record:
    """A private network, and a meme forked from the server's."""
    return private.prefixed("private") | message.group("model").prefixed("meme")
