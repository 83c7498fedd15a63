"""A network of two layers, SGD, FedAvg and local training in plain numpy and float64: what the oracles of federated methods stand on.

The network is linear, ReLU (or tanh), linear: features = act(x A' + a), logits = features B' + b, gradients by hand. Who trains on which
samples in which order is the caller's: `Federation.orders(round, client, purpose)` gives, for each epoch, the positions of each batch.
It knows neither torch nor coterie.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from tests.methods.oracle_mutual import cross_entropy, log_softmax

Weights = dict[str, np.ndarray]
"""A (hidden x inputs), a, B (classes x hidden), b; or some of them; or anything of their shapes, as a gradient."""
Epochs = Sequence[Sequence[np.ndarray]]
"""For each epoch, the positions of each batch."""
Slope = Callable[[Weights, np.ndarray, np.ndarray], Weights]
"""The gradient that SGD follows: of weights, inputs and labels."""


@dataclass(frozen=True)
class Client:
    """Inputs as rows, and their labels."""

    x: np.ndarray
    y: np.ndarray


@dataclass(frozen=True)
class Sgd:
    """As torch has it: speed = momentum * speed + (gradient + decay * w), w -= lr * speed, the first speed being the first gradient."""

    lr: float
    momentum: float = 0.0
    decay: float = 0.0
    schedule: Callable[[int], float] = lambda round: 1.0
    """What `lr` is multiplied with in a round; the first is 1."""
    kept: bool = False
    """Whether a client's speed lives on to its next round, for each purpose by itself."""

    def rate(self, round: int) -> float:
        return self.lr * self.schedule(round)


@dataclass(frozen=True)
class Federation:
    """Who trains on what, when, and how."""

    clients: Sequence[Client]
    cohorts: Sequence[Sequence[int]]
    """Of round 1, 2, ..."""
    orders: Callable[[int, int, str], Epochs]
    """By round, client and purpose; the purpose is "train", or "personal" for Ditto's v_k."""
    sgd: Sgd
    activation: str = "relu"

    def rounds(self) -> enumerate[Sequence[int]]:
        return enumerate(self.cohorts, 1)

    def loss_gradient(self, w: Weights, x: np.ndarray, y: np.ndarray) -> Weights:
        """Of the mean cross-entropy alone."""
        return loss_and_gradient(w, x, y, self.activation)[1]


# --- sums of weights ---


def each(function: Callable[..., np.ndarray], *weights: Weights) -> Weights:
    """The function at every part."""
    return {name: function(*(w[name] for w in weights)) for name in weights[0]}


def zeros(w: Weights) -> Weights:
    return each(np.zeros_like, w)


def plus(w: Weights, scale: float, other: Weights) -> Weights:
    """w + scale * other."""
    return each(lambda a, b: a + scale * b, w, other)


def mean(weights: Sequence[Weights], counts: Sequence[float]) -> Weights:
    """Weighted by counts."""
    return each(lambda *parts: sum(n / sum(counts) * part for n, part in zip(counts, parts, strict=True)), *weights)


def counts_of(fed: Federation, cohort: Sequence[int], weighting: str) -> list[float]:
    """What each client of a cohort counts: its samples, or ("uniform") the same for all."""
    assert weighting in ("samples", "uniform"), weighting
    return [1.0 if weighting == "uniform" else float(len(fed.clients[k].y)) for k in cohort]


# --- the network ---


def features(w: Weights, x: np.ndarray, activation: str = "relu") -> np.ndarray:
    """What the head sees."""
    hidden = x @ w["A"].T + w["a"]
    return np.tanh(hidden) if activation == "tanh" else np.maximum(hidden, 0.0)


def logits(w: Weights, x: np.ndarray, activation: str = "relu") -> np.ndarray:
    return features(w, x, activation) @ w["B"].T + w["b"]


Term = Callable[[np.ndarray, np.ndarray], tuple[float, np.ndarray]]
"""Of features and labels: a value, and its gradient by the features."""


def no_term(f: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    return 0.0, np.zeros_like(f)


def loss_and_gradient(
    w: Weights, x: np.ndarray, y: np.ndarray, activation: str = "relu", lam: float = 0.0, term: Term = no_term
) -> tuple[float, Weights]:
    """Mean cross-entropy of a batch + lam * a term of its features, and the gradient by the weights."""
    f = features(w, x, activation)
    scores = f @ w["B"].T + w["b"]
    value, by_features = term(f, y)
    by_logits = np.exp(log_softmax(scores))
    by_logits[np.arange(len(y)), y] -= 1.0
    by_logits /= len(y)
    by_hidden = (lam * by_features + by_logits @ w["B"]) * (1.0 - f**2 if activation == "tanh" else f > 0.0)
    gradient = {"A": by_hidden.T @ x, "a": by_hidden.sum(axis=0), "B": by_logits.T @ f, "b": by_logits.sum(axis=0)}
    return cross_entropy(scores, y) + lam * value, gradient


# --- local training ---


@dataclass
class Training:
    """All the local training of one run; it remembers speeds where `Sgd.kept` says so."""

    fed: Federation
    speeds: dict[tuple[int, str], Weights] = field(default_factory=dict)

    def fit(
        self, round: int, client: int, start: Weights, slope: Slope, purpose: str = "train", sgd: Sgd | None = None
    ) -> tuple[Weights, int]:
        """The weights after all epochs, and the number of steps."""
        sgd, data, w, steps = sgd or self.fed.sgd, self.fed.clients[client], start, 0
        speed = self.speeds.get((client, purpose)) if sgd.kept else None
        for epoch in self.fed.orders(round, client, purpose):
            for chosen in epoch:
                gradient = plus(slope(w, data.x[chosen], data.y[chosen]), sgd.decay, w)
                speed = gradient if speed is None else plus(gradient, sgd.momentum, speed)
                w = plus(w, -sgd.rate(round), speed)
                steps += 1
        if speed is not None:
            self.speeds[client, purpose] = speed
        return w, steps


# --- with nothing added ---


def fedavg(fed: Federation, start: Weights, weighting: str = "samples") -> Weights:
    """The global model after all rounds."""
    training, w = Training(fed), start
    for round, cohort in fed.rounds():
        ends = [training.fit(round, k, w, fed.loss_gradient)[0] for k in cohort]
        w = mean(ends, counts_of(fed, cohort, weighting))
    return w


def local(fed: Federation, starts: Sequence[Weights], purpose: str = "train") -> list[Weights]:
    """Each client's own model, trained in the rounds in which it is drawn."""
    training, models = Training(fed), list(starts)
    for round, cohort in fed.rounds():
        for k in cohort:
            models[k], _ = training.fit(round, k, models[k], fed.loss_gradient, purpose)
    return models
