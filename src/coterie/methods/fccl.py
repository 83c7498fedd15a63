"""FCCL: Huang, Ye & Du, "Learn from Others and Be Yourself in Heterogeneous Federated Learning", CVPR 2022.

Learn from others: on unlabelled public images, the cross-correlation M between a client's logits and the federation's mean logits
(Pearson over the batch) is driven to 1 on the diagonal and to -1 off it,

    L_col = sum_u (1 - M_uu)^2 + lam * sum_{u != v} (M_uv + 1)^2

Be yourself: on private data, cross-entropy and two distillation terms, from the client's model at the end of the previous round and
from its pretrained model, which stays for ever,

    L_loc = CE + KL(previous || student) + KL(pretrained || student)

`once` is the paper: all public logits are exchanged once a round. `lockstep` is the authors' code: an exchange for every public
batch, where a step on one batch and the prediction of the next share an exchange. Pairwise -1 is impossible for more than two
classes, so the loss has a floor; `off_diagonal = 0` is Barlow Twins' target.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import Field
from pydantic.dataclasses import dataclass
from torch import Tensor

from coterie.data.examples import Examples
from coterie.errors import UserError
from coterie.method import Exhibit, Federation, Reply, task, weighted_mean
from coterie.methods.public import PublicMethod, mean_logits
from coterie.population import Population
from coterie.record import EMPTY, Record
from coterie.seeds import generator, scoped, seed_of
from coterie.settings import STRICT
from coterie.site import Site
from coterie.training.loop import Frozen, frozen
from coterie.training.objectives import CrossEntropy, Distillation, Objective, Step

__all__ = ["FCCL", "CrossCorrelation", "correlation", "lockstep_batches"]

NotNegative = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LOOKED_AT = 512
"""Images from which a correlation matrix on show is computed."""


def correlation(a: Tensor, b: Tensor) -> Tensor:
    """Pearson's correlation of every column of `a` with every column of `b`, over the rows; 0 where a column is constant.

    >>> z = torch.tensor([[1.0, 3.0], [2.0, 3.0], [4.0, 3.0]])
    >>> correlation(z, 2 * z + 5).round(decimals=4).abs().tolist()
    [[1.0, 0.0], [0.0, 0.0]]
    """
    return _standardised(a).T @ _standardised(b)


def _standardised(z: Tensor) -> Tensor:
    """Columns of mean 0 and length 1; those that vary by no more than rounding become 0 and pass no gradient."""
    centred = z - z.mean(0)
    length = centred.detach().norm(dim=0)
    constant = length <= 8 * torch.finfo(z.dtype).eps * z.detach().abs().amax(0) * len(z) ** 0.5
    return torch.where(constant, 0.0, centred) / torch.where(constant, 1.0, torch.where(constant, 1.0, centred).norm(dim=0))


@dataclass(frozen=True, config=STRICT)
class CrossCorrelation(Objective):
    """The collaborative loss."""

    lam: float = 0.0051
    target: float = -1.0

    def __call__(self, step: Step) -> Tensor:
        m = correlation(step.logits, step.frozen["consensus"])
        apart = ~torch.eye(len(m), dtype=torch.bool)
        return (1 - m.diagonal()).square().sum() + self.lam * (m[apart] - self.target).square().sum()


@dataclass(frozen=True, config=STRICT)
class FCCL(PublicMethod):
    """Federated cross-correlation and continual learning; without its three extra losses it is `local` after the same pretraining.

    >>> FCCL().lam, FCCL(mode="lockstep").off_diagonal
    (0.0051, -1)
    """

    name: ClassVar[str] = "fccl"
    exhibits: ClassVar[Mapping[str, Exhibit]] = {
        **PublicMethod.exhibits,
        "public": Exhibit("Cross-correlation with the federation on public data", "heatmap", x="class (mean logit)", y="class (own logit)"),
        "private": Exhibit("Correlation among the own logits on private test data", "heatmap", x="class", y="class"),
    }

    lam: NotNegative = 0.0051
    """Weight of the entries off the diagonal."""
    off_diagonal: Literal[-1, 0] = -1
    correlation: NotNegative = 1.0
    """Weight of the whole collaborative loss; at 0 nothing is exchanged."""
    previous: NotNegative = 1.0
    """Weight of the distillation from the previous round's model."""
    pretrained: NotNegative = 1.0
    """Weight of the distillation from the pretrained model."""
    mode: Literal["once", "lockstep"] = "once"
    own_slot: Literal["current", "previous"] = "current"
    """In lockstep: whether a client's own share of the mean is its present logits or those of its previous model."""
    reset_each_batch: bool = False
    """In lockstep: a new optimiser for every public batch, as in the authors' code, or one a round."""
    average: Literal["none", "samples", "uniform"] = "none"
    """For equal architectures: parameters averaged between the public and the private phase, and how weighted."""

    def check(self, population: Population) -> None:
        super().check(population)
        if self.average != "none" and len(set(population.plan.architectures)) > 1:
            raise UserError(f"method.average = '{self.average}': expected 'none', because clients have different models")
        if self.mode == "once" and (self.own_slot == "previous" or self.reset_each_batch):
            raise UserError("method.own_slot and method.reset_each_batch are about method.mode = 'lockstep', not 'once'")
        if self.mode == "lockstep" and self.alignment is not None:
            raise UserError(f"method.alignment = {self.alignment}: expected none, lockstep goes over all public images")

    def first_memory(self, site: Site, params: Record) -> Record:
        return Record(model=params, previous=params, pretrained=params)

    def round(self, state: Record, fed: Federation) -> Record:
        if self.average == "none":
            return super().round(state, fed)
        merged = weighted_mean(self.confer(fed), "model", self.average)
        for _ in fed.ask("recall", Record(model=merged)):
            pass
        return state

    def confer(self, fed: Federation) -> Iterator[Reply]:
        if self.correlation == 0:
            return fed.ask("learn", like=self.handed_in(fed))
        return iter(self._lockstep(fed)) if self.mode == "lockstep" else super().confer(fed)

    def handed_in(self, fed: Federation) -> Record:
        return EMPTY if self.average == "none" else Record(model=fed.server.fresh())

    @task
    def learn(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """Learn from others, then be yourself."""
        return self._after(site, memory, self.digest(site, memory, message) if "consensus" in message else memory.group("model"))

    def _after(self, site: Site, memory: Record, digested: Record) -> tuple[Record, Record]:
        """After the public phase: hand the network in to be averaged, or go on to the private data."""
        if self.average != "none":
            return Record(model=digested, examples=len(site.train)), memory | Record(model=digested)
        return EMPTY, self._be_yourself(site, memory, digested)

    @task
    def recall(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """The private phase from averaged parameters."""
        return EMPTY, self._be_yourself(site, memory, message.group("model"))

    def _be_yourself(self, site: Site, memory: Record, start: Record) -> Record:
        fitted = self.revisit(site, memory, start)
        if site.exhibiting:
            self._show_private(site, fitted.params)
        return Record(model=fitted.params, previous=fitted.params, pretrained=memory.group("pretrained")) | fitted.carried

    def digesting(self) -> Objective:
        return self.correlation * CrossCorrelation(self.lam, self.off_diagonal)

    def digest(self, site: Site, memory: Record, message: Record) -> Record:
        digested = super().digest(site, memory, message)
        if site.exhibiting:
            first = torch.arange(min(LOOKED_AT, len(message.tensors["consensus"])))
            own = site.predict(digested, self.images(site, message).only(first))
            site.show("public", correlation(own, message.tensors["consensus"][first]).double())
        return digested

    def _show_private(self, site: Site, params: Record) -> None:
        if len(site.test):
            own = site.predict(params, site.test.only(torch.arange(min(LOOKED_AT, len(site.test)))))
            site.show("private", correlation(own, own).double())

    def revisiting(self) -> Objective:
        return CrossEntropy() + self.previous * Distillation("previous") + self.pretrained * Distillation("pretrained")

    def teachers(self, site: Site, memory: Record) -> Mapping[str, Frozen]:
        weights = {"previous": self.previous, "pretrained": self.pretrained}
        return {name: frozen(site.model(name), memory.group(name)) for name, weight in weights.items() if weight > 0}

    def _lockstep(self, fed: Federation) -> Sequence[Reply]:
        """Predict the first batch; step on each batch while predicting the next; after the last, go on to the private data."""
        about = self.subject(fed)
        batches = lockstep_batches(self, fed.server, about)
        last: list[Reply] = []
        for at in range(len(batches) + 1):
            agreed = self._agreed(last, fed) if at else EMPTY
            like = Record(logits=self.like(fed).tensors["logits"][: len(batches[at])]) if at < len(batches) else self.handed_in(fed)
            where = about | Record(at=at)
            message = agreed | where if isinstance(agreed, Record) else {client: each | where for client, each in agreed.items()}
            last = list(fed.ask("exchange", message, like=like))
        return last

    def _agreed(self, replies: Sequence[Reply], fed: Federation) -> Record | dict[int, Record]:
        """The mean over who answered; where the own slot is the previous model's, each client gets the others' part of it."""
        if self.own_slot == "current":
            return mean_logits(replies)
        said = {reply.client: reply.record.tensors["logits"].double() for reply in replies}
        total, kind = torch.stack(list(said.values())).sum(0), replies[0].record.tensors["logits"].dtype
        parties = {client: len(said) + (client not in said) for client in fed.cohort}
        others = {client: (total - said.get(client, 0.0)) / parties[client] for client in fed.cohort}
        return {client: Record(consensus=others[client].to(kind), parties=parties[client]) for client in fed.cohort}

    @task
    def exchange(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """One step of lockstep: learn from the consensus about the batch before, and say something of this one."""
        at, batches = int(message.number("at")), lockstep_batches(self, site, message)
        memory = self._step(site, memory, message, batches[at - 1], at - 1) if at else _rested(memory)
        if at == len(batches):
            return self._after(site, _rested(memory), memory.group("model"))
        return Record(logits=self._in_training(site, memory.group("model"), self._batch(site, message, batches[at], at), at)), memory

    def _batch(self, site: Site, message: Record, chosen: Tensor, at: int) -> Examples:
        assert site.public is not None
        data = site.public.only(chosen)
        return data.augmented(generator(int(message.number("seed")), "augment", at)) if self.public.augment != "none" else data

    def _in_training(self, site: Site, params: Record, data: Examples, at: int) -> Tensor:
        """Logits in training mode (batch statistics, dropout), as the authors' code exchanges them; leaves no trace in the memory."""
        net = site.model()
        net.load_state_dict(params.tensors)
        net.train()
        with torch.no_grad(), scoped(seed_of(site.seed, site.round, site.id, "exchange", at)):
            out: Tensor = net(data.one_batch()[0])
        return out

    def _step(self, site: Site, memory: Record, message: Record, chosen: Tensor, at: int) -> Record:
        """One step on one public batch."""
        data, consensus = self._batch(site, message, chosen, at), message.tensors["consensus"]
        if self.own_slot == "previous":
            consensus = consensus + site.predict(memory.group("previous"), data) / message.number("parties")
        whole = self.public.replace(epochs=1, batch="all", augment="none", state="fresh" if self.reset_each_batch else "kept")
        moments = Record(optimiser=memory.group("moments"))
        fitted = site.fit(
            memory.group("model"),
            self.digesting(),
            carried=moments,
            training=whole,
            data=data,
            frozen={"consensus": consensus},
            purpose=f"public/{at}",
        )
        return memory | Record(model=fitted.params, moments=fitted.carried.group("optimiser"))


def _rested(memory: Record) -> Record:
    """A memory without the public optimiser's moments, which do not outlive a round."""
    return Record({name: value for name, value in memory.items() if not name.startswith("moments/")}) if "moments" in memory else memory


def lockstep_batches(method: FCCL, site: Site, message: Record) -> list[Tensor]:
    """The public batches of a round, the same for everybody: positions, by the seed in the message."""
    assert site.public is not None
    seed, samples = int(message.number("seed")), len(site.public)
    size = samples if method.public.batch == "all" else method.public.batch
    orders = [torch.randperm(samples, generator=generator(seed, "order", epoch)) for epoch in range(method.public.epochs)]
    return [batch for order in orders for batch in torch.split(order, size) if len(batch) > 1]
