"""Arrays of a parser, checked and turned into a data set."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from data_helpers import refusal

from fedtailor.data import Entry
from fedtailor.data.raw import (
    Array,
    Raw,
    check_raw,
    join_official_parts,
    to_dataset,
    to_tensor,
)

ENTRY = Entry(
    name="ours",
    title="Ours",
    kind="table",
    shape=(2,),
    classes=3,
    samples=6,
    source="nobody",
    homepage="http://localhost",
    licence="none",
    labels=("a", "b", "c"),
    owners=("ann", "bob"),
)


def make_arrays(**change: Array) -> dict[str, Array]:
    arrays = {
        "x": np.ones((6, 2), np.float32),
        "y": np.arange(6) % 3,
        "owner": np.arange(6) % 2,
    }
    return arrays | change


def test_sound_arrays_pass_as_they_are() -> None:
    raw = Raw(make_arrays(row=np.array([0, 1, 2, 3, 4, 4])))
    assert check_raw(raw, ENTRY, "here") is raw


@pytest.mark.parametrize(
    "row",
    [
        np.array([0, 1, 2, 3, 4, 6]),
        np.array([-1, 1, 2, 3, 4, 5]),
        np.arange(5),
        np.arange(6.0),
    ],
)
def test_a_column_of_rows_that_names_no_row(row: Array) -> None:
    message = refusal(check_raw, Raw(make_arrays(row=row)), ENTRY, "here")
    assert (
        message
        == "here: row must name one of the 6 rows of x for each of the 6 samples"
    )


def test_more_clients_than_samples() -> None:
    raw = Raw(make_arrays(owner=np.array([0, 1, 2, 3, 4, 10**12])))
    assert "here: client 1000000000000 in 6 samples" in refusal(
        check_raw, raw, ENTRY, "here"
    )


def test_official_parts_are_joined_and_marked() -> None:
    train = np.zeros((3, 2)), np.array([0, 1, 2], np.uint8)
    test = np.ones((2, 2)), np.array([1, 1], np.uint8)
    arrays = join_official_parts(train, test)
    assert arrays["x"][:, 0].tolist() == [0, 0, 0, 1, 1]
    assert arrays["y"].tolist() == [0, 1, 2, 1, 1] and arrays["y"].dtype == np.int64
    assert arrays["test"].tolist() == [False] * 3 + [True] * 2


def test_a_data_set_of_arrays() -> None:
    x = np.zeros((4, 2), np.float32)
    y = np.array([0, 1, 2, 0])
    data = to_dataset(Raw(make_arrays() | {"far.x": x, "far.y": y}), ENTRY)
    assert (data.name, data.kind, data.classes, data.labels) == (
        "ours",
        "table",
        3,
        ENTRY.labels,
    )
    assert data.owners == ("ann", "bob") and data.test is None and data.row is None
    assert (
        data.external.keys() == {"far"}
        and data.external["far"][1].tolist() == y.tolist()
    )


def test_inputs_in_another_form_are_given_apart() -> None:
    x = torch.ones(6, 9)
    assert to_dataset(Raw(make_arrays()), ENTRY, x).x is x


def test_read_only_arrays_are_copied_and_others_not() -> None:
    array = np.arange(4)
    assert to_tensor(array).data_ptr() == array.ctypes.data
    array.flags.writeable = False
    assert to_tensor(array).data_ptr() != array.ctypes.data
