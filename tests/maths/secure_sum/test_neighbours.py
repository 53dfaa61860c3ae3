"""Who masks with whom."""

from __future__ import annotations

from itertools import pairwise

import pytest
from scipy.stats import hypergeom

from fedtailor.core.rng import Rng
from fedtailor.maths.secure_sum.neighbours import choose_degree, connect, count_needed


@pytest.mark.parametrize(("clients", "degree"), [(12, 4), (50, 10), (9, 8), (2, 1)])
def test_all_have_as_many_neighbours_and_these_have_them(
    clients: int, degree: int
) -> None:
    neighbours = connect(list(range(clients)), degree, Rng.seed(4))
    for k, near in neighbours.items():
        assert len(near) == degree
        assert k not in near
        assert all(k in neighbours[j] for j in near)


def test_the_arrangement_is_random_and_repeatable() -> None:
    clients = list(range(30))
    assert connect(clients, 4, Rng.seed(1)) == connect(clients, 4, Rng.seed(1))
    assert connect(clients, 4, Rng.seed(1)) != connect(clients, 4, Rng.seed(2))


def test_small_cohorts_are_complete_and_large_ones_are_not() -> None:
    assert choose_degree(20, 0.6) == 19
    degrees = [choose_degree(n, 0.6) for n in (300, 1000, 10_000)]
    assert degrees[0] < 299
    assert all(a <= b for a, b in pairwise(degrees))
    assert degrees[-1] < 300


def test_the_chosen_degree_keeps_both_probabilities_small() -> None:
    """By the distribution itself: a fifth colludes, a fifth vanishes."""
    n = 1000
    degree = choose_degree(n, 0.6)
    needed = count_needed(0.6, degree + 1)
    chance = hypergeom(n - 1, round(0.2 * (n - 1)), degree)
    assert n * sum(chance.pmf(range(needed, degree + 1))) <= 2**-40
    gone = range(degree + 1 - needed + 1, degree + 1)
    assert n * sum(chance.pmf(gone)) <= 2**-20
    assert degree % 2 == 0


def test_two_are_needed_at_least() -> None:
    assert [count_needed(0.6, n) for n in (1, 2, 3, 4, 5, 20)] == [2, 2, 2, 3, 3, 12]
