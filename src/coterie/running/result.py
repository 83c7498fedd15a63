"""What a run left behind: its summary, its curves as a table, its models ready for use."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from coterie.data.examples import scale_and_shift
from coterie.engines.worker import read_memory
from coterie.errors import UserError, counted, nearest
from coterie.ledger import LEDGER, events
from coterie.models.trained import Trained
from coterie.population import Population
from coterie.record import EMPTY, Record
from coterie.results.frames import frame
from coterie.results.summary import SUMMARY
from coterie.running.checkpoint import Latest, latest
from coterie.running.experiment import Experiment
from coterie.site import SERVER, ModelCache, Site

if TYPE_CHECKING:
    import pandas

__all__ = ["Result", "started", "unfinished"]


@dataclass(frozen=True)
class Result:
    """What a run left behind.

    >>> Result(Path("runs/x"), {"protocols": {"global": {"accuracy": {"last": 0.9}}}}, Record()).accuracy()
    0.9
    >>> Result(Path("runs/x"), {"protocols": {"global": {"accuracy": {"last": 0.9}}}}, Record()).accuracy("globall")
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: protocol = 'globall': not evaluated in this run, did you mean 'global'? Valid: global
    """

    folder: Path
    summary: dict[str, Any]
    state: Record
    """The server's final state."""

    @classmethod
    def load(cls, folder: Path | str) -> Result:
        """The result in a finished run's folder."""
        where = Path(folder)
        started(where)
        found = latest(where)
        if not found.over or found.record is None or not (where / SUMMARY).is_file():
            raise UserError(unfinished(found, where))
        return cls(where, json.loads((where / SUMMARY).read_bytes()), found.record.group("state"))

    def accuracy(self, protocol: str | None = None) -> float:
        """The last accuracy under a protocol, or under the only one."""
        protocols = self.summary["protocols"]
        if protocol is not None and protocol not in protocols:
            raise UserError(f"protocol = '{protocol}': not evaluated in this run, {nearest(protocol, protocols)}")
        found: float = protocols[protocol or next(iter(protocols))]["accuracy"]["last"]
        return found

    def frame(self) -> pandas.DataFrame:
        """Every event of the ledger as a row of a pandas table; an extra, `pip install "coterie[pandas]"`."""
        return frame(self.folder)

    def model(self, client: int | None = None, *, data: Path | None = None) -> Trained:
        """The model that came out, ready for use: the server's, or what a client keeps for itself.

        Args:
            client: whose, by number; None for the server's.
            data: the data folder; what samples go through before the network sees them is known from the data.
        """
        experiment = started(self.folder)
        population = experiment.population(data)
        site = population.site(SERVER if client is None else _known(client, population), experiment.rounds, ModelCache())
        params = self._servers(experiment, site) if client is None else self._clients(experiment, site)
        scale, shift = scale_and_shift(population.pool, site.dtype)
        order = None if client is None or population.partition.permutation is None else population.partition.permutation[client]
        net = site.model()
        net.load_state_dict(params.tensors)
        pixels = None if order is None else torch.from_numpy(order)
        pool = population.pool
        return Trained(net, scale, shift, pool.shape, tokens=pool.tokens, order=pixels, columns=pool.columns, labels=pool.labels)

    def _servers(self, experiment: Experiment, site: Site) -> Record:
        found = experiment.method.models(self.state, site)
        if not found:
            raise UserError(f"method '{experiment.method.name}' has no model of the server's: ask for a client's, such as client 0")
        return found.get("composed") or next(iter(found.values()))

    def _clients(self, experiment: Experiment, site: Site) -> Record:
        version = latest(self.folder).memories.get(site.id)
        memory = EMPTY if version is None else read_memory(self.folder, site.id, version)
        found = experiment.method.kept_model(self.state, memory, site)
        if not found:
            never = "it never took part" if version is None and experiment.method.evaluates[0] == "personal" else ""
            why = never or f"method '{experiment.method.name}' leaves no model with its clients"
            raise UserError(f"client {site.id} has no model of its own: {why}; without a client it is the server's")
        return found

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from coterie.results.sheets import outcome
        from coterie.results.tables import as_html

        title = f"{self.summary.get('name', self.folder.name)}: {counted(self.summary['rounds'], 'round')}"
        return "".join(as_html(sheet) for sheet in outcome(title, self.summary)) + f"<p>{self.folder}</p>"


def unfinished(found: Latest, folder: Path) -> str:
    """Why a run has no end to show, and what to do: it has not come to it, or its last checkpoint is damaged.

    >>> unfinished(Latest(), Path("runs/x"))
    'the run in runs/x is not finished: go on with coterie run --resume runs/x'
    """
    if found.damage is None and found.record is None and (folder / SUMMARY).exists():
        return f"the run in {folder} has its numbers only, no models (coterie clean): coterie run --resume {folder} does all of it again"
    if found.damage is None:
        return f"the run in {folder} is not finished: go on with coterie run --resume {folder}"
    return f"{found.damage}; go on from the checkpoint before it with coterie run --resume {folder}"


def _known(client: int, population: Population) -> int:
    if not 0 <= client < population.clients:
        raise UserError(f"client = {client}: there is no such client, expected a number from 0 to {population.clients - 1}")
    return client


def started(folder: Path) -> Experiment:
    """The experiment whose run lies in a folder; a ledger that is not what it was is found before it is believed."""
    if (folder / LEDGER).is_file():
        latest(folder)
    first = next(events(folder / LEDGER), None)
    if first is None or first["event"] != "start":
        raise UserError(f"the ledger in {folder} has no first line to resume from; start again in another folder")
    return Experiment.parse(first["experiment"])
