"""Blocks of clients cost as little as any other division of the same order would."""

from itertools import combinations, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.executors.vectorized_blocks import plan_blocks


def cost(steps, sizes, overhead):
    """A block takes as many steps as its first client, and all its clients take part in them."""
    total = 0.0
    start = 0
    for size in sizes:
        total += steps[start] * (overhead + size)
        start += size
    return total


def list_divisions(n):
    """All ways to divide n clients into consecutive blocks, as sizes."""
    for blocks in range(1, n + 1):
        for inner in combinations(range(1, n), blocks - 1):
            yield [b - a for a, b in pairwise([0, *inner, n])]


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(1, 40), min_size=1, max_size=9),
    st.integers(1, 6),
    st.integers(0, 20),
)
def test_no_division_is_cheaper(steps, largest, overhead):
    steps = sorted(steps, reverse=True)
    found = plan_blocks(tuple(steps), largest, overhead)
    assert sum(found) == len(steps)
    assert max(found) <= largest
    allowed = [sizes for sizes in list_divisions(len(steps)) if max(sizes) <= largest]
    assert cost(steps, found, overhead) == min(
        cost(steps, s, overhead) for s in allowed
    )


def test_equal_clients_share_a_block_and_a_giant_has_its_own():
    assert plan_blocks((2,) * 100, 128) == (100,)
    assert plan_blocks((500, *(2,) * 60), 128) == (1, 60)
