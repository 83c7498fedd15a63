"""RCFL in FCCL's setting: after Gudur, Balaji & Perepu, "Resource-Constrained Federated Learning with Heterogeneous Labels and
Models", 2020 (arXiv 2011.03206).

We have its abstract, not its algorithm, so no fidelity is claimed, and the name says `public`. Where all clients share all labels,
as in FCCL's comparison, it becomes this: probabilities on public data, averaged with weights in proportion to each client's own
validation accuracy (its training accuracy where it has no validation split), distilled by KL, then private training.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from pydantic.dataclasses import dataclass
from torch import Tensor
from torch.nn import functional as F

from coterie.method import Federation, Reply, task
from coterie.methods.public import PublicMethod
from coterie.record import Record
from coterie.settings import STRICT
from coterie.site import Site
from coterie.training.objectives import Objective, Step

__all__ = ["RCFLPublic", "TowardsProbabilities"]


@dataclass(frozen=True, config=STRICT)
class TowardsProbabilities(Objective):
    """KL(consensus || student) where the consensus already is probabilities."""

    def __call__(self, step: Step) -> Tensor:
        return F.kl_div(step.logits.log_softmax(1), step.frozen["consensus"], reduction="batchmean")


@dataclass(frozen=True, config=STRICT)
class RCFLPublic(PublicMethod):
    """Accuracy-weighted distillation through public data: RCFL as FCCL compares with it.

    >>> RCFLPublic.name
    'rcfl-public'
    """

    name: ClassVar[str] = "rcfl-public"
    kinds: ClassVar[Mapping[str, str]] = {"probabilities": "logits", "consensus": "logits"}

    def like(self, fed: Federation) -> Record:
        shape = super().like(fed).tensors["logits"]
        return Record(probabilities=shape, accuracy=torch.zeros(1, dtype=shape.dtype))

    @task
    def predict(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Probabilities for the public images, and how much this client should be believed."""
        model = memory.group("model")
        logits = site.predict(model, self.images(site, message))
        judge = site.validation if len(site.validation) else site.train
        accuracy = site.score(model, judge).values()["accuracy"]
        return Record(probabilities=logits.softmax(1), accuracy=torch.tensor([accuracy], dtype=logits.dtype)), memory

    def agree(self, replies: Sequence[Reply]) -> Record:
        votes = [reply.record.tensors for reply in replies]
        total = sum(float(vote["accuracy"]) for vote in votes)
        weights = [float(vote["accuracy"]) / total if total > 0 else 1 / len(votes) for vote in votes]
        mixed = torch.stack([weight * vote["probabilities"].double() for weight, vote in zip(weights, votes, strict=True)]).sum(0)
        return Record(consensus=mixed.to(votes[0]["probabilities"].dtype))

    def digesting(self) -> Objective:
        return TowardsProbabilities()
