"""The contract: a Method is all that a new paper implements.

Server code (`start`, `round`) sees clients only through `fed.ask`; client code (`@task`) sees the server only through
`message`, its own world through `site`, its own past through `memory`. A method is a frozen dataclass: an instance is its
own configuration, and keeps nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, TypeVar

import torch
from torch import Tensor

from coterie.errors import UserError, nearest
from coterie.models import Architecture
from coterie.population import Population
from coterie.record import EMPTY, Record
from coterie.settings import Spec
from coterie.site import Site
from coterie.training.loop import Fitted
from coterie.training.objectives import CrossEntropy
from coterie.training.settings import Training

__all__ = ["Exhibit", "Federation", "Method", "Reply", "Task", "Weighting", "find_task", "task", "tasks_of", "weighted_mean"]

Task = Callable[[Site, Record, Record], tuple[Record, Record]]
Weighting = Literal["samples", "uniform"]
F = TypeVar("F", bound=Callable[..., Any])


def task(function: F) -> F:
    """Mark a method's function as one that clients run when asked for it by name.

    >>> from coterie.methods import FedAvg
    >>> sorted(tasks_of(FedAvg()))
    ['adapt', 'train']
    """
    function.__coterie_task__ = True  # type: ignore[attr-defined]
    return function


def tasks_of(method: Method) -> dict[str, Task]:
    """The tasks of a method by name."""
    names = (name for name in dir(type(method)) if getattr(getattr(type(method), name), "__coterie_task__", False))
    return {name: getattr(method, name) for name in names}


@dataclass(frozen=True)
class Exhibit:
    """How an array that a method puts on show (`site.show`) is drawn.

    >>> Exhibit("Fusion weights", "lines", x="round", y="weight").draw
    'lines'
    """

    title: str
    draw: Literal["lines", "bars", "heatmap", "images"]
    """`lines`: a vector (or number) a round, each entry a line over rounds; `bars`: a vector, the latest round's; `heatmap`: a matrix,
    the latest round's; `images`: N x height x width grey levels in [0, 1]."""
    x: str = ""
    y: str = ""


@dataclass(frozen=True)
class Reply:
    """What one client answered, already admitted.

    >>> Reply(3, Record(examples=600)).record.number("examples")
    600
    """

    client: int
    record: Record


class Federation:
    """What server code may do in a round: look at the server's own Site, and ask clients.

    A method is handed one; `Method` shows it at work.

    >>> [name for name in ("ask", "charge") if callable(getattr(Federation, name))]
    ['ask', 'charge']
    """

    round: int
    """The present round; 0 while the method starts."""
    cohort: Sequence[int]
    """The clients drawn for this round."""
    clients: Sequence[int]
    """All clients that take part in training."""
    wanted: tuple[str, ...]
    """The protocols under which the state after this round is evaluated; what only they need can be left out in other rounds."""
    server: Site
    population: Population

    def ask(
        self,
        task: str,
        message: Record | Mapping[int, Record] = EMPTY,
        *,
        like: Record | Mapping[int, Record] = EMPTY,
        check: Callable[[Record], str | None] = lambda reply: None,
        clients: Sequence[int] | None = None,
    ) -> Iterator[Reply]:
        """Have clients (the cohort, unless said) run a task; their replies come in the clients' order.

        Args:
            task: the name of a `@task` of the method.
            message: one Record for all, or one for each client; a Record given to several is encoded once.
            like: groups of tensors that an admitted reply must match in names, shapes and dtypes; one for all, or one for each client.
            check: what else is wrong with a reply, in words, so that it is not admitted; None where nothing is.
            clients: whom to ask.
        """
        raise NotImplementedError

    def charge(self, client: int, direction: Literal["up", "down"], kind: str, payload: int) -> None:
        """Put bytes on the ledger that moved outside any message, such as public data handed out beforehand."""
        raise NotImplementedError


class Method(Spec):
    """Base of all methods. Subclass it as a frozen dataclass with a `name`.

    A whole method: how many examples are there, without anybody saying what they are?

    >>> @dataclass(frozen=True)
    ... class Census(Method):
    ...     name: ClassVar[str] = "census"
    ...     def start(self, fed):
    ...         return EMPTY
    ...     def round(self, state, fed):
    ...         return Record(total=sum(int(reply.record.number("examples")) for reply in fed.ask("count")))
    ...     @task
    ...     def count(self, site, memory, message):
    ...         return Record(examples=len(site.train)), memory
    ...     def models(self, state, memory, site):
    ...         return {}
    >>> from coterie.engines import Inline
    >>> from coterie.running.rounds import run
    >>> from coterie.testing import small_experiment
    >>> import tempfile
    >>> everybody = small_experiment(Census(), rounds=1, cohort=1.0)
    >>> run(everybody, tempfile.mkdtemp(), engine=Inline()).state["total"]
    300
    """

    kinds: ClassVar[Mapping[str, str]] = {"model": "weights"}
    """Group of a message -> the kind of content it is in the ledger; other groups are their own kind."""
    per_sample: ClassVar[tuple[str, ...]] = ()
    """Groups whose tensors have a row for each of some samples; the ledger then also says how many samples that is."""
    offers: ClassVar[tuple[str, ...]] = ("global",)
    """Evaluation protocols this method has a model for; the first is its headline."""
    observes: ClassVar[tuple[str, ...]] = ()
    """Those of them that its tasks measure themselves, with `site.observe`."""
    exhibits: ClassVar[Mapping[str, Exhibit]] = {}
    """Arrays that tasks (or `round`, on `fed.server`) may put on show with `site.show(name, values)`, and how each is drawn."""
    needs_public: ClassVar[bool] = False
    mixes_architectures: ClassVar[bool] = False
    """Whether clients may have different architectures."""

    def start(self, fed: Federation) -> Record:
        """The server's first state; may ask clients (pretraining), which the ledger counts as setup."""
        raise NotImplementedError

    def round(self, state: Record, fed: Federation) -> Record:
        """The next state of the server, after any number of exchanges."""
        raise NotImplementedError

    def models(self, state: Record, memory: Record, site: Site) -> Mapping[str, Record]:
        """What there is to evaluate at a site (the server's or a client's), by protocol."""
        raise NotImplementedError

    def check(self, population: Population) -> None:
        """Raise a UserError where this method cannot work with such a population."""

    def welcome(self, state: Record) -> Record:
        """What a new client receives when it joins; its `model` is where the new client starts, if there is one."""
        return EMPTY

    def join(self, site: Site, message: Record) -> Record:
        """Where a new client starts: from the model it was given, or afresh."""
        return message.group("model") or site.fresh()

    def tune(self, site: Site, start: Record, carried: Record, training: Training, purpose: str) -> Fitted:
        """How a new client trains."""
        return site.fit(start, CrossEntropy(), carried=carried, training=training, purpose=purpose)

    def judged(self, params: Record) -> Record:
        """Of what a new client trains, the network that it is judged by."""
        return params

    def network(self, base: Architecture, client: int) -> Architecture:
        """The network this method has at a site (`client` may be `SERVER`) where an experiment names `base`."""
        return base

    @task
    def adapt(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """A new client trains alone from what it was given; accuracy on its own test slice after every epoch."""
        params = self.join(site, message)
        one_epoch = site.training.replace(epochs=1, state="kept")
        carried, curve = EMPTY, [site.score(self.judged(params)).values()["accuracy"]]
        for epoch in range(int(message.number("epochs"))):
            fitted = self.tune(site, params, carried, one_epoch, f"adapt/{epoch}")
            params, carried = fitted.params, fitted.carried
            curve.append(site.score(self.judged(params)).values()["accuracy"])
        return Record(curve=torch.tensor(curve, dtype=torch.float64)), memory


def find_task(method: Method, name: str) -> Task:
    """The task called `name`; nothing else of a method can be called from afar."""
    found = tasks_of(method)
    if name not in found:
        raise UserError(f"{type(method).__name__} has no task '{name}': {nearest(name, found)}")
    return found[name]


def weighted_mean(replies: Iterable[Reply], group: str, weighting: Weighting = "samples") -> Record:
    """The mean of a group of tensors over replies, weighted by their `examples` or uniformly.

    Folded as replies come, in float64. Floating buffers (BatchNorm's running statistics) are averaged like parameters;
    integer ones (its counter of batches) take the largest value, and stay integers.

    >>> replies = [Reply(0, Record(model={"w": torch.zeros(1)}, examples=1)), Reply(1, Record(model={"w": torch.ones(1)}, examples=3))]
    >>> weighted_mean(replies, "model")["w"].item(), weighted_mean(replies, "model", "uniform")["w"].item()
    (0.75, 0.5)
    """
    total, sums, dtypes = 0.0, dict[str, Tensor](), dict[str, torch.dtype]()
    for reply in replies:
        weight = reply.record.number("examples") if weighting == "samples" else 1.0
        total += weight
        for name, value in reply.record.group(group).tensors.items():
            dtypes.setdefault(name, value.dtype)
            if not value.is_floating_point():
                sums[name] = torch.maximum(sums[name], value) if name in sums else value
            elif name in sums:
                sums[name] += value.double() * weight
            else:
                sums[name] = value.double() * weight
    return Record({name: (value / total).to(dtypes[name]) if value.is_floating_point() else value for name, value in sums.items()})
