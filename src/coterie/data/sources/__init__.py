"""Every data set that an experiment can name.

>>> from pathlib import Path
>>> SOURCES.resolve("digits").load(Path()).shape
(1, 8, 8)
>>> SOURCES.dump(SOURCES.resolve({"name": "folder", "path": "pacs", "size": 64}))
{'name': 'folder', 'path': 'pacs', 'size': 64, 'test': 0.2, 'seed': 0}
"""

from __future__ import annotations

from coterie.data.sources.base import File, Found, Source
from coterie.data.sources.cifar import Cifar10, Cifar100
from coterie.data.sources.digits import Digits, DigitStyles
from coterie.data.sources.domains import DigitDomains
from coterie.data.sources.huggingface import HuggingFace
from coterie.data.sources.idx import FashionMnist, Mnist
from coterie.data.sources.images import Folder, MnistM, OfficeHome, Pacs
from coterie.data.sources.npz import Npz
from coterie.data.sources.participants import Participants
from coterie.data.sources.svhn import Svhn
from coterie.data.sources.table import Csv
from coterie.data.sources.usps import Usps
from coterie.settings import Registry

__all__ = ["SOURCES", "File", "Found", "Source"]

SOURCES: Registry[Source] = Registry(
    "source",
    Source,
    [
        Digits,
        Mnist,
        FashionMnist,
        Usps,
        Cifar10,
        Cifar100,
        Svhn,
        MnistM,
        DigitDomains,
        DigitStyles,
        Pacs,
        OfficeHome,
        Folder,
        Npz,
        Csv,
        HuggingFace,
        Participants,
    ],
)
