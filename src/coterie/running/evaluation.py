"""Evaluation: what is found, written down client by client, as means over clients, by domain and by class."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from coterie.engines.engine import EVALUATE, Job
from coterie.protocols import PROTOCOLS
from coterie.record import Record
from coterie.results.statistics import fairness
from coterie.running.federation import Coordinator
from coterie.site import SERVER, Visit
from coterie.training.score import Scores

__all__ = ["evaluate"]

SPAN = 2000
"""Examples of the server's test set in one job; fixed, so that sums do not depend on the number of workers."""
ByDomain = Mapping[str | None, Scores]


def evaluate(fed: Coordinator, state: Record, fixed: Sequence[int], *, final: bool) -> dict[str, float]:
    """Measure the state after a round under every protocol of the round, write it down, and give the accuracies.

    Args:
        fed: what the round's tasks have measured already is there.
        state: the server's.
        fixed: the clients of every round's mean.
        final: whether this is the last round, after which means are also taken over all clients that were measured.
    """
    began = time.perf_counter()
    _visit(fed, state)
    found = {name: _Found(fed, name, fixed).write(final) for name in fed.protocols}
    fed.seconds["evaluation"] += time.perf_counter() - began
    return {name: value for name, value in found.items() if value is not None}


def _visit(fed: Coordinator, state: Record) -> None:
    """Measure the server's models: on the whole test set, in spans, and at clients."""
    at_server = tuple(name for name in fed.protocols if not PROTOCOLS[name].about_clients)
    at_clients = tuple(name for name in fed.protocols if PROTOCOLS[name].about_clients and not PROTOCOLS[name].in_training)
    if not at_server and not at_clients:
        return
    path, _ = fed.save_message(state)
    jobs = [_job(fed, SERVER, path, at_server, span) for span in _spans(fed)] if at_server else []
    jobs += [_job(fed, client, path, at_clients) for client in sorted(fed.evaluated)] if at_clients else []
    for job, outcome in zip(jobs, fed.engine.deliver(jobs), strict=True):
        judged = fed.judged(job, outcome)
        if judged.error is None:
            fed.observed[job.client].extend(judged.observations)
        else:
            fed.reject(EVALUATE, job.client, fed.fault(judged))
    path.unlink()


def _spans(fed: Coordinator) -> list[tuple[int, int]]:
    """Pieces of the test set; one where a user's own metric wants to see it whole."""
    length = len(fed.server.test)
    size = length if fed.server.metrics else SPAN
    return [(start, min(start + size, length)) for start in range(0, length, max(size, 1))]


def _job(fed: Coordinator, client: int, message: Path, protocols: tuple[str, ...], span: tuple[int, int] | None = None) -> Job:
    deadline = None if client == SERVER else fed.admission.patience
    return Job(client, EVALUATE, fed.round, str(message), fed.memories.get(client), visit=Visit(protocols, span=span), deadline=deadline)


class _Found:
    """What was found under one protocol."""

    def __init__(self, fed: Coordinator, protocol: str, fixed: Sequence[int]) -> None:
        self._ledger, self._round, self._protocol, self._fixed = fed.ledger, fed.round, protocol, frozenset(fixed)
        self._by_client = {client: found for client in sorted(fed.observed) if (found := _sums(fed, client, protocol))}
        self._classes = fed.server.train.classes

    def write(self, final: bool) -> float | None:
        """Put it on the ledger; the accuracy, or its mean over the fixed set of clients."""
        values = {client: self._write_client(client, found) for client, found in self._by_client.items()}
        if not values:
            return None
        if SERVER in values:
            self._write_classes([SERVER], final)
            return values[SERVER]["accuracy"]
        curve = self._write_means({client: each for client, each in values.items() if client in self._fixed}, {})
        if final:
            self._write_means(values, {"final": True})
        self._write_classes(values if final else self._fixed, final)
        return curve

    def _write_client(self, client: int, by_domain: ByDomain) -> dict[str, float]:
        who = None if client == SERVER else client
        if PROTOCOLS[self._protocol].by_domain:
            for domain, scores in by_domain.items():
                self._write(scores.metrics(), protocol="domain", client=who, domain=domain)
        values = _mean([scores.metrics() for scores in by_domain.values()])
        self._write(values, client=who)
        return values

    def _write_means(self, values: Mapping[int, Mapping[str, float]], mark: Mapping[str, Any]) -> float | None:
        if not values:
            return None
        means = _mean(list(values.values()))
        about = {"clients": len(values), **mark}
        for metric, value in means.items():
            fair = asdict(fairness([each["accuracy"] for each in values.values()])) if metric == "accuracy" else {}
            self._write({metric: value}, client=None, **{**fair, **about})
        if PROTOCOLS[self._protocol].by_domain:
            self._write_domains(values, mark)
        return means["accuracy"]

    def _write_domains(self, clients: Iterable[int], mark: Mapping[str, Any]) -> None:
        """The mean over clients on each domain."""
        by_domain: dict[str | None, list[dict[str, float]]] = defaultdict(list)
        for client in clients:
            for domain, scores in self._by_client[client].items():
                by_domain[domain].append(scores.metrics())
        for domain, found in by_domain.items():
            self._write(_mean(found), client=None, clients=len(found), domain=domain, **mark)

    def _write_classes(self, clients: Iterable[int], final: bool) -> None:
        """Accuracy by class, and at the end who is taken for whom, over all examples of some clients."""
        chosen = [scores for client in clients if client in self._by_client for scores in self._by_client[client].values()]
        total = sum(chosen, start=Scores())
        table = [[total.confusion.get(f"{true}:{said}", 0) for said in range(self._classes)] for true in range(self._classes)]
        accuracy = [row[true] / sum(row) if sum(row) else None for true, row in enumerate(table)]
        more = {"confusion": table} if final else {}
        self._ledger.write("classes", round=self._round, protocol=self._protocol, accuracy=accuracy, **more)

    def _write(self, values: Mapping[str, float], **about: Any) -> None:
        where = {"protocol": self._protocol, **about}
        order = {"protocol": where.pop("protocol"), "client": where.pop("client")}
        for metric, value in values.items():
            self._ledger.write("evaluation", round=self._round, **order, metric=metric, **where, value=value)


def _sums(fed: Coordinator, client: int, protocol: str) -> ByDomain:
    """What was seen at a site under a protocol, spans added up, by domain."""
    by_domain: dict[str | None, Scores] = {}
    for seen in fed.observed[client]:
        if seen.protocol == protocol:
            by_domain[seen.domain] = by_domain.get(seen.domain, Scores()) + seen.scores
    return by_domain


def _mean(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {metric: sum(row[metric] for row in rows) / len(rows) for metric in rows[0]}
