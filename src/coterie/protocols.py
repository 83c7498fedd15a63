"""Protocols: what an accuracy is an accuracy of. One table: whose model, on which data, over which clients, and a sentence.

A name means the same for every method. Protocols about clients are measured on a fixed, seeded set of clients, the same for every
method and in every round, and on all clients at the end; a client of that set that was not drawn takes part as a guest, so that its
model exists too. Nothing here needs torch.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from coterie.errors import UserError, nearest

__all__ = ["PROTOCOLS", "Data", "Model", "Protocol", "find_protocol", "protocols_of"]

Model: TypeAlias = Literal["global", "composed", "start", "personal"]
"""Whose model: the server's; the server's put together of two parts; what a client starts a round with; what it has after its training."""
Data: TypeAlias = Literal["whole test set", "own test", "own validation", "own domain", "other domains"]


@dataclass(frozen=True)
class Protocol:
    """One way to measure.

    >>> PROTOCOLS["local_post"].about_clients, PROTOCOLS["global"].about_clients
    (True, False)
    """

    name: str
    model: Model
    data: Data
    what: str
    """The sentence that a page shows."""

    @property
    def about_clients(self) -> bool:
        """Whether it is measured at clients, so that its value is a mean over them."""
        return self.data != "whole test set"

    @property
    def sentence(self) -> str:
        """What it is, and over whom its value is a mean.

        >>> PROTOCOLS["global_own"].sentence
        "the server's model on a client's own test data; mean over clients"
        """
        return f"{self.what}; mean over clients" if self.about_clients else self.what

    @property
    def by_domain(self) -> bool:
        """Whether it needs clients with domains."""
        return self.data in ("own domain", "other domains")

    @property
    def in_training(self) -> bool:
        """Whether its model only exists where a client takes part in the round."""
        return self.model in ("start", "personal")


PROTOCOLS: dict[str, Protocol] = {
    each.name: each
    for each in (
        Protocol("global", "global", "whole test set", "the server's model on the whole test set"),
        Protocol(
            "composed",
            "composed",
            "whole test set",
            "the lower part of the last global model, and an upper part that the server trained on maps, on the whole test set",
        ),
        Protocol("local_post", "personal", "own test", "a client's model after its own training in the round, on its own test data"),
        Protocol("local_pre", "start", "own test", "the model that a client starts the round with, on its own test data"),
        Protocol("local_val", "personal", "own validation", "a client's model after its own training, on its private validation data"),
        Protocol("intra", "personal", "own domain", "a client's model after its own training, on the test data of its own domain"),
        Protocol("inter", "personal", "other domains", "a client's model after its own training, on the test data of the other domains"),
        Protocol("global_own", "global", "own test", "the server's model on a client's own test data"),
        Protocol("global_val", "global", "own validation", "the server's model on a client's private validation data"),
        Protocol("global_intra", "global", "own domain", "the server's model on the test data of a client's domain"),
        Protocol("global_inter", "global", "other domains", "the server's model on the test data of the domains of other clients"),
    )
}
"""By name, in the order in which they are shown."""


def protocols_of(models: Iterable[Model]) -> tuple[str, ...]:
    """The protocols that a method can be measured under, given the models that it has; the first is its headline.

    >>> protocols_of(["personal"])
    ('local_post', 'local_val', 'intra', 'inter')
    >>> protocols_of(["globel"])
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: evaluates = 'globel': no such model, did you mean 'global'? Valid: composed, global, personal, start
    """
    if isinstance(models, str):
        raise UserError(f"evaluates = '{models}': expected a tuple, evaluates = ('{models}',)")
    models, known = tuple(models), get_args(Model)
    if unknown := [model for model in models if model not in known]:
        raise UserError(f"evaluates = '{unknown[0]}': no such model, {nearest(unknown[0], known)}")
    return tuple(name for model in models for name, each in PROTOCOLS.items() if each.model == model)


def find_protocol(name: str, key: str = "protocol") -> Protocol:
    """The protocol of that name.

    >>> find_protocol("globl")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: protocol = 'globl': no such protocol, did you mean 'global'? Valid: composed, global, ...
    """
    if name not in PROTOCOLS:
        raise UserError(f"{key} = '{name}': no such protocol, {nearest(name, PROTOCOLS)}")
    return PROTOCOLS[name]
