"""Federated Mutual Learning in plain numpy: an oracle written from the equations, before and without the library's own code.

For a batch of B examples with private logits u, meme logits v and labels y, p = softmax(u), q = softmax(v), natural logarithms:

    L_private = alpha CE(u, y) + (1 - alpha) KL(q || p),    KL(q || p) = 1/B sum_i sum_c q_ic (log q_ic - log p_ic)
    L_meme    = beta  CE(v, y) + (1 - beta)  KL(p || q)

The teacher of each is a constant (detached), hence

    dL_private/du = (alpha (p - onehot) + (1 - alpha) (p - q)) / B,    dL_private/dv = 0
    dL_meme/dv    = (beta  (q - onehot) + (1 - beta)  (q - p)) / B,    dL_meme/du    = 0

Both steps of a batch are taken from the same forward: neither model sees the other's step before the next batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def cross_entropy(logits: np.ndarray, y: np.ndarray) -> float:
    return float(-log_softmax(logits)[np.arange(len(y)), y].mean())


def kl_divergence(teacher: np.ndarray, student: np.ndarray) -> float:
    """KL(softmax(teacher) || softmax(student)), the mean over the batch of the sum over classes."""
    t, s = log_softmax(teacher), log_softmax(student)
    return float((np.exp(t) * (t - s)).sum() / len(teacher))


@dataclass(frozen=True)
class Mutual:
    """Both losses of one batch and the four gradients: each loss with respect to each model's logits."""

    private: float
    meme: float
    private_by_private: np.ndarray
    private_by_meme: np.ndarray
    meme_by_private: np.ndarray
    meme_by_meme: np.ndarray


def mutual(u: np.ndarray, v: np.ndarray, y: np.ndarray, alpha: float, beta: float) -> Mutual:
    size = len(y)
    p, q = np.exp(log_softmax(u)), np.exp(log_softmax(v))
    labels = np.zeros_like(p)
    labels[np.arange(size), y] = 1.0
    return Mutual(
        private=alpha * cross_entropy(u, y) + (1.0 - alpha) * kl_divergence(v, u),
        meme=beta * cross_entropy(v, y) + (1.0 - beta) * kl_divergence(u, v),
        private_by_private=(alpha * (p - labels) + (1.0 - alpha) * (p - q)) / size,
        private_by_meme=np.zeros_like(q),
        meme_by_private=np.zeros_like(p),
        meme_by_meme=(beta * (q - labels) + (1.0 - beta) * (q - p)) / size,
    )


@dataclass
class Linear:
    """A linear-softmax model, logits = x W' + b, with W of shape (classes, features), and its SGD momentum (none: not yet stepped)."""

    weight: np.ndarray
    bias: np.ndarray
    speed: list[np.ndarray] | None = field(default=None)

    def copy(self, *, momentum: bool) -> Linear:
        speed = [s.copy() for s in self.speed] if momentum and self.speed is not None else None
        return Linear(self.weight.copy(), self.bias.copy(), speed)

    def logits(self, x: np.ndarray) -> np.ndarray:
        return x @ self.weight.T + self.bias

    def step(self, x: np.ndarray, by_logits: np.ndarray, lr: float, momentum: float, decay: float) -> None:
        """One step of SGD: speed = momentum * speed + (gradient + decay * value), value -= lr * speed."""
        values = [self.weight, self.bias]
        slopes = [by_logits.T @ x + decay * self.weight, by_logits.sum(axis=0) + decay * self.bias]
        self.speed = slopes if self.speed is None else [momentum * s + g for s, g in zip(self.speed, slopes, strict=True)]
        self.weight, self.bias = (v - lr * s for v, s in zip(values, self.speed, strict=True))


Batch = tuple[np.ndarray, np.ndarray]


def local_round(
    private: Linear,
    server: Linear,
    batches: list[Batch],
    *,
    alpha: float,
    beta: float,
    lr: float,
    momentum: float = 0.0,
    decay: float = 0.0,
) -> tuple[Linear, Linear, list[float]]:
    """One client's round: the private model and its momentum go on, the meme is forked from the server's model without momentum.

    The returned losses are, per batch, the sum of both."""
    private, meme = private.copy(momentum=True), server.copy(momentum=False)
    losses = []
    for x, y in batches:
        now = mutual(private.logits(x), meme.logits(x), y, alpha, beta)  # one forward of both, before either step
        private.step(x, now.private_by_private, lr, momentum, decay)
        meme.step(x, now.meme_by_meme, lr, momentum, decay)
        losses.append(now.private + now.meme)
    return private, meme, losses


def merge(memes: list[Linear]) -> Linear:
    """The uniform average: every meme counts the same, however many examples stand behind it."""
    return Linear(sum(m.weight for m in memes) / len(memes), sum(m.bias for m in memes) / len(memes))
