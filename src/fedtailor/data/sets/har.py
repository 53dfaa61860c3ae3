"""UCI HAR: windows of inertial signals, from the official folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.entries_domains import SIGNALS
from fedtailor.data.entry import Entry
from fedtailor.data.federation import Dataset
from fedtailor.data.raw import Array, Raw, to_dataset
from fedtailor.data.readers.npz import read_prepared

WINDOW, STEP = (
    128,
    64,
)  # samples of a window, and from one window to the next: half of it is seen twice
MEAN = (
    0.0,
    0.0,
    0.0,
    0.0,
    0.0,
    0.0,
    0.81,
    0.02,
    0.09,
)  # of every channel in the whole data set: gravity alone has one
DEVIATION = (
    0.19,
    0.12,
    0.10,
    0.40,
    0.37,
    0.25,
    0.41,
    0.40,
    0.34,
)  # body and total acceleration in g, turns in rad/s


def read_numbers(path: Path, columns: int) -> Array:
    """A text file of numbers between spaces, with this many in every line."""
    try:
        table = np.loadtxt(path, dtype=np.float32, ndmin=2)
    except (ValueError, UnicodeDecodeError) as e:
        raise UserError(
            f"{path}: {str(e).splitlines()[0].rstrip('.;')}; a line has {columns} numbers"
        ) from None
    if table.shape[1] != columns:
        raise UserError(f"{path}: {table.shape[1]} numbers in a line instead of {columns}")
    return table


def parse_har(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """Both official parts as one (whole subjects were held out there), owned by the subjects."""
    xs, ys, subjects = [], [], []
    for part in ("train", "test"):
        files = [paths[f"{part}/Inertial Signals/{s}_{part}.txt"] for s in SIGNALS]
        channels = [read_numbers(f, WINDOW) for f in files]
        y, subject = (
            read_numbers(paths[f"{part}/{k}_{part}.txt"], 1)[:, 0].astype(np.int64)
            for k in ("y", "subject")
        )
        for path, rows in zip(
            [*files, paths[f"{part}/subject_{part}.txt"]], [*channels, subject], strict=True
        ):
            if len(rows) != len(y):
                raise UserError(
                    f"{path} has {len(rows)} lines, y_{part}.txt {len(y)}; is it truncated?"
                )
        xs.append(np.stack(channels, axis=1))
        ys.append(y - 1)
        subjects.append(subject)
    numbers, owner = np.unique(np.concatenate(subjects), return_inverse=True)
    arrays = {"x": np.concatenate(xs), "y": np.concatenate(ys), "owner": owner}
    return _with_segments(arrays, tuple(f"subject {i}" for i in numbers))


def read_har(path: Path, entry: Entry) -> Raw:
    """A prepared file; a test column holds out whole subjects and is not used."""
    arrays = read_prepared(path, entry).arrays
    if "owner" not in arrays:
        raise UserError(f"{path} has no 'client': the subject of every window is needed")
    arrays.pop("test", None)
    if (
        arrays["x"].shape[1:] != entry.shape
        or len({len(arrays[k]) for k in ("x", "y", "owner")}) > 1
    ):
        return Raw(arrays)  # not sound: the check that follows says why
    return _with_segments(arrays, ())


def _with_segments(arrays: dict[str, Array], owners: tuple[str, ...]) -> Raw:
    return Raw(
        arrays | {"segment": find_segments(arrays["x"], arrays["y"], arrays["owner"])},
        owners=owners,
    )


def find_segments(x: Array, y: Array, owner: Array) -> Array:
    """The number of the uninterrupted recording every window is from.

    A window belongs to the recording of the one before it if subject and activity are the same and its first half is
    the other's second half.
    """
    follows = (y[1:] == y[:-1]) & (owner[1:] == owner[:-1])
    follows &= (x[1:, :, :STEP] == x[:-1, :, STEP:]).all(axis=(1, 2))
    return np.concatenate([[0], np.cumsum(~follows)]).astype(np.int64)


def lay_out(raw: Raw, entry: Entry) -> Dataset:
    """Nine channels over time, as they were measured, or (``standard``) all of mean 0 and deviation 1.

    ``legacy`` is the layout behind published numbers: the array of (time, channel) was reshaped there, not transposed,
    so that a row mixes channels and times.
    """
    x = raw.arrays["x"]
    if entry.variant == "standard":
        mean, deviation = (np.array(v, np.float32)[:, None] for v in (MEAN, DEVIATION))
        x = (x - mean) / deviation
    if entry.variant == "legacy":
        x = x.transpose(0, 2, 1).reshape(-1, *entry.shape)
    return to_dataset(Raw(raw.arrays | {"x": x}, raw.labels, raw.owners), entry)
