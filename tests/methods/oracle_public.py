"""Learning from each other's answers on public data, in plain numpy: an oracle written from the equations, before and without
the library's own code. FCCL (Huang, Ye, Du 2022), and in its setting FedMD, FedDF, FedDF-client, RCFL and FedMatch-public.

A network is a list of arrays in torch's layout (weight, bias, weight, bias...), dense layers with ReLU between them; float64
throughout. Every loss is a pair (value, gradient with respect to the student's logits), derived by hand:

    M_uv = a_u . b_v,  a_u = (z_u - mean z_u) / |z_u - mean z_u|  and b_v the same of the consensus    (Pearson over the batch)
    L = sum_u (1 - M_uu)^2 + lam sum_{u != v} (M_uv - t)^2
    dL/dz_u = (A_u - a_u (a_u . A_u)) / |z_u - mean z_u|,  A_u = sum_v dL/dM_uv b_v                    (the consensus is a constant)
    KL(p || softmax(z)), mean over B samples:       dL/dz = (softmax(z) - p) / B
    L1 and MSE, mean over all B x C entries:        dL/dz = sign(z - c) / BC,  2 (z - c) / BC
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

Params = list[np.ndarray]
Graded = tuple[float, np.ndarray]
"""A loss and its gradient with respect to the logits."""
Loss = Callable[[np.ndarray, np.ndarray], Graded]
"""Of a batch's logits and its row numbers."""


# --- losses ---


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=1, keepdims=True)
    return shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))


def softmax(logits: np.ndarray) -> np.ndarray:
    return np.exp(log_softmax(logits))


def onehot(labels: np.ndarray, classes: int) -> np.ndarray:
    return np.eye(classes)[labels]


def unit(columns: np.ndarray, eps: float) -> tuple[np.ndarray, np.ndarray]:
    """Columns less their means, at length 1, and one over the lengths; both are 0 for a column shorter than eps."""
    centred = columns - columns.mean(axis=0)
    lengths = np.sqrt((centred**2).sum(axis=0))
    scale = np.where(lengths > eps, 1.0 / np.where(lengths > eps, lengths, 1.0), 0.0)
    return centred * scale, scale


def correlation(z: np.ndarray, zbar: np.ndarray, eps: float = 1e-12) -> np.ndarray:
    """Pearson's, over the batch, of every column of z with every column of zbar; a constant column has 0 with everything."""
    return unit(z, eps)[0].T @ unit(zbar, eps)[0]


def collaborative(z: np.ndarray, zbar: np.ndarray, lam: float, target: float, eps: float = 1e-12, shrink: float = 1.0) -> Graded:
    """FCCL's loss. `shrink` is what every correlation is multiplied with: (B - 1) / B in the authors' code, 1 in the paper."""
    a, scale = unit(z, eps)
    b, _ = unit(zbar, eps)
    m = shrink * (a.T @ b)
    same = np.eye(len(m), dtype=bool)
    loss = np.where(same, (1.0 - m) ** 2, lam * (m - target) ** 2).sum()
    by_m = np.where(same, -2.0 * (1.0 - m), 2.0 * lam * (m - target))
    pull = shrink * (b @ by_m.T)
    return float(loss), (pull - a * (a * pull).sum(axis=0)) * scale


def kl_from(p: np.ndarray, student: np.ndarray) -> Graded:
    """KL(p || softmax(student)): the sum over classes, the mean over the batch; 0 log 0 = 0."""
    logs = np.log(np.where(p > 0, p, 1.0))
    s = log_softmax(student)
    return float((p * (logs - s)).sum() / len(p)), (p.sum(axis=1, keepdims=True) * np.exp(s) - p) / len(p)


def kl(teacher: np.ndarray, student: np.ndarray) -> Graded:
    return kl_from(softmax(teacher), student)


def l1(z: np.ndarray, consensus: np.ndarray) -> Graded:
    return float(np.abs(z - consensus).mean()), np.sign(z - consensus) / z.size


def mse(z: np.ndarray, consensus: np.ndarray) -> Graded:
    return float(((z - consensus) ** 2).mean()), 2.0 * (z - consensus) / z.size


def cross_entropy(z: np.ndarray, y: np.ndarray) -> Graded:
    logs = log_softmax(z)
    return float(-logs[np.arange(len(y)), y].mean()), (np.exp(logs) - onehot(y, z.shape[1])) / len(y)


def plus(*terms: tuple[float, Graded]) -> Graded:
    """Weights times losses, added up."""
    return sum(w * loss for w, (loss, _) in terms), sum(w * slope for w, (_, slope) in terms)


# --- what a server makes of answers: by client, rows x classes ---

Answers = Mapping[int, np.ndarray]


def mean_of(answers: Answers) -> np.ndarray:
    """The plain mean over who answered."""
    return sum(answers.values()) / len(answers)


def trusted(answers: Answers, accuracies: Mapping[int, float]) -> np.ndarray:
    """RCFL: probabilities, weighted by accuracies that add up to 1; alike where nobody gets anything right."""
    total = sum(accuracies[k] for k in answers)
    shares = {k: accuracies[k] / total if total > 0 else 1.0 / len(answers) for k in answers}
    return sum(shares[k] * softmax(z) for k, z in answers.items())


def helpers_of(answers: Answers, client: int, count: int = 2) -> list[int]:
    """FedMatch-public: the peers whose answers lie nearest, as one long vector; the lower number where two are as near."""
    peers = sorted(k for k in answers if k != client)
    return sorted(peers, key=lambda k: (np.sqrt(((answers[k] - answers[client]) ** 2).sum()), k))[:count]


# --- networks and optimisers ---


def forward(params: Params, x: np.ndarray) -> list[np.ndarray]:
    """What every dense layer reads, and at the end the logits."""
    layers = [x]
    for i in range(0, len(params), 2):
        z = layers[-1] @ params[i].T + params[i + 1]
        layers.append(z if i + 2 == len(params) else np.maximum(z, 0.0))
    return layers


def logits(params: Params, x: np.ndarray) -> np.ndarray:
    return forward(params, x)[-1]


def backward(params: Params, layers: Sequence[np.ndarray], by_logits: np.ndarray) -> Params:
    slopes: Params = []
    by = by_logits
    for i in range(len(params) - 2, -1, -2):
        read = layers[i // 2]
        slopes = [by.T @ read, by.sum(axis=0), *slopes]
        by = (by @ params[i]) * (read > 0)
    return slopes


@dataclass
class Sgd:
    """speed = momentum * speed + (slope + decay * value), value -= lr * speed; the first speed is the slope itself."""

    lr: float
    momentum: float = 0.0
    decay: float = 0.0
    speed: Params = field(default_factory=list)

    def step(self, params: Params, slopes: Params, factor: float = 1.0) -> Params:
        slopes = [g + self.decay * p for g, p in zip(slopes, params, strict=True)]
        self.speed = [self.momentum * s + g for s, g in zip(self.speed, slopes, strict=True)] if self.speed else slopes
        return [p - factor * self.lr * s for p, s in zip(params, self.speed, strict=True)]


@dataclass
class Adam:
    """Kingma & Ba with bias correction; eps is added to the corrected root, as torch does."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    decay: float = 0.0
    steps: int = 0
    first: Params = field(default_factory=list)
    second: Params = field(default_factory=list)

    def step(self, params: Params, slopes: Params, factor: float = 1.0) -> Params:
        slopes = [g + self.decay * p for g, p in zip(slopes, params, strict=True)]
        old = list(zip(self.first or [0.0] * len(params), self.second or [0.0] * len(params), strict=True))
        (one, two), self.steps = self.betas, self.steps + 1
        self.first = [one * m + (1.0 - one) * g for (m, _), g in zip(old, slopes, strict=True)]
        self.second = [two * v + (1.0 - two) * g**2 for (_, v), g in zip(old, slopes, strict=True)]
        tops = [m / (1.0 - one**self.steps) for m in self.first]
        roots = [np.sqrt(v / (1.0 - two**self.steps)) + self.eps for v in self.second]
        return [p - factor * self.lr * m / r for p, m, r in zip(params, tops, roots, strict=True)]


Optimiser = Sgd | Adam
Make = Callable[[], Optimiser]
Batches = Sequence[np.ndarray]
"""Row numbers, one array a step."""


def clipped(slopes: Params, clip: float | None) -> Params:
    """All slopes scaled so that their common norm is at most `clip` (torch divides by the norm plus 1e-6)."""
    norm = np.sqrt(sum((g**2).sum() for g in slopes))
    return slopes if clip is None else [g * min(1.0, clip / (norm + 1e-6)) for g in slopes]


def descend(params: Params, x: np.ndarray, loss: Loss, optimiser: Optimiser, batches: Batches, clip: float | None = None) -> Params:
    """One step for each batch."""
    for rows in batches:
        layers = forward(params, x[rows])
        params = optimiser.step(params, clipped(backward(params, layers, loss(layers[-1], rows)[1]), clip))
    return params


def whole(x: np.ndarray, times: int) -> list[np.ndarray]:
    """Full batches."""
    return [np.arange(len(x))] * times


# --- clients ---


@dataclass
class Client:
    x: np.ndarray
    y: np.ndarray
    params: Params
    """theta."""
    previous: Params = field(default_factory=list)
    """theta^(t-1): the model at the end of the client's last round, from the moment a round begins."""
    solo: Params = field(default_factory=list)
    """theta*: what the client learned alone before the first round."""
    validation: tuple[np.ndarray, np.ndarray] | None = None
    private: Optimiser | None = None
    """Where a client keeps its optimiser from round to round: that."""

    def learn_alone(self, optimiser: Optimiser, epochs: int) -> None:
        self.params = descend(self.params, self.x, self.labelled, optimiser, whole(self.x, epochs))
        self.solo = self.params

    def labelled(self, z: np.ndarray, rows: np.ndarray) -> Graded:
        return cross_entropy(z, self.y[rows])

    def balanced(self, inter: float, intra: float) -> Loss:
        """FCCL's local loss: CE + inter * KL(theta^(t-1) || theta) + intra * KL(theta* || theta), both teachers constant."""
        before, alone = logits(self.previous, self.x), logits(self.solo, self.x)

        def loss(z: np.ndarray, rows: np.ndarray) -> Graded:
            return plus((1.0, cross_entropy(z, self.y[rows])), (inter, kl(before[rows], z)), (intra, kl(alone[rows], z)))

        return loss

    def accuracy(self) -> float:
        x, y = self.validation if self.validation is not None else (self.x, self.y)
        return float((logits(self.params, x).argmax(axis=1) == y).mean())


Clients = Mapping[int, Client]
Digest = Callable[[np.ndarray, np.ndarray], Graded]
"""Of a student's logits and what the consensus is for the same rows."""


def begin(clients: Clients, cohort: Sequence[int]) -> None:
    for k in cohort:
        clients[k].previous = clients[k].params


def digest_once(
    clients: Clients,
    cohort: Sequence[int],
    public: np.ndarray,
    consensus: Callable[[Answers], np.ndarray],
    digest: Digest,
    optimisers: Mapping[int, Optimiser],
    batches: Callable[[int], Batches],
) -> np.ndarray:
    """All answers before anybody moves, one consensus, then everybody's steps towards it; returns the consensus."""
    goal = consensus({k: logits(clients[k].params, public) for k in cohort})
    for k in cohort:
        clients[k].params = descend(clients[k].params, public, lambda z, rows: digest(z, goal[rows]), optimisers[k], batches(k))
    return goal


def digest_in_lockstep(
    clients: Clients,
    cohort: Sequence[int],
    public: np.ndarray,
    digest: Digest,
    make: Make,
    batches: Batches,
    *,
    own: str = "current",
    reset: bool = False,
    unheard: Callable[[int, int], bool] = lambda at, k: False,
) -> None:
    """Batch by batch: everybody answers, then everybody takes one step; the next batch is answered by the moved models.

    With `own = "previous"` a client's own slot of its average is taken by theta^(t-1); with `reset` every step is an optimiser's first.
    Who is unheard about a batch, by its number, is not in the mean, but takes the step.
    """
    optimisers = {k: make() for k in cohort}
    for at, rows in enumerate(batches):
        answers = {k: logits(clients[k].params, public[rows]) for k in cohort if not unheard(at, k)}
        for k in cohort:
            goal = mean_of(answers if own == "current" else {**answers, k: logits(clients[k].previous, public[rows])})
            optimiser = make() if reset else optimisers[k]
            clients[k].params = descend(clients[k].params, public[rows], lambda z, _, goal=goal: digest(z, goal), optimiser, whole(rows, 1))


def average(models: Sequence[Params], weights: Sequence[float] | None = None) -> Params:
    """The mean of parameters, uniform unless weights are given."""
    shares = [1.0] * len(models) if weights is None else weights
    return [sum(w * p for w, p in zip(shares, each, strict=True)) / sum(shares) for each in zip(*models, strict=True)]


def share_parameters(clients: Clients, cohort: Sequence[int], weights: Sequence[float] | None = None) -> None:
    """Homogeneous FCCL, between public and local phase: everybody in the round goes on from the mean."""
    mean = average([clients[k].params for k in cohort], weights)
    for k in cohort:
        clients[k].params = mean


def learn_locally(
    clients: Clients, cohort: Sequence[int], make: Make, epochs: int, teachers: tuple[float, float] = (0.0, 0.0), kept: bool = False
) -> None:
    """The private phase: cross-entropy, and FCCL's two teachers with their weights; `kept` goes on with the last round's optimiser."""
    for k in cohort:
        client = clients[k]
        client.private = client.private if kept and client.private is not None else make()
        loss = client.balanced(*teachers) if any(teachers) else client.labelled
        client.params = descend(client.params, client.x, loss, client.private, whole(client.x, epochs))


# --- FedDF: on the server ---


def cosine(step: int, steps: int) -> float:
    """The factor of the learning rate at a step, counted from 0."""
    return 0.5 * (1.0 + np.cos(np.pi * step / steps))


def distil(
    student: Params,
    teachers: Sequence[Params],
    public: np.ndarray,
    optimiser: Optimiser,
    batches: Batches,
    factors: Sequence[float],
    clip: float | None = None,
) -> Params:
    """Steps of KL(softmax(mean of the teachers' logits) || softmax(student)), each with its factor of the learning rate."""
    goal = sum(logits(each, public) for each in teachers) / len(teachers)
    for rows, factor in zip(batches, factors, strict=True):
        layers = forward(student, public[rows])
        slopes = clipped(backward(student, layers, kl(goal[rows], layers[-1])[1]), clip)
        student = optimiser.step(student, slopes, factor)
    return student


# --- FedMatch-public: theta = sigma + psi ---


@dataclass(frozen=True)
class Weights:
    """FedMatch's lambdas and the confidence from which a sample counts."""

    s: float = 10.0
    i: float = 1e-2
    a: float = 1e-2
    l1: float = 1e-4
    l2: float = 10.0
    confidence: float = 0.75


def total(sigma: Params, psi: Params) -> Params:
    return [s + p for s, p in zip(sigma, psi, strict=True)]


def pseudo_labels(own: np.ndarray, helpers: Sequence[np.ndarray]) -> np.ndarray:
    """The class with most votes of the own prediction and the helpers'; the lowest where several have as many."""
    return sum(onehot(z.argmax(axis=1), z.shape[1]) for z in (own, *helpers)).argmax(axis=1)


def unlabelled(z: np.ndarray, helpers: Sequence[np.ndarray], weights: Weights, own: np.ndarray | None = None) -> Graded:
    """lambda_i mean_h KL(helper || own) + lambda_a CE(pseudo label): means over the samples of which the network is sure at this step,
    as in the authors' `loss_fn_u`, which gathers the confident ones before anything else.

    Mask, votes and helpers are constants of the step. `own` are the logits that decide mask and own vote, where these are not z
    (which then are those of augmented images)."""
    p, own = softmax(z), z if own is None else own
    sure = (softmax(own).max(axis=1) >= weights.confidence).astype(float)[:, None]
    loss, slope = 0.0, np.zeros_like(z)
    if not sure.any():
        return loss, slope
    sure = sure * len(z) / sure.sum()
    for each in helpers:
        teacher = softmax(each)
        loss += weights.i / len(helpers) * float((sure * teacher * (log_softmax(each) - log_softmax(z))).sum()) / len(z)
        slope = slope + weights.i / len(helpers) * sure * (p - teacher) / len(z)
    votes = onehot(pseudo_labels(own, helpers), z.shape[1])
    loss += weights.a * float(-(sure * votes * log_softmax(z)).sum()) / len(z)
    return loss, slope + weights.a * sure * (p - votes) / len(z)


def sigma_loss(sigma: Params, psi: Params, x: np.ndarray, y: np.ndarray, weights: Weights) -> tuple[float, Params]:
    """lambda_s CE of sigma + psi on labelled data, with its gradient with respect to sigma."""
    theta = total(sigma, psi)
    layers = forward(theta, x)
    loss, slope = cross_entropy(layers[-1], y)
    return weights.s * loss, [weights.s * g for g in backward(theta, layers, slope)]


def psi_loss(
    sigma: Params, psi: Params, x: np.ndarray, helpers: Sequence[np.ndarray], weights: Weights, own: np.ndarray | None = None
) -> tuple[float, Params]:
    """The loss on public data plus lambda_l1 sum |psi| + lambda_l2 sum (sigma - psi)^2, with its gradient with respect to psi."""
    theta = total(sigma, psi)
    layers = forward(theta, x)
    loss, slope = unlabelled(layers[-1], helpers, weights, own)
    loss += weights.l1 * sum(float(np.abs(p).sum()) for p in psi)
    loss += weights.l2 * sum(float(((s - p) ** 2).sum()) for s, p in zip(sigma, psi, strict=True))
    slopes = backward(theta, layers, slope)
    return loss, [g + weights.l1 * np.sign(p) - 2.0 * weights.l2 * (s - p) for g, s, p in zip(slopes, sigma, psi, strict=True)]


def match_sigma(sigma: Params, psi: Params, x: np.ndarray, y: np.ndarray, weights: Weights, optimiser: Optimiser, epochs: int) -> Params:
    """Full-batch steps of sigma alone."""
    for _ in range(epochs):
        sigma = optimiser.step(sigma, sigma_loss(sigma, psi, x, y, weights)[1])
    return sigma


def match_psi(
    sigma: Params,
    psi: Params,
    x: np.ndarray,
    helpers: Sequence[np.ndarray],
    weights: Weights,
    optimiser: Optimiser,
    epochs: int,
) -> Params:
    """Full-batch steps of psi alone; the helpers' answers stay, mask and own vote follow the network."""
    for _ in range(epochs):
        psi = optimiser.step(psi, psi_loss(sigma, psi, x, helpers, weights)[1])
    return psi
