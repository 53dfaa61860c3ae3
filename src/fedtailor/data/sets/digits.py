"""scikit-learn's handwritten digits, which are on every machine that has FedTailor."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from fedtailor.data.entry import Entry
from fedtailor.data.loader import Loader
from fedtailor.data.raw import Raw

FILE = "datasets/data/digits.csv.gz"  # in the folder of scikit-learn
LEVELS = 16  # of grey

DIGITS = Entry(
    name="digits",
    title="Optical recognition of handwritten digits, embedded in scikit-learn: always there",
    kind="image",
    shape=(1, 8, 8),
    classes=10,
    samples=1797,
    source="Alpaydin, Kaynak, UCI 1998",
    homepage="https://archive.ics.uci.edu/dataset/80",
    licence="CC BY 4.0",
    labels=tuple("0123456789"),
)


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """1,797 images of 8 x 8 pixels, one row each (read-only), 0 to 16; and their labels."""
    table = _read_table(FILE)
    return table[:, :-1], table[:, -1].astype(np.int64)


@cache
def _read_table(file: str) -> np.ndarray:
    """A row for every image, its label last."""
    path = _find_file(file)
    if path is None:
        # A scikit-learn that keeps the file elsewhere. Importing it takes a second or two.
        from sklearn.datasets import load_digits

        table = np.column_stack(load_digits(return_X_y=True))
    else:
        table = np.loadtxt(path, delimiter=",")
    table.flags.writeable = False
    return table


def _find_file(file: str) -> Path | None:
    """A file in the folder of scikit-learn, found without importing it."""
    package = find_spec("sklearn")
    if package is None:
        return None
    for folder in package.submodule_search_locations or []:
        path = Path(folder, file)
        if path.is_file():
            return path
    return None


def parse_digits(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """The levels of grey, spread over a byte."""
    x, y = read_digits()
    pixels = np.rint(x * (255 / LEVELS)).astype(np.uint8)
    return Raw({"x": pixels.reshape(-1, *entry.shape), "y": y})


LOADERS = (Loader(DIGITS, parse_digits),)
