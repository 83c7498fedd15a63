"""pfl-research: its own FederatedAveraging on a simulated backend, in one process that has all cores (its way to more is one per GPU)."""

from __future__ import annotations

import itertools
import time

import numpy as np
import torch
from nets import network
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Metrics
from pfl.model.pytorch import PyTorchModel
from torch import nn
from torch.nn import functional as F
from work import BATCH, LR, Clock, chosen, clients_of, cohorts


class Net(nn.Module):
    """The network as pfl wants it."""

    def __init__(self, model: str) -> None:
        super().__init__()
        self.net = network(model)

    def loss(self, x: torch.Tensor, y: torch.Tensor, is_eval: bool = False) -> torch.Tensor:
        return F.cross_entropy(self.net(x), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor) -> dict[str, object]:
        return {}


class Ticks(TrainingProcessCallback):
    """Tells when a round has ended."""

    def __init__(self) -> None:
        self._began = time.perf_counter()

    def after_central_iteration(self, aggregate_metrics: Metrics, model: object, *, central_iteration: int) -> tuple[bool, Metrics]:
        Clock.tell(time.perf_counter() - self._began)
        self._began = time.perf_counter()
        return False, Metrics()


def main() -> None:
    """Print the seconds of every round."""
    work = chosen()
    data = [tuple(map(torch.from_numpy, each)) for each in clients_of(work)]
    order = itertools.cycle([client for cohort in cohorts(work) for client in cohort])
    drawn = FederatedDataset(lambda client: Dataset(raw_data=shuffled(data[client])), lambda: next(order))
    net = Net(work.model)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), lr=1.0))
    local = NNTrainHyperParams(local_num_epochs=1, local_learning_rate=LR, local_batch_size=BATCH)
    rounds = NNAlgorithmParams(
        central_num_iterations=work.rounds, evaluation_frequency=10**6, train_cohort_size=work.cohort, val_cohort_size=0
    )
    backend = SimulatedBackend(training_data=drawn, val_data=drawn, postprocessors=[])
    FederatedAveraging().run(algorithm_params=rounds, backend=backend, model=model, model_train_params=local, callbacks=[Ticks()])


def shuffled(data: tuple[torch.Tensor, torch.Tensor]) -> list[torch.Tensor]:
    """The samples of a client, in another order."""
    rows = np.random.permutation(len(data[1]))  # noqa: NPY002
    return [each[rows] for each in data]


if __name__ == "__main__":
    main()
