"""Missing values, filled in from training samples of the same client."""

from __future__ import annotations

import torch

from fedtailor.data.own.missing_values import fill_missing_values

nan = float("nan")


def test_a_gap_becomes_the_training_median_of_the_same_owner() -> None:
    x = torch.tensor([[1.0], [3.0], [100.0], [nan], [10.0], [20.0], [nan], [nan]])
    owner = torch.tensor([0, 0, 0, 0, 1, 1, 1, 1])
    out = fill_missing_values(x, owner, False, torch.tensor([0, 1, 3, 4, 5, 6]))
    assert out[:, 0].tolist() == [1, 3, 100, 2, 10, 20, 15, 15]
    assert out[:, 1].tolist() == [0, 0, 0, 1, 0, 0, 1, 1]


def test_without_any_value_a_gap_becomes_zero() -> None:
    x = torch.tensor([[nan, 1.0], [nan, 2.0], [7.0, 3.0]])
    out = fill_missing_values(x, None, False, torch.tensor([0, 1]))
    assert out[:, 0].tolist() == [0, 0, 7]


def test_standardising_uses_training_samples_of_the_same_owner() -> None:
    x = torch.tensor([[1.0], [3.0], [50.0], [5.0], [5.0]])
    owner = torch.tensor([0, 0, 0, 1, 1])
    out = fill_missing_values(x, owner, True, torch.tensor([0, 1, 3, 4]))
    assert out[:, 0].tolist() == [-1, 1, 48, 0, 0]
