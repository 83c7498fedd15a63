"""FedDF: Lin, Kong, Stich & Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020.

Clients train and upload models as in FedAvg. The server averages those of each architecture, and then distils: from there each
student learns, on public images, the mean of all clients' logits, whatever their architecture, by KL at temperature 1. With 0
steps it is FedAvg. It stops early on labelled images that the server holds (`data.validation`), or takes all its steps.

`feddf-client` is what FCCL compares with under the name: a client-side KL towards the mean logits, then private training. FCCL's
code digests with SGD at 1e-3; ours has the optimiser of the other methods on public data, so that they compare.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from coterie.method import Federation, Method, Reply, Weighting, task, weighted_mean
from coterie.methods.public import PublicMethod, mean_of
from coterie.record import EMPTY, Record
from coterie.seeds import generator, seed_of
from coterie.settings import STRICT
from coterie.site import SERVER, Site
from coterie.training.loop import fit
from coterie.training.objectives import CrossEntropy, Distillation, Objective
from coterie.training.optimisers import Adam, Cosine
from coterie.training.settings import Training

__all__ = ["FedDF", "FedDFClient"]


@dataclass(frozen=True, config=STRICT)
class FedDF(Method):
    """Ensemble distillation on the server; one student for each architecture.

    >>> FedDF(steps=0).weighting
    'samples'
    """

    name: ClassVar[str] = "feddf"
    offers: ClassVar[tuple[str, ...]] = ("global", "local_post", "local_val", "intra", "inter")
    observes: ClassVar[tuple[str, ...]] = ("local_post",)
    needs_public: ClassVar[bool] = True
    mixes_architectures: ClassVar[bool] = True

    weighting: Weighting = "samples"
    """Of the average that a student starts from; all clients' logits count alike."""
    steps: Annotated[int, Field(ge=0)] = 10_000
    """At most so many steps for each student and round; the rate goes down to 0 over them like a cosine."""
    patience: Annotated[int, Field(ge=1)] = 1_000
    """Steps without a better accuracy on the server's validation images after which it stops; without such images it does not.
    They are looked at after every pass over the public data (the authors': every 100 steps)."""
    batch: Annotated[int, Field(ge=1)] = 64
    lr: Annotated[float, Field(gt=0)] = 1e-3
    clip: Annotated[float, Field(gt=0)] = 5.0

    def start(self, fed: Federation) -> Record:
        kinds = fed.population.plan.architectures
        return Record({_slot(kind): fed.server.fresh(architecture=each) for kind, each in enumerate(kinds)})

    def round(self, state: Record, fed: Federation) -> Record:
        architecture_of = fed.population.architecture_of
        sent = [Record(model=state.group(_slot(kind))) for kind in range(len(fed.population.plan.architectures))]
        messages = {client: sent[architecture_of(client)] for client in fed.cohort}
        replies = list(fed.ask("train", messages, like=messages))
        groups = [[reply for reply in replies if architecture_of(reply.client) == kind] for kind in range(len(sent))]
        means = [weighted_mean(group, "model", self.weighting) for group in groups]
        students = [mean or before.group("model") for mean, before in zip(means, sent, strict=True)]
        if self.steps:
            lesson = self._lesson(fed, replies)
            students = [self._distilled(fed, kind, student, lesson) for kind, student in enumerate(students)]
        return Record({_slot(kind): student for kind, student in enumerate(students)})

    def _lesson(self, fed: Federation, replies: Sequence[Reply]) -> Tensor:
        """The mean of all clients' logits over the public images."""
        assert fed.server.public is not None
        public = fed.server.public
        return mean_of([_at(fed, fed.population.architecture_of(r.client)).predict(r.record.group("model"), public) for r in replies])

    def _distilled(self, fed: Federation, kind: int, student: Record, lesson: Tensor) -> Record:
        """A student after its lesson: the best on the validation images, or else the last."""
        site, carried, done = _at(fed, kind), EMPTY, 0
        assert site.public is not None
        best, found, since = student, self._accuracy(site, student), 0
        training = Training(batch=self.batch, optimiser=Adam(lr=self.lr), clip=self.clip, epochs=1, state="kept")
        while done < self.steps and since < self.patience:
            chosen = self._chosen(site, len(site.public), kind, done)
            fitted = fit(
                site.model(),
                student,
                site.public.only(chosen),
                Distillation("lesson"),
                training,
                seed=seed_of(site.seed, site.round, SERVER, "distil", kind, done),
                frozen={"lesson": lesson[chosen]},
                carried=carried,
                rate=self._rate_from(done),
            )
            student, carried = fitted.params, fitted.carried
            accuracy, done, since = self._accuracy(site, student), done + fitted.steps, since + fitted.steps
            if accuracy is None or (found is not None and accuracy > found):
                best, found, since = student, accuracy, 0
        return best

    def _chosen(self, site: Site, images: int, kind: int, done: int) -> Tensor:
        """The public images of the next pass: all of them, or so many at random as the steps that are left can take."""
        order = torch.randperm(images, generator=generator(site.seed, site.round, "distil", kind, done))
        return order[: (self.steps - done) * self.batch]

    def _rate_from(self, done: int) -> Callable[[int], float]:
        """The cosine over all steps, from the step that comes next."""
        cosine = Cosine(rounds=self.steps)
        return lambda step: cosine.factor(done + step + 1)

    def _accuracy(self, site: Site, params: Record) -> float | None:
        return site.score(params, site.validation).values()["accuracy"] if len(site.validation) else None

    @task
    def train(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Local training from the student of this client's architecture."""
        fitted = site.fit(message.group("model"), CrossEntropy(), carried=memory)
        site.observe("local_post", fitted.params)
        return Record(model=fitted.params, examples=len(site.train)), fitted.carried

    def models(self, state: Record, memory: Record, site: Site) -> Mapping[str, Record]:
        if site.id == SERVER:
            return {"global": state.group("model")}
        return dict.fromkeys(("local_val", "intra", "inter"), state.group(_slot(site.kind)))

    def welcome(self, state: Record) -> Record:
        return state

    def join(self, site: Site, message: Record) -> Record:
        return message.group(_slot(site.kind))


def _slot(kind: int) -> str:
    """Where an architecture's student lies in the state; the first is the headline."""
    return "model" if kind == 0 else f"model-{kind}"


def _at(fed: Federation, kind: int) -> Site:
    """The server's Site with the network of one architecture."""
    return replace(fed.server, architecture=fed.population.plan.architectures[kind])


@dataclass(frozen=True, config=STRICT)
class FedDFClient(PublicMethod):
    """FedDF as FCCL reads it: every client distils the mean logits on public data, then trains on its own.

    >>> FedDFClient.name
    'feddf-client'
    """

    name: ClassVar[str] = "feddf-client"

    def digesting(self) -> Objective:
        return Distillation("consensus")
