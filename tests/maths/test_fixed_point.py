"""Fixed point: sums are exact in any order, never overflow, and nothing is cut silently."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.maths.fixed_point import (
    LARGEST_SUM,
    FixedPoint,
    OutOfRange,
    from_remainders,
    to_remainders,
)


@pytest.mark.parametrize("clients", [1, 2, 20, 1000])
@pytest.mark.parametrize("heaviest", [1, 90, 5000])
def test_sums_of_the_largest_values_do_not_overflow(
    clients: int, heaviest: int
) -> None:
    """All clients at the limit, with the largest weight."""
    form = FixedPoint(clients, limit=8.0, heaviest=heaviest)
    extreme = form.quantise(torch.tensor([8.0, -8.0]), heaviest)
    total = form.add([extreme] * clients)
    assert int(total.abs().max()) <= LARGEST_SUM
    assert form.restore_mean(total, clients * heaviest).tolist() == [8.0, -8.0]


def test_the_room_is_used() -> None:
    """Twice the scale would not fit."""
    form = FixedPoint(20, limit=8.0, heaviest=90)
    assert 2 * form.scale * 8.0 * 90 * 20 > LARGEST_SUM
    assert form.scale & (form.scale - 1) == 0
    assert form.step * form.scale == 1.0


def test_integers_are_rounded_exactly_with_ties_to_even() -> None:
    """Against fractions, which know no rounding of their own."""
    form = FixedPoint(20, heaviest=90)
    values = torch.randn(500, generator=torch.Generator().manual_seed(3))
    found = form.quantise(values, 77).tolist()
    exact = [round(Fraction(x) * 77 * form.scale) for x in values.tolist()]
    assert found == exact
    assert form.quantise(torch.tensor([0.5, 1.5, -2.5]) / form.scale).tolist() == [
        0,
        2,
        -2,
    ]


def test_a_mean_is_near_the_real_one_and_the_same_in_any_order() -> None:
    """The error of a mean is at most half a step per unit of weight."""
    generator = torch.Generator().manual_seed(0)
    weights = [3, 50, 90]
    values = [torch.randn(1000, generator=generator) for _ in weights]
    form = FixedPoint(3, heaviest=90)
    sent = [form.quantise(x, w) for x, w in zip(values, weights, strict=True)]
    total = form.add(sent)
    assert torch.equal(total, form.add(sent[::-1]))
    exact = sum(w * x.double() for x, w in zip(values, weights, strict=True)) / 143
    error = form.restore_mean(total, 143) - exact
    assert float(error.abs().max()) <= 3 * 0.5 * form.step / 143
    assert form.restore_sum(total)[0] == total[0].item() / form.scale


@pytest.mark.parametrize("value", [8.001, -9.0, float("nan"), float("inf")])
def test_values_outside_are_refused(value: float) -> None:
    """A cut or wrapped value would be a silently wrong sum."""
    with pytest.raises(OutOfRange, match="beyond the range of 8"):
        FixedPoint(3).quantise(torch.tensor([0.0, value]))


def test_weights_and_counts_outside_are_refused() -> None:
    """They would overflow as well."""
    form = FixedPoint(2, heaviest=10)
    for weight in (11, -1, 1.5):
        with pytest.raises(OutOfRange, match="whole number from 0 to 10"):
            form.quantise(torch.zeros(1), weight)  # type: ignore[arg-type]
    with pytest.raises(OutOfRange, match="more than the 2"):
        form.add([torch.zeros(1, dtype=torch.int64)] * 3)
    with pytest.raises(UserError, match="take a smaller range"):
        FixedPoint(1000, limit=1e6, heaviest=100)
    with pytest.raises(UserError, match="nothing can be added up"):
        FixedPoint(0)


@pytest.mark.parametrize("modulus", [2**34, 17179672577, 2**40])
def test_remainders_lead_back_to_sums(modulus: int) -> None:
    """Whatever modulus the sums are computed with."""
    sums = torch.tensor([0, 1, -1, LARGEST_SUM, -LARGEST_SUM, 12345, -54321])
    remainders = to_remainders(sums, modulus)
    assert int(remainders.min()) >= 0
    assert int(remainders.max()) < modulus
    assert torch.equal(from_remainders(remainders, modulus), sums)


def test_empty_tensors_have_sums() -> None:
    """A layer without parameters is no special case."""
    form = FixedPoint(2)
    assert form.add([form.quantise(torch.zeros(0))] * 2).shape == (0,)
