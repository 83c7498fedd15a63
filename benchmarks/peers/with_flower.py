"""Flower's simulation: FedAvg, one core a client. Its ClientApp is a module's own, so that no message carries the data."""

from __future__ import annotations

import functools
import logging
import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from nets import network
from torch.nn import functional as F
from work import BATCH, LR, WORKS, Clock, chosen, clients_of

app = ClientApp()
logging.getLogger("flwr").setLevel(logging.ERROR)


@functools.cache
def everything(model: str) -> tuple[list[tuple[torch.Tensor, ...]], torch.nn.Module]:
    """Data of all clients and a network, once a process."""
    torch.set_num_threads(1)
    work = next(work for work in WORKS.values() if work.model == model)
    return [tuple(map(torch.from_numpy, each)) for each in clients_of(work)], network(model)


@app.train()
def train(message: Message, context: Context) -> Message:
    """One epoch."""
    data, net = everything(message.content["config"]["model"])
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    x, y = data[context.node_config["partition-id"]]
    optimiser = torch.optim.SGD(net.parameters(), lr=LR)
    for rows in torch.randperm(len(y)).split(BATCH):
        optimiser.zero_grad()
        F.cross_entropy(net(x[rows]), y[rows]).backward()
        optimiser.step()
    reply = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": len(y)})}
    return Message(RecordDict(reply), reply_to=message)


class Timed(FedAvg):
    """FedAvg that tells when a round has ended."""

    began = 0.0

    def configure_train(self, *arguments: object, **named: object) -> object:
        self.began = time.perf_counter()
        return super().configure_train(*arguments, **named)

    def aggregate_train(self, *arguments: object, **named: object) -> object:
        found = super().aggregate_train(*arguments, **named)
        Clock.tell(time.perf_counter() - self.began)
        return found


def main() -> None:
    """Print the seconds of every round."""
    from flwr.app import ConfigRecord
    from with_flower import app as importable

    work = chosen()
    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = Timed(fraction_train=work.cohort / work.clients, fraction_evaluate=0.0, min_train_nodes=work.cohort)
        start = ArrayRecord(network(work.model).state_dict())
        strategy.start(grid, start, num_rounds=work.rounds, train_config=ConfigRecord({"model": work.model}))

    run_simulation(server, importable, work.clients, backend_config={"client_resources": {"num_cpus": 1, "num_gpus": 0}})


if __name__ == "__main__":
    main()
