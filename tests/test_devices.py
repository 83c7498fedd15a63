"""Where networks compute, on a device that only pretends: it has shapes and no numbers, and counts what crosses to it and back."""

from __future__ import annotations

import os

import numpy as np
import pytest
import torch
from tests import digests
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from coterie import Experiment, devices
from coterie.data.examples import Examples
from coterie.data.pool import Pool
from coterie.devices import CPU, Device, find
from coterie.engines import Inline
from coterie.errors import UserError
from coterie.methods import METHODS, FedAvg
from coterie.models import MLP
from coterie.running import federation, rounds
from coterie.running.rounds import run
from coterie.site import ModelCache, Site
from coterie.testing import small_experiment
from coterie.training import score
from coterie.training.objectives import CrossEntropy, Objective, Proximal
from coterie.training.optimisers import Adam, Sgd
from coterie.training.settings import Training
from coterie.training.stacking import Request, fit_together

AT = torch.ops.aten
REAL = os.environ.get("COTERIE_GPU") == "1"


class Pretended(Device):
    """Tensors without numbers; those that come back are zeros."""

    def __init__(self) -> None:
        super().__init__("meta")
        self.there, self.back = 0, 0

    def put(self, tensor):
        self.there += tensor.device != self.at
        return tensor.to(self.at)

    def fetch(self, tensor):
        self.back += tensor.device == self.at
        return torch.zeros_like(tensor, device="cpu")


class Looking(Objective):
    """Cross-entropy and a proximal term, that note where everything lies that they see."""

    def __init__(self) -> None:
        self.seen = set()

    def __call__(self, step):
        tensors = [step.x, step.y, *step.start.values(), *step.frozen.values(), *step.model.parameters()]
        self.seen |= {each.device.type for each in tensors}
        return (CrossEntropy() + 0.1 * Proximal())(step)


ELSEWHERE = sorted(set({case["method"]["name"]: name for name, case in digests.CASES.items()}.values()) - {"fedmatch-public"})
"""A case of each method but one: its steps ask the device whether it is sure of any sample, and wait for the answer."""


class OneDevice(TorchDispatchMode):
    """Lets no operation see tensors of two devices, beyond numbers, positions and what brings one to the other: what a GPU would not do
    either, where a device that pretends says nothing, a product for one."""

    MAY = (AT._to_copy.default, AT.copy_.default, AT.index.Tensor, AT.index_put.default, AT.index_put_.default)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kinds = {each.device.type for each in tree_leaves((args, kwargs)) if isinstance(each, torch.Tensor) and each.dim()}
        assert len(kinds) <= 1 or func in self.MAY, f"{func} of tensors on {kinds}"
        return func(*args, **(kwargs or {}))


def site(device: Device, training: Training) -> Site:
    rng = np.random.default_rng(0)
    pool = Pool(rng.integers(0, 256, (40, 1, 4, 4), dtype=np.uint8), rng.integers(0, 3, 40), train=40, classes=3)
    data = Examples(pool, np.arange(40), device=device)
    return Site(0, 1, 0, data, data, data, MLP(hidden=(5,)), training, ModelCache(device))


def test_every_tensor_of_a_step_is_on_the_sites_device_and_what_comes_out_is_not() -> None:
    looking, training = Looking(), Training(batch=10, optimiser=Adam(), state="kept", clip=1.0)
    here = site(Pretended(), training)
    fitted = here.fit(here.fresh(), looking, frozen={"teacher": torch.zeros(40, 3)})
    assert looking.seen == {"meta"}
    records = (fitted.params, fitted.optimiser, here.fresh())
    assert {each.device.type for record in records for each in record.tensors.values()} == {"cpu"}
    assert here.predict(fitted.params, here.train).device.type == "cpu"


@pytest.mark.parametrize("optimiser", [Sgd(), Adam()])
def test_nothing_crosses_from_step_to_step(optimiser) -> None:
    def crossings(batch: int) -> tuple[int, int]:
        device = Pretended()
        here = site(device, Training(batch=batch, optimiser=optimiser))
        here.fit(here.fresh(), CrossEntropy())
        return device.there, device.back

    assert crossings(batch=2) == crossings(batch=10)


@pytest.mark.filterwarnings("ignore:for .* copying from a non-meta parameter")
@pytest.mark.parametrize("case", ELSEWHERE)
def test_whatever_a_method_does_it_does_on_one_device(case, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(rounds, "find", lambda name: Pretended())
    monkeypatch.setattr(federation, "fault_of", lambda job, outcome, measures: None)  # zeros for all that is counted do not add up
    few = {"data": {**digests.CASES[case].get("data", digests.BASE["data"]), "train": 60, "test": 20}, "rounds": 2}
    experiment = Experiment.parse({**digests.BASE, **digests.CASES[case], **few})
    with OneDevice():
        result = run(experiment, tmp_path / "run", engine=Inline())
    assert result.summary["protocols"]


def test_what_is_counted_of_a_test_set_is_fetched_once_however_many_batches_it_has(monkeypatch) -> None:
    def fetched(batch: int) -> int:
        monkeypatch.setattr(score, "EVALUATION_BATCH", batch)
        device = Pretended()
        here = site(device, Training())
        params, before = here.fresh(), device.back
        assert here.score(params).examples == 40
        return device.back - before

    assert fetched(batch=4) == fetched(batch=64) == 3


def test_samples_are_put_on_a_device_once() -> None:
    device = Pretended()
    before = site(device, Training())
    crossed = device.there
    pool = before.train._x
    assert Examples(Pool(np.zeros((1, 1, 1, 1), np.uint8), np.zeros(1, np.int64), 1, 1), np.arange(1), device=device)
    assert device.there == crossed + 1
    assert before.train.only(torch.arange(3))._x is pool


def test_a_stack_is_computed_on_the_device() -> None:
    here = site(Pretended(), Training(batch=10))
    wanted = Request(here.model(), here.fresh(), here.train, CrossEntropy(), here.training, 0, 1, {}, here.cache.device)
    together = fit_together([wanted, wanted])
    assert together is not None
    assert {each.device.type for each in together.mean([1, 3]).values()} == {"cpu"}
    assert {each.device.type for at in range(2) for each in together.fitted(at).params.tensors.values()} == {"cpu"}


@pytest.mark.parametrize("name", ["gpu", "cpu:1", "cuda:x", "cuda:99", ""])
def test_a_device_that_is_not_there_is_a_sentence(name) -> None:
    with pytest.raises(UserError, match=f"engine.device = '{name}': "):
        find(name)


def test_workers_take_turns_among_devices(monkeypatch) -> None:
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(devices, "_be_deterministic", lambda: None)
    assert [str(find("auto", worker).at) for worker in range(4)] == ["cuda:0", "cuda:1", "cuda:0", "cuda:1"]
    assert [str(find("cuda:1", worker).at) for worker in range(2)] == ["cuda:1", "cuda:1"]


def test_the_machine_itself_has_nothing_to_cross() -> None:
    tensor = torch.ones(2)
    assert CPU.put(tensor) is tensor
    assert CPU.fetch(tensor) is tensor


@pytest.mark.skipif(not REAL, reason="make test-gpu")
@pytest.mark.parametrize("method", ["fedavg", "scaffold", "fml", "fedproto", "moon"])
def test_on_a_real_device_a_run_has_the_same_bits_twice_and_the_bytes_it_has_without(method, tmp_path) -> None:
    assert find("auto").at.type != "cpu", "torch finds no GPU on this machine"
    plain = small_experiment(METHODS.resolve(method))
    there = plain.replace(engine=plain.engine.model_copy(update={"device": "auto"}))
    runs = [run(each, tmp_path / str(number), engine=Inline()) for number, each in enumerate((plain, there, there))]
    assert runs[1].summary["digest"] == runs[2].summary["digest"]
    assert len({str(each.summary["bytes"]) for each in runs}) == 1
    assert runs[1].accuracy() == pytest.approx(runs[0].accuracy(), abs=0.1)


def test_fedavg_runs_where_the_experiment_says(tmp_path) -> None:
    plain = small_experiment(FedAvg(), rounds=1)
    wrong = plain.replace(engine=plain.engine.model_copy(update={"device": "cuda:99"}))
    with pytest.raises(UserError, match="expected one that is there"):
        run(wrong, tmp_path / "run", engine=Inline())
