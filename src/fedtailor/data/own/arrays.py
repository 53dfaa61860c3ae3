"""A user's own arrays, client by client, joined to one data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Dataset, Kind
from fedtailor.data.own.missing_values import check_way, fill_gaps
from fedtailor.data.raw import Array, check_finite, to_tensor

DICT_KEYS = ("x_train", "y_train", "x_test", "y_test")


class Part(NamedTuple):
    """Samples from one place."""

    where: str  # file or client, for what is said of them
    x: Array
    y: Array  # whole numbers or texts
    test: Array | None = None  # which samples are the test part


def arrays(
    clients: Sequence[tuple[Any, Any]] | Sequence[Mapping[str, Any]],
    *,
    names: Sequence[str] | None = None,
    missing: str | None = None,
    name: str = "arrays",
) -> Dataset:
    """A data set of the user's own arrays (NumPy or PyTorch), one ``(x, y)`` a client.

    A client may also be a dict of x_train, y_train, x_test and y_test: then its test part is taken as it is. Images
    are bytes (N, C, H, W) or (N, H, W, C), signals are numbers (N, C, T), tables are numbers (N, D); labels are whole
    numbers from 0, or texts. ``missing="median"`` allows NaN in tables.
    """
    check_way(missing)
    if names is not None and len(names) != len(clients):
        raise UserError(f"{len(names)} names for {len(clients)} clients")
    called = [str(n) for n in names or range(len(clients))]
    parts = [
        _to_part(f"client '{who}'", client) for who, client in zip(called, clients, strict=True)
    ]
    return join_clients(parts, name, called, missing=missing)


def _to_part(who: str, client: Any) -> Part:
    if isinstance(client, Mapping):
        lacking = [k for k in DICT_KEYS if k not in client]
        if lacking:
            raise UserError(f"{who} has no '{lacking[0]}'; it needs {', '.join(DICT_KEYS)}")
        x, y, x_test, y_test = (_to_array(client[k]) for k in DICT_KEYS)
        if x.shape[1:] != x_test.shape[1:]:
            raise UserError(
                f"{who}: x_train has samples of shape {x.shape[1:]}, x_test of {x_test.shape[1:]}"
            )
        for key, a, b in (("train", x, y), ("test", x_test, y_test)):
            if len(a) != len(b):
                raise UserError(
                    f"{who}: {len(a)} samples in x_{key} but {len(b)} labels in y_{key}"
                )
        test = np.repeat([False, True], [len(y), len(y_test)])
        return Part(who, np.concatenate([x, x_test]), np.concatenate([y, y_test]), test)
    try:
        x, y = client
    except (TypeError, ValueError):
        raise UserError(
            f"{who} is neither a pair (x, y) nor a dict of {', '.join(DICT_KEYS)}"
        ) from None
    x, y = _to_array(x), _to_array(y)
    if not x.ndim or not y.ndim:
        raise UserError(f"{who}: x and y are single values, not arrays of samples")
    return Part(who, x, y)


def _to_array(values: Any) -> Array:
    return values.detach().cpu().numpy() if isinstance(values, Tensor) else np.asarray(values)


def join_clients(
    parts: Sequence[Part], name: str, owners: Sequence[str], *, missing: str | None = None
) -> Dataset:
    """One data set of all clients' samples, each part owned by one of ``owners``."""
    if not parts:
        raise UserError(f"{name}: there are no clients in it")
    owner = np.repeat(np.arange(len(parts)), [len(p.y) for p in parts])
    return join_parts(parts, name, owner, owners, missing=missing)


def join_parts(
    parts: Sequence[Part],
    name: str,
    owner: Array | None,
    owners: Sequence[str],
    *,
    missing: str | None = None,
) -> Dataset:
    """One data set of all parts, with the owner of every sample where there are owners."""
    shaped = [_shape(p) for p in parts]
    (first, kind), tables = shaped[0], missing is not None and shaped[0][1] == "table"
    for part, (x, other) in zip(parts, shaped, strict=True):
        if (x.shape[1:], other) != (first.shape[1:], kind):
            raise UserError(
                f"{part.where} has {other} samples of shape {x.shape[1:]}, "
                f"{parts[0].where} {kind} samples of {first.shape[1:]}; all clients need the same"
            )
        check_finite(x, part.where, missing=tables)
    whole = to_tensor(np.concatenate([x for x, _ in shaped]))
    y, classes, labels = number_labels(parts)
    test = None
    if any(p.test is not None for p in parts):
        test = to_tensor(
            np.concatenate(
                [np.zeros(len(p.y), np.bool_) if p.test is None else p.test for p in parts]
            )
        )
    owned = None if owner is None else to_tensor(owner.astype(np.int64))
    fit = partial(fill_gaps, whole, owned, False) if tables else None
    return Dataset(
        name,
        kind,
        whole,
        y,
        classes,
        test=test,
        owner=owned,
        labels=labels,
        owners=tuple(owners),
        fit=fit,
    )


def _shape(part: Part) -> tuple[Array, Kind]:
    """The samples as they are stored, and of which kind they are."""
    x = part.x
    if len(x.shape) < 2 or len(x) != len(part.y):
        raise UserError(f"{part.where}: x of shape {x.shape} does not fit {len(part.y)} labels")
    if not len(x):
        raise UserError(f"{part.where} has no samples; remove this client or give it some")
    if x.dtype.kind not in "biuf":
        raise UserError(f"{part.where}: x holds {x.dtype} values; only numbers can be learned from")
    if x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3):
        x = x.transpose(0, 3, 1, 2)
    if x.ndim == 3 and x.dtype == np.uint8:
        x = x[:, None]
    kinds: dict[int, Kind] = {2: "table", 3: "signal", 4: "image"}
    if x.ndim not in kinds:
        raise UserError(
            f"{part.where}: x has {x.ndim} dimensions; images have 4, signals 3 and tables 2"
        )
    if x.ndim == 4 and x.dtype == np.uint8:
        return x, "image"
    with np.errstate(
        over="ignore"
    ):  # what is too large for float32 becomes infinite and is refused as such
        return x.astype(np.float32), kinds[x.ndim]


def number_labels(parts: Sequence[Part]) -> tuple[Tensor, int, tuple[str, ...]]:
    """Labels 0..C-1 of all samples, C, and the names of the classes where they have names."""
    for p in parts:
        if p.y.ndim != 1 or p.y.dtype.kind not in "iuU":
            raise UserError(
                f"{p.where}: labels must be whole numbers or texts, not {p.y.dtype} of shape {p.y.shape}"
            )
    names: tuple[str, ...] = ()
    if any(p.y.dtype.kind == "U" for p in parts):
        names = tuple(sorted({str(label) for p in parts for label in p.y}))
        number = {label: i for i, label in enumerate(names)}
        y = np.array([number[str(label)] for p in parts for label in p.y], np.int64)
    else:
        y = np.concatenate([p.y for p in parts]).astype(np.int64)
    for p in parts if not names else ():
        bad = np.flatnonzero((p.y.astype(np.int64) < 0) | (p.y.astype(np.int64) >= len(y)))
        if len(bad):
            raise UserError(
                f"{p.where}: sample {bad[0]} has label {p.y[bad[0]]}; labels are numbered 0..C-1"
            )
    if len(np.unique(y)) < 2:
        raise UserError(
            f"{parts[0].where}: all samples have the same label; there must be two classes at least"
        )
    return to_tensor(y), int(y.max()) + 1, names


def notices(dataset: Dataset) -> list[str]:
    """What a user should know of sound but unusual data, one line each: clients with samples of one class only."""
    if dataset.owner is None:
        return []
    out = []
    for k in range(int(dataset.owner.max()) + 1):
        y = dataset.y[dataset.owner == k]
        if len(y) and bool((y == y[0]).all()):
            who = dataset.owners[k] if dataset.owners else str(k)
            what = dataset.labels[int(y[0])] if dataset.labels else str(int(y[0]))
            out.append(f"client '{who}' has samples of one class only ('{what}')")
    return out
