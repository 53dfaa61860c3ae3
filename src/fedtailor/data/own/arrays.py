"""A user's own arrays, client by client, joined to one data set."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Dataset, Kind
from fedtailor.data.own.missing_values import (
    check_missing_option,
    fill_missing_values,
    find_fills,
)
from fedtailor.data.own.objects import (
    find_clients,
    is_item_by_item,
    is_one_pair,
    read_items,
    to_array,
)
from fedtailor.data.raw import Array, check_finite, to_tensor
from fedtailor.data.targets import Targets, read_targets

DICT_KEYS = ("x_train", "y_train", "x_test", "y_test")
KINDS: dict[int, Kind] = {2: "table", 3: "signal", 4: "image"}  # by the dimensions of x


class Samples(NamedTuple):
    """Samples of one client or file."""

    where: str  # the client or file, for messages
    x: Array
    y: Array  # whole numbers or texts
    test: Array | None = None  # true for samples of the test part


def build_dataset(
    clients: Sequence[tuple[Any, Any]] | Sequence[Mapping[str, Any]],
    *,
    names: Sequence[str] | None = None,
    missing: str | None = None,
    name: str = "arrays",
) -> Dataset:
    """A data set of the user's own arrays (NumPy or PyTorch), which belong to clients.

    Args:
        clients: a pair ``(x, y)`` for every client; or a dict of x_train, y_train, x_test and
            y_test, whose test part is taken as it is. Images are bytes (N, C, H, W) or
            (N, H, W, C), signals are numbers (N, C, T), tables are numbers (N, D). Labels are
            whole numbers from 0, or texts.
        names: the clients' names; by default their numbers.
        missing: ``"median"`` fills missing values (NaN) in tables.
        name: the data set's name.
    """
    check_missing_option(missing)
    if names is not None and len(names) != len(clients):
        raise UserError(f"{len(names)} names for {len(clients)} clients")
    owners = [str(owner) for owner in names or range(len(clients))]
    parts = []
    for owner, client in zip(owners, clients, strict=True):
        parts.append(_read_client(f"client '{owner}'", client))
    return join_clients(parts, name, owners, missing=missing)


def build_own_data(data: Any, *, missing: str | None = None) -> Dataset:
    """The data set of what a user gives in Python.

    One item per client, ``{name: item}``, or one pair ``(x, y)`` that a partition divides. An item
    is what ``build_dataset`` takes, or a torch Dataset of pairs; x may be a DataFrame.
    """
    check_missing_option(missing)
    if is_one_pair(data):
        samples = _read_client("the data", data)
        return join_samples([samples], "arrays", None, (), missing=missing)
    clients, names = find_clients(data)
    return build_dataset(clients, names=names, missing=missing)


def _read_client(where: str, client: Any) -> Samples:
    if isinstance(client, Mapping):
        return _read_dict(where, client)
    if is_item_by_item(client):
        return Samples(where, *read_items(client, where))
    try:
        x, y = client
    except (TypeError, ValueError):
        keys = ", ".join(DICT_KEYS)
        raise UserError(
            f"{where} is neither a pair (x, y) nor a dict of {keys}"
        ) from None
    x = to_array(x)
    y = to_array(y)
    if not x.ndim or not y.ndim:
        raise UserError(f"{where}: x and y are single values, not arrays of samples")
    return Samples(where, x, y)


def _read_dict(where: str, client: Mapping[str, Any]) -> Samples:
    """A client whose arrays are divided into a training and a test part."""
    for key in DICT_KEYS:
        if key not in client:
            raise UserError(f"{where} has no '{key}'; it needs {', '.join(DICT_KEYS)}")
    x_train, y_train, x_test, y_test = (to_array(client[key]) for key in DICT_KEYS)
    if x_train.shape[1:] != x_test.shape[1:]:
        raise UserError(
            f"{where}: x_train has samples of shape {x_train.shape[1:]}, "
            f"x_test of {x_test.shape[1:]}"
        )
    for part, x, y in (("train", x_train, y_train), ("test", x_test, y_test)):
        if len(x) != len(y):
            raise UserError(
                f"{where}: {len(x)} samples in x_{part} but {len(y)} labels in y_{part}"
            )
    return Samples(
        where,
        x=np.concatenate([x_train, x_test]),
        y=np.concatenate([y_train, y_test]),
        test=np.repeat([False, True], [len(y_train), len(y_test)]),
    )


def join_clients(
    parts: Sequence[Samples],
    name: str,
    owners: Sequence[str],
    *,
    missing: str | None = None,
) -> Dataset:
    """One data set of all clients' samples; ``owners`` are the clients' names."""
    if not parts:
        raise UserError(f"{name}: there are no clients in it")
    owner = np.repeat(np.arange(len(parts)), [len(part.y) for part in parts])
    return join_samples(parts, name, owner, owners, missing=missing)


def join_samples(
    parts: Sequence[Samples],
    name: str,
    owner: Array | None,
    owners: Sequence[str],
    *,
    missing: str | None = None,
) -> Dataset:
    """One data set of all parts, with the owner of every sample if there are owners."""
    arrays, kind = _convert_alike(parts)
    allows_missing = missing is not None and kind == "table"
    for part, array in zip(parts, arrays, strict=True):
        check_finite(array, part.where, missing=allows_missing)
    x = to_tensor(np.concatenate(arrays))
    targets, labels = _join_targets(parts)
    owner_tensor = None if owner is None else to_tensor(owner.astype(np.int64))
    fit = None
    fills = None
    if allows_missing:
        fit = partial(fill_missing_values, x, owner_tensor, False)
        fills = partial(find_fills, x, owner_tensor, False)
    return Dataset(
        name=name,
        kind=kind,
        x=x,
        y=targets.y,
        classes=targets.classes,
        target=targets.kind,
        test=_join_test_marks(parts),
        owner=owner_tensor,
        labels=labels,
        owners=tuple(owners),
        fit=fit,
        find_fills=fills,
    )


def _convert_alike(parts: Sequence[Samples]) -> tuple[list[Array], Kind]:
    """The inputs of all parts, which must be of one kind and shape."""
    converted = [convert_input(part) for part in parts]
    first, kind = converted[0]
    for part, (array, own_kind) in zip(parts, converted, strict=True):
        if array.shape[1:] != first.shape[1:] or own_kind != kind:
            raise UserError(
                f"{part.where} has {own_kind} samples of shape {array.shape[1:]}, "
                f"{parts[0].where} {kind} samples of {first.shape[1:]}; all clients need the same"
            )
    return [array for array, _ in converted], kind


def _join_targets(parts: Sequence[Samples]) -> tuple[Targets, tuple[str, ...]]:
    """The targets of all parts, and the names of classes that have names."""
    targets = read_targets([(part.where, part.y) for part in parts])
    if targets is not None:
        return targets, ()
    y, classes, labels = number_labels([_with_whole_labels(p) for p in parts])
    return Targets(y, classes, "classes"), labels


def _with_whole_labels(part: Samples) -> Samples:
    """The same with labels as whole numbers, if they are whole numbers written as floats."""
    if part.y.dtype.kind != "f" or not np.array_equal(part.y, np.rint(part.y)):
        return part
    return part._replace(y=part.y.astype(np.int64))


def convert_input(part: Samples) -> tuple[Array, Kind]:
    """The inputs of one part as they are stored, and of which kind they are."""
    x = part.x
    if len(x.shape) < 2 or len(x) != len(part.y):
        raise UserError(
            f"{part.where}: x of shape {x.shape} does not fit {len(part.y)} labels"
        )
    if not len(x):
        raise UserError(
            f"{part.where} has no samples; remove this client or give it some"
        )
    if x.dtype.kind not in "biuf":
        raise UserError(
            f"{part.where}: x holds {x.dtype} values; only numbers can be learned from"
        )
    channels_last = x.ndim == 4 and x.shape[1] not in (1, 3) and x.shape[3] in (1, 3)
    if channels_last:
        x = x.transpose(0, 3, 1, 2)
    if x.ndim == 3 and x.dtype == np.uint8:
        x = x[:, None]
    if x.ndim not in KINDS:
        raise UserError(
            f"{part.where}: x has {x.ndim} dimensions; images have 4, signals 3 and tables 2"
        )
    if x.ndim == 4 and x.dtype == np.uint8:
        return x, "image"
    # what is too large for float32 becomes infinite and is refused later
    with np.errstate(over="ignore"):
        return x.astype(np.float32), KINDS[x.ndim]


def _join_test_marks(parts: Sequence[Samples]) -> Tensor | None:
    """Which samples are of the test part, if one of the parts says so."""
    if all(part.test is None for part in parts):
        return None
    marks = []
    for part in parts:
        no_test = np.zeros(len(part.y), np.bool_)
        marks.append(no_test if part.test is None else part.test)
    return to_tensor(np.concatenate(marks))


def number_labels(parts: Sequence[Samples]) -> tuple[Tensor, int, tuple[str, ...]]:
    """Labels 0..C-1 of all samples, C, and the names of the classes if they have names."""
    for part in parts:
        if part.y.ndim != 1 or part.y.dtype.kind not in "biuU":
            raise UserError(
                f"{part.where}: labels must be whole numbers or texts, "
                f"not {part.y.dtype} of shape {part.y.shape}"
            )
    names: tuple[str, ...] = ()
    if any(part.y.dtype.kind == "U" for part in parts):
        texts = [str(label) for part in parts for label in part.y]
        names = tuple(sorted(set(texts)))
        number = {label: i for i, label in enumerate(names)}
        y = np.array([number[text] for text in texts], np.int64)
    else:
        y = np.concatenate([part.y for part in parts]).astype(np.int64)
        _check_numbered_labels(parts, len(y))
    if len(np.unique(y)) < 2:
        raise UserError(
            f"{parts[0].where}: all samples have the same label; there must be two classes at least"
        )
    return to_tensor(y), int(y.max()) + 1, names


def _check_numbered_labels(parts: Sequence[Samples], samples: int) -> None:
    """Refuse labels below 0, and labels that are too high for so many samples."""
    for part in parts:
        y = part.y.astype(np.int64)
        bad = np.flatnonzero((y < 0) | (y >= samples))
        if len(bad):
            first = bad[0]
            raise UserError(
                f"{part.where}: sample {first} has label {part.y[first]}; "
                "labels are numbered 0..C-1"
            )


def list_notices(dataset: Dataset) -> list[str]:
    """What is sound but unusual in the data, one line each: clients with samples of one class."""
    if dataset.owner is None:
        return []
    notices = []
    for k in range(int(dataset.owner.max()) + 1):
        y = dataset.y[dataset.owner == k]
        is_class = dataset.target == "classes"
        if is_class and len(y) and bool((y == y[0]).all()):
            label = int(y[0])
            owner = dataset.owners[k] if dataset.owners else str(k)
            name = dataset.labels[label] if dataset.labels else str(label)
            notices.append(f"client '{owner}' has samples of one class only ('{name}')")
    return notices
