"""The discrepancy of two batches against the textbook's double loop, and its laws."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from fedtailor.core.rng import Rng
from fedtailor.maths.mmd import BANDWIDTHS, mmd


def draw(seed: int, *shape: int) -> Tensor:
    return Rng.seed(seed).normal(*shape).double()


def by_hand(a: Tensor, b: Tensor) -> float:
    """E k(a, a') + E k(b, b') - 2 E k(a, b), one pair after another."""

    def mean(p: np.ndarray, q: np.ndarray) -> float:
        pairs = [
            math.fsum(
                math.exp(-float(((u - w) ** 2).sum()) / (2 * s)) for s in BANDWIDTHS
            )
            for u in p
            for w in q
        ]
        return math.fsum(pairs) / len(pairs)

    x, y = a.numpy(), b.numpy()
    return mean(x, x) + mean(y, y) - 2 * mean(x, y)


@pytest.mark.parametrize(
    ("n", "m", "k"), [(10, 10, 16), (7, 3, 5), (1, 1, 4), (1, 6, 512)]
)
def test_is_the_mean_over_pairs(n: int, m: int, k: int) -> None:
    a, b = draw(1, n, k), 2 * draw(2, m, k) + 0.5
    assert float(mmd(a, b)) == pytest.approx(by_hand(a, b), abs=1e-12)


def test_of_two_points_has_a_closed_form() -> None:
    a, b = (
        torch.zeros(1, 3, dtype=torch.float64),
        torch.tensor([[3.0, 0.0, 4.0]], dtype=torch.float64),
    )
    # the sum is not divided by four
    wanted = 2 * sum(1 - math.exp(-25 / (2 * s)) for s in (10, 15, 20, 50))
    assert float(mmd(a, b)) == pytest.approx(wanted, abs=1e-14)


def test_vanishes_with_its_gradient_where_both_are_the_same() -> None:
    a = draw(3, 10, 16)
    assert abs(float(mmd(a, a.clone()))) < 1e-14
    assert grad(mmd)(a, a.clone()).abs().max() < 1e-15
    assert grad(mmd)(a, a + 1).abs().max() > 1e-3


def test_is_symmetric_and_blind_to_the_order_of_rows() -> None:
    a, b = draw(4, 8, 6), draw(5, 8, 6) + 1
    torch.testing.assert_close(mmd(a, b), mmd(b, a), rtol=0, atol=1e-14)
    torch.testing.assert_close(mmd(a, b), mmd(a.flip(0), b), rtol=0, atol=1e-14)


def test_grows_with_the_gap_and_is_never_negative() -> None:
    a = draw(6, 10, 8)
    values = [float(mmd(a, a + gap)) for gap in (0.1, 0.5, 1.0, 2.0, 100.0)]
    assert values == sorted(values)
    assert values[0] > 0
    assert values[-1] < 8  # four kernels within, twice, and none between


def test_gradient_is_the_slope() -> None:
    a, b = draw(7, 4, 3), draw(8, 4, 3) + 1
    assert torch.autograd.gradcheck(mmd, (a.requires_grad_(), b.requires_grad_()))


def test_many_clients_at_once() -> None:
    a, b = draw(9, 3, 10, 16), draw(10, 3, 10, 16) + 1
    together, slopes = vmap(mmd)(a, b), vmap(grad(mmd))(a, b)
    for k in range(3):
        torch.testing.assert_close(together[k], mmd(a[k], b[k]), rtol=0, atol=1e-13)
        torch.testing.assert_close(slopes[k], grad(mmd)(a[k], b[k]), rtol=0, atol=1e-13)
