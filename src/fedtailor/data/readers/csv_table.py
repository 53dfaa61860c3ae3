"""Tables of a user: csv files with a header and a column of labels."""

from __future__ import annotations

import math
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.raw import Array
from fedtailor.data.readers.text_lines import read_cells

LABEL, TEST, CLIENT = "label", "test", "client"  # columns that are no features
LARGEST = float(np.finfo(np.float32).max)
MISSING = frozenset({"", "?", "na", "nan", "n/a", "null", "none"})
TRUTH = {"0": False, "false": False, "no": False, "1": True, "true": True, "yes": True}


class Sheet(NamedTuple):
    """A table as it stands in its file."""

    columns: tuple[str, ...]  # names of the features
    x: Array  # float32, NaN where a value is missing
    y: Array  # whole numbers, or texts where one label is not a number
    test: Array | None
    client: Array | None  # texts


def read_sheet(path: Path, *, missing: bool) -> Sheet:
    """A csv file: a header, a column ``label``, optionally ``test`` and ``client``; all others are features."""
    head, rows, places = _read_rows(path)
    features = [i for i, name in enumerate(head) if name not in (LABEL, TEST, CLIENT)]
    if not features:
        raise UserError(f"{path}, line 1: there is no column of features beside '{LABEL}'")
    x = np.empty((len(rows), len(features)), np.float32)
    for r, cells in enumerate(rows):
        for j, i in enumerate(features):
            x[r, j] = _read_number(cells[i], f"{places[r]}, column '{head[i]}'", missing)
    marks = {
        name: [cells[head.index(name)] for cells in rows]
        for name in (LABEL, TEST, CLIENT)
        if name in head
    }
    for r, label in enumerate(marks[LABEL]):
        if label.lower() in MISSING:
            raise UserError(f"{places[r]}: the label is missing")
    test = [_read_truth(cell, places[r]) for r, cell in enumerate(marks.get(TEST, []))]
    return Sheet(
        tuple(head[i] for i in features),
        x,
        _read_labels(marks[LABEL]),
        np.array(test, np.bool_) if TEST in marks else None,
        np.array(marks[CLIENT]) if CLIENT in marks else None,
    )


def _read_rows(path: Path) -> tuple[list[str], list[list[str]], list[str]]:
    """Header, rows and the place of every row."""
    found = read_cells(path)
    head = [cell.strip() for cell in next(found, ("", []))[1]]
    if LABEL not in head:
        raise UserError(
            f"{path}, line 1: no column is named '{LABEL}' (there are {', '.join(head)[:80] or 'none'})"
        )
    if len(set(head)) != len(head):
        raise UserError(f"{path}, line 1: column '{max(head, key=head.count)}' is there twice")
    rows, places = [], []
    for where, cells in found:
        if len(cells) != len(head):
            raise UserError(f"{where}: {len(cells)} columns instead of {len(head)}")
        rows.append([cell.strip() for cell in cells])
        places.append(where)
    return head, rows, places


def _read_number(cell: str, where: str, missing: bool) -> float:
    if cell.lower() in MISSING:
        if not missing:
            raise UserError(f"{where}: a value is missing; --missing median fills gaps in")
        return math.nan
    try:
        value = float(cell)
    except ValueError:
        raise UserError(
            f"{where}: '{cell[:40]}' is not a number; encode categories as numbers"
        ) from None
    if not abs(value) <= LARGEST:
        raise UserError(f"{where}: '{cell[:40]}' is not a finite number")
    return value


def _read_truth(cell: str, where: str) -> bool:
    if cell.lower() not in TRUTH:
        raise UserError(f"{where}: '{cell[:40]}' in column '{TEST}' is neither 0 nor 1")
    return TRUTH[cell.lower()]


def _read_labels(cells: list[str]) -> Array:
    whole = all(c.removeprefix("-").isdecimal() for c in cells)
    return np.array([int(c) for c in cells], np.int64) if whole else np.array(cells)
