"""Models out: what came of a run, as files that need nothing of Coterie to be used.

- `safetensors`: the weights by name, and in the metadata all that is needed to build the network and to prepare samples for it.
- `torchscript`: the whole model with its preprocessing; `torch.jit.load` and nothing else.
- `onnx`: the same for other runtimes; writing it needs the extra `onnx`.
"""

from __future__ import annotations

import importlib.util
import json
import warnings
from pathlib import Path
from typing import Any, Literal, TypeAlias

import torch

from coterie import durable
from coterie.errors import UserError
from coterie.models import MODELS
from coterie.models.trained import Trained
from coterie.running.experiment import Experiment
from coterie.running.result import Result, started
from coterie.wire import pack

__all__ = ["Format", "export"]

Format: TypeAlias = Literal["safetensors", "torchscript", "onnx"]
SUFFIXES: dict[Format, str] = {"safetensors": ".safetensors", "torchscript": ".pt", "onnx": ".onnx"}


def export(
    folder: Path | str, client: int | None = None, format: Format = "safetensors", out: Path | None = None, *, data: Path | None = None
) -> Path:
    """Write a finished run's model to a file.

    Args:
        folder: the run's.
        client: whose model, by number; None for the server's.
        format: what to write.
        out: the file; by default `model` or `client-3`, with a suffix by format, in the run's folder.
        data: the data folder.

    >>> import tempfile
    >>> from coterie import run
    >>> done = run(Experiment.load("digits-two-class", ["rounds=1", "engine.name=inline"]), tempfile.mkdtemp())
    >>> export(done.folder).name, export(done.folder, format="torchscript").name
    ('model.safetensors', 'model.pt')
    """
    result = Result.load(folder)
    model = result.model(client, data=data)
    path = out or result.folder / (("model" if client is None else f"client-{client}") + SUFFIXES[format])
    about = json.dumps(_about(started(result.folder), model, client))
    if format == "safetensors":
        durable.write(path, b"".join(pack(model.net.state_dict(), {"coterie": about})))
    elif format == "torchscript":
        durable.write(path, _traced(model).save_to_buffer(_extra_files={"coterie.json": about}))
    else:
        _write_onnx(model, path)
    return path


def _about(experiment: Experiment, model: Trained, client: int | None) -> dict[str, Any]:
    """What somebody needs to know who has only the weights."""
    kinds = [MODELS.dump(each) for each in experiment.model]
    return {
        "experiment": experiment.name,
        "method": experiment.method.name,
        "seed": experiment.seed,
        "rounds": experiment.rounds,
        "client": client,
        "models": kinds,
        "shape": list(model.shape),
        "tokens": model.tokens,
        "scale": model.scale.flatten().tolist(),
        "shift": model.shift.flatten().tolist(),
        "columns": model.columns,
        "classes": model.labels,
        "use": _use(model),
    }


def _use(model: Trained) -> str:
    """How samples go in."""
    if model.tokens:
        return "network(samples): token ids"
    if model.columns:
        return "network(samples * scale + shift): a number for each column; for 'name=value' 1 where the row has that value, else 0"
    return "network(samples * scale + shift), per channel; samples as they are, pixels from 0 to 255"


def _sample(model: Trained) -> torch.Tensor:
    """Two samples of nothing, as they come."""
    return torch.zeros(2, *model.shape, dtype=torch.int64 if model.tokens else torch.float32)


def _traced(model: Trained) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # that tracing is on its way out; what comes after it needs torch's compiler to be loaded
        return torch.jit.trace(model, _sample(model))  # type: ignore[no-untyped-call]


def _write_onnx(model: Trained, path: Path) -> None:
    lacking = [name for name in ("onnx", "onnxscript") if importlib.util.find_spec(name) is None]
    if lacking:
        raise UserError('--format onnx needs onnx and onnxscript, an extra: pip install "coterie[onnx]"')
    batch = torch.export.Dim("batch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(
            model,
            (_sample(model),),
            str(path),
            dynamo=True,
            input_names=["samples"],
            output_names=["logits"],
            dynamic_shapes=({0: batch},),
            external_data=False,
            verbose=False,
        )
