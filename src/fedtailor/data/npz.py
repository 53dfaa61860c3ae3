"""Prepared data: npz archives of plain arrays."""

from __future__ import annotations

import zipfile
import zlib
from pathlib import Path

import numpy as np

from fedtailor.data.entry import Entry
from fedtailor.data.raw import Array, Raw
from fedtailor.errors import UserError


def read_npz(path: Path) -> dict[str, Array]:
    """All arrays of an npz file; arrays of Python objects are refused, for they are pickles."""
    try:
        opened = np.load(path, allow_pickle=False)
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except (zipfile.BadZipFile, ValueError, EOFError, OSError) as e:
        reason = "pickled objects" if "allow_pickle" in str(e) else e
        raise UserError(f"{path} is truncated or not an npz file ({reason}); write it with numpy.savez") from None
    if not isinstance(opened, np.lib.npyio.NpzFile):
        raise UserError(f"{path} is a single array, not an npz file with 'x' and 'y'; write it with numpy.savez")
    with opened as z:
        return {key: _read_member(z, key, path) for key in z.files}


def _read_member(z: np.lib.npyio.NpzFile, key: str, path: Path) -> Array:
    try:
        array: Array = z[key]
    except ValueError as e:
        if "Object arrays" in str(e):
            raise UserError(f"{path}: '{key}' holds Python objects; save it as an array of numbers") from None
        raise UserError(f"{path}: '{key}' cannot be read ({e})") from None
    except (zipfile.BadZipFile, zlib.error, EOFError) as e:
        raise UserError(f"{path} is truncated or damaged at '{key}' ({e})") from None
    return array


def read_prepared(path: Path, entry: Entry) -> Raw:
    """A prepared data set: x, y and, where there are, test, client, coarse and row."""
    found = read_npz(path)
    for key in ("x", "y"):
        if key not in found:
            raise UserError(f"{path} has no '{key}'; a prepared data set has x, y and optionally test and client")
    arrays: dict[str, Array] = {k: found[k] for k in ("x", "y", "test", "coarse", "row") if k in found}
    if entry.kind == "image" and arrays["x"].dtype != np.uint8:
        raise UserError(f"{path}: images are bytes (uint8, 0 to 255), x is {arrays['x'].dtype}")
    if entry.kind != "image":
        arrays["x"] = arrays["x"].astype(np.float32, copy=False)
    if "client" in found:
        arrays["owner"] = found["client"]
    return Raw(arrays)
