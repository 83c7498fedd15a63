"""The laws of every partition on drawn pools, and the papers' partitions to the row."""

from __future__ import annotations

import gzip
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coterie.data.partitions import (
    IID,
    PARTITIONS,
    Classes,
    Dirichlet,
    Domains,
    Groups,
    Natural,
    Partitioner,
    Permuted,
    Quantity,
    Shards,
)
from coterie.data.partitions.rows import apportion, even, level
from coterie.data.pool import Partition, Pool, Ragged
from coterie.errors import UserError

HAND_OUT_ALL = ("iid", "shards", "groups", "dirichlet", "quantity", "permuted", "domains")


def pool_of(train: int, test: int, classes: int, seed: int = 0, domains: int = 2, writers: int = 4) -> Pool:
    """A pool of blank images with random labels, every class and domain at least once on either side where there is room."""
    rng = np.random.default_rng(seed)

    def column(values: int) -> np.ndarray:
        return np.concatenate([rng.permutation(np.r_[np.arange(n) % values][rng.permutation(n)]) for n in (train, test)]).astype(np.int64)

    x = np.broadcast_to(np.zeros((1, 1, 3, 3), np.uint8), (train + test, 1, 3, 3))
    names = tuple(f"domain {d}" for d in range(domains))
    return Pool(x, column(classes), train, classes, domain=column(domains), domains=names, writer=column(writers))


pools = st.builds(pool_of, st.integers(40, 150), st.integers(0, 60), st.integers(1, 6), st.integers(0, 99))
seeds = st.integers(0, 2**70)
share = st.floats(0, 0.95)


@st.composite
def cases(draw: st.DrawFn, names: tuple[str, ...] = tuple(PARTITIONS)) -> tuple[Pool, Partitioner]:
    """Any partition, with settings that its pool allows."""
    pool, name, clients = draw(pools), draw(st.sampled_from(names)), draw(st.integers(1, 6))
    minimum = draw(st.integers(1, pool.train // clients))
    extra = {
        "shards": {"per_client": draw(st.integers(1, pool.train // clients))},
        "classes": {"per_client": draw(st.integers(1, pool.classes)), "samples": draw(st.sampled_from([None, 1]))},
        "groups": {"groups": draw(st.integers(1, min(clients, pool.classes)))},
        "dirichlet": {"alpha": draw(st.floats(1e-6, 1e6)), "minimum": minimum},
        "quantity": {"spread": draw(st.floats(0, 100)), "minimum": minimum, "law": draw(st.sampled_from(["log-normal", "power-law"]))},
        "domains": {"clients": max(2, clients)},
        "natural": {"clients": draw(st.sampled_from([None, 1, 4])), "test": draw(st.floats(0.05, 0.95))},
    }.get(name, {})
    return pool, PARTITIONS.resolve({"name": name, "clients": clients, "validation": draw(share), **extra})


def lists(rows: Ragged) -> list[list[int]]:
    return [part.tolist() for part in rows]


def same(a: Partition, b: Partition) -> bool:
    pairs = ((a.train, b.train), (a.tests, b.tests), (a.validation, b.validation))
    orders = a.permutation is b.permutation is None or np.array_equal(a.permutation, b.permutation)  # type: ignore[arg-type]
    return orders and np.array_equal(a.test_of, b.test_of) and all(lists(x) == lists(y) for x, y in pairs)


@given(cases(), seeds)
def test_laws_of_every_partition(case: tuple[Pool, Partitioner], seed: int) -> None:
    pool, partitioner = case
    partition = partitioner.partition(pool, seed)
    handed_out = np.concatenate([partition.train.flat, partition.validation.flat])
    assert len(np.unique(handed_out)) == len(handed_out), "a row was handed out twice"
    assert handed_out.min() >= 0
    assert handed_out.max() < pool.train
    assert partitioner.name not in HAND_OUT_ALL or len(handed_out) == pool.train
    assert partition.train.sizes.min() >= 1
    assert partition.clients == (partitioner.clients or 4)
    assert len(partition.test_of) == partition.clients
    assert partition.test_of.max() < len(partition.tests)
    if partitioner.name == "natural":
        assert not np.intersect1d(handed_out, partition.tests.flat).size
    else:
        assert ((partition.tests.flat >= pool.train) & (partition.tests.flat < len(pool))).all()
    assert all(len(np.unique(rows)) == len(rows) for rows in partition.tests), "a slice names a row twice"


@given(cases(), seeds)
def test_the_seed_and_nothing_else_decides(case: tuple[Pool, Partitioner], seed: int) -> None:
    pool, partitioner = case
    before = pool.y.copy()
    assert same(partitioner.partition(pool, seed), partitioner.partition(pool, seed))
    assert (pool.y == before).all()


@pytest.mark.parametrize(
    "partitioner",
    [
        IID(clients=5),
        Shards(clients=5),
        Classes(clients=5),
        Groups(clients=5, groups=2),
        Dirichlet(clients=5),
        Quantity(clients=5),
        Permuted(clients=5),
        Permuted(clients=5, rows="all"),
        Domains(clients=5),
        Natural(),
    ],
    ids=lambda partitioner: partitioner.name,
)
def test_another_seed_is_another_partition(partitioner: Partitioner) -> None:
    pool = pool_of(300, 100, 6)
    assert not same(partitioner.partition(pool, 0), partitioner.partition(pool, 1))


@given(cases(), seeds)
def test_validation_comes_out_of_what_a_client_would_train_on(case: tuple[Pool, Partitioner], seed: int) -> None:
    pool, partitioner = case
    without, partition = replace(partitioner, validation=0.0).partition(pool, seed), partitioner.partition(pool, seed)
    assert len(without.validation) == 0
    assert lists(without.tests) == lists(partition.tests)
    if not partitioner.validation:
        return
    for whole, train, validation in zip(without.train, partition.train, partition.validation, strict=True):
        assert sorted([*train, *validation]) == sorted(whole)
        assert len(validation) == min(round(partitioner.validation * len(whole)), len(whole) - 1)


@given(pools, seeds)
def test_one_client_alone_gets_everything(pool: Pool, seed: int) -> None:
    pool = replace(pool, domain=np.zeros(len(pool), np.int64), domains=("one",), writer=np.zeros(len(pool), np.int64))
    for name in PARTITIONS:
        extra = {"classes": {"per_client": pool.classes}, "natural": {"test": 0.25}}.get(name, {})
        partition = PARTITIONS.resolve({"name": name, "clients": 1, **extra}).partition(pool, seed)
        everything = [*partition.train[0], *partition.tests[0]] if name == "natural" else partition.train[0]
        assert sorted(everything) == list(range(pool.train))
        if name not in ("natural", "dirichlet"):
            assert sorted(partition.tests[0]) == list(range(pool.train, len(pool)))


@given(cases(("iid", "permuted", "shards")), seeds)
def test_even_sizes(case: tuple[Pool, Partitioner], seed: int) -> None:
    pool, partitioner = case
    found = partitioner.partition(pool, seed)
    sizes = found.train.sizes + (found.validation.sizes if partitioner.validation else 0)
    assert sizes.max() - sizes.min() <= (partitioner.per_client if isinstance(partitioner, Shards) else 1)


@given(cases(("dirichlet", "quantity")), seeds)
def test_the_minimum_is_honoured(case: tuple[Pool, Partitioner], seed: int) -> None:
    pool, partitioner = case
    assert isinstance(partitioner, Dirichlet | Quantity)
    assert replace(partitioner, validation=0.0).partition(pool, seed).train.sizes.min() >= partitioner.minimum


@given(cases(("shards", "classes", "groups")), seeds)
def test_slices_are_the_test_rows_of_the_classes_held(case: tuple[Pool, Partitioner], seed: int) -> None:
    pool, partitioner = case
    partition = replace(partitioner, validation=0.0).partition(pool, seed)
    for client, rows in enumerate(partition.train):
        expected = pool.train + np.flatnonzero(np.isin(pool.y[pool.train :], pool.y[rows]))
        assert sorted(partition.tests[partition.test_of[client]]) == expected.tolist()
    assert len(partition.tests) == len({frozenset(pool.y[rows].tolist()) for rows in partition.train}), "the same classes share a slice"


@given(pools, st.integers(1, 40), seeds)
def test_clients_of_one_group_differ_by_at_most_a_row(pool: Pool, clients: int, seed: int) -> None:
    sizes = Groups(clients=clients, groups=1).partition(pool, seed).train.sizes
    assert sizes.max() - sizes.min() <= 1


@given(pools, st.integers(1, 6), st.data(), seeds)
def test_classes_are_held_evenly(pool: Pool, clients: int, data: st.DataObject, seed: int) -> None:
    k = data.draw(st.integers(1, pool.classes))
    partition = Classes(clients=clients, per_client=k).partition(pool, seed)
    held = [set(pool.y[rows].tolist()) for rows in partition.train]
    assert all(len(classes) == k for classes in held)
    holders = Counter(c for classes in held for c in classes)
    assert max(holders.values()) - min(holders[c] for c in range(pool.classes)) <= 1


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30), st.data())
def test_level_lifts_the_small_and_spares_the_middle(sizes: list[int], data: st.DataObject) -> None:
    minimum = data.draw(st.integers(0, sum(sizes) // len(sizes)))
    levelled = level(np.array(sizes), minimum)
    assert levelled.sum() == sum(sizes)
    assert levelled.min() >= minimum
    givers = [new for old, new in zip(sizes, levelled, strict=True) if new < old]
    assert all(new == minimum for old, new in zip(sizes, levelled, strict=True) if old < minimum)
    assert not givers or max(levelled) - min(givers) <= 1, "only the largest give"


@given(st.integers(0, 1000), st.integers(1, 40), st.data())
def test_apportion_and_even_add_up(total: int, parts: int, data: st.DataObject) -> None:
    weights = np.array(data.draw(st.lists(st.floats(1e-3, 1e3), min_size=parts, max_size=parts)))
    sizes = apportion(total, weights)
    assert sizes.sum() == even(total, parts).sum() == total
    assert (np.abs(sizes - weights / weights.sum() * total) <= 1 + 1e-6).all()


# The papers' partitions, on labels shaped like theirs


MNIST_COUNTS = [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]


def like(counts: list[int], test: int) -> Pool:
    y = np.random.default_rng(0).permutation(np.repeat(np.arange(len(counts)), counts))
    y = np.concatenate([y, np.arange(test) % len(counts)])
    return Pool(np.broadcast_to(np.zeros((1, 1, 28, 28), np.uint8), (len(y), 1, 28, 28)), y, sum(counts), len(counts))


@pytest.fixture(scope="module")
def mnist() -> Pool:
    return like(MNIST_COUNTS, 10000)


@pytest.fixture(scope="module")
def cifar() -> Pool:
    return like([5000] * 10, 10000)


def test_mcmahan_has_200_shards_of_300(mnist: Pool) -> None:
    partition = Shards(clients=100, per_client=2).partition(mnist, 0)
    assert set(partition.train.sizes.tolist()) == {600}
    shard_of = np.empty(60000, np.int64)
    shard_of[np.argsort(mnist.y[:60000], kind="stable")] = np.repeat(np.arange(200), 300)
    for rows in partition.train:
        assert list(Counter(shard_of[rows].tolist()).values()) == [300, 300]
    assert max(len(set(mnist.y[rows])) for rows in partition.train) <= 4


def test_shi_and_radu_share_each_class_among_exactly_four(cifar: Pool) -> None:
    partition = Classes(clients=20, per_client=2, samples=1250).partition(cifar, 0)
    counts = np.stack([np.bincount(cifar.y[rows], minlength=10) for rows in partition.train])
    assert set(counts.ravel().tolist()) == {0, 1250}
    assert (np.count_nonzero(counts, axis=1) == 2).all()
    assert (np.count_nonzero(counts, axis=0) == 4).all()
    assert len(np.unique(partition.train.flat)) == 50000
    assert set(partition.tests.sizes.tolist()) == {2000}
    assert len(partition.tests) > 5, "pairs of classes vary"


def test_fedmmd_gives_five_classes_to_each_of_two(cifar: Pool) -> None:
    partition = Groups(clients=2).partition(cifar, 0)
    assert [sorted(set(cifar.y[rows].tolist())) for rows in partition.train] == [[0, 1, 2, 3, 4], [5, 6, 7, 8, 9]]
    assert partition.train.sizes.tolist() == [25000, 25000]
    assert partition.tests.sizes.tolist() == [5000, 5000]


def test_clients_of_a_given_group_divide_it(cifar: Pool) -> None:
    partition = Groups(clients=5, groups=((9, 0), (3,))).partition(cifar, 0)
    assert [sorted(set(cifar.y[rows].tolist())) for rows in partition.train] == [[0, 9], [0, 9], [0, 9], [3], [3]]
    assert partition.train.sizes.tolist() == [3334, 3333, 3333, 2500, 2500]
    assert len(partition.tests) == 2


def test_fml_on_100_classes_has_twenty_a_client_and_keeps_a_tenth() -> None:
    pool = like([500] * 100, 10000)
    partition = Shards(clients=5, per_client=2, validation=0.1).partition(pool, 0)
    assert partition.train.sizes.tolist() == [9000] * 5
    assert partition.validation.sizes.tolist() == [1000] * 5
    assert [len(set(pool.y[rows])) for rows in partition.train] == [20] * 5


def test_fedfusion_permutes_the_pixels_of_each_client(mnist: Pool) -> None:
    partition = Permuted(clients=3).partition(mnist, 0)
    assert partition.permutation is not None
    assert (np.sort(partition.permutation, axis=1) == np.arange(784)).all()
    assert len(np.unique(partition.permutation, axis=0)) == 3
    assert lists(partition.tests) == [list(range(60000, 70000))]
    assert sorted(partition.train.flat) == list(range(60000))


def test_permuted_clients_may_all_hold_all_images(mnist: Pool) -> None:
    """As in the authors' code: nothing is divided, and only the order of pixels tells clients apart, as of divided rows."""
    partition, divided = (Permuted(clients=3, rows=rows).partition(mnist, 0) for rows in ("all", "divided"))
    assert all((rows == np.arange(60000)).all() for rows in partition.train)
    assert np.array_equal(partition.permutation, divided.permutation)
    assert lists(partition.tests) == lists(divided.tests)
    held = Permuted(clients=3, rows="all", validation=0.1).partition(mnist, 0)
    assert held.validation.sizes.tolist() == [6000] * 3
    assert not set(held.train[1]) & set(held.validation[1])


def test_fccl_has_four_domains_of_different_sizes() -> None:
    rows = [60000, 7291, 73257, 10000]
    domain = np.concatenate([np.repeat(np.arange(4), rows), np.repeat(np.arange(4), 500)])
    x = np.broadcast_to(np.zeros((1, 3, 32, 32), np.uint8), (len(domain), 3, 32, 32))
    pool = Pool(x, np.arange(len(domain)) % 10, sum(rows), 10, domain=domain, domains=("mnist", "usps", "svhn", "syn"))
    partition = Domains(samples=(150, 80, 5000, 1800)).partition(pool, 0)
    assert partition.train.sizes.tolist() == [150, 80, 5000, 1800]
    assert partition.domain_of is not None
    assert partition.domain_of.tolist() == partition.test_of.tolist() == [0, 1, 2, 3]
    for rows_of in (partition.train, partition.tests):
        assert [set(domain[part].tolist()) for part in rows_of] == [{0}, {1}, {2}, {3}]
    assert partition.tests.sizes.tolist() == [500] * 4
    assert Domains(clients=8, samples=(150, 80, 5000, 1801)).partition(pool, 0).train.sizes.tolist() == [
        75,
        75,
        40,
        40,
        2500,
        2500,
        901,
        900,
    ]


@pytest.mark.parametrize(("clients", "least", "most"), [(2, 1000, 5000), (20, 500, 500), (500, 100, 100)])
def test_dirichlet_slices_have_the_clients_own_proportions(mnist: Pool, clients: int, least: int, most: int) -> None:
    partition = Dirichlet(clients=clients, alpha=0.3).partition(mnist, 0)
    for client, rows in enumerate(partition.train):
        tests = partition.tests[partition.test_of[client]]
        own = np.bincount(mnist.y[rows], minlength=10) / len(rows)
        assert np.abs(np.bincount(mnist.y[tests], minlength=10) - own * len(tests)).max() <= 1
        assert least <= len(tests) <= most
    uses = np.bincount(partition.tests.flat, minlength=len(mnist))[mnist.train :]
    assert all(np.ptp(uses[mnist.y[mnist.train :] == kind]) <= 1 for kind in range(10)), "all test rows take their turn"


def test_dirichlet_runs_from_one_class_to_iid(mnist: Pool) -> None:
    def largest_share(alpha: float) -> float:
        partition = Dirichlet(clients=10, alpha=alpha, minimum=100).partition(mnist, 0)
        return float(np.mean([np.bincount(mnist.y[rows]).max() / len(rows) for rows in partition.train]))

    assert largest_share(0.05) > 0.6
    assert largest_share(1e6) < 0.12


def test_spread_is_the_deviation_of_the_log_size() -> None:
    pool = pool_of(1_000_000, 10, 2)
    for law in ("log-normal", "power-law"):
        sizes = PARTITIONS.resolve({"name": "quantity", "clients": 2000, "law": law, "spread": 0.5}).partition(pool, 0).train.sizes
        assert np.log(sizes).std() == pytest.approx(0.5, abs=0.05)
    assert set(Quantity(clients=10, spread=0.0).partition(pool, 0).train.sizes) == {100_000}


def test_more_clients_than_test_rows_share_them_in_turn() -> None:
    partition = IID(clients=7).partition(pool_of(40, 3, 2), 0)
    assert partition.tests.sizes.tolist() == [1, 1, 1]
    assert partition.test_of.tolist() == [0, 1, 2, 0, 1, 2, 0]


# MNIST itself


@pytest.fixture(scope="module")
def real_mnist(data_folder: Path) -> Pool:
    folder = data_folder / "mnist"
    if not (folder / "writers.npz").exists():
        pytest.skip(f"MNIST with its writers is not in {folder}")
    parts = [gzip.decompress((folder / f"{part}-labels-idx1-ubyte.gz").read_bytes()) for part in ("train", "t10k")]
    y = np.concatenate([np.frombuffer(part, np.uint8, offset=8) for part in parts]).astype(np.int64)
    with np.load(folder / "writers.npz") as writers:
        writer = np.concatenate([writers["writer_train"], writers["writer_test"]]).astype(np.int64)
    return Pool(np.broadcast_to(np.zeros((1, 1, 28, 28), np.uint8), (70000, 1, 28, 28)), y, 60000, 10, writer=writer)


def test_mnist_has_539_writers(real_mnist: Pool) -> None:
    assert real_mnist.writer is not None
    partition = Natural().partition(real_mnist, 0)
    assert partition.clients == 539
    assert len(partition.train.flat) + len(partition.tests.flat) == 60000
    for train, test in zip(partition.train, partition.tests, strict=True):
        assert len(set(real_mnist.writer[[*train, *test]])) == 1
        assert len(test) == round(0.2 * (len(train) + len(test)))
    some = Natural(clients=50).partition(real_mnist, 0)
    assert some.clients == 50
    assert len(set(real_mnist.writer[some.train.flat])) == 50


def test_mnist_in_200_shards(real_mnist: Pool) -> None:
    assert np.bincount(real_mnist.y[:60000]).tolist() == MNIST_COUNTS
    partition = Shards(clients=100).partition(real_mnist, 0)
    kinds = Counter(len(set(real_mnist.y[rows])) for rows in partition.train)
    assert set(partition.train.sizes.tolist()) == {600}
    assert kinds[2] > 70, "most clients hold two digits"


# What cannot be done is said in a sentence


@pytest.mark.parametrize(
    ("table", "words"),
    [
        ({"name": "iid", "clients": 61}, ["partition.clients = 61", "at most 60 clients"]),
        ({"name": "iid", "clients": 0}, ["partition.clients = 0", "greater than or equal to 1"]),
        ({"name": "iid"}, ["partition.clients is missing"]),
        ({"name": "iid", "clients": 2, "validation": 1.0}, ["partition.validation = 1.0", "less than 1"]),
        ({"name": "iid", "clients": 2, "validaton": 0.1}, ["partition.validaton", "did you mean 'validation'"]),
        ({"name": "shards", "clients": 31, "per_client": 2}, ["partition.per_client = 2", "62 shards", "60 training rows"]),
        ({"name": "classes", "clients": 2, "per_client": 7}, ["partition.per_client = 7", "at most 6"]),
        ({"name": "classes", "clients": 6, "per_client": 2, "samples": 6}, ["partition.samples = 6", "10 training rows", "at most 5"]),
        ({"name": "classes", "clients": 60, "per_client": 6}, ["partition.clients = 60", "class 0 has 10 training rows for 60 clients"]),
        ({"name": "groups", "clients": 8, "groups": 7}, ["partition.groups = 7", "at most 6"]),
        ({"name": "groups", "clients": 1, "groups": [[0], [1]]}, ["partition.clients = 1", "at least 2"]),
        ({"name": "groups", "clients": 2, "groups": [[0], [6]]}, ["partition.groups", "0 to 5", "[6]"]),
        ({"name": "groups", "clients": 2, "groups": [[0, 0], [1]]}, ["partition.groups", "different classes", "[0, 0]"]),
        ({"name": "groups", "clients": 20, "groups": [[0]]}, ["partition.clients = 20", "would hold no training row"]),
        ({"name": "dirichlet", "clients": 7, "minimum": 10}, ["partition.clients = 7", "at most 6 clients with 10 rows each"]),
        ({"name": "dirichlet", "clients": 7, "alpha": 0.0}, ["partition.alpha = 0.0", "greater than 0"]),
        ({"name": "quantity", "clients": 7, "minimum": 10}, ["at most 6 clients with 10 rows each"]),
        ({"name": "quantity", "clients": 7, "law": "cubic"}, ["partition.law = 'cubic'", "log-normal"]),
        ({"name": "domains", "clients": 1}, ["partition.clients = 1", "at least 2", "domain 0, domain 1"]),
        ({"name": "domains", "samples": [3]}, ["partition.samples = (3,)", "2 numbers"]),
        ({"name": "domains", "samples": [3, 31]}, ["partition.samples = (3, 31)", "at most 30 for domain 1"]),
        ({"name": "natural", "clients": 5}, ["partition.clients = 5", "at most 4"]),
        ({"name": "dirichle", "clients": 5}, ["did you mean 'dirichlet'"]),
    ],
)
def test_mistakes_are_sentences(table: dict[str, object], words: list[str]) -> None:
    with pytest.raises(UserError) as error:
        PARTITIONS.resolve(table).partition(pool_of(60, 20, 6), 0)
    assert all(word in str(error.value) for word in words), str(error.value)


@pytest.mark.parametrize("name", ["domains", "natural"])
def test_data_that_lack_what_a_partition_needs(name: str) -> None:
    bare = replace(pool_of(60, 20, 6), domain=None, domains=(), writer=None)
    with pytest.raises(UserError, match=f"partition.name = '{name}': expected data"):
        PARTITIONS.resolve(name).partition(bare, 0)


def test_a_negative_seed_is_refused() -> None:
    with pytest.raises(UserError, match="seed = -1"):
        IID(clients=2).partition(pool_of(60, 20, 6), -1)


@settings(max_examples=50)
@given(cases())
def test_settings_survive_a_file(case: tuple[Pool, Partitioner]) -> None:
    assert PARTITIONS.resolve(PARTITIONS.dump(case[1])) == case[1]
