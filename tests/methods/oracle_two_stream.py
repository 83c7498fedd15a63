"""FedMMD, the two-stream L2 term and FedFusion written again from their equations, in numpy and float64.

Written from the specification before the sources were read; it knows neither torch nor coterie. Slow and plain on purpose: distances by
explicit differences, gradients by the closed formulas, one convolution by hand.
"""

from __future__ import annotations

import numpy as np

WIDTHS = (1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 1e-1, 1.0, 5.0, 10.0, 15.0, 20.0, 25.0, 30.0, 35.0, 100.0, 1e3, 1e4, 1e5, 1e6)
"""The authors' nineteen; each plays the part of a variance: exp(-d^2 / 2s)."""


# --- the two-stream terms, of g, the frozen global stream, and the local one, both samples x features ---


def squared_distances(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    return ((a[:, None, :] - b[None, :, :]) ** 2).sum(-1)


def fixed_bandwidths(g: np.ndarray, local: np.ndarray) -> list[float]:
    """What divides -d^2, under the authors' rule: twice each width."""
    return [2 * width for width in WIDTHS]


def mean_bandwidths(g: np.ndarray, local: np.ndarray, kernels: int = 5, distinct: bool = True) -> list[float]:
    """What divides -d^2, under the other rule: the mean squared distance in the joint batch / 2^(5 // 2), doubled from kernel to kernel.

    The mean is over pairs of different samples (`distinct`) or over all n^2 entries, diagonal included.
    """
    joint = np.concatenate([g, local])
    n = len(joint)
    mean = squared_distances(joint, joint).sum() / (n * n - n if distinct else n * n)
    return [mean / 2 ** (kernels // 2) * 2**k for k in range(kernels)]


def kernel(a: np.ndarray, b: np.ndarray, bandwidths: list[float]) -> np.ndarray:
    d = squared_distances(a, b)
    return sum(np.exp(-d / w) for w in bandwidths)


def mmd2(g: np.ndarray, local: np.ndarray, bandwidths: list[float]) -> float:
    """The biased estimator: means over all pairs, diagonals included; never below 0."""
    value = kernel(g, g, bandwidths).mean() + kernel(local, local, bandwidths).mean() - 2 * kernel(g, local, bandwidths).mean()
    return max(float(value), 0.0)


def mmd2_gradient(g: np.ndarray, local: np.ndarray, bandwidths: list[float]) -> np.ndarray:
    """With respect to the local stream, the bandwidths held constant.

    d k(a, b) / d a = -2 (a - b) sum_w exp(-d^2 / w) / w, and a local sample stands in a row and a column of K(local, local).
    """

    def pull(i: int, others: np.ndarray) -> np.ndarray:
        d = ((local[i] - others) ** 2).sum(-1)
        slope = sum(np.exp(-d / w) / w for w in bandwidths)
        return -2 * (slope[:, None] * (local[i] - others)).sum(0)

    rows = [2 * pull(i, local) / len(local) ** 2 - 2 * pull(i, g) / (len(local) * len(g)) for i in range(len(local))]
    return np.array(rows)


def l2(g: np.ndarray, local: np.ndarray, reduction: str = "sum") -> float:
    """Half the squared difference, summed over the batch and the logits, or averaged over samples."""
    return 0.5 * float(((local - g) ** 2).sum()) / (len(local) if reduction == "mean" else 1)


def l2_gradient(g: np.ndarray, local: np.ndarray, reduction: str = "sum") -> np.ndarray:
    return (local - g) / (len(local) if reduction == "mean" else 1)


# --- the fusion operators: maps samples x channels (x height x width) ---


def _per_channel(lam: np.ndarray, maps: np.ndarray) -> np.ndarray:
    return np.asarray(lam).reshape(-1, *[1] * (maps.ndim - 2))


def fuse(operator: str, local: np.ndarray, g: np.ndarray, f: dict[str, np.ndarray]) -> np.ndarray:
    """conv: a 1x1 convolution on local || global, 2C -> C; multi and single: lambda * global + (1 - lambda) * local."""
    if operator == "conv":
        both = np.concatenate([local, g], axis=1)
        out = np.einsum("oc,bc...->bo...", f["weight"], both)
        return out + _per_channel(f["bias"], out) if "bias" in f else out
    lam = _per_channel(f["lam"], local)
    return lam * g + (1 - lam) * local


def fuse_gradient(
    operator: str,
    local: np.ndarray,
    g: np.ndarray,
    f: dict[str, np.ndarray],
    out: np.ndarray,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Given the gradient at the output: that at the local map, and those of the module's own parameters."""
    places = (0, *range(2, out.ndim))
    if operator == "conv":
        channels = local.shape[1]
        both = np.concatenate([local, g], axis=1)
        weight = np.stack([[(out[:, o] * both[:, c]).sum() for c in range(2 * channels)] for o in range(out.shape[1])])
        own = {"weight": weight} | ({"bias": out.sum(places)} if "bias" in f else {})
        return np.einsum("oc,bo...->bc...", f["weight"][:, :channels], out), own
    slope = (out * (g - local)).sum(places) if operator == "multi" else np.array([(out * (g - local)).sum()])
    return (1 - _per_channel(f["lam"], local)) * out, {"lam": slope.reshape(np.shape(f["lam"]))}


def smooth(shadow: np.ndarray, mean: np.ndarray, decay: float = 0.9) -> np.ndarray:
    """The server's exponential average; the shadow starts at 0."""
    return (1 - decay) * mean + decay * shadow


# --- whole rounds, for one convolution without overlap: maps = relu(A patch + a), logits = B flat(F(maps)) + b ---

Weights = dict[str, np.ndarray]


def patches(x: np.ndarray, size: int) -> np.ndarray:
    """Images N x 1 x H x W as N x patches x pixels, patches in rows."""
    n, _, height, width = x.shape
    cut = x.reshape(n, height // size, size, width // size, size).transpose(0, 1, 3, 2, 4)
    return cut.reshape(n, -1, size * size)


def extract(w: Weights, x: np.ndarray) -> np.ndarray:
    """The maps, N x channels x patches; with one patch this is a dense layer."""
    return np.maximum(x @ w["A"].T + w["a"], 0).transpose(0, 2, 1)


def forward(w: Weights, past: Weights, x: np.ndarray, operator: str | None) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Local maps, features (the fused maps, flat), logits; the frozen stream is the extractor of `past`."""
    maps = extract(w, x)
    fused = maps if operator is None else fuse(operator, maps, extract(past, x), _fusion(w))
    features = fused.reshape(len(x), -1)
    return maps, features, features @ w["B"].T + w["b"]


def _fusion(w: Weights) -> dict[str, np.ndarray]:
    return {name: w[name] for name in ("lam", "weight", "bias") if name in w}


def loss_and_gradient(
    w: Weights,
    past: Weights,
    x: np.ndarray,
    y: np.ndarray,
    *,
    operator: str | None = None,
    mmd: float = 0.0,
    rule: str = "fixed",
    pull: float = 0.0,
    reduction: str = "sum",
    mu: float = 0.0,
    on: str = "logits",
) -> tuple[float, Weights]:
    """CE + mmd * MMD^2 + pull * L2 + mu / 2 |w - past|^2 of the network w, fused with the frozen `past`; streams at logits or features.

    The frozen stream is the whole model as received, run with E_g = E_l: its logits are those of `past` fused with itself.
    """
    maps, features, logits = forward(w, past, x, operator)
    _, frozen_features, frozen_logits = forward(past, past, x, operator)
    shifted = np.exp(logits - logits.max(1, keepdims=True))
    chances = shifted / shifted.sum(1, keepdims=True)
    rows = np.arange(len(y))
    loss = -np.log(chances[rows, y]).mean()
    d_logits = chances.copy()
    d_logits[rows, y] -= 1
    d_logits /= len(y)
    d_features = np.zeros_like(features)
    stream, frozen = (logits, frozen_logits) if on == "logits" else (features, frozen_features)
    into = d_logits if on == "logits" else d_features
    if mmd:
        bandwidths = fixed_bandwidths(frozen, stream) if rule == "fixed" else mean_bandwidths(frozen, stream)
        if min(bandwidths) > 0:
            loss += mmd * mmd2(frozen, stream, bandwidths)
            into += mmd * mmd2_gradient(frozen, stream, bandwidths)
    if pull:
        loss += pull * l2(frozen, stream, reduction)
        into += pull * l2_gradient(frozen, stream, reduction)
    gradient = {"B": d_logits.T @ features, "b": d_logits.sum(0)}
    d_maps = d_fused = (d_features + d_logits @ w["B"]).reshape(maps.shape)
    if operator is not None:
        d_maps, own = fuse_gradient(operator, maps, extract(past, x), _fusion(w), d_fused)
        gradient |= own
    d_hidden = d_maps * (maps > 0)
    gradient |= {"A": np.einsum("ncp,npd->cd", d_hidden, x), "a": d_hidden.sum((0, 2))}
    if mu:
        loss += mu / 2 * sum(((w[name] - past[name]) ** 2).sum() for name in w)
        gradient = {name: gradient[name] + mu * (w[name] - past[name]) for name in gradient}
    return float(loss), gradient


def train(start: Weights, x: np.ndarray, y: np.ndarray, *, steps: int, lr: float, **objective: object) -> Weights:
    """Plain gradient descent on the whole of a client's data, from the received weights, against the received weights."""
    w = {name: value.copy() for name, value in start.items()}
    for _ in range(steps):
        _, gradient = loss_and_gradient(w, start, x, y, **objective)
        w = {name: value - lr * gradient[name] for name, value in w.items()}
    return w


def federate(start: Weights, clients: list[tuple[np.ndarray, np.ndarray]], *, rounds: int, decay: float = 0.9, **how: object) -> Weights:
    """Rounds over all clients: the mean by samples, then the exponential average of lambda alone."""
    w, shadow = start, {name: np.zeros_like(value) for name, value in start.items() if name == "lam"}
    total = sum(len(y) for _, y in clients)
    for _ in range(rounds):
        ends = [train(w, x, y, **how) for x, y in clients]
        w = {name: sum(len(y) / total * end[name] for end, (_, y) in zip(ends, clients, strict=True)) for name in w}
        shadow = {name: smooth(old, w[name], decay) for name, old in shadow.items()}
        w |= shadow
    return w
