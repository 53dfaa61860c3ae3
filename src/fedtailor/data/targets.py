"""What targets are: classes, numbers, labels that are there or not, times and events.

Readers call ``read_targets``; ``settle_targets`` then brings them into the form that a task needs,
or says why they have another.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedtailor.core.errors import UserError, unknown
from fedtailor.data.federation import Dataset, TargetKind

Array = NDArray[Any]

# more different whole numbers than this are told, because they may be quantities
MANY_CLASSES = 20
KIND_OF = {  # task -> what its targets are
    "classification": "classes",
    "binary": "classes",
    "ordinal": "classes",
    "regression": "number",
    "multilabel": "labels",
    "survival": "survival",
}
TASK_OF = {  # targets -> the task where none is named
    "classes": "classification",
    "number": "regression",
    "labels": "multilabel",
    "survival": "survival",
}


class Targets(NamedTuple):
    """Targets of all samples, of which kind they are, and how many columns or 1."""

    y: Tensor
    classes: int
    kind: TargetKind


# ---------------------------------------------------------------- reading
def read_targets(parts: list[tuple[str, Array]]) -> Targets | None:
    """Targets that are no classes; None where they are (or may be).

    Args:
        parts: where an array comes from, and the array.
    """
    wide = [y for _, y in parts if y.ndim == 2 and y.shape[1] > 1]
    if wide:
        return _read_columns(parts)
    numbers = [(where, _flatten(y)) for where, y in parts]
    if any(y.ndim != 1 or y.dtype.kind not in "iuf" for _, y in numbers):
        return None
    joined = np.concatenate([y for _, y in numbers])
    if not are_quantities(joined):
        return None
    for where, y in numbers:
        _check_numbers(y, where)
    return Targets(_to_floats(joined), 1, "number")


def _flatten(y: Array) -> Array:
    """A single column as a vector."""
    return y[:, 0] if y.ndim == 2 and y.shape[1] == 1 else y


def are_quantities(y: Array) -> bool:
    """Whether numbers cannot be those of classes.

    They are no whole numbers, or many of them that are not numbered from 0 without gaps.
    """
    known = y[np.isfinite(y)]
    if len(known) < len(y) or not np.array_equal(known, np.rint(known)):
        return True
    kinds = np.unique(known)
    if len(kinds) <= MANY_CLASSES:
        return False
    is_out_of_range = kinds[0] < 0 or kinds[-1] >= len(y)
    has_gaps = y.dtype.kind == "f" and kinds[-1] >= len(kinds)
    return bool(is_out_of_range or has_gaps)


def _check_numbers(y: Array, where: str) -> None:
    bad = np.flatnonzero(~np.isfinite(y.astype(np.float64)))
    if len(bad):
        raise UserError(
            f"{where}: the target of sample {bad[0]} is {y[bad[0]]}; mend or remove it"
        )


def _read_columns(parts: list[tuple[str, Array]]) -> Targets:
    """Several columns: labels that are there or not, or a time and an event."""
    width = parts[0][1].shape[-1]
    for where, y in parts:
        if y.ndim != 2 or y.shape[1] != width or y.dtype.kind not in "biuf":
            raise UserError(
                f"{where}: its targets are {y.dtype} of shape {y.shape}; all need"
                f" {width} columns of numbers"
            )
        _check_numbers(y, where)
    joined = np.concatenate([y for _, y in parts]).astype(np.float64)
    marks = [bool(np.isin(column, (0, 1)).all()) for column in joined.T]
    if all(marks):
        return Targets(_to_floats(joined), width, "labels")
    if width == 2 and marks[1] and (joined[:, 0] >= 0).all():
        return Targets(_to_floats(joined), 1, "survival")
    raise UserError(
        f"{parts[0][0]}: targets of {width} columns are labels of 0 and 1, or a time (0 or"
        " more) and an event (0 or 1); these are neither"
    )


def _to_floats(y: Array) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(y, np.float32))


# ---------------------------------------------------------------- for a task
def settle_targets(data: Dataset, task: str | None) -> tuple[Dataset, list[str]]:
    """The data set with targets for the task, and what the user should know of them.

    Args:
        data: as it was read.
        task: what is to be learned, or None where the targets say so.
    """
    if task is None:
        return data, tell_targets(data)
    if task not in KIND_OF:
        raise unknown("task", task, KIND_OF)
    wanted = KIND_OF[task]
    if wanted == data.target:
        return data, []
    change = CHANGES.get((data.target, wanted))
    if change is None:
        raise UserError(
            f"task={task}: the targets of {data.name} are {DESCRIBED[data.target]};"
            f" take {TASK_OF[data.target]}"
        )
    return change(data), []


def tell_targets(data: Dataset) -> list[str]:
    """What was inferred, where it is not plain classification."""
    if data.target != "classes":
        task = TASK_OF[data.target]
        return [f"task: {task}, because the targets are {DESCRIBED[data.target]}"]
    is_own_and_numbered = data.owner is not None and not data.labels
    if is_own_and_numbered and data.classes > MANY_CLASSES:
        return [
            f"task: classification, as the targets are whole numbers: {data.classes}"
            " classes; if they are quantities, give --task regression, if they are"
            " ratings, --task ordinal"
        ]
    return []


def _as_numbers(data: Dataset) -> Dataset:
    """Classes that are numbers, as quantities."""
    if data.labels:
        try:
            values = [float(name) for name in data.labels]
        except ValueError:
            raise UserError(
                f"task=regression: the classes of {data.name} have names"
                f" ('{data.labels[0]}'); a target must be a number"
            ) from None
        return _with_numbers(data, torch.tensor(values)[data.y])
    return _with_numbers(data, data.y.float())


def _with_numbers(data: Dataset, y: Tensor) -> Dataset:
    external = {
        name: (x, labels.float()) for name, (x, labels) in data.external.items()
    }
    return replace(data, y=y, classes=1, labels=(), external=external, target="number")


def _as_classes(data: Dataset) -> Dataset:
    """Whole numbers from 0 that were taken for quantities, as classes."""
    is_whole = bool((data.y == data.y.round()).all()) and bool((data.y >= 0).all())
    if not is_whole or bool((data.y >= len(data.y)).any()):
        raise UserError(
            f"the targets of {data.name} are not classes, which are whole numbers 0..C-1;"
            " take --task regression"
        )
    y = data.y.long()
    return replace(data, y=y, classes=int(y.max()) + 1, target="classes")


DESCRIBED = {
    "classes": "classes",
    "number": "numbers that cannot be classes",
    "labels": "several columns of 0 and 1",
    "survival": "times with events",
}
CHANGES: dict[tuple[str, str], Callable[[Dataset], Dataset]] = {
    ("classes", "number"): _as_numbers,
    ("number", "classes"): _as_classes,
}


# ---------------------------------------------------------------- for partitions and splits
def find_strata(data: Dataset, bins: int = 10) -> Array:
    """For every sample a whole number that is alike where targets are alike.

    Classes are their own; numbers fall into ``bins`` quantiles, times into those of each kind of
    end, and rows of labels are numbered.
    """
    y = data.y.numpy()
    if data.target == "classes":
        return y
    if data.target == "number":
        return _find_quantiles(y, bins)
    if data.target == "labels":
        _, rows = np.unique(y, axis=0, return_inverse=True)
        return rows.reshape(-1).astype(np.int64)
    halves = _find_quantiles(y[:, 0], bins // 2)
    return halves * 2 + y[:, 1].astype(np.int64)


def _find_quantiles(values: Array, bins: int) -> Array:
    """By value, the number of its quantile; equal values are in one."""
    edges = np.quantile(values, np.arange(1, bins) / bins)
    places = np.searchsorted(np.unique(edges), values, side="right")
    return places.astype(np.int64)
