"""Three folders of images, as three hospitals might have them: `python examples/03_three_hospitals.py FOLDER`.

The images are scikit-learn's handwritten digits (1,797 real ones, 8 x 8 pixels, embedded in the package). Each hospital sees all ten
digits, but mostly three of them, and none has what another has. The tutorial in docs/deploy.md trains on them.
"""

import sys
from pathlib import Path

import numpy as np
from PIL import Image
from sklearn.datasets import load_digits

HOSPITALS = {"north": (0, 1, 2), "south": (3, 4, 5), "west": (6, 7, 8, 9)}


def main(folder: Path) -> None:
    digits = load_digits()
    rng = np.random.default_rng(0)
    names = list(HOSPITALS)
    for number, (image, label) in enumerate(zip(digits.images, digits.target, strict=True)):
        usual = next(name for name, often in HOSPITALS.items() if label in often)
        where = folder / (usual if rng.random() < 0.7 else names[rng.integers(len(names))]) / str(label)
        where.mkdir(parents=True, exist_ok=True)
        Image.fromarray((image * 255 / 16).astype(np.uint8)).save(where / f"{number:04}.png")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
