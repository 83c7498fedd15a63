"""FedProto against its oracle, its reduction to local training, its bytes, and conformance on every engine."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from tests.methods import oracle_personal as oracle
from tests.methods.personal import as_weights, assert_same, clients_of, federation_of, memories_of, starts_of, uneven
from torch.nn import functional as F

from coterie.engines import Inline
from coterie.errors import UserError
from coterie.methods import FedProto, Local
from coterie.methods.fedproto import nearest_prototype
from coterie.models import MLP
from coterie.running.rounds import run
from coterie.site import ModelCache
from coterie.testing import check_method, small_experiment

CLASSES, FEATURES = 10, 16
BYTES = 4 * CLASSES * FEATURES + 8 * CLASSES


@pytest.mark.parametrize(("distance", "kind"), [("samples", "mse"), ("classes", "classes")])
def test_whole_runs_are_the_oracles(tmp_path, distance, kind) -> None:
    plan = uneven(FedProto(lam=0.7, distance=distance))
    result = run(plan, tmp_path / "run", engine=Inline())
    expected = oracle.fedproto(federation_of(plan), starts_of(plan), lam=0.7, kind=kind)
    for client, memory in memories_of(result.folder).items():
        assert_same(memory.group("model"), expected.models[client])
    found = result.state.tensors["prototypes"].numpy()
    assert set(np.flatnonzero(result.state.tensors["counts"].numpy())) == set(expected.prototypes)
    for label, prototype in expected.prototypes.items():
        np.testing.assert_allclose(found[label], prototype, atol=1e-9)


def test_prediction_is_by_the_nearest_prototype(tmp_path) -> None:
    plan = uneven(FedProto())
    result = run(plan, tmp_path / "run", engine=Inline())
    prototypes, known = result.state.tensors["prototypes"], result.state.tensors["counts"] > 0
    client, memory = next(iter(memories_of(result.folder).items()))
    site = plan.population().site(client, 1, ModelCache())
    model = memory.group("model")
    net = site.model()
    net.load_state_dict(model.tensors)
    net.eval()
    x, _ = site.train.one_batch()
    with torch.no_grad():
        said = nearest_prototype(prototypes, known)(net, x).argmax(1).numpy()
    named = {label: prototypes[label].numpy() for label in range(CLASSES) if known[label]}
    assert (said == oracle.nearest(as_weights(model), named, clients_of(plan)[client].x)).all()


@pytest.mark.parametrize("known", [(True, False, True), (False, True, False)])
def test_a_class_without_a_prototype_never_wins_and_its_loss_is_a_number(known) -> None:
    """A sample of such a class cost 10^38, and with it the mean of everybody."""
    net = MLP(hidden=(5,)).build((1, 2, 2), 3)
    prototypes = torch.randn(3, 5, generator=torch.Generator().manual_seed(0)) * 100
    prototypes[[not each for each in known]] = 0.0  # nearer than all that are known, if it counted
    answers = nearest_prototype(prototypes, torch.tensor(known))(net, torch.rand(20, 1, 2, 2))
    assert torch.tensor(known)[answers.argmax(1)].all()
    assert all(F.cross_entropy(answers, torch.full((20,), label)) < 1e4 for label in range(3))


def test_lam_0_is_local_training_to_the_bit(tmp_path) -> None:
    ours = run(small_experiment(FedProto(lam=0.0)), tmp_path / "fedproto", engine=Inline())
    theirs = run(small_experiment(Local()), tmp_path / "local", engine=Inline())
    mine, alone = memories_of(ours.folder), memories_of(theirs.folder)
    assert mine.keys() == alone.keys()
    assert all(mine[client].group("model") == alone[client].group("model") for client in mine)


def test_conformance_and_bytes_of_prototypes_only() -> None:
    check_method(FedProto(), up=BYTES, down=BYTES)


def test_different_architectures_share_prototypes(tmp_path) -> None:
    models = [{"name": "mlp", "hidden": [16]}, {"name": "mlp", "hidden": [24, 16]}]
    result = run(small_experiment(FedProto()).overridden({"model": models}), tmp_path / "run", engine=Inline())
    assert result.accuracy("local_post") > 0.3
    with pytest.raises(UserError, match=r"features are equally wide, these have \[8, 16\]"):
        small_experiment(FedProto()).overridden({"model": [models[0], {"name": "mlp", "hidden": [8]}]}).population()
