"""What a model takes: shape and type of an input, and how one is written in a file."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Federation, Kind, TableFill
from fedtailor.data.raw import Array

BYTES = "uint8"
NUMBERS = "biuf"  # NumPy's kinds of numbers that can be learned from


@dataclass(frozen=True)
class InputSpec:
    """What one client's model takes.

    Attributes:
        kind: image, signal, table or text.
        shape: of one input, as the network takes it.
        dtype: of a stored input: ``uint8`` (scaled by the model), ``float32`` or ``int64``.
        vocabulary: number of words, for texts.
        columns: names of a table's columns in a file, gaps allowed where ``fill`` is.
        fill: what this client's gaps are filled with.
        words: the words of texts, in the order of their numbers.
    """

    kind: Kind
    shape: tuple[int, ...]
    dtype: str
    vocabulary: int = 0
    columns: tuple[str, ...] = ()
    fill: TableFill | None = None
    words: tuple[str, ...] = ()

    def check(self, x: Any) -> Tensor:
        """One input or a batch, as a batch of the model's type.

        Bytes are scaled by the model; other numbers are taken as they are.
        """
        array = _read_numbers(x)
        if array.shape == self.shape:
            array = array[None]
        if array.shape[1:] != self.shape or not array.ndim:
            raise UserError(
                f"the model takes inputs of shape {self.shape}, not {array.shape[1:]}"
            )
        if self.vocabulary:
            return self._check_words(array)
        if self.dtype == BYTES:
            return self._check_bytes(array)
        if array.dtype == np.uint8:
            raise UserError(
                "the model was trained on numbers, and the input holds bytes (uint8):"
                " bring it to numbers as the training data were"
            )
        return _to_finite(array)

    def _check_bytes(self, array: Array) -> Tensor:
        if array.dtype == np.uint8:
            return torch.from_numpy(np.array(array))
        if array.dtype.kind == "f":
            return _to_finite(array)
        raise UserError(
            f"the model was trained on bytes, and the input holds {array.dtype}:"
            " give uint8, or floats scaled to -1 to 1"
        )

    def _check_words(self, array: Array) -> Tensor:
        are_words = array.dtype.kind in "iu"
        if are_words and array.size:
            are_words = bool(array.min() >= 0 and array.max() < self.vocabulary)
        if not are_words:
            raise UserError(
                "the model takes words by number,"
                f" whole numbers from 0 to {self.vocabulary - 1}"
            )
        return torch.from_numpy(array.astype(np.int64))

    def to_dict(self) -> dict[str, Any]:
        """As JSON has it."""
        return {
            "kind": self.kind,
            "shape": list(self.shape),
            "dtype": self.dtype,
            "vocabulary": self.vocabulary,
            "columns": list(self.columns),
            "fill": None if self.fill is None else self.fill.to_dict(),
            "words": list(self.words),
        }


def parse_input_spec(values: Mapping[str, Any]) -> InputSpec:
    """What ``to_dict`` wrote."""
    fill = values["fill"]
    return InputSpec(
        kind=cast(Kind, values["kind"]),
        shape=tuple(values["shape"]),
        dtype=values["dtype"],
        vocabulary=int(values["vocabulary"]),
        columns=tuple(values["columns"]),
        fill=None if fill is None else TableFill.from_dict(fill),
        words=tuple(values["words"]),
    )


def make_input_spec(federation: Federation, k: int | None) -> InputSpec:
    """What the model of client k takes, or the global model (None)."""
    fills = federation.fills
    fill = fills[k] if k is not None and k < len(fills) else None
    return InputSpec(
        kind=federation.kind,
        shape=federation.shape,
        dtype=str(federation.x.dtype).removeprefix("torch."),
        vocabulary=federation.vocabulary,
        columns=federation.columns,
        fill=fill,
        words=federation.words,
    )


def _read_numbers(x: Any) -> Array:
    """The input as an array of numbers that this machine computes with."""
    if isinstance(x, Tensor):
        x = x.detach().cpu()
        array = x.float().numpy() if x.dtype == torch.bfloat16 else x.numpy()
    else:
        try:
            array = np.asarray(x)
        except ValueError:  # rows of unequal length
            raise UserError("the inputs differ in shape") from None
    if array.dtype.kind not in NUMBERS:
        what = "objects" if array.dtype.kind == "O" else str(array.dtype)
        raise UserError(f"the input holds {what}; the model takes numbers only")
    native: Array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return native


def _to_finite(array: Array) -> Tensor:
    """Numbers in single precision, doubles as they are; refuses NaN and infinity."""
    precise = array.dtype == np.float64 or array.dtype == np.longdouble
    with np.errstate(over="ignore"):
        found = array.astype(np.float64 if precise else np.float32)
    if not np.isfinite(found).all():
        raise UserError("the input holds NaN or infinity")
    return torch.from_numpy(found)
