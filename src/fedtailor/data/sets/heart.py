"""UCI heart disease: patients of four hospitals."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.entry import Entry
from fedtailor.data.federation import Dataset
from fedtailor.data.labels import HOSPITALS
from fedtailor.data.own.missing_values import fill_gaps
from fedtailor.data.raw import Raw, to_dataset
from fedtailor.data.readers.npz import read_prepared
from fedtailor.data.readers.text_lines import read_cells

FEATURES = 13  # age sex cp trestbps chol fbs restecg thalach exang oldpeak slope ca thal


def read_patients(path: Path) -> list[list[float]]:
    """One list of 13 features and the diagnosis (0 to 4) a patient; ``?`` is a missing value."""
    rows = []
    for where, cells in read_cells(path):
        if len(cells) != FEATURES + 1:
            raise UserError(f"{where}: {len(cells)} columns instead of {FEATURES + 1}")
        try:
            rows.append([float("nan") if c.strip() == "?" else float(c) for c in cells])
        except ValueError as e:
            raise UserError(f"{where}: {e}") from None
        if rows[-1][-1] not in (0, 1, 2, 3, 4):
            raise UserError(f"{where}: diagnosis '{cells[-1]}' is not one of 0 to 4")
    if not rows:
        raise UserError(f"{path} is empty")
    return rows


def parse_heart(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """Healthy (0) against any heart disease (1 to 4)."""
    parts = [np.array(read_patients(paths[f"processed.{h}.data"]), np.float32) for h in HOSPITALS]
    table = np.concatenate(parts)
    owner = np.repeat(np.arange(len(parts)), [len(p) for p in parts])
    return Raw({"x": table[:, :-1], "y": (table[:, -1] > 0).astype(np.int64), "owner": owner})


def read_heart(path: Path, entry: Entry) -> Raw:
    """A prepared file."""
    raw = read_prepared(path, entry)
    if "owner" not in raw.arrays:
        raise UserError(f"{path} has no 'client': the hospital of every patient is needed")
    return raw


def with_indicators(raw: Raw, entry: Entry) -> Dataset:
    """The data set: 13 raw features with gaps, until ``fit`` makes 26 columns of them.

    13 features, filled in and standardised, each hospital by its own training patients, for cholesterol counts in
    hundreds and sex in ones; and 13 indicators of what had been missing.
    """
    dataset = to_dataset(raw, entry)
    return to_dataset(
        raw, entry, x=dataset.x, fit=partial(fill_gaps, dataset.x, dataset.owner, True)
    )
