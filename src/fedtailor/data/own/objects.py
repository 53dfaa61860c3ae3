"""Data as people hold them in Python: tables of pandas or polars, torch data sets, named clients.

Everything is recognised by what it can do, so that none of those packages is imported.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data.raw import Array

# what has items and is read as a whole
ARRAYS = (tuple, list, Mapping, np.ndarray, Tensor)


class NamedClients(NamedTuple):
    """Clients and what they are called."""

    clients: list[Any]
    names: list[str] | None


def find_clients(data: Any) -> NamedClients:
    """The clients of what a user gives: one item each, or ``{name: item}``."""
    if isinstance(data, Mapping):
        return NamedClients(list(data.values()), [str(name) for name in data])
    return NamedClients(list(data), None)


def is_one_pair(data: Any) -> bool:
    """Whether it is one ``(x, y)`` that no client owns yet, rather than two clients."""
    if not isinstance(data, tuple) or len(data) != 2:
        return False
    return not any(isinstance(part, tuple | list | Mapping) for part in data)


def is_item_by_item(client: Any) -> bool:
    """Whether it gives one sample after another, as a torch Dataset does."""
    has_items = hasattr(client, "__getitem__") and hasattr(client, "__len__")
    return has_items and not isinstance(client, ARRAYS) and not _is_frame(client)


def read_items(client: Any, where: str) -> tuple[Array, Array]:
    """All samples of a torch Dataset, whose items are pairs ``(x, y)``."""
    inputs = []
    labels = []
    for i in range(len(client)):
        try:
            x, y = client[i]
        except (TypeError, ValueError, KeyError):
            raise UserError(f"{where}: item {i} is no pair (x, y)") from None
        inputs.append(to_array(x))
        labels.append(to_array(y))
    if len({x.shape for x in inputs}) > 1:
        raise UserError(f"{where}: its items differ in shape")
    return np.stack(inputs), np.stack(labels)


def to_array(values: Any) -> Array:
    """A user's values, from NumPy, PyTorch, pandas, polars or lists."""
    if isinstance(values, Tensor):
        return values.detach().cpu().numpy()
    if _is_frame(values):
        return _read_frame(values)
    array = np.asarray(values)
    is_text = array.dtype == object and all(isinstance(v, str) for v in array.flat)
    return array.astype(np.str_) if is_text else array


def _is_frame(values: Any) -> bool:
    """Whether it is a table with named columns."""
    return hasattr(values, "columns") and hasattr(values, "to_numpy")


def _read_frame(frame: Any) -> Array:
    """The columns of a table side by side, as numbers; empty cells are NaN."""
    columns = []
    for name in frame.columns:
        try:
            columns.append(np.asarray(frame[name].to_numpy(), np.float64))
        except (TypeError, ValueError):
            raise UserError(
                f"column '{name}' holds what is no number: leave it out, or encode it"
                " as numbers"
            ) from None
    return np.stack(columns, 1)
