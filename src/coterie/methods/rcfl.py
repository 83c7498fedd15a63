"""RCFL in FCCL's setting: after Gudur, Balaji & Perepu, "Resource-Constrained Federated Learning with Heterogeneous Labels and
Models", 2020 (arXiv 2011.03206).

We have its abstract, not its algorithm, so no fidelity is claimed, and the name says `public`. Where all clients share all labels,
as in FCCL's comparison, it becomes this: probabilities on public data, averaged with weights in proportion to each client's own
validation accuracy, distilled by KL, then private training. Without a validation split it takes the training accuracy, which is near
1 for everybody after pretraining, so that all weigh alike: the weights are logged as `trust`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from coterie.method import Federation, task
from coterie.methods.public import PublicMethod, public_images, subject
from coterie.record import Record
from coterie.settings import spec
from coterie.site import Site
from coterie.training.objectives import Objective, Step

__all__ = ["RCFLPublic", "TowardsProbabilities", "believed", "trust"]


@spec
class TowardsProbabilities(Objective):
    """KL(consensus || student) where the consensus already is probabilities.

    >>> about = {"consensus": torch.tensor([[0.5, 0.5]])}
    >>> agreed, other = (Step(torch.nn.Identity(), torch.tensor([z]), torch.tensor([0]), {}, about) for z in ([3.0, 3.0], [3.0, 0.0]))
    >>> TowardsProbabilities()(agreed).item(), round(TowardsProbabilities()(other).item(), 3)
    (0.0, 0.855)
    """

    def __call__(self, step: Step) -> Tensor:
        return F.kl_div(step.logits.log_softmax(1), step.frozen["consensus"], reduction="batchmean")


def trust(votes: Sequence[Mapping[str, Tensor]]) -> list[float]:
    """How much each speaker weighs: in proportion to its accuracy; all alike where nobody has any.

    >>> trust([{"accuracy": torch.tensor([0.75])}, {"accuracy": torch.tensor([0.25])}])
    [0.75, 0.25]
    """
    accuracies = [float(vote["accuracy"]) for vote in votes]
    total = sum(accuracies)
    return [accuracy / total if total > 0 else 1 / len(votes) for accuracy in accuracies]


def believed(votes: Sequence[Mapping[str, Tensor]]) -> Tensor:
    """The mean of what was said, weighted by how much each speaker is trusted."""
    weights = trust(votes)
    mixed = torch.stack([weight * vote["logits"].double() for weight, vote in zip(weights, votes, strict=True)]).sum(0)
    return mixed.to(votes[0]["logits"].dtype)


def _no_share(reply: Record) -> str | None:
    """What is not from 0 to 1, in words: nobody is believed beyond what an accuracy can be."""
    wrong = [name for name, value in reply.tensors.items() if not bool(((value >= 0) & (value <= 1)).all())]
    return f"{wrong[0]} is not all from 0 to 1" if wrong else None


@spec
class RCFLPublic(PublicMethod):
    """Accuracy-weighted distillation through public data: RCFL as FCCL compares with it."""

    name: ClassVar[str] = "rcfl-public"

    def exchange(self, fed: Federation) -> Record:
        about, server = subject(fed), fed.server
        shape = torch.zeros(self.alignment or len(server.public), server.train.classes, dtype=server.dtype)
        like = Record(logits=shape, accuracy=torch.zeros(1, dtype=shape.dtype))
        votes = [reply.record.tensors for reply in fed.ask("predict", about, like=like, check=_no_share)]
        server.log("trust", torch.tensor(trust(votes), dtype=torch.float64))
        return about | Record(logits=believed(votes))

    @task
    def predict(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Probabilities for the public images (in the place of logits), and how much this client should be believed."""
        memory = memory or self.first_memory(site)
        model = memory.group("model")
        logits = site.predict(model, public_images(self, site, message))
        judge = site.validation if len(site.validation) else site.train
        accuracy = site.score(model, judge).metrics()["accuracy"]
        return Record(logits=logits.softmax(1), accuracy=torch.tensor([accuracy], dtype=logits.dtype)), memory

    def towards(self) -> Objective:
        return TowardsProbabilities()
