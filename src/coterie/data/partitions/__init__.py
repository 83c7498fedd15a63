"""How a pool's rows are assigned to clients: nine partitioners, each a pure function of the pool and a seed.

`base` is what they share, `rows` and `slices` their arithmetic; `sizes` holds iid, quantity and permuted, `labels` holds shards, classes,
groups and dirichlet, `origins` holds domains and natural.
"""

from __future__ import annotations

from coterie.data.partitions.base import Partitioner
from coterie.data.partitions.labels import Classes, Dirichlet, Groups, Shards
from coterie.data.partitions.origins import Domains, Natural
from coterie.data.partitions.sizes import IID, Permuted, Quantity
from coterie.settings import Registry

__all__ = ["IID", "PARTITIONS", "Classes", "Dirichlet", "Domains", "Groups", "Natural", "Partitioner", "Permuted", "Quantity", "Shards"]

PARTITIONS = Registry("partition", Partitioner, [IID, Shards, Classes, Groups, Dirichlet, Quantity, Permuted, Domains, Natural])
"""Every partition by its name."""
