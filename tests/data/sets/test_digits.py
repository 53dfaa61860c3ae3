"""The digits are scikit-learn's, wherever they are read from."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits

from fedtailor.data import load_dataset
from fedtailor.data.sets import digits


@pytest.mark.parametrize("file", [digits.FILE, "datasets/data/moved.csv.gz"])
def test_digits_are_scikit_learns(file: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(digits, "FILE", file)
    x, y = digits.read_digits()
    theirs = load_digits()
    assert np.array_equal(x, theirs.data) and np.array_equal(y, theirs.target)
    assert (x.dtype, y.dtype) == (theirs.data.dtype, theirs.target.dtype)


def test_digits_are_always_there(tmp_path: Path) -> None:
    d = load_dataset("digits", tmp_path)
    assert d.x.shape == (1797, 1, 8, 8) and d.x.dtype == torch.uint8 and d.classes == 10
    assert d.x.min() == 0 and d.x.max() == 255 and len(d.x.unique()) == 17
    assert d.y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert not list(tmp_path.iterdir())  # nothing is cached


def test_neither_scikit_learn_nor_other_data_sets_are_imported_for_them() -> None:
    program = """
import sys
import fedtailor.data
fedtailor.data.load_dataset("digits")
assert not {"sklearn", "scipy"} & set(sys.modules)
sets = [name for name in sys.modules if name.startswith("fedtailor.data.sets.")]
assert sets == ["fedtailor.data.sets.digits"], sets
"""
    subprocess.run([sys.executable, "-c", program], check=True)
