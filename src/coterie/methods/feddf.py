"""FedDF: Lin, Kong, Stich & Jaggi, "Ensemble Distillation for Robust Model Fusion in Federated Learning", NeurIPS 2020.

Clients train and upload models as in FedAvg. The server averages those of each architecture, and then distils: from there each
student learns, on public images, the mean of all clients' logits, whatever their architecture, by KL at temperature 1. With 0
steps it is FedAvg. It stops early on labelled images that the server holds (`data.validation`), or takes all its steps.

`feddf-client` is what FCCL compares with under the name: a client-side KL towards the mean logits, then private training. FCCL's
code digests with SGD at 1e-3; ours has the optimiser of the other methods on public data, so that they compare.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar

from torch import Tensor

from coterie.aggregation import MEAN, Aggregator, Private
from coterie.errors import UserError
from coterie.method import Federation, Method, aggregate, fine_tune, task
from coterie.methods.public import PublicMethod, mean_of
from coterie.population import Population
from coterie.protocols import Model
from coterie.record import Record
from coterie.replies import Reply, Weighting
from coterie.settings import Count, Positive, Whole, spec
from coterie.site import Site
from coterie.training.objectives import CrossEntropy, Distillation, Objective
from coterie.training.optimisers import Adam, Cosine
from coterie.training.settings import Training

__all__ = ["FedDF", "FedDFClient"]


@spec
class FedDF(Method):
    """Ensemble distillation on the server; one student for each architecture.

    >>> FedDF.needs_public, FedDF.mixes_architectures  # what an experiment must give, and may
    (True, True)
    """

    name: ClassVar[str] = "feddf"
    evaluates: ClassVar[tuple[Model, ...]] = ("global", "personal", "start")
    needs_public: ClassVar[bool] = True
    public_at_server: ClassVar[bool] = True
    mixes_architectures: ClassVar[bool] = True

    weighting: Weighting = "samples"
    """Of the average that a student starts from; all clients' logits count alike."""
    aggregation: Aggregator = MEAN
    """What a student starts from; what all clients' networks say of public images is always their mean."""
    steps: Whole = 10_000
    """At most so many steps for each student and round; the rate goes down to 0 over them like a cosine."""
    patience: Count = 1_000
    """Steps without a better accuracy on the server's validation images after which it stops; without such images it does not.
    They are looked at after every pass over the public data (the authors': every 100 steps)."""
    batch: Count = 64
    """Images in a step of the server's distillation."""
    lr: Positive = 1e-3
    """Adam's rate in the server's distillation."""
    clip: Positive = 5.0
    """Gradient norms above this are scaled down to it."""

    def check(self, population: Population) -> None:
        if isinstance(self.aggregation, Private):
            raise UserError("method.aggregation = 'private': the students learn from every client's own model, to which no noise is added")

    def start(self, fed: Federation) -> Record:
        return Record({_student(index): fed.server.fresh(architecture=each) for index, each in enumerate(fed.architectures)})

    def round(self, state: Record, fed: Federation) -> Record:
        sent = [Record(model=state.group(_student(index))) for index in range(len(fed.architectures))]
        messages = {client: sent[fed.architecture_of(client)] for client in fed.present}
        replies = list(fed.ask("train", messages, like=messages).needing("examples"))
        students = [self._mean(fed, index, replies, before) or before.group("model") for index, before in enumerate(sent)]
        if self.steps:
            targets = self._soft_targets(fed, replies)
            students = [self._distilled(_server(fed, index), student, targets) for index, student in enumerate(students)]
        return Record({_student(index): student for index, student in enumerate(students)})

    def _mean(self, fed: Federation, index: int, replies: Sequence[Reply], before: Record) -> Record:
        """The mean of the models of one architecture; empty where nobody sent one."""
        alike = [reply for reply in replies if fed.architecture_of(reply.client) == index]
        return aggregate(self.aggregation, fed, alike, before, "model", weighting=self.weighting).group("model")

    def _soft_targets(self, fed: Federation, replies: Sequence[Reply]) -> Tensor:
        """The mean of all clients' logits over the public images."""
        sites = {reply.client: _server(fed, fed.architecture_of(reply.client)) for reply in replies}
        return mean_of(sites[reply.client].predict(reply.record.group("model"), fed.server.public) for reply in replies)

    def _distilled(self, site: Site, student: Record, targets: Tensor) -> Record:
        """A student after its lesson: the best on the validation images, or else the last."""
        training = Training(batch=self.batch, optimiser=Adam(lr=self.lr), clip=self.clip, steps=self.steps)
        cosine = Cosine(rounds=self.steps)
        return site.fit(
            student,
            Distillation("targets"),
            data=site.public,
            training=training,
            frozen={"targets": targets},
            rate=lambda step: cosine.factor(step + 1),
            purpose=f"distil/{site.architecture_index}",
            validation=site.validation,
            patience=self.patience,
        ).params

    @task
    def train(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Local training from the student of this client's architecture."""
        start = message.group("model")
        site.evaluate("start", start)
        fitted = site.fit(start, CrossEntropy(), optimiser=memory.group("optimiser"))
        site.evaluate("personal", fitted.params)
        return Record(model=fitted.params, examples=len(site.train)), Record(optimiser=fitted.optimiser)

    def for_new_client(self, state: Record, architecture: int) -> Record:
        return Record(model=state.group(_student(architecture)))

    @task
    def adapt(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """A new client trains from the student of its architecture."""
        return fine_tune(site, message, message.group("model")), memory


def _student(index: int) -> str:
    """The group of the state in which the student of an architecture is; the first is the headline."""
    return "model" if index == 0 else f"model-{index}"


def _server(fed: Federation, index: int) -> Site:
    """The server's Site with the network of one architecture."""
    return replace(fed.server, architecture=fed.architectures[index], architecture_index=index)


@spec
class FedDFClient(PublicMethod):
    """FedDF as FCCL reads it: every client distils the mean logits on public data, then trains on its own.

    >>> FedDFClient().towards()
    Distillation(teacher='consensus')
    """

    name: ClassVar[str] = "feddf-client"

    def towards(self) -> Objective:
        return Distillation("consensus")
