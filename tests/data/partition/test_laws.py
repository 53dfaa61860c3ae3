"""Every law of partition, on drawn class sizes and numbers of clients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import UserError
from fedtailor.data.partition.laws import (
    Integers,
    compute_least_size,
    draw_classes,
    draw_concepts,
    draw_dirichlet,
    draw_hsu,
    draw_pathological,
    draw_shards,
    repair_counts,
)

laws = settings(deadline=None, max_examples=40, derandomize=True, database=None)


seeds = st.integers(0, 2**32 - 1)


some_sizes = st.lists(st.integers(1, 80), min_size=1, max_size=12).map(np.array)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@laws
@given(
    some_sizes,
    st.integers(1, 60),
    st.floats(1e-6, 1e3),
    st.integers(1, 12),
    st.booleans(),
    seeds,
)
def test_dirichlet_reaches_the_least_size_or_says_why(
    sizes: Integers, clients: int, beta: float, least: int, capped: bool, seed: int
) -> None:
    if sizes.sum() < least * clients:
        with pytest.raises(
            UserError, match=f"{clients} clients {least} samples out of {sizes.sum()}"
        ):
            draw_dirichlet(sizes, clients, beta, least, capped, rng(seed))
        return
    counts = draw_dirichlet(sizes, clients, beta, least, capped, rng(seed))
    assert np.array_equal(counts.sum(0), sizes)
    assert counts.min() >= 0 and counts.sum(1).min() >= least


@laws
@given(some_sizes, st.integers(2, 30), st.floats(0.01, 10), seeds)
def test_dirichlet_gives_nothing_more_to_a_client_that_has_its_even_share(
    sizes: Integers, clients: int, beta: float, seed: int
) -> None:
    counts = draw_dirichlet(sizes, clients, beta, 0, True, rng(seed))
    before = np.cumsum(counts, 1) - counts
    assert not counts[before >= sizes.sum() / clients].any()


def test_dirichlet_shares_have_the_moments_of_a_dirichlet_law() -> None:
    clients, beta, generator = 8, 0.4, rng(3)
    shares = np.concatenate(
        [
            draw_dirichlet(np.full(10, 100_000), clients, beta, 0, False, generator).T
            / 1e5
            for _ in range(300)
        ]
    )
    variance = (1 / clients) * (1 - 1 / clients) / (clients * beta + 1)
    assert np.allclose(shares.mean(0), 1 / clients, atol=0.015)
    assert np.allclose(shares.var(0), variance, rtol=0.12)


@pytest.mark.parametrize("beta", [1e-9, 0.01, 0.1])
@pytest.mark.parametrize(
    "sizes", [np.full(10, 6000), np.full(200, 500), np.array([59_000, 1000])]
)
def test_dirichlet_ends_for_500_clients(beta: float, sizes: Integers) -> None:
    n = int(sizes.sum())
    counts = draw_dirichlet(
        sizes, 500, beta, compute_least_size(n, 500, 10), True, rng()
    )
    assert np.array_equal(counts.sum(0), sizes) and counts.sum(1).min() >= 40


@laws
@given(some_sizes, st.integers(1, 30), st.integers(1, 5), seeds)
def test_repair_takes_from_the_rich_only(
    sizes: Integers, clients: int, least: int, seed: int
) -> None:
    sizes = sizes + least * clients
    counts = draw_dirichlet(sizes, clients, 0.05, 0, False, rng(seed))
    mended = repair_counts(counts, least)
    before, after = counts.sum(1), mended.sum(1)
    assert np.array_equal(mended.sum(0), sizes) and mended.min() >= 0
    assert (after[before < least] == least).all() and (
        after[before >= least] >= least
    ).all()
    assert (after <= np.maximum(before, least)).all()
    assert np.array_equal(mended, counts) == (before.min() >= least)


def test_the_largest_client_gives_of_its_largest_class() -> None:
    counts = np.array([[0, 1, 0], [20, 0, 25], [40, 5, 60], [0, 0, 0]])
    assert repair_counts(counts, 8).tolist() == [
        [0, 1, 7],
        [20, 0, 25],
        [40, 5, 45],
        [0, 0, 8],
    ]


@laws
@given(some_sizes, st.integers(1, 40), st.floats(1e-3, 1e3), seeds)
def test_hsu_clients_are_equally_large(
    sizes: Integers, clients: int, alpha: float, seed: int
) -> None:
    counts = draw_hsu(sizes, clients, alpha, rng(seed))
    assert np.array_equal(counts.sum(0), sizes) and counts.min() >= 0
    assert np.ptp(counts.sum(1)) <= 1


def test_hsu_shares_follow_the_prior() -> None:
    """The first client is filled before any class runs out: its shares are Dir(alpha p)."""
    sizes, alpha, each, generator = (
        np.array([60_000, 30_000, 10_000]),
        2.0,
        5000,
        rng(5),
    )
    shares = np.stack(
        [draw_hsu(sizes, 20, alpha, generator)[0] / each for _ in range(600)]
    )
    p = sizes / sizes.sum()
    assert np.allclose(shares.mean(0), p, atol=0.04)
    assert np.allclose(shares.var(0), p * (1 - p) / (alpha + 1), rtol=0.2)


@st.composite
def class_worlds(draw: st.DrawFn) -> tuple[Integers, int, int, int]:
    """Class sizes, clients, classes a client (that cover all classes) and a seed."""
    total, clients = draw(st.integers(1, 15)), draw(st.integers(1, 30))
    k = draw(st.integers(-(-total // clients), total))
    sizes = draw(st.lists(st.integers(clients, 200), min_size=total, max_size=total))
    return np.array(sizes), clients, k, draw(seeds)


@laws
@given(class_worlds())
def test_pathological_clients_have_exactly_k_classes(
    world: tuple[Integers, int, int, int],
) -> None:
    sizes, clients, k, seed = world
    counts = draw_pathological(
        sizes, clients, k, compute_least_size(int(sizes.sum()), clients, 10), rng(seed)
    )
    assert np.array_equal(counts.sum(0), sizes)
    assert ((counts > 0).sum(1) == k).all()
    holders = (counts > 0).sum(0)
    assert np.ptp(holders) <= 1
    for c, m in enumerate(holders):  # all but the last holder stay within an even share
        part = counts[counts[:, c] > 0, c]
        assert (part[:-1] <= sizes[c] // m).all() and part[-1] == part.max()


@laws
@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 4), seeds)
def test_shards_are_equal_parts_of_one_class(
    total: int, s: int, times: int, seed: int
) -> None:
    clients = total // np.gcd(total, s) * times
    each = s * clients // total
    sizes = each + rng(seed).integers(0, 50, total)
    counts, matrix = draw_shards(sizes, clients, s, rng(seed))
    assert np.array_equal(counts.sum(0), sizes)
    drawn = np.zeros_like(counts)
    np.add.at(drawn, (np.arange(clients)[:, None], matrix), 1)
    assert (drawn.sum(1) == s).all() and (drawn.sum(0) == each).all()
    assert (counts >= drawn * (sizes // each)).all() and (
        counts <= drawn * -(-sizes // each)
    ).all()


@laws
@given(class_worlds())
def test_classes_are_balanced_both_ways(world: tuple[Integers, int, int, int]) -> None:
    sizes, clients, k, seed = world
    counts = draw_classes(sizes, clients, k, False, rng(seed))
    assert np.array_equal(counts.sum(0), sizes)
    assert ((counts > 0).sum(1) == k).all()
    assert np.ptp((counts > 0).sum(0)) <= 1
    assert all(np.ptp(column[column > 0]) <= 1 for column in counts.T)


@laws
@given(st.integers(1, 9), st.data())
def test_concepts_are_different_orders_of_the_labels(
    classes: int, data: st.DataObject
) -> None:
    groups = data.draw(st.integers(1, min(int(np.prod(np.arange(1, classes + 1))), 40)))
    tables = draw_concepts(groups, classes, rng(data.draw(seeds)))
    assert tables.shape == (groups, classes) and np.array_equal(
        tables[0], np.arange(classes)
    )
    assert (np.sort(tables, 1) == np.arange(classes)).all()
    assert len({tuple(t) for t in tables}) == groups


def test_the_least_size_is_pfllibs() -> None:
    assert compute_least_size(70_000, 20, 10) == 40
    assert compute_least_size(60_000, 500, 32) == 60
    assert compute_least_size(30, 20, 10) == 1  # never an empty client


def test_too_many_concepts_for_the_classes() -> None:
    with pytest.raises(UserError, match="concept:7: 3 classes have only 6 orders"):
        draw_concepts(7, 3, rng())
