"""SCAFFOLD, Ditto, FedPer and FedProto in plain numpy, float64: oracles from the papers' equations, knowing neither torch nor coterie.

N clients, S the cohort of a round, g_i a mini-batch gradient of client i's loss F_i (mean cross-entropy), n_i its samples.

SCAFFOLD (Karimireddy et al., ICML 2020, Algorithm 1, option II). All c_i and the server's c start at 0; in a round, for i in S:

    y_i = x;   K times:  y_i <- y_i - lr (g_i(y_i) - c_i + c)
    c_i+ = c_i - c + (x - y_i) / (K lr)
    x <- x + eta_g mean_S (y_i - x),    c <- c + |S| / N mean_S (c_i+ - c_i)

The paper's SGD is plain. With momentum or weight decay, g_i - c_i + c stands where the gradient stood, and c_i+ is computed as written.

Ditto (Li et al., ICML 2021, Algorithm 1). The global w by FedAvg; beside it a personal v_k, in the rounds in which k is drawn:

    v_k <- v_k - lr (grad F_k(v_k) + lam (v_k - w^t)),    w^t the global model as received, constant through the round

FedPer (Arivazhagan et al., arXiv 1912.00818, Algorithms 1 and 2). Base layers W_B and client j's personal layers W_Pj move together:

    (W_Bj, W_Pj) = SGD(W_B, W_Pj),    W_B <- sum_j gamma_j W_Bj,  gamma_j = n_j / sum n,    W_Pj stays with client j

FedProto (Tan et al., AAAI 2022). f_i(x) are the features before the head, D_ij client i's samples of class j, N_j the clients that hold j:

    C_i^j = mean of f_i(x) over D_ij                                  the local prototype, under the weights after local training
    Cbar^j = sum_i |D_ij| C_i^j / sum_i |D_ij|,  i in N_j             the global one
    L = CE + lam L_R,      prediction: argmin_j |f_i(x) - Cbar^j|     among classes that have a global prototype

Nothing else travels: there is no global model. `prototype_term` and `aggregate` say where the paper and the authors' code differ.

Networks, SGD and the order of batches are those of `oracle_training`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
from tests.methods.oracle_training import (
    Client,
    Federation,
    Sgd,
    Term,
    Training,
    Weights,
    counts_of,
    each,
    features,
    loss_and_gradient,
    mean,
    plus,
    zeros,
)

# --- SCAFFOLD ---


@dataclass(frozen=True)
class Scaffold:
    """The server's model and variate, and every client's variate."""

    x: Weights
    c: Weights
    variates: list[Weights]


def scaffold(fed: Federation, start: Weights, eta_g: float = 1.0, weighting: str = "uniform") -> Scaffold:
    """The paper's means over the cohort are uniform; `weighting="samples"` changes that of the models, never that of the variates.

    A client that took no step (K = 0) keeps its variate.
    """
    training, x, c = Training(fed), start, zeros(start)
    variates = [zeros(start) for _ in fed.clients]
    for round, cohort in fed.rounds():
        moves, changes = [], []
        for i in cohort:
            y, steps = training.fit(round, i, x, partial(_corrected, fed, c, variates[i]))
            after = _option_two(variates[i], c, x, y, steps * fed.sgd.rate(round)) if steps else variates[i]
            moves.append(plus(y, -1.0, x))
            changes.append(plus(after, -1.0, variates[i]))
            variates[i] = after
        x = plus(x, eta_g, mean(moves, counts_of(fed, cohort, weighting)))
        c = plus(c, len(cohort) / len(fed.clients), mean(changes, [1.0] * len(cohort)))
    return Scaffold(x, c, variates)


def _corrected(fed: Federation, c: Weights, ci: Weights, w: Weights, x: np.ndarray, y: np.ndarray) -> Weights:
    return plus(fed.loss_gradient(w, x, y), 1.0, plus(c, -1.0, ci))


def _option_two(ci: Weights, c: Weights, x: Weights, y: Weights, length: float) -> Weights:
    return each(lambda ci, c, x, y: ci - c + (x - y) / length, ci, c, x, y)


# --- Ditto ---


@dataclass(frozen=True)
class Ditto:
    """The global model, and the personal ones of those that have one."""

    w: Weights
    v: dict[int, Weights]


def ditto(
    fed: Federation,
    start: Weights,
    lam: float,
    personal: Sequence[Weights] | None = None,
    personal_sgd: Sgd | None = None,
    weighting: str = "samples",
) -> Ditto:
    """v_k^0 is an input of the paper's algorithm: `personal`. Without it v_k begins at the w^t that k receives when it is first drawn.

    A step of v_k is stable only while lr * lam < 2, hence a `personal_sgd` for large lam.
    """
    training, w, v = Training(fed), start, dict(enumerate(personal or []))
    for round, cohort in fed.rounds():
        ends = [training.fit(round, k, w, fed.loss_gradient)[0] for k in cohort]
        for k in cohort:
            v[k], _ = training.fit(round, k, v.get(k, w), partial(_pulled, fed, lam, w), "personal", personal_sgd)
        w = mean(ends, counts_of(fed, cohort, weighting))
    return Ditto(w, v)


def _pulled(fed: Federation, lam: float, anchor: Weights, v: Weights, x: np.ndarray, y: np.ndarray) -> Weights:
    return plus(fed.loss_gradient(v, x, y), lam, plus(v, -1.0, anchor))


# --- FedPer ---


@dataclass(frozen=True)
class FedPer:
    """The base layers at the server, and every client's personal layers; `base | personal[j]` is what client j begins a round with."""

    base: Weights
    personal: list[Weights]


def fedper(
    fed: Federation, start: Weights, starts: Sequence[Weights], layers: Sequence[str] = ("B", "b"), weighting: str = "samples"
) -> FedPer:
    """`layers` are the personal ones, the base comes from `start`, each client's personal layers from its own of `starts`.

    The paper draws personal layers at random for every client and asks all clients in every round; gamma is over the cohort here.
    """
    training = Training(fed)
    base = {name: part for name, part in start.items() if name not in layers}
    personal = [{name: own[name] for name in layers} for own in starts]
    for round, cohort in fed.rounds():
        ends = []
        for j in cohort:
            model, _ = training.fit(round, j, base | personal[j], fed.loss_gradient)
            personal[j] = {name: model[name] for name in layers}
            ends.append({name: model[name] for name in base})
        base = mean(ends, counts_of(fed, cohort, weighting))
    return FedPer(base, personal)


# --- FedProto ---

Prototypes = dict[int, np.ndarray]
"""By class; a class that nobody has seen is missing."""
RULES = ("counts", "equation 6", "uniform")
"""How local prototypes become a global one; see `aggregate`."""
KINDS = ("classes", "classes, l2", "samples", "mse")
"""What L_R is; see `prototype_term`."""


@dataclass(frozen=True)
class FedProto:
    """Every client's own model, and the global prototypes after the last round."""

    models: list[Weights]
    prototypes: Prototypes


def prototypes_of(w: Weights, data: Client, activation: str = "relu") -> tuple[Prototypes, dict[int, int]]:
    """Mean features and numbers of samples by class: what a client sends."""
    f = features(w, data.x, activation)
    classes = sorted(set(data.y.tolist()))
    return {j: f[data.y == j].mean(axis=0) for j in classes}, {j: int((data.y == j).sum()) for j in classes}


def aggregate(sent: Sequence[tuple[Prototypes, dict[int, int]]], rule: str = "counts") -> Prototypes:
    """Global prototypes, each over the clients that hold its class.

    counts: the mean weighted by |D_ij|.
    equation 6: the paper as printed, which divides that mean once more by the number of clients that hold the class. The result is no mean:
        prototypes of a class that m clients share shrink m-fold (asked, unanswered, in the authors' repository, issue 6).
    uniform: every client that holds the class counts the same, which that issue says is the authors' code.
    """
    assert rule in RULES, rule
    found = {}
    for j in sorted({j for prototypes, _ in sent for j in prototypes}):
        holders = [(prototypes[j], counts[j]) for prototypes, counts in sent if j in prototypes]
        sizes = [1 if rule == "uniform" else count for _, count in holders]
        found[j] = sum(n / sum(sizes) * prototype for n, (prototype, _) in zip(sizes, holders, strict=True))
        if rule == "equation 6":
            found[j] = found[j] / len(holders)
    return found


def prototype_term(prototypes: Prototypes, kind: str, f: np.ndarray, y: np.ndarray) -> tuple[float, np.ndarray]:
    """L_R of a batch and its gradient by the features; classes without a global prototype add nothing.

    classes: the paper, L_R = sum_j d(C_i^j, Cbar^j), with C_i^j the mean over the samples of class j that are here (Algorithm 1 computes
        it in the loop over batches; of a batch of all samples it is the local prototype itself), and d the squared L2 distance.
    classes, l2: the same with d the L2 distance; the paper leaves d open.
    samples: the mean over the batch of |f(x) - Cbar^y|^2; a sample without a prototype counts in the batch's size.
    mse: the authors' code, torch's MSE between each sample's features and the prototype of its label: `samples` / number of features.
    """
    assert kind in KINDS, kind
    value, slope = 0.0, np.zeros_like(f)
    for j in set(y.tolist()) & prototypes.keys():
        here = y == j
        if kind in ("samples", "mse"):
            size = len(y) * (f.shape[1] if kind == "mse" else 1)
            value += float(((f[here] - prototypes[j]) ** 2).sum()) / size
            slope[here] = 2.0 * (f[here] - prototypes[j]) / size
        else:
            away = f[here].mean(axis=0) - prototypes[j]
            length = float(np.sqrt(away @ away))
            value += length if kind == "classes, l2" else length**2
            slope[here] = (away / (length or 1.0) if kind == "classes, l2" else 2.0 * away) / here.sum()
    return value, slope


def fedproto(
    fed: Federation, starts: Sequence[Weights], lam: float, kind: str = "samples", rule: str = "counts", forget: bool = False
) -> FedProto:
    """Each client has a model of its own; `kind` is of `prototype_term`, `rule` of `aggregate`.

    In the first round there are no prototypes and L is CE. The paper asks all clients in every round; where a cohort holds no sample of a
    class, the class keeps its last global prototype, or loses it (`forget`).
    """
    training, models = Training(fed), list(starts)
    shared: Prototypes = {}
    for round, cohort in fed.rounds():
        for i in cohort:
            slope = partial(_regularised, fed, lam, partial(prototype_term, shared, kind))
            models[i], _ = training.fit(round, i, models[i], slope)
        fresh = aggregate([prototypes_of(models[i], fed.clients[i], fed.activation) for i in cohort], rule)
        shared = fresh if forget else shared | fresh
    return FedProto(models, shared)


def _regularised(fed: Federation, lam: float, term: Term, w: Weights, x: np.ndarray, y: np.ndarray) -> Weights:
    return loss_and_gradient(w, x, y, fed.activation, lam, term)[1]


def nearest(w: Weights, prototypes: Prototypes, x: np.ndarray, activation: str = "relu") -> np.ndarray:
    """The class of the nearest global prototype, for each row."""
    classes = sorted(prototypes)
    f = features(w, x, activation)
    distances = np.stack([np.sqrt(((f - prototypes[j]) ** 2).sum(axis=1)) for j in classes], axis=1)
    return np.array(classes)[distances.argmin(axis=1)]
