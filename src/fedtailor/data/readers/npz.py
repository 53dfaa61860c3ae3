"""Prepared data: npz archives of plain arrays."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.entry import Entry
from fedtailor.data.raw import Array, Raw

NpzFile = np.lib.npyio.NpzFile


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of an npz file; arrays of Python objects are refused, for they are pickles."""
    try:
        with path.open("rb") as file:
            opened = np.load(file, allow_pickle=False)
            if isinstance(opened, NpzFile):
                return {key: _read_array(opened, key, path) for key in opened.files}
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (zipfile.BadZipFile, ValueError, EOFError, OSError) as e:
        reason = "pickled objects" if "allow_pickle" in str(e) else e
        raise UserError(
            f"{path} is truncated or not an npz file ({reason}); write it with numpy.savez"
        ) from None
    raise UserError(
        f"{path} is a single array, not an npz file with 'x' and 'y'; write it with numpy.savez"
    )


def _read_array(file: NpzFile, key: str, path: Path) -> Array:
    try:
        array: Array = file[key]
    except ValueError as e:
        if "Object arrays" in str(e):
            raise UserError(
                f"{path}: '{key}' holds Python objects; save it as an array of numbers"
            ) from None
        raise UserError(f"{path}: '{key}' cannot be read ({e})") from None
    except (zipfile.BadZipFile, zlib.error, EOFError, RuntimeError, MemoryError) as e:
        raise UserError(f"{path} is truncated or damaged at '{key}' ({e})") from None
    if not isinstance(array, np.ndarray):
        raise UserError(f"{path}: '{key}' is not an array")
    return array


def read_samples(path: Path) -> dict[str, Array]:
    """The arrays of an npz file that has x and y; ``test`` may be there as true and false."""
    arrays = read_npz(path)
    for key in ("x", "y"):
        if key not in arrays:
            present = ", ".join(arrays) or "no arrays"
            raise UserError(
                f"{path} has no '{key}' (there are {present}); x and y are needed"
            )
        if not arrays[key].ndim:
            raise UserError(
                f"{path}: '{key}' is a single value, not an array of samples"
            )
    if "test" in arrays:
        arrays["test"] = _read_truth(arrays["test"], len(arrays["y"]), str(path))
    return arrays


def _read_truth(array: Array, samples: int, where: str) -> Array:
    """A column of true and false, which may be written as 1 and 0."""
    if array.shape != (samples,) or not np.isin(array, (0, 1)).all():
        raise UserError(
            f"{where}: test must be true or false for each of the {samples} samples"
        )
    return array.astype(np.bool_)


def read_prepared(path: Path, entry: Entry) -> Raw:
    """A prepared data set: x and y, and optionally test, client, coarse, row, external sets."""
    found = read_samples(path)
    known = ("x", "y", "test", "coarse", "row")
    arrays = {key: found[key] for key in known if key in found}
    x = arrays["x"]
    if entry.kind != "image":
        arrays["x"] = x.astype(np.float32, copy=False)
    elif x.dtype != np.uint8:
        raise UserError(f"{path}: images are bytes (uint8, 0 to 255), x is {x.dtype}")
    if "client" in found:
        arrays["owner"] = found["client"]
    external = [key for key in found if key.endswith((".x", ".y"))]
    arrays |= {key: found[key] for key in external}
    return Raw(arrays)
