"""scikit-learn's handwritten digits, from its file: importing scikit-learn for them takes a second or two."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

FILE = "datasets/data/digits.csv.gz"  # where scikit-learn keeps them


def read_digits() -> tuple[np.ndarray, np.ndarray]:
    """1,797 images of 8 x 8, sixteen levels of grey, one row each (read-only); and their labels."""
    table = _read_table(FILE)
    return table[:, :-1], table[:, -1].astype(np.int64)


@cache
def _read_table(file: str) -> np.ndarray:
    """A row for every image, its label last."""
    package = find_spec("sklearn")
    places = (package.submodule_search_locations if package else None) or []
    found = next((path for place in places if (path := Path(place, file)).is_file()), None)
    if found is None:
        from sklearn.datasets import (
            load_digits,
        )  # another scikit-learn, which knows where it keeps them

        table = np.column_stack(load_digits(return_X_y=True))
    else:
        table = np.loadtxt(found, delimiter=",")
    table.flags.writeable = False
    return table
