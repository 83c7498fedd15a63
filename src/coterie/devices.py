"""Where networks compute: every decision about devices, and every transfer, is made here.

Records are always in the machine's memory: what travels, is kept or is averaged never lies on a device. A site's samples are put on its
device once, a network's weights when a training begins, and come back when it ends; in between nothing crosses but the positions of an
epoch's samples. Workers take turns among the devices of a kind, several to a device if there are more of them.

Untested on real GPUs: nobody here has one. The tests count transfers on a device that only pretends; `make test-gpu` runs on what is there.
"""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import torch
from torch import Tensor

from coterie.errors import UserError

__all__ = ["CPU", "Device", "find"]

KINDS = ("cpu", "cuda", "mps")


class Device:
    """A place to compute at.

    >>> Device("cpu").put(torch.ones(2)).device
    device(type='cpu')
    """

    def __init__(self, name: str = "cpu") -> None:
        self.at = torch.device(name)
        self._resident: dict[int, tuple[Any, Tensor]] = {}

    def put(self, tensor: Tensor) -> Tensor:
        """A tensor on this device, itself if it is there; the sender need not wait until it is."""
        if tensor.device == self.at:
            return tensor
        if self.at.type == "cuda" and tensor.device.type == "cpu":
            tensor = tensor.pin_memory()
        return tensor.to(self.at, non_blocking=True)

    def fetch(self, tensor: Tensor) -> Tensor:
        """A tensor in the machine's memory."""
        return tensor.cpu()

    def keep(self, array: np.ndarray[Any, Any]) -> Tensor:
        """An array as a tensor that stays on this device for as long as the process lives."""
        if self.at.type == "cpu":
            return torch.from_numpy(array)
        if id(array) not in self._resident:
            self._resident[id(array)] = (array, self.put(torch.from_numpy(array)))
        return self._resident[id(array)][1]

    def seed(self, seed: int) -> None:
        """Seed what layers draw from on this device; the machine's own generator is `coterie.seeds.scoped`'s to seed."""
        if self.at.type == "cuda":
            torch.cuda.manual_seed(seed)
        elif self.at.type == "mps":
            torch.mps.manual_seed(seed)


CPU = Device()


def find(name: str, worker: int = 0) -> Device:
    """The device that a worker has where an experiment says `engine.device = name`.

    >>> find("cpu").at, find("gpu")
    Traceback (most recent call last):
    ...
    coterie.errors.UserError: engine.device = 'gpu': expected auto, cpu, cuda, cuda:0, cuda:1, ... or mps
    """
    kind, _, number = name.partition(":")
    if kind == "auto":
        kind = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
    if kind not in KINDS or (number and not (kind == "cuda" and number.isdigit())):
        raise UserError(f"engine.device = '{name}': expected auto, cpu, cuda, cuda:0, cuda:1, ... or mps")
    if kind == "cpu":
        return CPU
    count = torch.cuda.device_count() if kind == "cuda" else int(torch.backends.mps.is_available())
    if int(number or 0) >= count:
        raise UserError(f"engine.device = '{name}': torch finds {count} such devices on this machine, expected one that is there, or auto")
    _be_deterministic()
    return Device(f"cuda:{number or worker % count}" if kind == "cuda" else "mps")


def _be_deterministic() -> None:
    """The same bits every time on the same device, where torch has algorithms for that; it warns where it has none."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.backends.cudnn.benchmark = False
