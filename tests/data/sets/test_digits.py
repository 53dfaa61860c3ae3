"""The digits are scikit-learn's, wherever they are read from."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sklearn.datasets import load_digits

from fedtailor.data.sets import digits


@pytest.mark.parametrize("file", [digits.FILE, "datasets/data/moved.csv.gz"])
def test_digits_are_scikit_learns(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "FILE", file)
    x, y = digits.read_digits()
    theirs = load_digits()
    assert np.array_equal(x, theirs.data) and np.array_equal(y, theirs.target)
    assert (x.dtype, y.dtype) == (theirs.data.dtype, theirs.target.dtype)


def test_scikit_learn_is_not_imported_for_them() -> None:
    program = "import sys, fedtailor.data as d; d.load('digits'); assert not {'sklearn', 'scipy'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
