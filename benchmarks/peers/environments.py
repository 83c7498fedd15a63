"""A virtualenv for each peer, in `.venvs/` beside this file: `python benchmarks/peers/environments.py [NAME...]`.

PyTorch is installed first and as pinned for Coterie itself, so that all who use it use the same one, without CUDA.
"""

from __future__ import annotations

import subprocess
import sys
import venv
from pathlib import Path

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FOLDER = HERE / ".venvs"
CONSTRAINTS = ROOT / "constraints.txt"
TORCH = next(line for line in CONSTRAINTS.read_text().splitlines() if line.startswith("torch=="))
PACKAGES = {
    "coterie": [TORCH, "-e", str(ROOT)],
    "fedjax": ["fedjax==0.0.17", "jax==0.10.2"],
    "flower": [TORCH, "flwr[simulation]==1.41.0"],
    "pfl": [TORCH, "pfl==0.6.0"],
}
"""The bare loop runs in Coterie's."""


def make(name: str) -> None:
    """An environment that was not there before."""
    where = FOLDER / name
    if (where / "done").exists():
        return
    venv.create(where, with_pip=True)
    install = [str(where / "bin" / "python"), "-m", "pip", "install", "--quiet"]
    first, *rest = PACKAGES[name]
    if first == TORCH:
        subprocess.run([*install, "-c", str(CONSTRAINTS), TORCH], check=True)
    more = ["-c", str(CONSTRAINTS)] if name == "coterie" else []
    subprocess.run([*install, *more, first, *rest], check=True)
    (where / "done").touch()


if __name__ == "__main__":
    for wanted in sys.argv[1:] or PACKAGES:
        make(wanted)
