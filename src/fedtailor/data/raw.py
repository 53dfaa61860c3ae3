"""What a parser reads: plain arrays and names, checked, before they become a data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data.entry import Entry
from fedtailor.data.federation import Dataset

Array: TypeAlias = NDArray[Any]


@dataclass(frozen=True)
class Raw:
    """Arrays by the names of a data set's fields (x, y, test, owner, segment, row, ``<external>.x`` ...) and names."""

    arrays: dict[str, Array]
    labels: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()


def join_parts(train: tuple[Array, Array], test: tuple[Array, Array]) -> dict[str, Array]:
    """One set of arrays from the official training and test part."""
    mark = np.repeat([False, True], [len(train[1]), len(test[1])])
    y = np.concatenate([train[1], test[1]]).astype(np.int64)
    return {"x": np.concatenate([train[0], test[0]]), "y": y, "test": mark}


def check_labels(y: Array, classes: int, where: str) -> None:
    """Refuse labels that are not whole numbers in 0..classes-1."""
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise UserError(
            f"{where}: labels must be one whole number a sample, not {y.dtype} of shape {y.shape}"
        )
    bad = np.flatnonzero((y < 0) | (y >= classes))
    if len(bad):
        raise UserError(
            f"{where}: sample {bad[0]} has label {y[bad[0]]}, labels go from 0 to {classes - 1}"
        )


def check_finite(x: Array, where: str, *, missing: bool = False) -> None:
    """Refuse infinite values, and NaN unless values may be missing."""
    if x.dtype.kind != "f":
        return
    bad = np.isinf(x) if missing else ~np.isfinite(x)
    if bad.any():
        place = tuple(int(i) for i in np.argwhere(bad)[0])
        spot = f"sample {place[0]}" + (
            f", place {', '.join(map(str, place[1:]))}" if len(place) > 1 else ""
        )
        nan = bool(np.isnan(x[place]))
        hint = (
            "; in a table, --missing median fills gaps in"
            if nan and x.ndim == 2
            else "; mend or remove it"
        )
        raise UserError(f"{where}: {spot} is {'NaN' if nan else 'infinite'}{hint}")


def check_owner(owner: Array, samples: int, where: str) -> None:
    """Refuse a client column that does not number the clients 0..K-1 without gaps."""
    if owner.shape != (samples,) or owner.dtype.kind not in "iu":
        raise UserError(
            f"{where}: client must be one whole number a sample, not {owner.dtype} of shape {owner.shape}"
        )
    if samples and owner.min() < 0:
        raise UserError(
            f"{where}: sample {int(owner.argmin())} has client {owner.min()}; clients are numbered from 0"
        )
    if samples and owner.max() >= samples:
        raise UserError(
            f"{where}: client {owner.max()} in {samples} samples; clients are numbered 0..K-1 without gaps"
        )
    counts = np.bincount(owner.astype(np.int64))
    if samples and not counts.all():
        empty = np.flatnonzero(counts == 0)
        raise UserError(
            f"{where}: client {empty[0]} has no samples though there are clients up to {len(counts) - 1}; "
            "number the clients 0..K-1 without gaps"
        )


def check_raw(raw: Raw, entry: Entry, where: str, *, missing: bool = False) -> Raw:
    """The same arrays, if they are sound and can be this data set's; one clear line otherwise."""
    a = raw.arrays
    y = a["y"]
    rows = len(a["x"]) if "x" in a else len(y)
    if "row" not in a and rows != len(y):
        raise UserError(f"{where}: {rows} samples in x but {len(y)} labels in y")
    if not len(y):
        raise UserError(f"{where}: there are no samples in it")
    if "x" in a and a["x"].shape[1:] != entry.shape:
        raise UserError(
            f"{where}: a sample has shape {a['x'].shape[1:]}, {entry.name} has {entry.shape}; "
            "is it the file of another data set?"
        )
    check_labels(y, entry.classes, where)
    if "x" in a:
        check_finite(a["x"], where, missing=missing)
    if "row" in a and (
        a["row"].shape != y.shape or a["row"].dtype.kind not in "iu" or not _within(a["row"], rows)
    ):
        raise UserError(
            f"{where}: row must name one of the {rows} rows of x for each of the {len(y)} samples"
        )
    if "owner" in a:
        check_owner(a["owner"], len(y), where)
    return raw


def _within(numbers: Array, size: int) -> bool:
    return bool(((numbers >= 0) & (numbers < size)).all())


def to_tensor(array: Array) -> Tensor:
    """The array as a tensor, without a copy where that is possible."""
    array = np.ascontiguousarray(array)
    return torch.from_numpy(array if array.flags.writeable else array.copy())


def to_dataset(raw: Raw, entry: Entry, **fields: Any) -> Dataset:
    """The data set these arrays hold; ``fields`` win over what is in them."""
    a = raw.arrays
    whole: dict[str, Any] = {k: to_tensor(a[k]) for k in ("x", "test") if k in a}
    whole |= {
        k: to_tensor(a[k].astype(np.int64)) for k in ("y", "owner", "segment", "row") if k in a
    }
    outside = sorted({k.split(".")[0] for k in a if k.endswith(".x")})
    external = {k: (to_tensor(a[f"{k}.x"]), to_tensor(a[f"{k}.y"])) for k in outside}
    whole |= {
        "name": entry.label,
        "kind": entry.kind,
        "classes": entry.classes,
        "external": external,
    }
    whole |= {
        "labels": raw.labels or entry.labels,
        "owners": raw.owners or _name_owners(a.get("owner"), entry),
    }
    return Dataset(**(whole | fields))


def _name_owners(owner: Array | None, entry: Entry) -> tuple[str, ...]:
    """The official names of as many clients as there are; numbers if there are more."""
    count = 0 if owner is None else int(owner.max()) + 1
    return entry.owners[:count] if count <= len(entry.owners) else tuple(map(str, range(count)))
