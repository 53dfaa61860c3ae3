"""A partition on disk: which samples of a data set each client trains, validates and tests on.

One ``.npz`` without pickles: index vectors one after the other with their lengths, a JSON header,
and a digest of it all.
"""

from __future__ import annotations

import hashlib
import json
import os
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Dataset, Federation, Settings

FORMAT = "fedtailor partition"
VERSION = 1
PARTS = ("train", "val", "test")
SETTINGS = "dealt"  # the settings' name in the header of every file of this version
UNREADABLE = (  # what reading a damaged archive can end in, by where the damage is
    zipfile.BadZipFile,
    zlib.error,
    EOFError,
    KeyError,
    MemoryError,
    OverflowError,
    RuntimeError,
    SyntaxError,
    TypeError,
    ValueError,
)

Arrays = dict[str, npt.NDArray[Any]]


@dataclass(frozen=True)
class SavedPartition:
    """A partition as read from disk."""

    name: str  # of the data set
    samples: int  # in the data set
    labels: str  # digest of its labels
    train: list[Tensor]
    val: list[Tensor]
    test: list[Tensor]
    common: Tensor | None
    y: Tensor | None  # labels, where the partition changed them
    owners: tuple[str, ...]
    settings: Settings


def digest_labels(y: Tensor) -> str:
    """A short digest of all labels, by which a data set is recognised."""
    return hashlib.sha256(y.contiguous().numpy().tobytes()).hexdigest()[:16]


def save_partition(federation: Federation, path: str | Path) -> Path:
    """Write which client has which samples; ``build_federation(data, partition=path)`` reads it.

    ``.npz`` is added to a name without it.
    """
    path = Path(path)
    if path.suffix != ".npz":
        path = path.with_name(path.name + ".npz")
    arrays = _to_arrays(federation)
    scratch = path.with_name(path.name + ".part")  # a reader never sees half a file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        os.replace(scratch, path)
    except OSError as error:
        raise UserError(
            f"cannot write the partition '{path}': {error.strerror}"
        ) from error
    return path


def _to_arrays(federation: Federation) -> Arrays:
    own_digest = digest_labels(federation.y)
    original_digest = federation.settings.get("labels", own_digest)
    header = {
        "format": FORMAT,
        "version": VERSION,
        "name": federation.name,
        "samples": len(federation.y),
        "labels": original_digest,
        "owners": federation.owners,
        SETTINGS: federation.settings,
    }
    arrays: Arrays = {"header": np.frombuffer(json.dumps(header).encode(), np.uint8)}
    for part in PARTS:
        vectors: list[Tensor] = getattr(federation, part)
        arrays[part] = torch.cat(vectors).numpy().astype("<i8")
        arrays[part + "_lengths"] = np.array([len(vector) for vector in vectors], "<i8")
    if federation.common is not None:
        arrays["common"] = federation.common.numpy().astype("<i8")
    if original_digest != own_digest:  # the partition changed the labels
        arrays["y"] = federation.y.numpy().astype("<i8")
    arrays["digest"] = np.frombuffer(_compute_digest(arrays), np.uint8)
    return arrays


def _compute_digest(arrays: Arrays) -> bytes:
    digest = hashlib.sha256()
    for key in sorted(arrays):
        if key != "digest":
            array = arrays[key]
            digest.update(f"{key} {array.dtype.str} {array.shape} ".encode())
            digest.update(np.ascontiguousarray(array).tobytes())
    return digest.digest()


def load_partition(path: str | Path) -> SavedPartition:
    """Read a saved partition; a file that is absent, damaged or something else is refused."""
    arrays = _read_arrays(path)
    header = _read_header(arrays, path)
    if "digest" not in arrays or arrays["digest"].tobytes() != _compute_digest(arrays):
        raise _explain_damage(path)
    _check_indices(arrays, header["samples"], path)
    return SavedPartition(
        name=header["name"],
        samples=header["samples"],
        labels=header["labels"],
        train=_read_vectors(arrays, "train"),
        val=_read_vectors(arrays, "val"),
        test=_read_vectors(arrays, "test"),
        common=_read_optional(arrays, "common"),
        y=_read_optional(arrays, "y"),
        owners=tuple(header["owners"]),
        settings=header[SETTINGS],
    )


def _read_arrays(path: str | Path) -> Arrays:
    try:
        with (
            Path(path).open("rb") as file,
            np.load(file, allow_pickle=False) as archive,
        ):
            return {key: archive[key] for key in archive.files}
    except FileNotFoundError:
        raise UserError(
            f"no partition file '{path}'; make one with: fedtailor partition --out"
        ) from None
    except OSError as error:
        raise UserError(
            f"cannot read the partition '{path}': {error.strerror or error}"
        ) from error
    except UNREADABLE:
        raise _explain_damage(path) from None


def _read_header(arrays: Arrays, path: str | Path) -> dict[str, Any]:
    try:
        header: dict[str, Any] = json.loads(arrays["header"].tobytes())
        is_partition = header["format"] == FORMAT
    except (KeyError, TypeError, ValueError):
        is_partition = False
    if not is_partition:
        raise UserError(
            f"'{path}' is not a saved partition; make one with: fedtailor partition --out"
        )
    version = header.get("version")
    if version != VERSION:
        raise UserError(
            f"'{path}' has partition format {version}, this version reads {VERSION}: save it anew"
        )
    return header


def _check_indices(arrays: Arrays, samples: int, path: str | Path) -> None:
    """Refuse samples that are in two parts or do not exist."""
    used = np.sort(np.concatenate([arrays[part] for part in PARTS]))
    if not len(used):
        return
    is_outside = used[0] < 0 or used[-1] >= samples
    is_twice = (np.diff(used) == 0).any()
    if is_outside or is_twice:
        raise UserError(
            f"'{path}' gives a sample to two clients or parts, or one that does not exist: "
            "save it anew"
        )


def _read_vectors(arrays: Arrays, part: str) -> list[Tensor]:
    """One index vector a client."""
    ends = np.cumsum(arrays[part + "_lengths"])
    vectors = np.split(arrays[part], ends[:-1])
    return [torch.from_numpy(vector) for vector in vectors]


def _read_optional(arrays: Arrays, key: str) -> Tensor | None:
    return torch.from_numpy(arrays[key]) if key in arrays else None


def _explain_damage(path: str | Path) -> UserError:
    return UserError(
        f"the partition file '{path}' is damaged: make it again or take it from a backup"
    )


def check_fits(saved: SavedPartition, data: Dataset, path: str | Path) -> None:
    """Refuse a partition that was made for another data set."""
    if saved.name != data.name:
        raise UserError(
            f"the partition '{path}' is for data set '{saved.name}', not '{data.name}'"
        )
    if saved.samples != len(data):
        raise UserError(
            f"the partition '{path}' is for {saved.samples} samples of '{data.name}', "
            f"but there are {len(data)}"
        )
    if saved.labels != digest_labels(data.y):
        raise UserError(
            f"the partition '{path}' is for other labels than those of '{data.name}' here: "
            "make it again"
        )
