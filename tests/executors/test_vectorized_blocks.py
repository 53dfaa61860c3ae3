"""Blocks of clients cost as little as any cut of the same order could."""

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.executors.vectorized_blocks import cut


def cost(steps, sizes, overhead):
    total, at = 0.0, 0
    for size in sizes:
        total += steps[at] * (overhead + size)
        at += size
    return total


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(1, 40), min_size=1, max_size=9), st.integers(1, 6), st.integers(0, 20))
def test_no_cut_is_cheaper(steps, most, overhead):
    steps, n = sorted(steps, reverse=True), len(steps)
    cuts = [[0, *inner, n] for r in range(n) for inner in combinations(range(1, n), r)]
    ways = [[b - a for a, b in pairwise(c)] for c in cuts]
    found = cut(tuple(steps), most, overhead)
    assert sum(found) == n and max(found) <= most
    assert cost(steps, found, overhead) == min(
        cost(steps, w, overhead) for w in ways if max(w) <= most
    )


def test_equal_clients_share_blocks_and_a_giant_stands_alone():
    assert cut((2,) * 100, 128) == (100,)
    assert cut((500, *(2,) * 60), 128) == (1, 60)
