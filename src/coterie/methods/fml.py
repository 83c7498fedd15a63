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
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field, PlainSerializer, ValidationError, ValidatorFunctionWrapHandler, WrapValidator
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from coterie.errors import UserError
from coterie.method import Exhibit, Federation, Method, task, weighted_mean
from coterie.methods.local import pretrained
from coterie.models import MODELS, Architecture
from coterie.models.pair import Pair, PairNet
from coterie.population import Population
from coterie.record import EMPTY, Record
from coterie.settings import STRICT
from coterie.site import SERVER, Site
from coterie.training.loop import Fitted
from coterie.training.objectives import Objective, Step, kl_divergence
from coterie.training.settings import Training

__all__ = ["FML", "Mutual", "at_round"]


def _read(value: Any, check: ValidatorFunctionWrapHandler) -> Any:
    """One sentence for whatever is wrong with a dial."""
    given = tuple(tuple(pair) if isinstance(pair, list) else pair for pair in value) if isinstance(value, list) else value
    try:
        dial = check(given)
    except ValidationError:
        dial = ()
    if isinstance(dial, float) or (dial and all(a < b for (a, _), (b, _) in pairwise(dial))):
        return dial
    raise ValueError("expected a number from 0 to 1, or pairs of a round (from 1, rising) and such a number: [[1, 0.9], [20, 0.5]]")


Share = Annotated[float, Field(ge=0, le=1)]
Since = Annotated[int, Field(ge=1)]
Dial = Annotated[Share | tuple[tuple[Since, Share], ...], WrapValidator(_read)]
"""A number, or (from which round, number) pairs: `[[1, 0.9], [20, 0.5]]`; the first of them also holds before its round."""


def at_round(dial: Dial, round: int) -> float:
    """What a dial says in a round.

    >>> at_round(0.5, 7), at_round(((1, 0.9), (20, 0.5)), 19), at_round(((1, 0.9), (20, 0.5)), 20)
    (0.5, 0.9, 0.5)
    """
    if isinstance(dial, float | int):
        return dial
    return [value for since, value in dial if since <= max(round, dial[0][0])][-1]


@dataclass(frozen=True, config=STRICT)
class Mutual(Objective):
    """Both losses from one forward of both networks; no gradient crosses from one to the other."""

    alpha: float
    beta: float

    def __call__(self, step: Step) -> Tensor:
        assert isinstance(step.model, PairNet)
        private, meme = step.model.private(step.x), step.model.meme(step.x)
        return _taught(private, meme, step.y, self.alpha) + _taught(meme, private, step.y, self.beta)


def _taught(student: Tensor, teacher: Tensor, y: Tensor, weight: float) -> Tensor:
    """weight * CE + (1 - weight) * KL(teacher || student); what has no weight is not computed."""
    parts = []
    if weight > 0:
        parts.append(weight * F.cross_entropy(student, y))
    if weight < 1:
        parts.append((1 - weight) * kl_divergence(teacher, student))
    return sum(parts[1:], start=parts[0])


def _under(params: Record, part: str) -> Record:
    """One network out of a pair."""
    return Record({name.removeprefix(f"{part}."): value for name, value in params.items() if name.startswith(f"{part}.")})


def _both(private: Record, message: Record) -> Record:
    """A pair: a private network, and a meme forked from the server's."""
    parts = {"private": private, "meme": message.group("model")}
    return Record({f"{part}.{name}": value for part, params in parts.items() for name, value in params.tensors.items()})


@dataclass(frozen=True, config=STRICT)
class FML(Method):
    """Federated mutual learning; beta = 1 is FedAvg with uniform weights on the meme, alpha = 1 leaves the private model alone.

    >>> FML().alpha, FML(alpha=((1, 0.9), (20, 0.5))).beta
    (0.5, 0.5)
    """

    name: ClassVar[str] = "fml"
    offers: ClassVar[tuple[str, ...]] = ("global", "local_post", "local_val", "intra", "inter")
    mixes_architectures: ClassVar[bool] = True
    exhibits: ClassVar[Mapping[str, Exhibit]] = {"dials": Exhibit("alpha and beta", "lines", x="round", y="weight of the labels")}

    alpha: Dial = 0.5
    """Weight of the labels in the private model's loss."""
    beta: Dial = 0.5
    """Weight of the labels in the meme's loss."""
    meme: Annotated[Architecture, BeforeValidator(lambda v: MODELS.resolve(v, "method.meme")), PlainSerializer(MODELS.dump)] | None = None
    """The shared network; None where all clients have the same one, which it then is."""
    pretraining: Annotated[int, Field(ge=0)] = 0
    """Epochs that every private model trains alone before the first round, as FCCL's comparison has it."""
    new_client: Literal["own", "server"] = "own"
    """A new_client's private model: fresh, or a copy of the server's. A copy and the meme start as one: where alpha = beta (and without
    dropout) they stay one, so that mutual learning is then fine-tuning with alpha times the gradient."""

    def check(self, population: Population) -> None:
        models = population.plan.architectures
        if self.meme is None and len(set(models)) > 1:
            raise UserError("method.meme is missing: clients have different models, so the shared one must be named")
        for client in population.new_clients if self.new_client == "server" else ():
            if models[population.architecture_of(client)] != (self.meme or models[0]):
                raise UserError(
                    f"method.new_client = 'server': new client {client} has another model than the meme, expected the same, or 'own'"
                )

    def network(self, base: Architecture, client: int) -> Architecture:
        return (self.meme or base) if client == SERVER else base

    def start(self, fed: Federation) -> Record:
        if self.pretraining:
            for _ in fed.ask("pretrain", clients=fed.clients):
                pass
        return Record(model=fed.server.fresh())

    @task
    def pretrain(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """The private model trains alone; the optimiser's state ends here."""
        return EMPTY, Record(model=pretrained(site, self.pretraining))

    def round(self, state: Record, fed: Federation) -> Record:
        dials = [at_round(self.alpha, fed.round), at_round(self.beta, fed.round)]
        fed.server.show("dials", torch.tensor(dials, dtype=torch.float64))
        return Record(model=weighted_mean(fed.ask("train", state, like=state), "model", "uniform"))

    @task
    def train(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Fork the meme, learn from each other, send the meme back and keep the private model and its optimiser."""
        start = _both(memory.group("model") or site.fresh(), message)
        fitted = self.tune(site, start, Record(optimiser=memory.group("optimiser")), site.training, "train")
        return Record(model=_under(fitted.params, "meme")), self._kept(fitted)

    def _kept(self, fitted: Fitted) -> Record:
        moments = {n: v for n, v in fitted.carried.group("optimiser").items() if n.startswith("private.")}
        return Record(model=_under(fitted.params, "private"), optimiser=Record(moments))

    def join(self, site: Site, message: Record) -> Record:
        return _both(message.group("model") if self.new_client == "server" else site.fresh(), message)

    def tune(self, site: Site, start: Record, carried: Record, training: Training, purpose: str) -> Fitted:
        objective = Mutual(at_round(self.alpha, site.round), at_round(self.beta, site.round))
        both = site.model("pair", Pair(site.architecture, self.meme or site.architecture))
        return site.fit(start, objective, carried=carried, training=training.replace(state="kept"), model=both, purpose=purpose)

    def judged(self, params: Record) -> Record:
        return _under(params, "private")

    def models(self, state: Record, memory: Record, site: Site) -> Mapping[str, Record]:
        if site.id == SERVER:
            return {"global": state.group("model")}
        return dict.fromkeys(self.offers[1:], memory.group("model")) if "model" in memory else {}

    def welcome(self, state: Record) -> Record:
        return state
