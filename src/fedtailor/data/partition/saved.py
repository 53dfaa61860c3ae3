"""A partition on disk: who trains, validates and tests on which samples of which data set.

One ``.npz`` without pickles: index vectors laid end to end with their lengths, a JSON header, and a digest of it all.
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
from fedtailor.data.federation import Dataset, Federation

FORMAT = "fedtailor partition"
VERSION = 1
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


@dataclass(frozen=True)
class Saved:
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
    dealt: dict[str, str | int | float | None]


def digest_labels(y: Tensor) -> str:
    """A short digest of all labels, by which a data set is known again."""
    return hashlib.sha256(y.contiguous().numpy().tobytes()).hexdigest()[:16]


def save(federation: Federation, path: str | Path) -> Path:
    """Write who has which samples (``.npz`` is added to a name without it); ``deal(data, partition=path)`` reads it."""
    path = Path(path)
    path = path if path.suffix == ".npz" else path.with_name(path.name + ".npz")
    header = {
        "format": FORMAT,
        "version": VERSION,
        "name": federation.name,
        "samples": len(federation.y),
        "labels": federation.dealt.get("labels", digest_labels(federation.y)),
        "owners": federation.owners,
        "dealt": federation.dealt,
    }
    arrays: dict[str, npt.NDArray[Any]] = {
        "header": np.frombuffer(json.dumps(header).encode(), np.uint8)
    }
    for part in ("train", "val", "test"):
        vectors: list[Tensor] = getattr(federation, part)
        arrays[part] = torch.cat(vectors).numpy().astype("<i8")
        arrays[part + "_lengths"] = np.array([len(v) for v in vectors], "<i8")
    if federation.common is not None:
        arrays["common"] = federation.common.numpy().astype("<i8")
    if header["labels"] != digest_labels(federation.y):
        arrays["y"] = federation.y.numpy().astype("<i8")
    arrays["digest"] = np.frombuffer(_digest(arrays), np.uint8)
    scratch = path.with_name(path.name + ".part")  # a reader never sees half a file
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with scratch.open("wb") as file:
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]
        os.replace(scratch, path)
    except OSError as error:
        raise UserError(f"cannot write the partition '{path}': {error.strerror}") from error
    return path


def _digest(arrays: dict[str, npt.NDArray[Any]]) -> bytes:
    digest = hashlib.sha256()
    for key in sorted(arrays):
        if key != "digest":
            digest.update(f"{key} {arrays[key].dtype.str} {arrays[key].shape} ".encode())
            digest.update(np.ascontiguousarray(arrays[key]).tobytes())
    return digest.digest()


def load_partition(path: str | Path) -> Saved:
    """Read a saved partition; a file that is absent, damaged or something else is one clear line."""
    try:
        with Path(path).open("rb") as raw, np.load(raw, allow_pickle=False) as file:
            arrays = {key: file[key] for key in file.files}
    except FileNotFoundError:
        raise UserError(
            f"no partition file '{path}'; make one with: fedtailor partition --out"
        ) from None
    except OSError as error:
        raise UserError(f"cannot read the partition '{path}': {error.strerror or error}") from error
    except UNREADABLE:
        raise _damaged(path) from None
    try:
        header = json.loads(arrays["header"].tobytes())
        if header["format"] != FORMAT:
            raise KeyError("format")
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"'{path}' is not a saved partition; make one with: fedtailor partition --out"
        ) from None
    if header.get("version") != VERSION:
        raise UserError(
            f"'{path}' has partition format {header.get('version')}, this version reads {VERSION}: save it anew"
        )
    if "digest" not in arrays or arrays["digest"].tobytes() != _digest(arrays):
        raise _damaged(path)
    parts = {
        part: _unpack(arrays[part], arrays[part + "_lengths"]) for part in ("train", "val", "test")
    }
    used = np.sort(np.concatenate([arrays[part] for part in parts]))
    if len(used) and (used[0] < 0 or used[-1] >= header["samples"] or (np.diff(used) == 0).any()):
        raise UserError(
            f"'{path}' gives a sample to two clients or parts, or one that does not exist: save it anew"
        )
    return Saved(
        name=header["name"],
        samples=header["samples"],
        labels=header["labels"],
        common=torch.from_numpy(arrays["common"]) if "common" in arrays else None,
        y=torch.from_numpy(arrays["y"]) if "y" in arrays else None,
        owners=tuple(header["owners"]),
        dealt=header["dealt"],
        **parts,
    )


def _damaged(path: str | Path) -> UserError:
    return UserError(
        f"the partition file '{path}' is damaged: make it again or take it from a backup"
    )


def _unpack(flat: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> list[Tensor]:
    return [torch.from_numpy(part) for part in np.split(flat, np.cumsum(lengths)[:-1])]


def check_fits(saved: Saved, data: Dataset, path: str | Path) -> None:
    """Refuse a partition that was made for another data set."""
    if saved.name != data.name:
        raise UserError(f"the partition '{path}' is for data set '{saved.name}', not '{data.name}'")
    if saved.samples != len(data):
        raise UserError(
            f"the partition '{path}' is for {saved.samples} samples of '{data.name}', but there are {len(data)}"
        )
    if saved.labels != digest_labels(data.y):
        raise UserError(
            f"the partition '{path}' is for other labels than those of '{data.name}' here: make it again"
        )
