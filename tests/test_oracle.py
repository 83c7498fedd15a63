"""FedAvg equals a plain loop that uses none of our code: to the bit in float64, to 1e-6 in float32."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest
import torch

from coterie.running.cohort import draw_cohort
from coterie.running.experiment import Experiment
from coterie.running.rounds import run
from coterie.seeds import generator, seed_of
from coterie.site import SERVER, ModelCache

ORACLE = Path(__file__).parents[1] / "examples" / "01_fedavg_from_scratch.py"


@pytest.fixture(scope="module")
def oracle():
    spec = importlib.util.spec_from_file_location("oracle", ORACLE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def experiment(float64: bool, momentum: float, weighting: str, model: dict) -> Experiment:
    table = {
        "name": "oracle",
        "rounds": 3,
        "cohort": 3,
        "seed": 5,
        "float64": float64,
        "data": {"source": "digits", "train": 240, "test": 50, **({"size": 32, "channels": 1} if model["name"] == "resnet10-slim" else {})},
        "partition": {"name": "quantity", "clients": 5, "minimum": 7},
        "model": model,
        "method": {"name": "fedavg", "weighting": weighting},
        "training": {"epochs": 2, "batch": 7, "optimiser": {"name": "sgd", "lr": 0.05, "momentum": momentum, "weight_decay": 0.001}},
        "engine": {"name": "inline"},
    }
    return Experiment.parse(table)


def orders_of(plan: Experiment, sizes: np.ndarray) -> list[list[list[torch.Tensor]]]:
    def order(round: int, client: int, epoch: int) -> torch.Tensor:
        seed = seed_of(plan.seed, round, client, "train")
        return torch.randperm(int(sizes[client]), generator=generator(seed, "order", epoch))

    epochs, clients = range(plan.training.epochs), range(len(sizes))
    return [[[order(r, k, e) for e in epochs] for k in clients] for r in range(1, plan.rounds + 1)]


@pytest.mark.parametrize("float64", [True, False])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
@pytest.mark.parametrize(
    ("weighting", "model"),
    [("samples", {"name": "mlp", "hidden": [12]}), ("uniform", {"name": "mlp", "hidden": [12]}), ("samples", {"name": "resnet10-slim"})],
)
def test_fedavg_equals_the_loop_from_scratch(oracle, tmp_path, float64, momentum, weighting, model) -> None:
    plan = experiment(float64, momentum, weighting, model)
    population = plan.population()
    sites = [population.site(k, 0, ModelCache()) for k in range(population.clients)]
    server = population.site(SERVER, 0, ModelCache())
    net = server.model()
    net.load_state_dict(server.fresh().tensors)
    sizes = population.partition.train.sizes
    assert len(set(sizes.tolist())) > 2, "clients must be uneven"

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    expected = oracle.fedavg(
        net,
        [site.train.one_batch() for site in sites],
        plan.rounds,
        [list(draw_cohort(plan.seed, r, 5, 3)) for r in range(1, plan.rounds + 1)],
        orders_of(plan, sizes),
        lr=0.05,
        momentum=momentum,
        weight_decay=0.001,
        batch=7,
        weighting=weighting,
    )
    torch.set_num_threads(threads)
    found = run(plan, tmp_path / "run").state.group("model").tensors
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].dtype == value.dtype
        if float64 or not value.is_floating_point():
            assert torch.equal(found[name], value), name
        else:
            assert torch.allclose(found[name], value, rtol=0, atol=1e-6), name
