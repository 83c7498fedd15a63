"""What methods that meet on public data have in common: pretraining, an exchange of predictions, and what each client makes of it.

Every client has its own network, of any architecture. A round is two exchanges: clients predict the public images, the server
agrees on something from who answered, and each client first digests that on the public data and then revisits its own.
FedMD, FedDF as FCCL reads it, RCFL and FedMatch in FCCL's setting, and FCCL itself are this with other losses.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, ClassVar

import torch
from pydantic import BeforeValidator, Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from coterie.data.examples import Examples
from coterie.errors import UserError
from coterie.method import Exhibit, Federation, Method, Reply, task
from coterie.methods.local import pretrained
from coterie.population import Population
from coterie.record import EMPTY, Record
from coterie.seeds import generator, seed_of
from coterie.settings import STRICT
from coterie.site import Site
from coterie.training.loop import Fitted, Frozen
from coterie.training.objectives import CrossEntropy, Objective
from coterie.training.optimisers import Adam
from coterie.training.settings import Training

__all__ = ["Digestion", "PublicMethod", "completing", "mean_logits", "mean_of"]


def completing(**defaults: Any) -> BeforeValidator:
    """Settings of public training that are left out are the method's, not those of private training."""
    usual = {"batch": 512, "optimiser": {"name": "adam"}, **defaults}
    return BeforeValidator(lambda value: {**usual, **value} if isinstance(value, Mapping) else value)


Digestion = Annotated[Training, completing()]
"""How public data is trained on: batches of 512 and Adam at 1e-3 unless said."""


@dataclass(frozen=True, config=STRICT)
class PublicMethod(Method):
    """Base of methods whose clients exchange predictions about public data."""

    offers: ClassVar[tuple[str, ...]] = ("local_post", "local_val", "intra", "inter")
    kinds: ClassVar[Mapping[str, str]] = {"model": "weights", "consensus": "logits"}
    needs_public: ClassVar[bool] = True
    mixes_architectures: ClassVar[bool] = True
    augments_together: ClassVar[bool] = True
    """Whether augmented public images must be the same pixels at every client, because what is said of them is compared."""
    exhibits: ClassVar[Mapping[str, Exhibit]] = {
        "terms": Exhibit("Local loss by term: cross-entropy, then what is added", "lines", x="round", y="loss"),
    }

    pretraining: Annotated[int, Field(ge=0)] = 50
    """Epochs that every client trains alone before the first round."""
    public: Digestion = Training(epochs=1, batch=512, optimiser=Adam(lr=1e-3))
    """How the public data is digested; its optimiser starts anew every round, its augmentation is the same for everybody."""
    alignment: Annotated[int, Field(ge=1)] | None = None
    """How many public images a round is about, drawn anew each time; None for all of them."""

    def check(self, population: Population) -> None:
        held = 0 if population.public is None else len(population.public)
        if self.alignment is not None and self.alignment > held:
            raise UserError(f"method.alignment = {self.alignment}: expected at most the {held} public images")
        if self.public.state == "kept":
            raise UserError("method.public.state = 'kept': expected 'fresh', the optimiser for public data starts anew every round")

    def start(self, fed: Federation) -> Record:
        for _ in fed.ask("pretrain", clients=fed.clients):
            pass
        return EMPTY

    @task
    def pretrain(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Train alone, so that there is something to say; the optimiser's state ends here."""
        return EMPTY, self.first_memory(site, pretrained(site, self.pretraining))

    def first_memory(self, site: Site, params: Record) -> Record:
        """What a client keeps of its pretrained network."""
        return Record(model=params)

    def round(self, state: Record, fed: Federation) -> Record:
        for _ in self.confer(fed):
            pass
        return state

    def confer(self, fed: Federation) -> Iterator[Reply]:
        """Two exchanges: predictions, and what was made of them."""
        about = self.subject(fed)
        agreed = self.agree(list(fed.ask("predict", about, like=self.like(fed))))
        if isinstance(agreed, Record):
            return fed.ask("learn", agreed | about, like=self.handed_in(fed))
        return fed.ask("learn", {client: each | about for client, each in agreed.items()}, clients=list(agreed))

    def handed_in(self, fed: Federation) -> Record:
        """The shape of what clients hand in after learning, which mostly is nothing."""
        return EMPTY

    def subject(self, fed: Federation) -> Record:
        """What decides which public pixels a round is about: a seed, the same in everybody's message."""
        return Record(seed=seed_of(fed.server.seed, fed.round, "public"))

    def images(self, site: Site, message: Record) -> Examples:
        """The public images that a message is about, the same pixels everywhere."""
        assert site.public is not None
        seed, data = int(message.number("seed")), site.public
        if self.alignment is not None:
            data = data.only(torch.randperm(len(data), generator=generator(seed, "alignment"))[: self.alignment])
        return data.augmented(generator(seed, "augment")) if self.augments_together and self.public.augment != "none" else data

    def like(self, fed: Federation) -> Record:
        """The shape that predictions must have."""
        assert fed.server.public is not None
        rows = self.alignment or len(fed.server.public)
        return Record(logits=torch.zeros(rows, fed.server.train.classes, dtype=fed.server.dtype))

    @task
    def predict(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """What this client says of the public images."""
        return Record(logits=site.predict(self.present(site, memory), self.images(site, message))), memory

    def present(self, site: Site, memory: Record) -> Record:
        """The network as it is now."""
        return memory.group("model")

    def agree(self, replies: Sequence[Reply]) -> Record | Mapping[int, Record]:
        """What the server makes of the predictions of those who answered: for all, or for each client."""
        return mean_logits(replies)

    @task
    def learn(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Digest what was agreed, then revisit the private data."""
        fitted = self.revisit(site, memory, self.digest(site, memory, message))
        return EMPTY, Record(model=fitted.params) | fitted.carried

    def digest(self, site: Site, memory: Record, message: Record) -> Record:
        """The network after it has learned from the public data."""
        tables = {"consensus": message.tensors["consensus"]}
        quiet = self.public.replace(augment="none")  # what augmentation there is, `images` has done
        data = self.images(site, message)
        return site.fit(self.present(site, memory), self.digesting(), training=quiet, data=data, frozen=tables, purpose="public").params

    def digesting(self) -> Objective:
        """What is minimised on public data, with the `consensus` beside it."""
        raise NotImplementedError

    def revisit(self, site: Site, memory: Record, start: Record) -> Fitted:
        """Local training after the public data."""
        fitted = site.fit(start, self.revisiting(), carried=memory, frozen=self.teachers(site, memory))
        site.show("terms", torch.tensor(fitted.parts or (fitted.loss,), dtype=torch.float64))
        return fitted

    def revisiting(self) -> Objective:
        """What is minimised on private data."""
        return CrossEntropy()

    def teachers(self, site: Site, memory: Record) -> Mapping[str, Frozen]:
        """The frozen networks that it looks at."""
        return {}

    def models(self, state: Record, memory: Record, site: Site) -> Mapping[str, Record]:
        return dict.fromkeys(self.offers, self.present(site, memory)) if memory else {}


def mean_logits(replies: Sequence[Reply]) -> Record:
    """The consensus that is the plain mean of what was said, over who answered.

    >>> said = [Reply(client, Record(logits=torch.full((1, 2), float(client)))) for client in (0, 1)]
    >>> mean_logits(said).tensors["consensus"].tolist()
    [[0.5, 0.5]]
    """
    return Record(consensus=mean_of([reply.record.tensors["logits"] for reply in replies]))


def mean_of(tensors: Sequence[Tensor]) -> Tensor:
    """The plain mean, summed in double precision in the given order.

    >>> mean_of([torch.zeros(2), torch.ones(2)]).tolist()
    [0.5, 0.5]
    """
    total = tensors[0].double()
    for tensor in tensors[1:]:
        total = total + tensor.double()
    return (total / len(tensors)).to(tensors[0].dtype)
