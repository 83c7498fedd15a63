"""A network whose every parameter is a sum of two, taught by labelled and by unlabelled data (FedMatch: Jeong et al., ICLR 2021)."""

from __future__ import annotations

from typing import ClassVar

from torch import Tensor, nn
from torch.func import functional_call

from coterie.models.staged import Architecture
from coterie.record import Record
from coterie.settings import spec

__all__ = ["Additive", "AdditiveNet", "added", "apart"]


class AdditiveNet(nn.Module):
    """The base network computed with sigma + psi; its buffers are sigma's."""

    def __init__(self, base: nn.Module) -> None:
        super().__init__()
        self.sigma = base
        self.psi = nn.ParameterList(parameter.detach().clone() for parameter in base.parameters())

    def forward(self, x: Tensor) -> Tensor:
        names = [name for name, _ in self.sigma.named_parameters()]
        whole = {name: s + p for name, s, p in zip(names, self.sigma.parameters(), self.psi, strict=True)}
        out: Tensor = functional_call(self.sigma, whole, (x,))
        return out


@spec
class Additive(Architecture):
    """How to build it.

    >>> from coterie.models import MLP
    >>> sum(p.numel() for p in Additive(MLP()).build((1, 28, 28), 10).parameters()) // 2
    199210
    """

    name: ClassVar[str] = "additive"
    base: Architecture

    def build(self, shape: tuple[int, ...], classes: int) -> nn.Module:
        return AdditiveNet(self.base.build(shape, classes))


def apart(params: Record, parameters: list[str], share: float) -> Record:
    """The state of an additive network that computes what `params` does, with psi = share * sigma."""
    flat = params.tensors
    sigma = {name: flat[name] / (1 + share) if name in parameters else value for name, value in flat.items()}
    psi = {str(index): share * sigma[name] for index, name in enumerate(parameters)}
    return Record({**{f"sigma.{name}": value for name, value in sigma.items()}, **{f"psi.{key}": value for key, value in psi.items()}})


def added(state: Record, parameters: list[str]) -> Record:
    """The state of the base network that an additive one computes with."""
    flat = {name.removeprefix("sigma."): value for name, value in state.tensors.items() if name.startswith("sigma.")}
    return Record({**flat, **{name: flat[name] + state.tensors[f"psi.{index}"] for index, name in enumerate(parameters)}})
