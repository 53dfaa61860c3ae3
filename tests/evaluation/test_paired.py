"""Paired differences, compared with scipy's tests and with simulated truth."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from fedtailor.evaluation.paired import (
    ClientResult,
    Difference,
    Results,
    compare_paired,
    compare_summaries,
    correct_for_many,
    judge,
)


def results_of(values: np.ndarray, n: int = 10) -> Results:
    """A row of clients for every seed."""
    return {
        seed: {k: ClientResult(float(x), n) for k, x in enumerate(row)}
        for seed, row in enumerate(values)
    }


def test_one_seed_is_the_paired_t_test_over_clients() -> None:
    rng = np.random.default_rng(0)
    a = rng.normal(0.8, 0.1, (1, 20))
    b = a - rng.normal(0.02, 0.03, (1, 20))
    found = compare_paired(results_of(a), results_of(b))
    wanted = stats.ttest_rel(a[0], b[0])
    assert found is not None
    assert found.mean == pytest.approx((a - b).mean())
    assert found.p == pytest.approx(wanted.pvalue)
    interval = wanted.confidence_interval()
    assert found.interval() == pytest.approx((interval.low, interval.high))


def test_where_seeds_differ_it_is_the_paired_t_test_over_seeds() -> None:
    rng = np.random.default_rng(1)
    a = rng.normal(0.8, 0.001, (5, 20))
    b = a - rng.normal(0.02, 0.03, (5, 1))
    found = compare_paired(results_of(a), results_of(b))
    wanted = stats.ttest_rel(a.mean(1), b.mean(1))
    assert found is not None
    assert found.p == pytest.approx(wanted.pvalue)


def test_large_clients_weigh_more() -> None:
    one = {0: {0: ClientResult(1.0, 30), 1: ClientResult(0.5, 10)}}
    other = {0: {0: ClientResult(0.0, 30), 1: ClientResult(0.5, 10)}}
    found = compare_paired(one, other)
    assert found is not None
    assert found.mean == pytest.approx(0.75)


def test_only_what_both_have_counts() -> None:
    one = {0: {0: ClientResult(1.0, 1)}, 1: {0: ClientResult(0.0, 1)}}
    other = {0: {0: ClientResult(0.5, 1), 7: ClientResult(0.0, 1)}}
    found = compare_paired(one, other)
    assert found is not None
    assert (found.mean, found.seeds) == (0.5, 1)
    assert compare_paired(one, {2: {0: ClientResult(0.0, 1)}}) is None
    assert compare_paired(one, {0: {3: ClientResult(0.0, 1)}}) is None


@pytest.mark.parametrize("spread", [0.0, 0.02])
def test_chance_is_called_more_than_chance_in_at_most_a_twentieth(
    spread: float,
) -> None:
    """Where there is no difference; seeds differ not at all, or as much as clients do."""
    rng = np.random.default_rng(2)
    alarms = 0
    trials = 400
    for _ in range(trials):
        gaps = rng.normal(0, spread, (3, 1)) + rng.normal(0, 0.05, (3, 10))
        found = compare_paired(results_of(gaps), results_of(0 * gaps))
        assert found is not None
        alarms += found.p < 0.05
    assert alarms / trials < 0.08


def test_holm() -> None:
    assert correct_for_many([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert correct_for_many([0.9, 0.8]) == [1.0, 1.0]
    assert correct_for_many([]) == []


def test_both_directions_are_judged_alike() -> None:
    gaps = [0.1, -0.1, 0.01, 0.0]
    found = [Difference(gap, 0.02, 30, 3) for gap in gaps]
    assert judge(found) == [1, -1, 0, 0]
    # among many, what was beyond chance alone is not
    alone = Difference(0.05, 0.02, 30, 3)
    assert judge([alone]) == [1]
    assert judge([alone, *[Difference(0.0, 0.02, 30, 3)] * 20])[0] == 0


def test_summaries_are_judged_by_the_number_of_seeds() -> None:
    found = compare_summaries((0.8, 0.03), (0.7, 0.04), 3)
    assert found.error == pytest.approx(0.05)
    assert found.freedom == 4
    assert found.p == pytest.approx(2 * stats.t.sf(2.0, 4))
    assert compare_summaries((0.9, 0.0), (0.1, 0.0), 1).p == 1.0  # one seed
    assert Difference(0.0, 0.0, 1, 1).p == 1.0
    assert Difference(0.1, 0.0, 1, 1).p == 0.0
