"""What may be asked over HTTP, and how a request's inputs become a model's."""

from __future__ import annotations

from typing import Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data.input_spec import BYTES, InputSpec
from fedtailor.serving.inputs import encode_texts, fill_gaps, find_columns, read_cell

MOST_INPUTS = 10_000  # of one request


class Question(BaseModel):
    """Inputs for one client's model, in one of three forms."""

    model_config = ConfigDict(extra="forbid")

    client: str | int | None = Field(
        None, description="name or number; may be left out where there is one model"
    )
    inputs: list[Any] | None = Field(
        None,
        description="a list of inputs, as nested lists of numbers; null is a gap",
        max_length=MOST_INPUTS,
    )
    records: list[dict[str, Any]] | None = Field(
        None,
        description="rows of a table by the names of its columns; null is a gap",
        max_length=MOST_INPUTS,
    )
    texts: list[str] | None = Field(None, max_length=MOST_INPUTS)

    def read(self, spec: InputSpec) -> Tensor:
        """The inputs as the model takes them."""
        given = [self.inputs, self.records, self.texts]
        if sum(form is not None for form in given) != 1:
            raise UserError("give one of inputs, records and texts")
        if not any(given):
            raise UserError("there are no inputs")
        if self.texts is not None:
            return encode_texts(self.texts, spec)
        if self.records is not None:
            return _read_records(self.records, spec)
        return _read_lists(self.inputs or [], spec)


class Prediction(BaseModel):
    """A label for every input."""

    client: str
    predictions: list[str]


class Probabilities(BaseModel):
    """The probability of every class, for every input."""

    client: str
    labels: list[str]
    probabilities: list[list[float]]


class ModelCard(BaseModel):
    """What one client's model takes and gives."""

    client: str
    kind: str
    shape: list[int]
    dtype: str
    columns: list[str]
    labels: list[str]


class Health(BaseModel):
    """Whether the server answers."""

    status: str
    models: int


class Problem(BaseModel):
    """Why a request was refused, in one line."""

    error: str


def _read_records(records: list[dict[str, Any]], spec: InputSpec) -> Tensor:
    if spec.kind != "table" or not spec.columns:
        raise UserError("the model knows no names of columns: give inputs")
    rows = []
    for i, record in enumerate(records):
        indices = find_columns(list(record), spec, f"record {i}")
        cells = list(record.items())
        row = []
        for index in indices:
            name, value = cells[index]
            cell = "" if value is None else str(value)
            row.append(read_cell(cell, f"record {i}, column '{name}'", spec))
        rows.append(row)
    return spec.check(fill_gaps(np.array(rows, np.float32), spec))


def _read_lists(inputs: list[Any], spec: InputSpec) -> Tensor:
    """Numbers of JSON as the model's type: bytes where it was trained on bytes."""
    try:
        array = np.array(inputs)
        if array.dtype == object:  # null, or rows of unequal length
            array = np.array(inputs, np.float32)
    except (ValueError, TypeError, OverflowError):
        raise UserError(
            "inputs are nested lists of numbers, all of one shape"
        ) from None
    if array.dtype.kind not in "biuf":
        raise UserError("inputs are nested lists of numbers")
    if spec.dtype == BYTES and array.dtype.kind in "iu":
        if array.min() < 0 or array.max() > 255:
            raise UserError("the model takes bytes, whole numbers from 0 to 255")
        array = array.astype(np.uint8)
    return spec.check(fill_gaps(array, spec))
