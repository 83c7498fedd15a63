"""The zoo against numbers from the papers, from published networks and from counting by hand; cuts, seeds, settings, learning."""

from __future__ import annotations

import dataclasses
import pickle
from collections.abc import Iterator
from itertools import pairwise
from math import sqrt

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

from coterie.errors import UserError
from coterie.models import MODELS, Architecture, Custom, Staged, staged

CIFAR = (3, 32, 32)
ZOO = [name for name in MODELS if name not in ("custom", "text")]  # those that take images
NORMED = [name for name in ZOO if "norm" in {f.name for f in dataclasses.fields(MODELS.find(name))}]  # type: ignore[arg-type]
SLIM = [name for name in ZOO if name.endswith("-slim")]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def build(spec: object, shape: tuple[int, int, int] = CIFAR, classes: int = 10, seed: int = 0) -> Staged:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return staged(MODELS.resolve(spec).build(shape, classes))


def noise(shape: tuple[int, int, int], batch: int = 2, seed: int = 1) -> Tensor:
    return torch.randn(batch, *shape, generator=torch.Generator().manual_seed(seed))


def count(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


def googlenet_count() -> int:
    """Counted from the paper's Table 1, with two 3x3 convolutions for the 5x5 one and two parameters per channel for normalisation."""
    rows = """64 96 128 16 32 32  128 128 192 32 96 64  192 96 208 16 48 64  160 112 224 24 64 64  128 128 256 24 64 64
              112 144 288 32 64 64  256 160 320 32 128 128  256 160 320 32 128 128  384 192 384 48 128 128"""
    total, inputs = 3 * 192 * 9 + 2 * 192, 192
    for one, reduce3, three, reduce5, five, pool in np.array(rows.split(), int).reshape(-1, 6).tolist():
        total += inputs * (one + reduce3 + reduce5 + pool) + 9 * (reduce3 * three + reduce5 * five + five * five)
        total += 2 * (one + reduce3 + three + reduce5 + 2 * five + pool)
        inputs = one + three + five + pool
    return total + 1024 * 10 + 10


def resnet_count(blocks: tuple[int, ...]) -> int:
    """Counted from He et al.'s Table 1 with a 3x3 stem and projections where the shape changes."""
    total, inputs = 27 * 64 + 128, 64
    for depth, outputs in zip(blocks, (64, 128, 256, 512), strict=True):
        total += 9 * inputs * outputs + (2 * depth - 1) * 9 * outputs**2 + 2 * depth * 2 * outputs
        total += (inputs != outputs) * (inputs * outputs + 2 * outputs)
        inputs = outputs
    return total + 5130


def wrn_count(blocks: int) -> int:
    """Counted from Zagoruyko & Komodakis' Table 1 at width 1, with a 1x1 convolution where the channels change."""
    total = 27 * 16
    for inputs, outputs in ((16, 16), (16, 32), (32, 64)):
        total += 9 * inputs * outputs + (2 * blocks - 1) * 9 * outputs**2 + (inputs != outputs) * inputs * outputs
        total += 2 * inputs + 2 * outputs + (blocks - 1) * 4 * outputs
    return total + 2 * 64 + 650


PARAMETERS = [
    ("mlp", (1, 28, 28), 199_210),  # McMahan et al. 2017, section 3
    ("cnn", (1, 28, 28), 1_663_370),  # idem
    ("lenet5", CIFAR, 62_006),  # 456 + 2416 + 48120 + 10164 + 850
    ("cifar-cnn", CIFAR, 1_756_426),  # 4864 + 102464 + 1573248 + 73920 + 1930
    ("cnn1", CIFAR, 168 + 880 + 576 * 120 + 120 + 10_164 + 850),
    ("cnn2", CIFAR, 3584 + 2 * (128 * 128 * 9 + 128) + 512 * 256 + 256 + 2570),
    ("resnet10", CIFAR, resnet_count((1, 1, 1, 1))),
    ("resnet12", CIFAR, resnet_count((2, 1, 1, 1))),
    ("resnet18", CIFAR, 11_173_962),  # the usual CIFAR form's
    ("resnet18", CIFAR, resnet_count((2, 2, 2, 2))),
    ("wrn-40-1", CIFAR, 563_930),
    ("wrn-40-1", CIFAR, wrn_count(6)),
    ("wrn-16-1", CIFAR, wrn_count(2)),
    ("wrn-10-1", CIFAR, wrn_count(1)),
    ("mobilenetv2", CIFAR, 3_504_872 - 1281 * 1000 + 1281 * 10),  # torchvision's, with another head
    ("efficientnet-b0", CIFAR, 5_288_548 - 1281 * 1000 + 1281 * 10),  # idem
    ("googlenet", CIFAR, googlenet_count()),
]

LEVELS: dict[str, dict[str, tuple[int, ...]]] = {
    "mlp": {"flat": (3072,), "dense1": (200,), "dense2": (200,)},
    "lenet5": {"conv1": (6, 14, 14), "conv2": (16, 5, 5), "flat": (400,), "dense1": (120,), "dense2": (84,)},
    "cnn": {"conv1": (32, 16, 16), "conv2": (64, 8, 8), "flat": (4096,), "dense1": (512,)},
    "cifar-cnn": {"conv1": (64, 16, 16), "conv2": (64, 8, 8), "flat": (4096,), "dense1": (384,), "dense2": (192,)},
    "cnn1": {"conv1": (6, 15, 15), "conv2": (16, 6, 6), "flat": (576,), "dense1": (120,), "dense2": (84,)},
    "cnn2": {"conv1": (128, 15, 15), "conv2": (128, 6, 6), "conv3": (128, 2, 2), "flat": (512,), "dense1": (256,)},
    "resnet": {
        "stem": (64, 32, 32),
        "layer1": (64, 32, 32),
        "layer2": (128, 16, 16),
        "layer3": (256, 8, 8),
        "layer4": (512, 4, 4),
        "pool": (512,),
    },
    "wrn-40-1": {"stem": (16, 32, 32), "G1": (16, 32, 32), "G2": (32, 16, 16), "G3": (64, 8, 8), "pool": (64,)},
    "mobilenetv2": {
        "stem": (32, 32, 32),
        "group1": (16, 32, 32),
        "group2": (24, 32, 32),
        "group3": (32, 16, 16),
        "group4": (64, 8, 8),
        "group5": (96, 8, 8),
        "group6": (160, 4, 4),
        "group7": (320, 4, 4),
        "last": (1280, 4, 4),
        "pool": (1280,),
    },
    "efficientnet-b0": {
        "stem": (32, 32, 32),
        "group1": (16, 32, 32),
        "group2": (24, 16, 16),
        "group3": (40, 8, 8),
        "group4": (80, 4, 4),
        "group5": (112, 4, 4),
        "group6": (192, 2, 2),
        "group7": (320, 2, 2),
        "last": (1280, 2, 2),
        "pool": (1280,),
    },
    "googlenet": {
        "stem": (192, 32, 32),
        "inception3": (480, 32, 32),
        "inception4": (832, 16, 16),
        "inception5": (1024, 8, 8),
        "pool": (1024,),
    },
    "resnet10-slim": {
        "stem": (24, 16, 16),
        "layer1": (24, 16, 16),
        "layer2": (48, 8, 8),
        "layer3": (96, 4, 4),
        "layer4": (192, 2, 2),
        "pool": (192,),
    },
}
LEVELS |= dict.fromkeys(("wrn-16-1", "wrn-10-1"), LEVELS["wrn-40-1"])
LEVELS |= dict.fromkeys(("resnet10", "resnet12", "resnet18"), LEVELS["resnet"])


@pytest.mark.parametrize(("name", "shape", "parameters"), PARAMETERS)
def test_parameters(name: str, shape: tuple[int, int, int], parameters: int) -> None:
    assert count(build(name, shape)) == parameters


def test_googlenet_is_the_usual_one_without_redundant_biases() -> None:
    convs = [m for m in build("googlenet").modules() if isinstance(m, nn.Conv2d)]
    assert googlenet_count() + sum(conv.out_channels for conv in convs) == 6_166_250


def test_wrn_after_each_cut_and_in_bytes() -> None:
    net = build("wrn-40-1")
    assert [count(net.upper(level)) for level in ("G1", "G2", "G3")] == [535_466, 428_234, 778]
    assert sum(t.numel() * t.element_size() for t in net.state_dict().values()) == 2_266_896


@pytest.mark.parametrize("name", [name for name in ZOO if name in LEVELS])
def test_levels(name: str) -> None:
    net, x = build(name).eval(), noise(CIFAR, 1)
    expected = {**LEVELS[name], "head": (10,)}
    assert net.levels == tuple(expected)
    with torch.no_grad():
        for level, stage in net.named_children():
            x = stage(x)
            assert x.shape[1:] == expected[level], level


@pytest.mark.parametrize("name", ZOO)
def test_cuts_are_exact_at_every_level(name: str) -> None:
    net, x = build({"name": name, "dropout": 0.2}), noise(CIFAR)
    with torch.no_grad():
        net(x)  # moves BatchNorm's running statistics away from their defaults
        net.eval()
        whole = net(x)
        for level in net.levels:
            assert torch.equal(net.upper(level)(net.lower(level)(x)), whole), level
        assert torch.equal(net[-1](net.features(x)), whole)


def test_slices_share_parameters_names_and_mode() -> None:
    net = build("lenet5").eval()
    lower, upper = net.lower("conv2"), net.upper("conv2")
    assert {**lower.state_dict(), **upper.state_dict()}.keys() == net.state_dict().keys()
    assert upper.get_parameter("head.weight") is net.get_parameter("head.weight")
    assert not lower.training
    assert len(net.upper("head")) == 0


@pytest.mark.parametrize("name", [name for name in ZOO if name not in ("resnet12", "resnet18")])
def test_initialisation_repeats_under_a_seed(name: str) -> None:
    one, same, other = (build(name, seed=seed).state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(one[key], same[key]) for key in one)
    assert not torch.equal(one["head.weight"], other["head.weight"])


@pytest.mark.parametrize("name", ["cifar-cnn", "wrn-40-1", "efficientnet-slim"])
def test_xavier(name: str) -> None:
    for module in build({"name": name, "init": "xavier"}).modules():
        if isinstance(module, nn.Conv2d | nn.Linear):
            area = module.weight[0, 0].numel()
            bound = sqrt(6 / (area * sum(module.weight.shape[:2])))
            assert module.weight.abs().max() <= bound
            assert module.weight.numel() < 1000 or module.weight.abs().max() > 0.98 * bound
            assert module.bias is None or not module.bias.any()


@pytest.mark.parametrize("name", NORMED)
def test_norms(name: str) -> None:
    batch, group, none = (build({"name": name, "norm": norm}) for norm in ("batch", "group", "none"))
    norms = [m for m in batch.modules() if isinstance(m, nn.BatchNorm2d)]
    groups = [m for m in group.modules() if isinstance(m, nn.GroupNorm)]
    assert [m.num_features for m in norms] == [m.num_channels for m in groups]
    assert all(m.num_channels // m.num_groups >= 4 for m in groups)
    assert not list(group.buffers())
    assert count(batch) == count(group)
    assert not any(isinstance(m, nn.BatchNorm2d | nn.GroupNorm) for m in none.modules())
    assert all(m.bias is not None for m in none.modules() if isinstance(m, nn.Conv2d))
    assert none.eval()(noise((3, 32, 32), 1)).isfinite().all()


@pytest.mark.parametrize(("name", "dense"), [("cnn", 1), ("cifar-cnn", 2), ("lenet5", 2), ("mlp", 2)])
def test_plain_networks_drop_after_their_dense_layers_and_nowhere_else(name: str, dense: int) -> None:
    """Yao et al., section 4.1.1: the dense layers have ReLU and dropout, and no convolution has."""
    net = build({"name": name, "dropout": 0.5})
    found = [stage for stage, module in net.named_modules() if isinstance(module, nn.Dropout)]
    assert found == [f"dense{i}.2" for i in range(1, dense + 1)]


@pytest.mark.parametrize("name", ZOO)
def test_dropout_is_off_by_default_and_changes_no_names(name: str) -> None:
    net, dropped = build(name), build({"name": name, "dropout": 0.5})
    assert all(m.p == 0 for m in net.modules() if isinstance(m, nn.Dropout))
    assert any(m.p == 0.5 for m in dropped.modules() if isinstance(m, nn.Dropout))
    assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), dropped.state_dict().values(), strict=True))
    assert isinstance(net[-1], nn.Linear)


@pytest.mark.parametrize(("name", "shape"), [(n, (1, 28, 28)) for n in ZOO] + [("mlp", (1, 8, 8)), *((n, (1, 8, 8)) for n in NORMED)])
def test_other_inputs(name: str, shape: tuple[int, int, int]) -> None:
    assert build(name, shape, classes=7).eval()(noise(shape)).shape == (2, 7)


@pytest.mark.parametrize("name", NORMED)
def test_a_batch_of_one_can_be_trained_on(name: str) -> None:
    build(name)(noise(CIFAR, 1)).sum().backward()


@pytest.mark.parametrize(("name", "side"), [("lenet5", 16), ("cnn", 4), ("cnn1", 10), ("cnn2", 22), ("resnet10", 8), ("googlenet-slim", 8)])
def test_an_image_that_is_too_small_is_a_sentence(name: str, side: int) -> None:
    build(name, (1, side, side)).eval()(noise((1, side, side)))
    with pytest.raises(UserError, match=f"'{name}' needs images of at least {side}x{side} pixels, these are {side}x{side - 1}"):
        build(name, (1, side, side - 1))


def digits(side: int, batch: int) -> tuple[Tensor, Tensor]:
    data = load_digits()
    images = np.kron(data.images[:batch], np.ones((side // 8, side // 8)))
    x = torch.tensor(images / 8 - 1, dtype=torch.float32)[:, None].expand(-1, 3, -1, -1).contiguous()
    return x, torch.tensor(data.target[:batch])


@pytest.mark.parametrize(("name", "norm"), [(n, m) for n in NORMED for m in ("batch", "group")] + [(n, "") for n in ZOO if n not in NORMED])
def test_loss_falls_on_digits(name: str, norm: str) -> None:
    """At a quarter of the width and of the pixels where a CPU would take too long."""
    side = 16 if norm and name not in SLIM else 32
    width = {"width": 0.25} if side == 16 and not name.startswith("wrn-") else {}
    x, y = digits(side, 16)
    net = build({"name": name, **({"norm": norm} if norm else {}), **width}, (3, side, side))
    optimiser = torch.optim.Adam(net.parameters(), lr=1e-3)
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(net(x), y)
        losses.append(loss.item())
        optimiser.zero_grad()
        torch.autograd.backward(loss)
        optimiser.step()
    assert losses[-1] < 0.9 * losses[0]


@pytest.mark.parametrize("name", ZOO)
def test_a_spec_survives_dump_and_pickle(name: str) -> None:
    spec = MODELS.resolve({"name": name, "dropout": 0.25, "init": "xavier"})
    assert MODELS.resolve(MODELS.dump(spec)) == spec
    assert pickle.loads(pickle.dumps(spec)) == spec
    assert hash(spec) == hash(MODELS.resolve({"name": name, "dropout": 0.25, "init": "xavier"}))
    with pytest.raises(dataclasses.FrozenInstanceError):
        spec.init = "torch"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        ({"name": "cnn", "dropout": 1.0}, r"model.dropout = 1.0: should be less than 1"),
        ({"name": "cnn", "norm": "batch"}, r"model.norm = 'batch': no such key here"),
        ({"name": "resnet10", "norm": "layer"}, r"model.norm = 'layer': should be 'batch', 'group' or 'none'"),
        ({"name": "mlp", "hidden": []}, r"model.hidden = \[\]"),
        ({"name": "resnet11"}, r"did you mean 'resnet1\d'"),
        ({"name": "nowhere:Net"}, r"model 'nowhere:Net' cannot be imported"),
        ({"name": "math:tau"}, r"model 'math:tau' is not a subclass of coterie.models.staged.Architecture"),
    ],
)
def test_mistakes_in_settings(table: dict[str, object], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        MODELS.resolve(table)


class Own(Staged):
    """A user's network with a level to cut at."""

    def __init__(self, width: int = 5) -> None:
        super().__init__(body=nn.Sequential(nn.Flatten(), nn.Linear(64, width)), head=nn.Linear(width, 10))


def test_a_users_own_module() -> None:
    path = f"{__name__}:Own"
    spec = MODELS.resolve({"name": path, "width": 3})
    assert spec == Custom(path, {"width": 3})
    assert MODELS.resolve(MODELS.dump(spec)) == spec
    assert hash(spec) == hash(MODELS.resolve(path))
    assert MODELS.resolve(path) == Custom(path)
    net = staged(spec.build((1, 8, 8), 10))
    assert net.features(noise((1, 8, 8))).shape == (2, 3)
    with pytest.raises(UserError, match="cannot be called with widht"):
        Custom(path, {"widht": 3}).build((1, 8, 8), 10)
    with pytest.raises(UserError, match=r"'math:tau' is not a subclass of torch\.nn\.Module"):
        Custom("math:tau").build((1, 8, 8), 10)


def test_an_architecture_by_its_path() -> None:
    spec = MODELS.resolve({"name": "coterie.models:MLP", "hidden": [7]})
    assert isinstance(spec, Architecture)
    assert count(spec.build((1, 2, 2), 2)) == 4 * 7 + 7 + 7 * 2 + 2


def test_stages_end_in_a_head() -> None:
    with pytest.raises(UserError, match="end in head, these are: head, body"):
        Staged(head=nn.Flatten(), body=nn.Flatten())
    with pytest.raises(UserError, match="Flatten has no levels"):
        staged(nn.Flatten())
    with pytest.raises(UserError, match="level 'flatt' is unknown: did you mean 'flat'"):
        build("lenet5").upper("flatt")


def test_width_and_depth_only_ever_add() -> None:
    wide = [count(build({"name": "mobilenetv2", "width": width})) for width in (0.25, 0.5, 1.0)]
    deep = [count(build({"name": "googlenet", "depth": depth})) for depth in (0.3, 0.5, 1.0)]
    assert all(a < b for sizes in (wide, deep) for a, b in pairwise(sizes))
    assert count(build({"name": "resnet18", "depth": 0.5})) == count(build("resnet10"))
