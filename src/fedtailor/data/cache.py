"""Parsed arrays, kept beside the files they come from, so that every file is parsed once."""

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


def parse_once(
    folder: Path, stem: str, sources: Iterable[Path | str], parse: Callable[[], Raw]
) -> Raw:
    """The arrays that ``parse`` reads from these sources, from the cache if they are there.

    The cache is in ``<folder>/.fedtailor/``. A cache file that is half-written, damaged or of other
    sources is never used. If the folder cannot be written to, nothing is cached.
    """
    cache_folder = folder / ".fedtailor"
    key = _compute_key(folder, sources)
    path = cache_folder / f"{stem}-{key}.safetensors"
    cached = _read_cache(path)
    if cached is not None:
        return cached
    raw = parse()
    if _write_cache(path, raw):
        _remove_outdated(cache_folder, stem, path)
    return raw


def _remove_outdated(cache_folder: Path, stem: str, current: Path) -> None:
    """Remove cache files of earlier sources, and files that were never finished."""
    any_key = "?" * 16
    for path in cache_folder.glob(f"{stem}-{any_key}.safetensors"):
        if path != current:
            path.unlink(missing_ok=True)
    for path in cache_folder.glob(f".{stem}-*.half"):
        path.unlink(missing_ok=True)


def _compute_key(folder: Path, sources: Iterable[Path | str]) -> str:
    """A digest of the sources' names in the folder, sizes and times of change."""
    digest = hashlib.sha256(f"{VERSION}".encode())
    for path in sources:
        stat = os.stat(path)
        name = str(path).removeprefix(str(folder))
        line = f"\n{name} {stat.st_size} {stat.st_mtime_ns}"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()[:16]


def _digest_arrays(arrays: Mapping[str, Array]) -> str:
    digest = hashlib.sha256()
    for key in sorted(arrays):
        array = arrays[key]
        digest.update(f"{key} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _read_cache(path: Path) -> Raw | None:
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            arrays = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        names = json.loads(metadata["names"])
        if metadata["sha256"] != _digest_arrays(arrays):
            return None
        return Raw(arrays, tuple(names["labels"]), tuple(names["owners"]))
    except (OSError, SafetensorError, KeyError, ValueError):
        return None


def _write_cache(path: Path, raw: Raw) -> bool:
    """Whether the cache file could be written."""
    arrays = {key: np.ascontiguousarray(array) for key, array in raw.arrays.items()}
    names = json.dumps({"labels": raw.labels, "owners": raw.owners})
    metadata = {"names": names, "sha256": _digest_arrays(arrays)}
    half = path.with_name(f".{path.stem}.{os.getpid()}.{threading.get_ident()}.half")
    try:
        path.parent.mkdir(exist_ok=True)
        save_file(arrays, half, metadata=metadata)
        half.chmod(0o644)  # a data folder may be shared
        os.replace(half, path)
    except (OSError, SafetensorError):
        with contextlib.suppress(OSError):
            half.unlink()
        return False
    return True
