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
    """Arrays by the names of a data set's fields, and names of classes and owners.

    Fields are x, y, test, owner, segment, row, and ``<set>.x`` and ``<set>.y`` of external sets.
    A parser may use further names that its own ``finish`` understands.
    """

    arrays: dict[str, Array]
    labels: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()


def join_official_parts(
    train: tuple[Array, Array], test: tuple[Array, Array]
) -> dict[str, Array]:
    """One set of arrays from x and y of the official training part and of the test part."""
    x_train, y_train = train
    x_test, y_test = test
    return {
        "x": np.concatenate([x_train, x_test]),
        "y": np.concatenate([y_train, y_test]).astype(np.int64),
        "test": np.repeat([False, True], [len(y_train), len(y_test)]),
    }


def check_raw(raw: Raw, entry: Entry, where: str) -> Raw:
    """The same arrays, if they are sound and can be this data set's; ``where`` they come from."""
    arrays = raw.arrays
    y = arrays["y"]
    rows = len(arrays["x"]) if "x" in arrays else len(y)
    if "row" not in arrays and rows != len(y):
        raise UserError(f"{where}: {rows} samples in x but {len(y)} labels in y")
    if not len(y):
        raise UserError(f"{where}: there are no samples in it")
    if "x" in arrays and arrays["x"].shape[1:] != entry.shape:
        raise UserError(
            f"{where}: a sample has shape {arrays['x'].shape[1:]}, {entry.name} has {entry.shape}; "
            "is it the file of another data set?"
        )
    check_labels(y, entry.classes, where)
    if "x" in arrays:
        check_finite(arrays["x"], where, missing=entry.missing_values)
    if "row" in arrays:
        _check_row(arrays["row"], rows, len(y), where)
    if "owner" in arrays:
        check_owner(arrays["owner"], len(y), where)
    for key in arrays:
        if key.endswith((".x", ".y")):
            _check_external(arrays, key, entry, where)
    return raw


def _check_external(
    arrays: dict[str, Array], key: str, entry: Entry, where: str
) -> None:
    """Refuse an external set that is half there or does not look like the data set."""
    name = key[: -len(".x")]
    for part in (f"{name}.x", f"{name}.y"):
        if part not in arrays:
            raise UserError(
                f"{where}: the external set '{name}' has '{key}' and no '{part}'"
            )
    x = arrays[f"{name}.x"]
    y = arrays[f"{name}.y"]
    if x.shape[1:] != arrays["x"].shape[1:] or x.dtype != arrays["x"].dtype:
        raise UserError(
            f"{where}: the external set '{name}' has samples of shape {x.shape[1:]} ({x.dtype}), "
            f"the data set has {arrays['x'].shape[1:]} ({arrays['x'].dtype})"
        )
    if len(x) != len(y):
        raise UserError(f"{where}: {len(x)} samples in {name}.x, {len(y)} in {name}.y")
    check_labels(y, entry.classes, where)


def check_labels(y: Array, classes: int, where: str) -> None:
    """Refuse labels that are not whole numbers in 0..classes-1."""
    if y.ndim != 1 or y.dtype.kind not in "iu":
        raise UserError(
            f"{where}: labels must be one whole number a sample, not {y.dtype} of shape {y.shape}"
        )
    bad = np.flatnonzero((y < 0) | (y >= classes))
    if len(bad):
        first = bad[0]
        raise UserError(
            f"{where}: sample {first} has label {y[first]}, labels go from 0 to {classes - 1}"
        )


def check_finite(x: Array, where: str, *, missing: bool = False) -> None:
    """Refuse infinite values, and NaN unless values may be missing."""
    if x.dtype.kind != "f":
        return
    bad = np.isinf(x) if missing else ~np.isfinite(x)
    if not bad.any():
        return
    index = tuple(int(i) for i in np.argwhere(bad)[0])
    position = f"sample {index[0]}"
    if len(index) > 1:
        position += f", place {', '.join(map(str, index[1:]))}"
    is_nan = bool(np.isnan(x[index]))
    value = "NaN" if is_nan else "infinite"
    hint = "mend or remove it"
    if is_nan and x.ndim == 2:
        hint = "in a table, --missing median fills gaps in"
    raise UserError(f"{where}: {position} is {value}; {hint}")


def check_owner(owner: Array, samples: int, where: str) -> None:
    """Refuse a client column that does not number the clients 0..K-1 without gaps."""
    if owner.shape != (samples,) or owner.dtype.kind not in "iu":
        raise UserError(
            f"{where}: client must be one whole number a sample, "
            f"not {owner.dtype} of shape {owner.shape}"
        )
    if not samples:
        return
    if owner.min() < 0:
        raise UserError(
            f"{where}: sample {int(owner.argmin())} has client {owner.min()}; "
            "clients are numbered from 0"
        )
    if owner.max() >= samples:
        raise UserError(
            f"{where}: client {owner.max()} in {samples} samples; "
            "clients are numbered 0..K-1 without gaps"
        )
    counts = np.bincount(owner.astype(np.int64))
    empty = np.flatnonzero(counts == 0)
    if len(empty):
        raise UserError(
            f"{where}: client {empty[0]} has no samples though there are clients up to "
            f"{len(counts) - 1}; number the clients 0..K-1 without gaps"
        )


def _check_row(row: Array, rows: int, samples: int, where: str) -> None:
    """Refuse a column that does not name one row of x for every sample."""
    is_column = row.shape == (samples,) and row.dtype.kind in "iu"
    if not is_column or (row < 0).any() or (row >= rows).any():
        raise UserError(
            f"{where}: row must name one of the {rows} rows of x for each of the {samples} samples"
        )


def to_tensor(array: Array) -> Tensor:
    """The array as a tensor, without a copy where that is possible."""
    array = np.ascontiguousarray(array)
    if not array.flags.writeable:
        array = array.copy()
    return torch.from_numpy(array)


def to_dataset(raw: Raw, entry: Entry, x: Tensor | None = None) -> Dataset:
    """The data set in these arrays; ``x`` is given where the arrays hold it in another form."""
    arrays = raw.arrays
    return Dataset(
        name=entry.short_name,
        kind=entry.kind,
        x=to_tensor(arrays["x"]) if x is None else x,
        y=to_tensor(arrays["y"].astype(np.int64)),
        classes=entry.classes,
        test=to_tensor(arrays["test"]) if "test" in arrays else None,
        owner=_read_integers(arrays, "owner"),
        segment=_read_integers(arrays, "segment"),
        row=_read_integers(arrays, "row"),
        labels=raw.labels or entry.labels,
        owners=raw.owners or _name_owners(arrays.get("owner"), entry),
        external=_read_external(arrays),
    )


def _read_integers(arrays: dict[str, Array], key: str) -> Tensor | None:
    if key not in arrays:
        return None
    return to_tensor(arrays[key].astype(np.int64))


def _read_external(arrays: dict[str, Array]) -> dict[str, tuple[Tensor, Tensor]]:
    """x and y of every external set, by its name."""
    names = sorted(key.removesuffix(".x") for key in arrays if key.endswith(".x"))
    external = {}
    for name in names:
        x = to_tensor(arrays[f"{name}.x"])
        y = to_tensor(arrays[f"{name}.y"].astype(np.int64))
        external[name] = (x, y)
    return external


def _name_owners(owner: Array | None, entry: Entry) -> tuple[str, ...]:
    """The official names of as many clients as there are; numbers if there are more."""
    if owner is None:
        return ()
    count = int(owner.max()) + 1
    if count > len(entry.owners):
        return tuple(map(str, range(count)))
    return entry.owners[:count]
