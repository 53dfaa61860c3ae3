"""UCI HAR: windows of a smartphone's inertial signals, from the official folder."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.entry import Download, Entry
from fedtailor.data.federation import Dataset
from fedtailor.data.loader import Loader
from fedtailor.data.raw import Array, Raw, to_dataset
from fedtailor.data.readers.npz import read_prepared

SIGNALS = (
    "body_acc_x",
    "body_acc_y",
    "body_acc_z",
    "body_gyro_x",
    "body_gyro_y",
    "body_gyro_z",
    "total_acc_x",
    "total_acc_y",
    "total_acc_z",
)
WINDOW = 128  # values of a channel in one window
STEP = 64  # values from one window to the next: half of a window is in the next one too
# Of every channel in the whole data set: body acceleration in g, angular velocity in rad/s, total
# acceleration in g. Only the last has a mean, which is gravity.
MEAN = (0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.81, 0.02, 0.09)
DEVIATION = (0.19, 0.12, 0.10, 0.40, 0.37, 0.25, 0.41, 0.40, 0.34)


def _list_files(part: str) -> tuple[str, ...]:
    signals = [_name_signal_file(signal, part) for signal in SIGNALS]
    return (f"{part}/y_{part}.txt", f"{part}/subject_{part}.txt", *signals)


def _name_signal_file(signal: str, part: str) -> str:
    return f"{part}/Inertial Signals/{signal}_{part}.txt"


HAR = Entry(
    name="har",
    title="UCI HAR, nine channels of a smartphone's inertial sensors at 50 Hz",
    kind="signal",
    shape=(len(SIGNALS), WINDOW),
    classes=6,
    samples=10_299,
    source="Anguita, Ghio, Oneto, Parra, Reyes-Ortiz, ESANN 2013",
    homepage="https://archive.ics.uci.edu/dataset/240",
    licence="CC BY 4.0",
    files=_list_files("train") + _list_files("test"),
    archive_folders=("UCI HAR Dataset",),
    downloads=(
        Download(
            file="human+activity+recognition+using+smartphones.zip",
            urls=(
                "https://archive.ics.uci.edu/static/public/240/"
                "human+activity+recognition+using+smartphones.zip",
            ),
        ),
    ),
    natural_clients="30 subjects",
    labels=(
        "WALKING",
        "WALKING_UPSTAIRS",
        "WALKING_DOWNSTAIRS",
        "SITTING",
        "STANDING",
        "LAYING",
    ),
    owners=tuple(f"subject {i}" for i in range(1, 31)),
    variants=("ordered", "legacy", "standard"),
)


def parse_har(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """Both official parts as one, owned by the subjects; the test part is of other subjects."""
    x_train, y_train, subject_train = _read_part(paths, "train")
    x_test, y_test, subject_test = _read_part(paths, "test")
    subject = np.concatenate([subject_train, subject_test])
    numbers, owner = np.unique(subject, return_inverse=True)
    arrays = {
        "x": np.concatenate([x_train, x_test]),
        "y": np.concatenate([y_train, y_test]),
        "owner": owner,
    }
    return _with_segments(arrays, tuple(f"subject {i}" for i in numbers))


def _read_part(paths: Mapping[str, Path], part: str) -> tuple[Array, Array, Array]:
    """Windows, activities from 0 and subjects of an official part."""
    channels = []
    for signal in SIGNALS:
        channels.append(read_numbers(paths[_name_signal_file(signal, part)], WINDOW))
    activity = _read_column(paths[f"{part}/y_{part}.txt"])
    subject = _read_column(paths[f"{part}/subject_{part}.txt"])
    for signal, channel in zip(SIGNALS, channels, strict=True):
        _check_length(channel, paths[_name_signal_file(signal, part)], activity, part)
    _check_length(subject, paths[f"{part}/subject_{part}.txt"], activity, part)
    return np.stack(channels, axis=1), activity - 1, subject


def _check_length(rows: Array, path: Path, activity: Array, part: str) -> None:
    if len(rows) != len(activity):
        raise UserError(
            f"{path} has {len(rows)} lines, y_{part}.txt {len(activity)}; is it truncated?"
        )


def _read_column(path: Path) -> Array:
    """A file with one whole number a line."""
    return read_numbers(path, 1)[:, 0].astype(np.int64)


def read_numbers(path: Path, columns: int) -> Array:
    """A text file of numbers between spaces, with this many in every line."""
    try:
        table = np.loadtxt(path, dtype=np.float32, ndmin=2)
    except (ValueError, UnicodeDecodeError) as e:
        reason = str(e).splitlines()[0].rstrip(".;")
        raise UserError(f"{path}: {reason}; a line has {columns} numbers") from None
    if table.shape[1] != columns:
        raise UserError(
            f"{path}: {table.shape[1]} numbers in a line instead of {columns}"
        )
    return table


def read_har(path: Path, entry: Entry) -> Raw:
    """A prepared file; its test column, if there is one, holds out whole subjects: not used."""
    arrays = read_prepared(path, entry).arrays
    if "owner" not in arrays:
        raise UserError(
            f"{path} has no 'client': the subject of every window is needed"
        )
    arrays.pop("test", None)
    lengths = {len(arrays[key]) for key in ("x", "y", "owner")}
    if arrays["x"].shape[1:] != entry.shape or len(lengths) > 1:
        return Raw(arrays)  # not sound: the check that follows says why
    return _with_segments(arrays, ())


def _with_segments(arrays: dict[str, Array], owners: tuple[str, ...]) -> Raw:
    segment = find_segments(arrays["x"], arrays["y"], arrays["owner"])
    return Raw(arrays | {"segment": segment}, owners=owners)


def find_segments(x: Array, y: Array, owner: Array) -> Array:
    """The number of the uninterrupted recording every window is from.

    A window belongs to the recording of the window before it if subject and activity are the same
    and its first half is the other's second half.
    """
    same_recording = (y[1:] == y[:-1]) & (owner[1:] == owner[:-1])
    same_recording &= (x[1:, :, :STEP] == x[:-1, :, STEP:]).all(axis=(1, 2))
    return np.concatenate([[0], np.cumsum(~same_recording)]).astype(np.int64)


def choose_layout(raw: Raw, entry: Entry) -> Dataset:
    """The variants: nine channels over time, as measured, standardised or in the legacy layout.

    ``standard`` brings all channels to mean 0 and deviation 1. ``legacy`` is the layout behind
    published numbers: the array of (time, channel) was reshaped there, not transposed, so that a
    row mixes channels and times.
    """
    x = raw.arrays["x"]
    if entry.variant == "standard":
        mean = np.array(MEAN, np.float32)[:, None]
        deviation = np.array(DEVIATION, np.float32)[:, None]
        x = (x - mean) / deviation
    if entry.variant == "legacy":
        x = x.transpose(0, 2, 1).reshape(-1, *entry.shape)
    return to_dataset(Raw(raw.arrays | {"x": x}, raw.labels, raw.owners), entry)


LOADERS = (Loader(HAR, parse_har, read_har, choose_layout),)
