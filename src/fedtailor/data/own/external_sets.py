"""A user's external sets: samples that no client owns, for all models to be tried on at the end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Dataset, Federation
from fedtailor.data.own.arrays import Samples, convert_input
from fedtailor.data.own.objects import to_array
from fedtailor.data.raw import Array, check_finite, check_labels, to_tensor
from fedtailor.data.targets import read_targets

Pair = tuple[Any, Any]  # x and y, NumPy or PyTorch
D = TypeVar("D", Dataset, Federation)


def find_pairs(arrays: Mapping[str, Array], where: str) -> dict[str, Pair]:
    """The external sets in a file of arrays: ``<name>.x`` and ``<name>.y``."""
    pairs: dict[str, Pair] = {}
    for key in arrays:
        name, dot, field = key.rpartition(".")
        if not dot or field not in ("x", "y"):
            continue
        other = f"{name}.y" if field == "x" else f"{name}.x"
        if other not in arrays:
            raise UserError(
                f"{where}: the external set '{name}' has '{key}' and no '{other}'"
            )
        pairs[name] = (arrays[f"{name}.x"], arrays[f"{name}.y"])
    return pairs


def add_external(data: D, pairs: Mapping[str, Pair]) -> D:
    """The same data with further external sets; they must look like the data themselves."""
    if not pairs:
        return data
    if data.kind == "text" or (isinstance(data, Dataset) and data.fit is not None):
        raise UserError(
            f"data set '{data.name}' learns words or medians from its training samples,"
            " so an external set cannot be added to it"
        )
    added = {}
    for name, pair in pairs.items():
        where = f"external set '{name}'"
        try:
            x, y = pair
        except (TypeError, ValueError):
            raise UserError(f"{where} is no pair (x, y)") from None
        samples = Samples(where, to_array(x), to_array(y))
        added[name] = (_read_inputs(samples, data), _read_labels(samples, data))
    return replace(data, external={**data.external, **added})


def _read_inputs(samples: Samples, data: Dataset | Federation) -> Tensor:
    """The inputs, if they have the shape and the kind of the data's own."""
    array, kind = convert_input(samples)
    shape = tuple(data.x.shape[1:])
    x = to_tensor(array)
    if kind != data.kind or array.shape[1:] != shape or x.dtype != data.x.dtype:
        raise UserError(
            f"{samples.where} has {kind} samples of shape {array.shape[1:]} ({array.dtype}),"
            f" the clients {data.kind} samples of {shape}"
            f" ({str(data.x.dtype).removeprefix('torch.')}); all need the same"
        )
    check_finite(array, samples.where)
    return x


def _read_labels(samples: Samples, data: Dataset | Federation) -> Tensor:
    """The labels' numbers, which may be written as the names of the classes."""
    y = samples.y
    if data.target != "classes":
        return _read_numbers(samples, data)
    if y.dtype.kind == "U":
        y = _number_names(y, data.labels, samples.where)
    if y.dtype.kind == "f" and (y == np.rint(y)).all():
        y = y.astype(np.int64)
    check_labels(y, data.classes, samples.where)
    return to_tensor(y.astype(np.int64))


def _read_numbers(samples: Samples, data: Dataset | Federation) -> Tensor:
    """Targets that are no classes, if they are such as the data's own."""
    targets = read_targets([(samples.where, samples.y)])
    if targets is None and samples.y.ndim == 1 and samples.y.dtype.kind in "iuf":
        return to_tensor(samples.y.astype(np.float32))
    if targets is None or targets.kind != data.target:
        raise UserError(f"{samples.where}: its targets are not like the clients'")
    return targets.y


def _number_names(y: Array, labels: Iterable[str], where: str) -> Array:
    number = {name: i for i, name in enumerate(labels)}
    for name in y.reshape(-1):
        if str(name) not in number:
            raise UserError(f"{where}: no client has the class '{name}'")
    return np.array([number[str(name)] for name in y.reshape(-1)], np.int64)
