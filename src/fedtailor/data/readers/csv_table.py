"""Tables of a user: csv files with a header and a column of labels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.raw import Array
from fedtailor.data.readers.text_lines import read_csv_rows

# columns that are no features
LABEL = "label"
TEST = "test"
CLIENT = "client"
EXTERNAL = "external"  # the external set that a row is of; empty for rows of clients

LARGEST = float(np.finfo(np.float32).max)
MISSING = frozenset({"", "?", "na", "nan", "n/a", "null", "none"})
TRUTH = {"0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}


class Columns(NamedTuple):
    """Which column of a table is the label, and which are no features."""

    label: str = LABEL
    dropped: tuple[str, ...] = ()

    @classmethod
    def parse(cls, label: str, dropped: str) -> Columns:
        """From the options of an experiment; ``dropped`` has commas."""
        names = [name.strip() for name in dropped.split(",")]
        return cls(label, tuple(filter(None, names)))

    def are_features(self, header: list[str]) -> list[str]:
        """The names of the features in a header."""
        others = {self.label, *self.dropped, TEST, CLIENT, EXTERNAL}
        return [name for name in header if name not in others]


USUAL = Columns()


class Table(NamedTuple):
    """A table as it is in its file."""

    columns: tuple[str, ...]  # names of the features
    x: Array  # float32, NaN where a value is missing
    y: Array  # whole numbers, or texts where one label is not a number
    test: Array | None  # true for samples of the test part
    client: Array | None  # texts
    external: Array | None = None  # texts


class Rows(NamedTuple):
    """A csv file in cells."""

    header: list[str]
    cells: list[list[str]]
    places: list[str]  # file and line of every row

    def read_column(self, name: str) -> list[str] | None:
        """The cells of a column, if there is one of this name."""
        if name not in self.header:
            return None
        index = self.header.index(name)
        return [row[index] for row in self.cells]


def read_csv_table(path: Path, *, missing: bool, wanted: Columns = USUAL) -> Table:
    """A csv file with a header and a column of labels.

    Columns ``test``, ``client`` and ``external`` may be there; all others are features.
    ``missing`` allows missing values.
    """
    rows = _read_rows(path, wanted)
    features = wanted.are_features(rows.header)
    if not features:
        raise UserError(
            f"{path}, line 1: there is no column of features beside '{wanted.label}'"
        )
    return Table(
        columns=tuple(features),
        x=_read_features(rows, features, missing),
        y=_read_labels(rows, wanted.label),
        test=_read_test_column(rows),
        client=_read_client_column(rows),
        external=_read_external_column(rows),
    )


def read_columns(path: Path, wanted: Columns = USUAL) -> tuple[str, ...]:
    """Names of the features in a csv file."""
    _, header = next(read_csv_rows(path))
    names = [cell.strip() for cell in header]
    return tuple(wanted.are_features(names))


def divide_table(table: Table) -> dict[str, Table]:
    """The rows of every external set by its name, and those of clients under ``""``."""
    if table.external is None:
        return {"": table}
    parts = {}
    for name in np.unique(table.external):
        rows = table.external == name
        parts[str(name)] = table._replace(
            x=table.x[rows],
            y=table.y[rows],
            test=None if table.test is None else table.test[rows],
            client=None if table.client is None else table.client[rows],
            external=None,
        )
    return parts


def _read_external_column(rows: Rows) -> Array | None:
    cells = rows.read_column(EXTERNAL)
    return None if cells is None else np.array(cells)


def _read_rows(path: Path, wanted: Columns) -> Rows:
    rows = read_csv_rows(path)
    _, first = next(rows, ("", []))
    header = [cell.strip() for cell in first]
    names = ", ".join(header) or "none"
    for name in (wanted.label, *wanted.dropped):
        if name not in header:
            hint = "; --label names it" if name == LABEL else ""
            raise UserError(
                f"{path}, line 1: no column is named '{name}' (there are {names}){hint}"
            )
    if len(set(header)) != len(header):
        twice = max(header, key=header.count)
        raise UserError(f"{path}, line 1: column '{twice}' is there twice")
    table = Rows(header, [], [])
    for where, cells in rows:
        if len(cells) != len(header):
            raise UserError(f"{where}: {len(cells)} columns instead of {len(header)}")
        table.cells.append([cell.strip() for cell in cells])
        table.places.append(where)
    return table


def _read_features(rows: Rows, features: list[str], missing: bool) -> Array:
    x = np.empty((len(rows.cells), len(features)), np.float32)
    indices = [rows.header.index(name) for name in features]
    for r, cells in enumerate(rows.cells):
        for j, index in enumerate(indices):
            where = f"{rows.places[r]}, column '{features[j]}'"
            x[r, j] = _read_number(cells[index], where, missing)
    return x


def _read_number(cell: str, where: str, missing: bool) -> float:
    if cell.lower() in MISSING:
        if not missing:
            raise UserError(
                f"{where}: a value is missing; --missing median fills gaps in"
            )
        return math.nan
    try:
        value = float(cell)
    except ValueError:
        raise UserError(
            f"{where}: '{cell[:40]}' is not a number; encode categories as numbers,"
            f" or leave the column out (--drop-columns)"
        ) from None
    if not abs(value) <= LARGEST:
        raise UserError(f"{where}: '{cell[:40]}' is not a finite number")
    return value


def _read_labels(rows: Rows, name: str) -> Array:
    """Whole numbers, or texts where one label is not a number."""
    labels = rows.read_column(name) or []
    for place, label in zip(rows.places, labels, strict=True):
        if label.lower() in MISSING:
            raise UserError(f"{place}: the label is missing")
    are_whole = all(label.removeprefix("-").isdecimal() for label in labels)
    if are_whole:
        return np.array([int(label) for label in labels], np.int64)
    try:
        numbers = [float(label) for label in labels]
    except ValueError:
        return np.array(labels)
    return np.array(numbers)


def _read_test_column(rows: Rows) -> Array | None:
    cells = rows.read_column(TEST)
    if cells is None:
        return None
    marks = []
    for place, cell in zip(rows.places, cells, strict=True):
        if cell.lower() not in TRUTH:
            raise UserError(
                f"{place}: '{cell[:40]}' in column '{TEST}' is neither 0 nor 1"
            )
        marks.append(TRUTH[cell.lower()])
    return np.array(marks, np.bool_)


def _read_client_column(rows: Rows) -> Array | None:
    cells = rows.read_column(CLIENT)
    return None if cells is None else np.array(cells)
