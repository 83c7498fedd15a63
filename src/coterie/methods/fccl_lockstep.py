"""FCCL as the authors' code runs it: an exchange for every public batch, where a step on one batch and the prediction of the next
share an exchange, and where logits are those of networks in training mode (batch statistics, dropout).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from torch import Tensor

from coterie.data.examples import Examples
from coterie.errors import UserError
from coterie.method import Federation, task
from coterie.methods.fccl import FCCL
from coterie.methods.public import mean_of, subject
from coterie.population import Population
from coterie.record import EMPTY, Record
from coterie.replies import Replies
from coterie.seeds import generator, scoped, seed_of
from coterie.settings import spec
from coterie.site import Site

__all__ = ["FCCLLockstep"]


@spec
class FCCLLockstep(FCCL):
    """FCCL with an exchange for every public batch, as in the authors' code.

    >>> FCCLLockstep().own_slot
    'current'
    """

    name: ClassVar[str] = "fccl-lockstep"

    own_slot: Literal["current", "previous"] = "current"
    """Whether a client's own share of the mean is its present logits or those of its previous model."""
    reset_each_batch: bool = False
    """A new optimiser for every public batch, as in the authors' code, or one per round."""

    def check(self, population: Population) -> None:
        super().check(population)
        if self.alignment is not None:
            raise UserError(f"method.alignment = {self.alignment}: expected none, lockstep goes over all public images")

    def exchange(self, fed: Federation) -> Record | Mapping[int, Record]:
        """Predict the first batch; step on each batch while predicting the next; what comes last is about the last batch."""
        if not self.correlation:
            return EMPTY
        about = subject(fed)
        message: Record | Mapping[int, Record] = about | Record(at=0)
        for at, batch in enumerate(self._batches(fed.server, about)):
            like = Record(logits=torch.zeros(len(batch), fed.server.train.classes, dtype=fed.server.dtype))
            agreed = self._agreed(fed.ask("step", message, like=like), fed)
            where = about | Record(at=at + 1)
            message = where | agreed if isinstance(agreed, Record) else {client: where | each for client, each in agreed.items()}
        return message

    def _agreed(self, replies: Replies, fed: Federation) -> Record | dict[int, Record]:
        """The mean over who answered; where the own slot is the previous model's, each client gets the others' part of it."""
        said = {reply.client: reply.record.tensors["logits"] for reply in replies}
        if self.own_slot == "current":
            return Record(logits=mean_of(said.values()))
        kind, exact = next(iter(said.values())).dtype, {client: logits.double() for client, logits in said.items()}
        total = torch.stack(list(exact.values())).sum(0)
        parties = {client: len(said) + (client not in said) for client in fed.present}
        others = {client: (total - exact.get(client, 0.0)) / parties[client] for client in fed.present}
        return {client: Record(logits=others[client].to(kind), parties=parties[client]) for client in fed.present}

    @task
    def step(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Learn from the consensus about the batch before, and say something of this one."""
        at, memory = int(message.number("at")), self._begun(site, memory)
        if at:
            memory = self._stepped(site, memory, message)
        return Record(logits=self._in_training(site, memory.group("model"), self._batch(site, message, at), at)), memory

    def _begun(self, site: Site, memory: Record) -> Record:
        """A memory in a round: the model of the last round beside the one that learns, and no moments of a round that was not finished."""
        memory = memory or self.first_memory(site)
        if memory.get("round") == site.round:
            return memory
        return memory.drop("moments") | Record(previous=memory.group("previous") or memory.group("model"), round=site.round)

    def digested(self, site: Site, memory: Record, message: Record) -> Record:
        """The step on the last batch."""
        return self._stepped(site, self._begun(site, memory), message).group("model") if "at" in message else memory.group("model")

    def _stepped(self, site: Site, memory: Record, message: Record) -> Record:
        """One step on one public batch."""
        at = int(message.number("at")) - 1
        data, consensus = self._batch(site, message, at), message.tensors["logits"]
        if self.own_slot == "previous":
            consensus = consensus + site.predict(memory.group("previous"), data) / message.number("parties")
        whole = self.public.replace(epochs=1, steps=None, batch="all", augment="none", state="fresh" if self.reset_each_batch else "kept")
        fitted = site.fit(
            memory.group("model"),
            self.towards(),
            optimiser=memory.group("moments"),
            training=whole,
            data=data,
            frozen={"consensus": consensus},
            purpose=f"public/{at}",
        )
        return memory.drop("model", "moments") | Record(model=fitted.params, moments=fitted.optimiser)

    def _in_training(self, site: Site, params: Record, data: Examples, at: int) -> Tensor:
        """Logits in training mode, as the authors' code exchanges them; leaves no trace in the memory."""
        net = site.model()
        net.load_state_dict(params.tensors)
        net.train()
        with torch.no_grad(), scoped(seed_of(site.seed, site.round, site.id, "exchange", at)):
            return site.fetch(net(data.one_batch()[0]))

    def _batch(self, site: Site, message: Record, at: int) -> Examples:
        data = site.public.only(self._batches(site, message)[at])
        return data.augmented(generator(int(message.number("seed")), "augment", at)) if self.public.augment != "none" else data

    def _batches(self, site: Site, message: Record) -> list[Tensor]:
        """The public batches of a round, the same for everybody: positions, by the seed in the message."""
        seed, samples = int(message.number("seed")), len(site.public)
        size = samples if self.public.batch == "all" else self.public.batch
        epochs = range(self.public.epochs) if self.public.steps is None or samples < 2 else itertools.count()
        orders = (torch.randperm(samples, generator=generator(seed, "order", epoch)) for epoch in epochs)
        batches = (batch for order in orders for batch in torch.split(order, size) if len(batch) > 1)
        return list(itertools.islice(batches, self.public.steps))
