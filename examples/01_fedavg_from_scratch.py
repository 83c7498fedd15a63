"""All of FedAvg on one page: a plain PyTorch loop, with no federated-learning library.

This is FederatedAveraging, Algorithm 1 of McMahan et al., "Communication-Efficient Learning of Deep Networks from
Decentralized Data" (AISTATS 2017). Every random choice (who takes part, in which order they visit their samples) is an
argument, so the result is a function of the inputs alone (for a model without dropout). The tests use it as an oracle.

Run it: ``python examples/01_fedavg_from_scratch.py`` (scikit-learn's digits, 10 clients of two classes, a few seconds).
"""

import copy
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.modules.batchnorm import _BatchNorm

State = dict[str, Tensor]


def client_update(
    net: nn.Module, x: Tensor, y: Tensor, order: Sequence[Tensor], *, lr: float, momentum: float, weight_decay: float, batch: int
) -> State:
    """ClientUpdate(k, w): local epochs of minibatch SGD from the weights `net` holds; `order` has one index tensor per epoch."""
    has_batchnorm = any(isinstance(module, _BatchNorm) for module in net.modules())
    optimizer = torch.optim.SGD(net.parameters(), lr=lr, momentum=momentum, weight_decay=weight_decay)  # fresh: no state between rounds
    net.train()
    for epoch in order:
        for start in range(0, len(epoch), batch):
            b = epoch[start : start + batch]
            if has_batchnorm and len(b) == 1 and start + batch >= len(epoch):
                continue  # a last batch of one sample has no batch statistics
            optimizer.zero_grad()
            F.cross_entropy(net(x[b]), y[b]).backward()
            optimizer.step()
    return {name: w.clone() for name, w in net.state_dict().items()}


def average(states: Sequence[State], weights: Sequence[int]) -> State:
    """sum_k n_k w_k / sum_k n_k in float64, for parameters and floating buffers; integer buffers (counters) take the maximum."""
    if sum(weights) <= 0:
        raise ValueError("the clients of a round must hold at least one sample between them")
    mean: State = {}
    for name, first in states[0].items():
        if first.is_floating_point():
            acc = torch.zeros_like(first, dtype=torch.float64)
            for state, n in zip(states, weights, strict=True):  # in cohort order: a float sum depends on it
                acc += n * state[name].double()
            mean[name] = (acc / sum(weights)).to(first.dtype)
        else:
            mean[name] = torch.stack([state[name] for state in states]).amax(dim=0)
    return mean


def fedavg(
    model: nn.Module,
    clients: Sequence[tuple[Tensor, Tensor]],
    rounds: int,
    cohorts: Sequence[Sequence[int]],
    orders: Sequence[Mapping[int, Sequence[Tensor]]],
    *,
    lr: float,
    momentum: float = 0.0,
    weight_decay: float = 0.0,
    batch: int,
    weighting: str = "samples",
) -> State:
    """Train from `model`'s weights and return the final global state (`model` itself is left as it was).

    `clients[k]` is client k's (x, y); `cohorts[r]` lists the clients of round r; `orders[r][k]` is client k's sample order in
    round r, one index tensor per local epoch. `weighting` is "samples" (n_k = samples of client k) or "uniform" (n_k = 1).
    """
    if weighting not in ("samples", "uniform"):
        raise ValueError(f'weighting must be "samples" or "uniform", not {weighting!r}')
    net = copy.deepcopy(model)
    w_global: State = {name: w.clone() for name, w in model.state_dict().items()}
    for r in range(rounds):
        w_local: list[State] = []
        for k in cohorts[r]:
            net.load_state_dict(w_global)
            x, y = clients[k]
            w_local.append(client_update(net, x, y, orders[r][k], lr=lr, momentum=momentum, weight_decay=weight_decay, batch=batch))
        n = [len(clients[k][1]) if weighting == "samples" else 1 for k in cohorts[r]]
        w_global = average(w_local, n)
    return w_global


def main() -> None:
    from sklearn.datasets import load_digits

    g = torch.Generator().manual_seed(0)
    digits = load_digits()
    shuffle = torch.randperm(len(digits.target), generator=g)
    x, y = torch.tensor(digits.data / 16, dtype=torch.float32)[shuffle], torch.tensor(digits.target)[shuffle]
    x_test, y_test, x, y = x[:360], y[:360], x[360:], y[360:]

    # Client k holds one half of class k and one half of class k + 1 (mod 10): two classes each, no sample held twice.
    halves = [(y == c).nonzero().flatten().chunk(2) for c in range(10)]
    shards = [torch.cat([halves[k][0], halves[(k + 1) % 10][1]]) for k in range(10)]
    clients = [(x[s], y[s]) for s in shards]

    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    for p in model.parameters():
        nn.init.uniform_(p, -0.125, 0.125, generator=g)  # 1 / sqrt(64), torch's own range, from our generator

    rounds, every, cohort_size, epochs = 30, 5, 8, 2
    cohorts = [torch.randperm(10, generator=g)[:cohort_size].tolist() for _ in range(rounds)]
    orders = [{k: [torch.randperm(len(shards[k]), generator=g) for _ in range(epochs)] for k in cohort} for cohort in cohorts]
    for r in range(0, rounds, every):  # the server keeps nothing but the weights, so 30 rounds are 6 times 5 rounds
        model.load_state_dict(fedavg(model, clients, every, cohorts[r : r + every], orders[r : r + every], lr=0.1, batch=10))
        with torch.no_grad():
            accuracy = (model(x_test).argmax(dim=1) == y_test).double().mean().item()
        print(f"round {r + every:2d}  test accuracy {accuracy:.3f}")


if __name__ == "__main__":
    main()
