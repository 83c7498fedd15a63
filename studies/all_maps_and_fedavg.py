"""Why all maps of G3 do better than FedAvg here, where the paper has both close: what of FedAvg's own upper part is behind?

    python studies/all_maps_and_fedavg.py RUNS OUT [--data FOLDER]

RUNS is where `coterie reproduce split-tables` has its runs. Above G3 a network has its last normalisation and its head. Measured on the
last global model of FedAvg, of every seed: that model itself; the same with the statistics of its last normalisation taken over all
clients' maps, weights as they are; with its head alone trained on all maps, a hundred epochs, under FedAvg's normalisation; and with both
trained, which is split training with all maps. What lies below G3 is FedAvg's in all of them. OUT gets `why-fedavg.json` and
`why-fedavg.png`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from metadata_frontier import Arm, gather
from selected_maps import Measure, asked

from coterie import Record
from coterie.data.maps import Maps
from coterie.methods import SplitMetadata
from coterie.methods.few_shot import FewShot
from coterie.population import Population
from coterie.site import SERVER, ModelCache
from coterie.training.optimisers import Sgd

ALL = Arm("G3", "full")
PLAIN = replace(SplitMetadata(), level="G3")
STILL = Sgd(lr=1e-30)
"""Moves no weight, and so only what normalisation keeps of its inputs."""
COMPOSED: Mapping[str, SplitMetadata] = {
    "its last normalisation over all clients": replace(
        PLAIN, upper=FewShot(start="global"), server=replace(PLAIN.server, optimiser=STILL, epochs=1)
    ),
    "its head trained on all maps": replace(PLAIN, upper=FewShot(start="global", freeze="pool")),
    "both trained: all maps": PLAIN,
}
"""What the server does with all clients' maps of G3."""


def plain(population: Population, model: Record, cache: ModelCache) -> float:
    """Of FedAvg's model."""
    return population.site(SERVER, 1, cache).score(model).metrics()["accuracy"]


def composed(method: SplitMetadata, population: Population, model: Record, cache: ModelCache) -> float:
    """Of what the server makes of all maps."""
    server = population.site(SERVER, 1, cache)
    sent = gather(ALL, population, model, cache, budget=1)
    maps = Maps.join((each.group("activations"), each.tensors["labels"]) for each in sent)
    return server.score(method.compose(server, model, maps)).metrics()["accuracy"]


ARMS: Mapping[str, Measure] = {"FedAvg": plain, **{name: partial(composed, method) for name, method in COMPOSED.items()}}


if __name__ == "__main__":
    asked("why-fedavg", __doc__, ARMS, "the model")
