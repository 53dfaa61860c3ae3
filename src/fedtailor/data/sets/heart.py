"""UCI heart disease: patients of four hospitals, with many missing values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.entry import Download, Entry
from fedtailor.data.federation import Dataset
from fedtailor.data.loader import Loader
from fedtailor.data.own.missing_values import fill_missing_values, find_fills
from fedtailor.data.raw import Array, Raw, to_dataset
from fedtailor.data.readers.npz import read_prepared
from fedtailor.data.readers.text_lines import read_csv_rows

COLUMNS = (
    "age",
    "sex",
    "cp",
    "trestbps",
    "chol",
    "fbs",
    "restecg",
    "thalach",
    "exang",
    "oldpeak",
    "slope",
    "ca",
    "thal",
)
FEATURES = len(COLUMNS)
HOSPITALS = ("cleveland", "hungarian", "switzerland", "va")

HEART = Entry(
    name="heart",
    title="UCI heart disease, 13 features of patients of four hospitals with many gaps",
    kind="table",
    shape=(FEATURES,),
    classes=2,
    samples=920,
    source="Janosi, Steinbrunn, Pfisterer, Detrano, UCI 1988",
    homepage="https://archive.ics.uci.edu/dataset/45",
    licence="CC BY 4.0",
    files=tuple(f"processed.{hospital}.data" for hospital in HOSPITALS),
    archive_folders=("heart+disease", "heart_disease"),
    downloads=(
        Download(
            file="heart+disease.zip",
            urls=("https://archive.ics.uci.edu/static/public/45/heart+disease.zip",),
        ),
    ),
    missing_values=True,
    natural_clients="4 hospitals",
    labels=("healthy", "heart disease"),
    owners=HOSPITALS,
)


def parse_heart(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """Healthy (0) against any heart disease (1 to 4)."""
    tables = []
    for hospital in HOSPITALS:
        patients = read_patients(paths[f"processed.{hospital}.data"])
        tables.append(np.array(patients, np.float32))
    table = np.concatenate(tables)
    diagnosis = table[:, -1]
    arrays: dict[str, Array] = {
        "x": table[:, :-1],
        "y": (diagnosis > 0).astype(np.int64),
        "owner": np.repeat(
            np.arange(len(tables)), [len(patients) for patients in tables]
        ),
    }
    return Raw(arrays)


def read_patients(path: Path) -> list[list[float]]:
    """The 13 features and the diagnosis (0 to 4) of every patient; NaN for a missing value."""
    patients = []
    for where, cells in read_csv_rows(path):
        if len(cells) != FEATURES + 1:
            raise UserError(f"{where}: {len(cells)} columns instead of {FEATURES + 1}")
        try:
            patient = [_read_number(cell) for cell in cells]
        except ValueError as e:
            raise UserError(f"{where}: {e}") from None
        if patient[-1] not in (0, 1, 2, 3, 4):
            raise UserError(f"{where}: diagnosis '{cells[-1]}' is not one of 0 to 4")
        patients.append(patient)
    if not patients:
        raise UserError(f"{path} is empty")
    return patients


def _read_number(cell: str) -> float:
    return float("nan") if cell.strip() == "?" else float(cell)


def read_heart(path: Path, entry: Entry) -> Raw:
    """A prepared file."""
    raw = read_prepared(path, entry)
    if "owner" not in raw.arrays:
        raise UserError(
            f"{path} has no 'client': the hospital of every patient is needed"
        )
    return raw


def with_indicators(raw: Raw, entry: Entry) -> Dataset:
    """The data set: 13 raw features with missing values, until ``fit`` makes 26 columns of them.

    These are the 13 features, filled in and standardised, each hospital by its own training
    patients (for cholesterol counts in hundreds and sex in ones); and 13 indicators of what had
    been missing.
    """
    dataset = to_dataset(raw, entry)
    fit = partial(fill_missing_values, dataset.x, dataset.owner, True)
    fills = partial(find_fills, dataset.x, dataset.owner, True)
    return replace(dataset, fit=fit, find_fills=fills, columns=COLUMNS)


LOADERS = (Loader(HEART, parse_heart, read_heart, with_indicators),)
