"""Where a result comes from: the digest of the code that computes it, and the versions of what it stands on."""

from __future__ import annotations

import functools
import hashlib
import platform
import sys
from importlib import metadata
from pathlib import Path

import torch

from coterie.models.custom import Custom, load
from coterie.running.experiment import Experiment

__all__ = ["code_digest", "processor"]


def code_digest(experiment: Experiment) -> str:
    """SHA-256, shortened, of the code that computes a result: Coterie's own, and the files of what the experiment names from elsewhere.

    >>> len(code_digest(Experiment.load("digits-two-class")))
    12
    """
    settings = vars(experiment.method).values()  # a method may name a network too
    named = (experiment.method, experiment.partition, *experiment.model, *experiment.data.source, *settings)
    modules = {(load(each.module) if isinstance(each, Custom) else type(each)).__module__ for each in named}
    files = {getattr(sys.modules[module], "__file__", None) for module in modules if not module.startswith("coterie.")}
    sha = hashlib.sha256(_own_code().encode())
    for path in sorted(filter(None, files)):
        sha.update(Path(path).read_bytes())
    return sha.hexdigest()[:12]


@functools.cache
def _own_code() -> str:
    package = Path(__file__).parents[1]
    sha = hashlib.sha256()
    for path in sorted(package.rglob("*.py")):
        sha.update(f"{path.relative_to(package).as_posix()}\0".encode() + path.read_bytes())
    return sha.hexdigest()


@functools.cache
def processor() -> str:
    """What bits depend on besides code and data: how wide the vectors are that torch computes with, and the processor's name.

    >>> processor().partition(", ")[0] in ("AVX512", "AVX2", "DEFAULT", "NO AVX")
    True
    """
    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), platform.machine())
    return f"{torch.backends.cpu.get_cpu_capability()}, {model}"


def versions() -> dict[str, str]:
    packages = {name: metadata.version(name) for name in ("coterie", "torch", "numpy", "scikit-learn")}
    return {**packages, "python": platform.python_version(), "platform": platform.platform()}
