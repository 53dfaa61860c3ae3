"""Parsed arrays kept beside the files they come from, so that every file is parsed once."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from fedtailor.data.raw import Array, Raw

VERSION = 1  # of the parsers: raise it when one reads the same files in another way


def remember(
    folder: Path, stem: str, sources: Iterable[Path | str], parse: Callable[[], Raw]
) -> Raw:
    """What ``parse`` gives for these sources, from ``<folder>/.fedtailor/`` if it has been parsed before.

    A cache that is half-written, damaged or of other sources is never used. A folder that cannot be written to is
    fine: then there is no cache.
    """
    place = folder / ".fedtailor"
    path = place / f"{stem}-{_key(folder, sources)}.safetensors"
    known = _read(path)
    if known is not None:
        return known
    raw = parse()
    if _write(path, raw):
        old = [p for p in place.glob(f"{stem}-{'?' * 16}.safetensors") if p != path]
        for useless in [*old, *place.glob(f".{stem}-*.half")]:
            useless.unlink(missing_ok=True)
    return raw


def _key(folder: Path, sources: Iterable[Path | str]) -> str:
    """What tells these sources from others: their names in the folder, sizes and times."""
    digest = hashlib.sha256(f"{VERSION}".encode())
    for path in sources:
        stat = os.stat(path)
        name = str(path).removeprefix(str(folder))
        digest.update(
            f"\n{name} {stat.st_size} {stat.st_mtime_ns}".encode(errors="surrogateescape")
        )
    return digest.hexdigest()[:16]


def _sum(arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    for key in sorted(arrays):
        digest.update(f"{key} {arrays[key].dtype} {arrays[key].shape}".encode())
        digest.update(np.ascontiguousarray(arrays[key]).data)
    return digest.hexdigest()


def _read(path: Path) -> Raw | None:
    try:
        with safe_open(path, framework="np") as f:
            about = f.metadata() or {}
            arrays = {key: f.get_tensor(key) for key in f.keys()}  # noqa: SIM118
        names = json.loads(about["names"])
        raw = Raw(arrays, tuple(names["labels"]), tuple(names["owners"]))
        return raw if about["sha256"] == _sum(arrays) else None
    except (OSError, SafetensorError, KeyError, ValueError):
        return None


def _write(path: Path, raw: Raw) -> bool:
    arrays = {key: np.ascontiguousarray(array) for key, array in raw.arrays.items()}
    names = json.dumps({"labels": raw.labels, "owners": raw.owners})
    half = path.with_name(f".{path.stem}.{os.getpid()}.{threading.get_ident()}.half")
    try:
        path.parent.mkdir(exist_ok=True)
        save_file(arrays, half, metadata={"names": names, "sha256": _sum(arrays)})
        half.chmod(0o644)  # a data folder may be shared
        os.replace(half, path)
    except (OSError, SafetensorError):
        with contextlib.suppress(OSError):
            half.unlink()
        return False
    return True
