"""Colorectal tissue: the NCT-CRC folders and MedMNIST's small version of them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.entry import Entry
from fedtailor.data.labels import TISSUES
from fedtailor.data.raw import Array, Raw, join_parts
from fedtailor.data.readers.images import list_pictures, stack_pictures
from fedtailor.data.readers.npz import read_npz, read_prepared

OFFICIAL_PIXELS = 224


def parse_histo(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """NCT-CRC-HE-100K, with CRC-VAL-HE-7K as external set where it is there, brought to the variant's size."""
    x, y = _read_folder(paths["NCT-CRC-HE-100K"], entry)
    arrays = {"x": x, "y": y}
    if "CRC-VAL-HE-7K" in paths:
        x, y = _read_folder(paths["CRC-VAL-HE-7K"], entry)
        arrays |= {"crc_val.x": x, "crc_val.y": y}
    return Raw(arrays)


def _read_folder(folder: Path, entry: Entry) -> tuple[Array, Array]:
    lacking = [t for t in TISSUES if not (folder / t).is_dir()]
    if lacking:
        raise UserError(
            f"{folder} has no folder '{lacking[0]}'; it needs one for each of {', '.join(TISSUES)}"
        )
    files = [list_pictures(folder / t) for t in TISSUES]
    if not sum(map(len, files)):
        raise UserError(f"{folder} holds no pictures")
    y = np.repeat(np.arange(len(TISSUES)), [len(f) for f in files])
    return stack_pictures(
        [p for part in files for p in part], entry.shape, resize=entry.shape[1]
    ), y


def parse_pathmnist(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """MedMNIST's npz file."""
    return read_pathmnist(paths["pathmnist.npz"], entry)


def read_pathmnist(path: Path, entry: Entry) -> Raw:
    """MedMNIST's file, its validation images joined to the training part, or a prepared one."""
    found = read_npz(path)
    if "x" in found:
        return read_prepared(path, entry)
    parts = {}
    for part in ("train", "val", "test"):
        for key in (f"{part}_images", f"{part}_labels"):
            if key not in found:
                raise UserError(f"{path} has no '{key}'; is it the file of another data set?")
        x, y = found[f"{part}_images"], found[f"{part}_labels"].reshape(-1)
        if x.ndim != 4 or x.dtype != np.uint8 or x.shape[3] != 3:
            raise UserError(
                f"{path}: '{part}_images' is {x.dtype} of shape {x.shape}, not coloured pictures as bytes"
            )
        parts[part] = (x.transpose(0, 3, 1, 2), y)
    (x0, y0), (x1, y1) = parts["train"], parts["val"]
    return Raw(join_parts((np.concatenate([x0, x1]), np.concatenate([y0, y1])), parts["test"]))
