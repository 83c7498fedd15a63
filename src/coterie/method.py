"""The contract: a Method is all that a new paper implements.

Server code (`start`, `round`) sees clients only through `fed.ask`; client code (`@task`) sees the server only through
`message`, its own world through `site`, its own past through `memory`. A method is a frozen dataclass: an instance is its
own configuration, and keeps nothing. What there is to evaluate is said once: `evaluates` names the models that a method has, a
task gives those of a client to `site.evaluate`, and `models` finds the server's in its state.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, TypeAlias, TypeVar

import torch

from coterie.aggregation import Aggregation, Private, Sent
from coterie.errors import UserError, nearest
from coterie.models import Architecture
from coterie.population import Population
from coterie.protocols import Model, protocols_of
from coterie.record import EMPTY, Record
from coterie.replies import Replies, Reply, Weighting, check_groups, groups_of, means, members
from coterie.settings import Spec
from coterie.site import Site
from coterie.training.loop import Fitted
from coterie.training.objectives import CrossEntropy
from coterie.training.settings import Training

__all__ = [
    "Federation",
    "Method",
    "Task",
    "admit",
    "aggregate",
    "find_task",
    "fine_tune",
    "task",
    "tasks_of",
]

Task: TypeAlias = Callable[[Site, Record, Record], tuple[Record, Record]]
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
    kind: Any = type(method)  # mypy takes a class with fields for something that cannot be hashed
    return {name: getattr(method, name) for name in _tasks(kind)}


@functools.cache
def _tasks(kind: Any) -> tuple[str, ...]:
    return tuple(name for name in dir(kind) if getattr(getattr(kind, name), "__coterie_task__", False))


def find_task(method: Method, name: str) -> Task:
    """The task called `name`; nothing else of a method can be called from afar."""
    found = tasks_of(method)
    if name not in found:
        if callable(getattr(type(method), name, None)) and not hasattr(Method, name):
            raise UserError(
                f"{type(method).__name__} has no task '{name}': its function {name} is not marked, write @coterie.task above it"
            )
        raise UserError(f"{type(method).__name__} has no task '{name}': {nearest(name, found)}")
    return found[name]


def admit(reply: Record) -> str | None:
    """Nothing else is wrong with any reply: what `fed.ask` takes for granted, unless it is given a check."""
    return None


class Federation:
    """What server code may do in a round: look at the server's own Site, and ask clients.

    A method is handed one; `Method` shows it at work. In a method's own `round`:

    >>> def round(self, state, fed):
    ...     replies = fed.ask("train", state, like=state)  # every client of `fed.cohort`
    ...     return means(replies, "model")
    """

    round: int
    """The present round; 0 while the method starts."""
    cohort: Sequence[int]
    """The clients drawn for this round."""
    present: Sequence[int]
    """The cohort, and after it the guests: clients that were not drawn and take part only to be evaluated. Nothing they say counts."""
    clients: Sequence[int]
    """All clients that take part in training."""
    protocols: tuple[str, ...]
    """Under which the state after this round is evaluated; what only they need can be left out in other rounds."""
    server: Site
    architectures: Sequence[Architecture]
    """The experiment's networks."""

    def architecture_of(self, client: int) -> int:
        """The position in `architectures` of a client's network."""
        raise NotImplementedError

    def ask(
        self,
        task: str,
        message: Record | Mapping[int, Record] = EMPTY,
        *,
        like: Record | Mapping[int, Record] = EMPTY,
        check: Callable[[Record], str | None] = admit,
        clients: Sequence[int] | None = None,
        keep_guests: bool = False,
    ) -> Replies:
        """Have clients (the cohort, unless said) run a task; their replies come in the clients' order.

        Replies stream: each is there as soon as it and those before it are. What nobody looks at is waited for all the same, at the
        next `ask` or the end of the round, so that a task whose reply is empty needs no loop.

        Args:
            task: the name of a `@task` of the method.
            message: one Record for all, or one for each client (of `present`); a Record given to several is encoded once, and a client
                that there is no message for is not asked.
            like: the tensors of an admitted reply, in names, shapes and dtypes; one for all, or one for each client. Without any a reply
                may hold any tensors; numbers are always free. A tensor without rows, such as `torch.empty(0, 10)`, stands for any number
                of rows up to a client's samples, the same for all such in a reply.
            check: what else is wrong with a reply, in words, so that it is not admitted; None where nothing is.
            clients: whom to ask.
            keep_guests: whether what guests answer is kept, to be found in `guests` of what this returns.
        """
        raise NotImplementedError


class Method(Spec):
    """Base of all methods. Subclass it as a frozen dataclass with a `name`.

    A whole method: how many examples are there, without anybody saying what they are?

    >>> from coterie.settings import spec
    >>> @spec
    ... class Census(Method):
    ...     name: ClassVar[str] = "census"
    ...     evaluates: ClassVar[tuple[str, ...]] = ()
    ...     def start(self, fed):
    ...         return EMPTY
    ...     def round(self, state, fed):
    ...         return Record(total=sum(int(reply.record.number("examples")) for reply in fed.ask("count")))
    ...     @task
    ...     def count(self, site, memory, message):
    ...         return Record(examples=len(site.train)), memory
    >>> from coterie.engines import Inline
    >>> from coterie.running.rounds import run
    >>> from coterie.testing import small_experiment
    >>> import tempfile
    >>> everybody = small_experiment(Census(), rounds=1, cohort=1.0)
    >>> run(everybody, tempfile.mkdtemp(), engine=Inline()).state["total"]
    300
    """

    evaluates: ClassVar[tuple[Model, ...]] = ("global",)
    """The models that this method has; `coterie.protocols` says how each can be measured. The first decides the headline."""
    needs_public: ClassVar[bool] = False
    """Whether it looks at public data."""
    public_at_server: ClassVar[bool] = False
    """Whether those stay at the server: clients neither have nor are sent any."""
    mixes_architectures: ClassVar[bool] = False
    """Whether clients may have different architectures."""
    gathers_data: ClassVar[bool] = False
    """Whether the server is given all clients' training data, as a centralised baseline is; the ledger counts what that costs."""

    @property
    def protocols(self) -> tuple[str, ...]:
        """The protocols under which it can be evaluated, its headline first."""
        return protocols_of(self.evaluates)

    def start(self, fed: Federation) -> Record:
        """The server's first state; may ask clients, which the ledger counts as setup."""
        raise UserError(f"method '{self.name}' has no start(self, fed): expected one that returns the server's first state, a Record")

    def round(self, state: Record, fed: Federation) -> Record:
        """The next state of the server, after any number of exchanges."""
        raise UserError(f"method '{self.name}' has no round(self, state, fed): expected one that returns the server's next state, a Record")

    def models(self, state: Record, site: Site) -> Mapping[Model, Record]:
        """The server's models in its state (`global`, `composed`); `site` has the server's network, wherever they are measured."""
        return {"global": state.group("model")} if "global" in self.evaluates else {}

    def kept_model(self, state: Record, memory: Record, site: Site) -> Record:
        """The model that a client has when a run is over, out of what it keeps and the server's state; nothing where it keeps none."""
        return memory.group("personal") or memory.group("model")

    def check(self, population: Population) -> None:
        """Raise a UserError where this method cannot work with such a population."""

    def unevaluated(self) -> Method | None:
        """A method whose rounds without evaluation are this one's, to bit and byte: runs of a comparison that agree in it do them once."""
        return None

    def network(self, base: Architecture, client: int) -> Architecture:
        """The network this method has at a site (`client` may be `SERVER`) where an experiment names `base`."""
        return base

    def for_new_client(self, state: Record, architecture: int) -> Record:
        """What a client receives that joins after training, by the position of its architecture; by default nothing."""
        return EMPTY

    @task
    def adapt(self, site: Site, memory: Record, message: Record) -> tuple[Record, Record]:
        """A new client trains alone from what it was given, `message.epochs` epochs; accuracy on its own test slice after each."""
        return fine_tune(site, message, message.group("model") or site.fresh()), memory


OneEpoch: TypeAlias = Callable[[Record, Record, Training, str], Fitted]
"""From a network and its optimiser's state, one epoch further; given the settings of an epoch and what its seed is for."""


def fine_tune(
    site: Site,
    message: Record,
    start: Record,
    one_epoch: OneEpoch | None = None,
    judged: Callable[[Record], Record] = lambda params: params,
) -> Record:
    """A client's training alone, epoch by epoch, as a curve of accuracies: before it, and after each of `message.epochs` epochs.

    Args:
        site: where.
        message: says how many epochs.
        start: the network before.
        one_epoch: how one epoch is trained, where it is not by plain cross-entropy.
        judged: of what is trained, the network that is measured.

    >>> from coterie.methods.fedavg import FedAvg
    >>> from coterie.site import ModelCache
    >>> from coterie.testing import small_experiment
    >>> site = small_experiment(FedAvg()).population().site(0, 1, ModelCache())
    >>> len(fine_tune(site, Record(epochs=3), site.fresh()).tensors["curve"])
    4
    """

    def plain(params: Record, optimiser: Record, training: Training, purpose: str) -> Fitted:
        return site.fit(params, CrossEntropy(), optimiser=optimiser, training=training, purpose=purpose)

    training, optimiser = site.training.replace(epochs=1, steps=None, state="kept"), EMPTY
    params, curve = start, [site.score(judged(start)).metrics()["accuracy"]]
    for epoch in range(int(message.number("epochs"))):
        fitted = (one_epoch or plain)(params, optimiser, training, f"adapt/{epoch}")
        params, optimiser = fitted.params, fitted.optimiser
        curve.append(site.score(judged(params)).metrics()["accuracy"])
    return Record(curve=torch.tensor(curve, dtype=torch.float64))


def aggregate(
    rule: Aggregation, fed: Federation, replies: Iterable[Reply], around: Record, *groups: str, weighting: Weighting = "samples"
) -> Record:
    """`means`, or what the experiment has put in its place: some groups of tensors over replies, by a rule.

    Args:
        rule: a method's setting `aggregation`.
        fed: as the method was given it.
        replies: what came.
        around: what the tensors were before: a rule that clips or adds noise looks at differences from it.
        groups: what is averaged.
        weighting: of the plain mean; other rules count every client alike.

    >>> from coterie.aggregation import Median
    >>> replies = [Reply(at, Record(model={"w": torch.tensor([value])})) for at, value in enumerate((0.0, 1.0, 1e9))]
    >>> fed = Federation()
    >>> fed.cohort = (0, 1, 2)
    >>> aggregate(Median(), fed, replies, EMPTY, "model", weighting="uniform")["model/w"].item()
    1.0
    """
    if rule.streams:
        return means(replies, *groups, weighting=weighting)
    if isinstance(rule, Private):
        fed.server.log("epsilon", torch.tensor([rule.epsilon(max(fed.round, 1))], dtype=torch.float64))
    if weighting == "samples" and isinstance(replies, Replies):
        replies.needing("examples")
    came = [reply.record for reply in replies]
    if not came:
        return EMPTY
    check_groups(groups, set().union(*map(groups_of, came)))
    weights = [record.number("examples") if weighting == "samples" else 1.0 for record in came]
    sent = Sent(Record(dict(members(around, groups))), len(fed.cohort), lambda: fed.server.rng("aggregation"))
    return rule.merged([Record(dict(members(record, groups))) for record in came], weights, sent)
