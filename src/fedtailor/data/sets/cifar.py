"""The CIFAR python pickles, read by an unpickler that can build arrays and nothing else."""

from __future__ import annotations

import io
import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.checksums import verify
from fedtailor.data.entry import Entry
from fedtailor.data.federation import Dataset
from fedtailor.data.raw import Array, Raw, check_labels, join_parts, to_dataset

OFFICIAL_COUNTS = {"cifar10": (10_000,), "cifar100": (50_000, 10_000)}


class Forbidden(Exception):
    """A pickle that asks for more than arrays."""


def _encode(text: str, encoding: str) -> bytes:
    """How Python 3 writes bytes into old pickles; every other codec is refused."""
    if encoding != "latin1":
        raise Forbidden(f"codec '{encoding}'")
    return text.encode("latin1")


ALLOWED: dict[tuple[str, str], Any] = {
    ("numpy.core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy._core.multiarray", "_reconstruct"): np.empty(0).__reduce__()[0],
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _encode,
}


class ArrayUnpickler(pickle.Unpickler):
    """An unpickler for dicts, lists, numbers, strings and arrays; anything else is refused before it is run."""

    def find_class(self, module: str, name: str) -> Any:
        """The few callables a CIFAR pickle needs."""
        if (module, name) not in ALLOWED:
            raise Forbidden(f"it asks for {module}.{name}")
        return ALLOWED[module, name]


def read_pickle(content: bytes, path: Path) -> dict[str, Any]:
    """The dict in a CIFAR pickle."""
    try:
        found = ArrayUnpickler(io.BytesIO(content), encoding="bytes").load()
    except Forbidden as e:
        raise UserError(
            f"{path} is not a CIFAR pickle and may be malicious ({e}); nothing of it was run"
        ) from None
    except Exception as e:  # a damaged pickle can raise nearly everything
        raise UserError(
            f"{path} is truncated or damaged ({type(e).__name__}: {e}); fetch it again"
        ) from None
    if not isinstance(found, dict):
        raise UserError(f"{path} holds a {type(found).__name__}, a CIFAR pickle holds a dict")
    return {k.decode() if isinstance(k, bytes) else str(k): v for k, v in found.items()}


def _read_batch(path: Path, entry: Entry, file: str, keys: tuple[str, ...]) -> tuple[Array, ...]:
    content = path.read_bytes()
    batch = read_pickle(content, path)
    lacking = [k for k in ("data", *keys) if k not in batch]
    if lacking:
        raise UserError(f"{path} has no '{lacking[0]}'; is it the file of another data set?")
    x = batch["data"]
    if not isinstance(x, np.ndarray) or x.dtype != np.uint8 or x.ndim != 2 or x.shape[1] != 3072:
        kind = f"{x.dtype} of shape {x.shape}" if isinstance(x, np.ndarray) else type(x).__name__
        raise UserError(f"{path}: 'data' is {kind}, not bytes of shape (images, 3072)")
    verify(content, entry.name, file, path, complete=len(x) in OFFICIAL_COUNTS[entry.name])
    labels = []
    for key in keys:
        y = np.asarray(batch[key])
        if y.shape != (len(x),) or y.dtype.kind not in "iu":
            raise UserError(
                f"{path}: '{key}' is not one whole number for each of the {len(x)} images"
            )
        labels.append(y.astype(np.int64))
    return x.reshape(-1, 3, 32, 32), *labels


def parse_cifar10(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """CIFAR-10 from its six batches."""
    batches = [_read_batch(paths[f], entry, f, ("labels",)) for f in entry.files]
    x, y = (np.concatenate([b[i] for b in batches[:-1]]) for i in (0, 1))
    return Raw(join_parts((x, y), (batches[-1][0], batches[-1][1])))


def parse_cifar100(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """CIFAR-100 from its two pickles, with both kinds of labels."""
    train, test = (
        _read_batch(paths[f], entry, f, ("fine_labels", "coarse_labels")) for f in entry.files
    )
    arrays = join_parts((train[0], train[1]), (test[0], test[1]))
    return Raw(arrays | {"coarse": np.concatenate([train[2], test[2]])})


def choose_labels(raw: Raw, entry: Entry) -> Dataset:
    """CIFAR-100 with the fine or the coarse labels."""
    if entry.variant == "fine":
        return to_dataset(raw, entry)
    coarse = raw.arrays.get("coarse")
    if coarse is None or coarse.shape != raw.arrays["y"].shape:
        raise UserError(
            "cifar100.npz has no 'coarse' of the length of 'y'; cifar100:coarse needs it"
        )
    check_labels(coarse, entry.classes, entry.label)
    return to_dataset(Raw(raw.arrays | {"y": coarse}, raw.labels), entry)
