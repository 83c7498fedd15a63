"""Networks that do not fit are found before a run, by one forward pass."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from coterie.errors import UserError
from coterie.running.experiment import Experiment

TABLE = {"name": "t", "data": {"source": "digits"}, "partition": {"name": "iid", "clients": 2}, "method": "fedavg"}


class Net(nn.Module):
    def __init__(self, inputs: int = 64, outputs: int = 10, answer: str = "logits") -> None:
        super().__init__()
        self.layer, self.answer = nn.Linear(inputs, outputs), answer

    def forward(self, x: torch.Tensor) -> object:
        logits = self.layer(x.flatten(1))
        return {"logits": logits, "pair": (logits, x), "flat": logits.flatten()}[self.answer]


def test_a_network_that_fits_is_let_through() -> None:
    Experiment.parse(TABLE | {"model": f"{__name__}:Net"}).population()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"outputs": 7}, "has 7 outputs, but there are 10 classes"),
        ({"inputs": 100}, r"does not take samples of 1x8x8: RuntimeError: mat1 and mat2 .* \(test_trial.py:\d+\)"),
        ({"answer": "pair"}, "gives a tuple, expected a tensor with one row of logits for each sample"),
        ({"answer": "flat"}, r"gives shape \(20,\) for 2 samples, expected \(2, 10\)"),
    ],
)
def test_a_network_that_does_not_is_a_sentence(settings, said) -> None:
    with pytest.raises(UserError, match=said):
        Experiment.parse(TABLE | {"model": {"name": f"{__name__}:Net", **settings}}).population()
