"""Own data with code: arrays client by client."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import refusal

from fedtailor.data import build_dataset, list_notices


def complaint(clients: Any, **how: Any) -> str:
    return refusal(build_dataset, clients, **how)


def test_pairs_of_numpy_arrays() -> None:
    rng = np.random.default_rng(0)
    clients = [(rng.normal(size=(n, 5)), rng.integers(0, 3, n)) for n in (4, 7, 2)]
    d = build_dataset(clients)
    assert d.x.shape == (13, 5) and d.x.dtype == torch.float32 and d.owner is not None
    assert d.owner.tolist() == [0] * 4 + [1] * 7 + [2] * 2 and d.test is None
    for k, (x, y) in enumerate(clients):
        assert (
            np.allclose(d.x[d.owner == k].numpy(), x)
            and d.y[d.owner == k].tolist() == y.tolist()
        )


def test_pairs_of_tensors() -> None:
    images = torch.randint(0, 256, (6, 3, 4, 4), dtype=torch.uint8)
    d = build_dataset(
        [(images[:2], torch.tensor([0, 1])), (images[2:], torch.tensor([0, 1, 1, 0]))],
        names=["ann", "bob"],
    )
    assert (
        torch.equal(d.x, images)
        and d.kind == "image"
        and d.owners == ("ann", "bob")
        and d.classes == 2
    )


def test_gradients_are_left_behind() -> None:
    d = build_dataset([(torch.ones(2, 3, requires_grad=True), torch.tensor([0, 1]))])
    assert not d.x.requires_grad


def test_dicts_with_a_test_part() -> None:
    def part(n: int, m: int) -> dict[str, Any]:
        return {
            "x_train": np.ones((n, 2)),
            "y_train": np.arange(n) % 2,
            "x_test": np.zeros((m, 2)),
            "y_test": np.zeros(m, int),
        }

    d = build_dataset([part(3, 1), part(2, 2)])
    assert (
        d.test is not None
        and d.test.tolist() == [False] * 3 + [True] + [False] * 2 + [True] * 2
    )
    assert (
        d.x[d.test].sum() == 0
        and d.owner is not None
        and d.owner.tolist() == [0] * 4 + [1] * 4
    )


def test_clients_with_one_class_are_noticed_not_refused() -> None:
    d = build_dataset(
        [
            (np.ones((2, 2)), np.array(["cat", "cat"])),
            (np.ones((2, 2)), np.array(["cat", "dog"])),
        ],
        names=["a", "b"],
    )
    assert list_notices(d) == ["client 'a' has samples of one class only ('cat')"]


def test_nothing_is_noticed_without_owners() -> None:
    from fedtailor.data import load_dataset

    assert list_notices(load_dataset("digits")) == []


def test_gaps() -> None:
    x = np.array([[1.0], [np.nan]])
    assert "client '0': sample 1, place 0 is NaN" in complaint([(x, np.array([0, 1]))])
    d = build_dataset([(x, np.array([0, 1]))], missing="median")
    assert d.fit is not None and d.fit(torch.tensor([0, 1])).tolist() == [
        [1, 0],
        [1, 1],
    ]


@pytest.mark.parametrize(
    ("clients", "expected"),
    [
        ([], "there are no clients"),
        ([np.ones((2, 2))[0]], "client '0': x and y are single values"),
        ([3], "client '0' is neither a pair (x, y) nor a dict"),
        (
            [{"x_train": np.ones((2, 2)), "y_train": np.ones(2, int)}],
            "client '0' has no 'x_test'",
        ),
        (
            [(np.ones((2, 2)), np.array([0, 1])), (np.ones((0, 2)), np.zeros(0, int))],
            "client '1' has no samples",
        ),
        (
            [(np.ones((2, 2)), np.array([0, 1])), (np.ones((2, 3)), np.array([0, 1]))],
            "client '1' has table samples of shape",
        ),
        (
            [(np.ones((2, 2)), np.array([0, 1, 1]))],
            "client '0': x of shape (2, 2) does not fit 3 labels",
        ),
        ([(np.ones((2, 2)), np.array([1, 1]))], "all samples have the same label"),
        (
            [(np.array([[None], [1]], object), np.array([0, 1]))],
            "x holds object values",
        ),
        (
            [
                {
                    "x_train": np.ones((2, 2)),
                    "y_train": [0, 1],
                    "x_test": np.ones((1, 3)),
                    "y_test": [0],
                }
            ],
            "x_train has samples of shape (2,), x_test of (3,)",
        ),
        (
            [
                {
                    "x_train": np.ones((2, 2)),
                    "y_train": [0, 1],
                    "x_test": np.ones((2, 2)),
                    "y_test": [0],
                }
            ],
            "2 samples in x_test but 1 labels in y_test",
        ),
    ],
)
def test_unsound_clients(clients: Any, expected: str) -> None:
    assert expected in complaint(clients)


def test_names_must_fit() -> None:
    assert "1 names for 2 clients" in complaint(
        [(np.ones((1, 1)), np.ones(1))] * 2, names=["a"]
    )
