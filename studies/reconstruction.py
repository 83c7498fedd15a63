"""What maps give away: how well a small decoder turns the activation maps of G1, G2 and G3 back into images.

Split training sends maps to the server, which also knows the lower part that made them. Whoever holds that lower part and some images
of the same kind can train a decoder on pairs of map and image; here on half of the CIFAR-10 images that the network was trained on,
tested on others that neither the decoder nor the network has seen. Printed for each level: mean squared error, PSNR and SSIM (7x7
windows) of images in [0, 1], beside those of the mean image, which knows nothing of the map.

    python studies/reconstruction.py --data FOLDER --out reconstruction

writes `reconstruction.md` and `reconstruction.png` (original, G1, G2, G3). `--images 100 --rounds 1 --epochs 1` shows that it runs.
"""

from __future__ import annotations

import argparse
import math
from dataclasses import dataclass
from pathlib import Path

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from coterie import Experiment, Objective, Record, Training, resume, run
from coterie.data.maps import Maps, pack
from coterie.methods import SplitMetadata
from coterie.population import Population
from coterie.seeds import scoped
from coterie.site import SERVER, ModelCache
from coterie.training.loop import fit, frozen, outputs_of, snapshot
from coterie.training.objectives import Step
from coterie.training.optimisers import Adam

LEVELS = ("G1", "G2", "G3")


@dataclass(frozen=True)
class Reconstruction(Objective):
    """Mean squared error of the images that come out; the `labels` are the images themselves."""

    def __call__(self, step: Step) -> Tensor:
        return F.mse_loss(step.model(step.x), step.y)


def decoder(channels: int, side: int, image: int, width: int = 32) -> nn.Sequential:
    """Convolutions at the size of the map, then doubled until it has the image's size."""
    layers: list[nn.Module] = [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU()]
    while side < image:
        side *= 2
        layers += [nn.Upsample(scale_factor=2), nn.Conv2d(width, width, 3, padding=1), nn.ReLU()]
    return nn.Sequential(*layers, nn.Conv2d(width, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 3, 3, padding=1), nn.Sigmoid())


def ssim(a: Tensor, b: Tensor, window: int = 7) -> float:
    """Structural similarity (Wang et al. 2004) with flat windows, for values in [0, 1]; 1 for equal images."""

    def local(x: Tensor) -> Tensor:
        return F.avg_pool2d(x, window, stride=1)

    mean_a, mean_b = local(a), local(b)
    var_a, var_b, both = local(a * a) - mean_a**2, local(b * b) - mean_b**2, local(a * b) - mean_a * mean_b
    steady, contrast = 0.01**2, 0.03**2
    ratio = (2 * mean_a * mean_b + steady) * (2 * both + contrast) / ((mean_a**2 + mean_b**2 + steady) * (var_a + var_b + contrast))
    return ratio.mean().item()


def scores(found: Tensor, true: Tensor) -> dict[str, float]:
    """Mean squared error, its logarithm in decibels, and SSIM."""
    error = F.mse_loss(found, true).item()
    return {"MSE": error, "PSNR (dB)": -10 * math.log10(error), "SSIM": ssim(found, true)}


def federated(options: argparse.Namespace) -> tuple[Population, Record]:
    """Clients, and a global model that they trained; a run that is there is reused."""
    plan = Experiment.parse(
        {
            "name": "reconstruction",
            "rounds": options.rounds,
            "data": {"source": {"name": "cifar10", "part": True}, "train": 2 * options.images, "test": options.test},
            "partition": {"name": "classes", "clients": 20, "per_client": 2},
            "model": "wrn-10-1",
            "method": {"name": "fedavg", "weighting": "uniform"},
            "training": {"batch": 10, "optimiser": {"name": "sgd", "lr": 0.05}},
            "evaluation": {"every": options.rounds},
        }
    )
    folder = options.out / f"fedavg-{plan.digest()[:8]}"
    result = resume(folder, data=options.data) if folder.exists() else run(plan, folder, data=options.data)
    return plan.population(options.data), result.state.group("model")


def images_of(x: Tensor, population: Population) -> Tensor:
    """Inputs of a network as images in [0, 1] again."""
    mean, std = (torch.tensor(each).reshape(-1, 1, 1) for each in (population.pool.mean, population.pool.std))
    return (x * std + mean).clamp(0, 1).float()


def main() -> None:
    """Train decoders, test them, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, help="where data sets lie")
    parser.add_argument("--out", type=Path, default=Path("reconstruction"))
    parser.add_argument("--images", type=int, default=1000, help="for the decoder; the network is trained on twice as many")
    parser.add_argument("--test", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--epochs", type=int, default=12, help="of the decoder")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    torch.set_num_threads(1)
    population, model = federated(options)
    site, server = population.site(0, 1, ModelCache()), population.site(SERVER, 1, ModelCache())
    held = [population.site(client, 1, ModelCache()).train.one_batch()[0] for client in range(population.clients)]
    inputs = torch.cat(held)[::2]  # half of what each client holds
    tested, _ = server.test.one_batch()
    known, true = images_of(inputs, population), images_of(tested, population)
    found = {"mean image": known.mean(0).expand_as(true)}
    for level in LEVELS:
        run_lower = SplitMetadata(level=level).lower(site, model)
        maps, theirs = (Maps(pack(run_lower(x), "float16"), y) for x, y in ((inputs, known), (tested, true)))
        shape = maps.batch(torch.arange(1))[0].shape
        with scoped(0):
            net = decoder(shape[1], shape[2], true.shape[-1])
        training = Training(epochs=options.epochs, batch=25, optimiser=Adam(lr=2e-3))
        fitted = fit(net, snapshot(net), maps, Reconstruction(), training, seed=0)
        found[level] = outputs_of(frozen(net, fitted.params), theirs)
    table = {name: scores(each, true) for name, each in found.items()}
    lines = ["| from | MSE | PSNR (dB) | SSIM |", "|---|---|---|---|"]
    lines += [f"| {name} | {row['MSE']:.4f} | {row['PSNR (dB)']:.2f} | {row['SSIM']:.3f} |" for name, row in table.items()]
    (options.out / "reconstruction.md").write_text("\n".join([*lines, ""]), encoding="utf-8")
    print("\n".join(lines))
    grid({"original": true, **{level: found[level] for level in LEVELS}}, options.out / "reconstruction.png")


def grid(rows: dict[str, Tensor], path: Path, columns: int = 10) -> None:
    """Images in rows with a name each."""
    figure = Figure(figsize=(columns * 0.7, len(rows) * 0.75), layout="constrained")
    axes = figure.subplots(len(rows), columns)
    for line, (name, images) in zip(axes, rows.items(), strict=True):
        line[0].set_ylabel(name, rotation=0, ha="right", va="center")
        for place, image in zip(line, images, strict=False):
            place.imshow(image.permute(1, 2, 0).numpy())
            place.set(xticks=[], yticks=[])
    figure.savefig(path, dpi=150)


if __name__ == "__main__":
    main()
