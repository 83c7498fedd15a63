"""The networks an experiment can name, and the way to name one's own.

>>> MODELS.resolve({"name": "mlp", "hidden": [100]})
MLP(init='torch', dropout=0.0, hidden=(100,))
>>> MODELS.resolve({"name": "torch.nn:Linear", "in_features": 4, "out_features": 2})
Custom(module='torch.nn:Linear', settings={'in_features': 4, 'out_features': 2})
"""

from __future__ import annotations

from typing import Any

from torch import nn

from coterie.errors import UserError
from coterie.models.classic import CNN, CNN1, CNN2, MLP, CifarCNN, LeNet5
from coterie.models.custom import Custom, load
from coterie.models.googlenet import GoogLeNet, GoogLeNetSlim
from coterie.models.mobile import EfficientNetB0, EfficientNetSlim, MobileNetV2, MobileNetV2Slim
from coterie.models.resnet import ResNet10, ResNet10Slim, ResNet12, ResNet18
from coterie.models.rows import Tabular, Text
from coterie.models.staged import Architecture, Staged, staged
from coterie.models.wideresnet import WRN10x1, WRN16x1, WRN40x1
from coterie.settings import Registry

__all__ = [
    "CNN",
    "CNN1",
    "CNN2",
    "MLP",
    "MODELS",
    "Architecture",
    "CifarCNN",
    "Custom",
    "EfficientNetB0",
    "EfficientNetSlim",
    "GoogLeNet",
    "GoogLeNetSlim",
    "LeNet5",
    "MobileNetV2",
    "MobileNetV2Slim",
    "Models",
    "ResNet10",
    "ResNet10Slim",
    "ResNet12",
    "ResNet18",
    "Staged",
    "Tabular",
    "Text",
    "WRN10x1",
    "WRN16x1",
    "WRN40x1",
    "staged",
]


class Models(Registry[Architecture]):
    """A registry that also takes the path of a `torch.nn.Module` class, with its settings beside it, for `custom`."""

    @property
    def kinds(self) -> tuple[type, ...]:
        """What a path may lead to."""
        return (self.base, nn.Module)

    def resolve(self, value: Any, key: str = "") -> Architecture:
        """An instance from an instance, a name or path, or a table with a `name` and settings."""
        table = {"name": value} if isinstance(value, str) else value
        if isinstance(table, dict) and is_module(table.get("name")):
            settings = {k: v for k, v in table.items() if k != "name"}
            value = {"name": Custom.name, "module": table["name"], "settings": settings}
        return super().resolve(value, key)


def is_module(name: Any) -> bool:
    """Whether this is the path of a `torch.nn.Module` class; what else it may be is for `Registry.resolve` to say."""
    try:
        return isinstance(name, str) and ":" in name and bool(load(name))
    except UserError:
        return False


MODELS = Models(
    "model",
    Architecture,
    [
        MLP,
        LeNet5,
        CNN,
        CifarCNN,
        CNN1,
        CNN2,
        ResNet10,
        ResNet12,
        ResNet18,
        WRN40x1,
        WRN16x1,
        WRN10x1,
        MobileNetV2,
        EfficientNetB0,
        GoogLeNet,
        ResNet10Slim,
        MobileNetV2Slim,
        EfficientNetSlim,
        GoogLeNetSlim,
        Tabular,
        Text,
        Custom,
    ],
)
