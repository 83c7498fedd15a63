"""Methods that meet on public data: what their rounds have in common, and functions for what is done in them.

Every client has its own network, of any architecture. A round is two exchanges: clients predict the public images, the server
agrees on something from who answered, and each client first digests that on the public data and then revisits its own.
FedMD, FedDF as FCCL reads it, RCFL and FedMatch in FCCL's setting, and FCCL itself are this with other losses.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import BeforeValidator
from torch import Tensor

from coterie.aggregation import MEAN, Aggregator, Private
from coterie.data.examples import Examples
from coterie.errors import UserError
from coterie.method import Federation, Method, aggregate, task
from coterie.population import Population
from coterie.protocols import Model
from coterie.record import EMPTY, Record
from coterie.replies import Weighting
from coterie.seeds import generator, seed_of
from coterie.settings import Count, spec
from coterie.site import Site
from coterie.training.loop import Fitted, Frozen
from coterie.training.objectives import CrossEntropy, Objective
from coterie.training.optimisers import Adam
from coterie.training.settings import Training

__all__ = ["PublicMethod", "PublicTraining", "completing", "digest", "mean_of", "public_images", "revisit", "subject"]


def completing(**defaults: Any) -> BeforeValidator:
    """Settings of public training that are left out are the method's, not those of private training."""
    usual = {"batch": 512, "optimiser": {"name": "adam"}, **defaults}
    return BeforeValidator(lambda value: {**usual, **value} if isinstance(value, Mapping) else value)


PublicTraining = Annotated[Training, completing()]
"""How public data is trained on: batches of 512 and Adam at 1e-3 unless said."""


@spec
class PublicMethod(Method):
    """Base of methods whose clients exchange predictions about public data; a subclass says what is digested."""

    evaluates: ClassVar[tuple[Model, ...]] = ("personal",)
    needs_public: ClassVar[bool] = True
    mixes_architectures: ClassVar[bool] = True

    public: PublicTraining = Training(epochs=1, batch=512, optimiser=Adam(lr=1e-3))
    """How the public data is digested; its optimiser starts anew every round, its augmentation is the same for everybody."""
    alignment: Count | None = None
    """How many public images a round is about, drawn anew each time; None for all of them."""
    average: Literal["none"] | Weighting = "none"
    """For equal architectures, as in FCCL's Table 3: parameters averaged between the public and the private phase, and how weighted."""
    aggregation: Aggregator = MEAN
    """What is taken over those parameters; predictions are always averaged."""

    def check(self, population: Population) -> None:
        held = 0 if population.public is None else len(population.public)
        if self.alignment is not None and self.alignment > held:
            raise UserError(f"method.alignment = {self.alignment}: expected at most the {held} public images")
        if self.public.state == "kept":
            raise UserError("method.public.state = 'kept': expected 'fresh', the optimiser for public data starts anew every round")
        if isinstance(self.aggregation, Private):
            raise UserError("method.aggregation = 'private': predictions about public images are sent too, to which no noise is added")
        if self.average == "none" and self.aggregation != MEAN:
            raise UserError(f"method.aggregation = '{self.aggregation.name}': no parameters are averaged where method.average = 'none'")
        if self.average != "none" and len(set(population.plan.architectures)) > 1:
            raise UserError(f"method.average = '{self.average}': expected 'none', because clients have different models")

    def start(self, fed: Federation) -> Record:
        return EMPTY

    def round(self, state: Record, fed: Federation) -> Record:
        message = self.exchange(fed)
        if self.average == "none":
            fed.ask("learn", message)
        else:
            model = Record(model=self.handed(fed.server))
            replies = fed.ask("hand_in", message, like=model)
            fed.ask("recall", aggregate(self.aggregation, fed, replies, EMPTY, "model", weighting=self.average))
        return state

    def handed(self, server: Site) -> Record:
        """The names and shapes of what a client hands in to be averaged."""
        return server.fresh()

    def exchange(self, fed: Federation) -> Record | Mapping[int, Record]:
        """What clients learn from: what the public images are, and what the federation thinks of them."""
        about = subject(fed)
        rows = self.alignment or len(fed.server.public)
        like = Record(logits=torch.zeros(rows, fed.server.train.classes, dtype=fed.server.dtype))
        return about | Record(logits=mean_of([reply.record.tensors["logits"] for reply in fed.ask("predict", about, like=like)]))

    @task
    def predict(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """What this client says of the public images."""
        memory = memory or self.first_memory(site)
        return Record(logits=site.predict(self.present(site, memory), public_images(self, site, message))), memory

    @task
    def learn(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Digest what was agreed, then revisit the private data."""
        memory = memory or self.first_memory(site)
        return EMPTY, self.revisited(site, memory, self.digested(site, memory, message))

    @task
    def hand_in(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Where parameters are averaged: digest, and hand the network in."""
        memory = memory or self.first_memory(site)
        previous, digested = memory.group("previous") or memory.group("model"), self.digested(site, memory, message)
        return Record(model=digested, examples=len(site.train)), memory | Record(previous=previous, model=digested)

    @task
    def recall(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """The private phase from averaged parameters."""
        return EMPTY, self.revisited(site, memory, message.group("model"))

    def first_memory(self, site: Site) -> Record:
        """What a client keeps before it first takes part: its network, pretrained as the experiment says."""
        return Record(model=site.initial())

    def present(self, site: Site, memory: Record) -> Record:
        """The network as it is now."""
        return memory.group("model")

    def digested(self, site: Site, memory: Record, message: Record) -> Record:
        """The network after the public data."""
        return digest(self, site, memory.group("model"), message, self.towards())

    def towards(self) -> Objective:
        """What is minimised on public data, with the federation's `logits` beside it."""
        raise NotImplementedError

    def revisited(self, site: Site, memory: Record, start: Record) -> Record:
        """What a client keeps after its private data."""
        fitted = revisit(site, memory, start, CrossEntropy())
        return Record(model=fitted.params, optimiser=fitted.optimiser)


def subject(fed: Federation) -> Record:
    """What decides which public pixels a round is about: a seed, the same in everybody's message."""
    return Record(seed=seed_of(fed.server.seed, fed.round, "public"))


def public_images(method: PublicMethod, site: Site, message: Record, together: bool = True) -> Examples:
    """The public images that a message is about; augmented, if at all, to the same pixels everywhere, unless each does that by itself."""
    seed, data = int(message.number("seed")), site.public
    if method.alignment is not None:
        data = data.only(torch.randperm(len(data), generator=generator(seed, "alignment"))[: method.alignment])
    return data.augmented(generator(seed, "augment")) if together and method.public.augment != "none" else data


def digest(method: PublicMethod, site: Site, start: Record, message: Record, objective: Objective) -> Record:
    """A network after it has learned from what the federation says of the public images."""
    training = method.public.replace(augment="none")  # what augmentation there is, `public_images` has done
    known = {"consensus": message.tensors["logits"]}
    images = public_images(method, site, message)
    return site.fit(start, objective, training=training, data=images, frozen=known, purpose="public").params


def revisit(site: Site, memory: Record, start: Record, objective: Objective, frozen: Mapping[str, Frozen] | None = None) -> Fitted:
    """Local training after the public data, measured and logged."""
    fitted = site.fit(start, objective, optimiser=memory.group("optimiser"), frozen=frozen or {})
    site.evaluate("personal", fitted.params)
    if fitted.steps:
        site.log("losses", torch.tensor(fitted.parts or (fitted.loss,), dtype=torch.float64))
    return fitted


def mean_of(tensors: Iterable[Tensor]) -> Tensor:
    """The plain mean, summed in double precision in the given order.

    >>> mean_of([torch.zeros(2), torch.ones(2)]).tolist()
    [0.5, 0.5]
    """
    first, *rest = tensors
    total = first.double()
    for tensor in rest:
        total = total + tensor.double()
    return (total / (1 + len(rest))).to(first.dtype)
