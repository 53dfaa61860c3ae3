"""How clients of different sizes are grouped into blocks that take their steps together."""

from __future__ import annotations

from functools import lru_cache

# What one step of a block costs beside its clients, in clients: measured on a small MLP and CNN.
OVERHEAD = 16


@lru_cache(maxsize=8)
def plan_blocks(
    steps: tuple[int, ...], largest: int, overhead: float = OVERHEAD
) -> tuple[int, ...]:
    """Sizes of consecutive blocks, each of at most ``largest`` clients, that cost least in all.

    A block takes as many steps as its first client, and all of its clients pay for them: few large
    blocks waste work where sizes differ, many small ones waste overhead. ``steps`` must not
    increase.
    """
    n = len(steps)
    cost = [0.0] * (n + 1)  # of the first j clients
    start = [0] * (n + 1)  # where the last block of the first j clients begins
    for j in range(1, n + 1):
        cost[j], start[j] = min(
            (cost[i] + steps[i] * (overhead + j - i), i)
            for i in range(max(0, j - largest), j)
        )
    sizes: list[int] = []
    j = n
    while j:
        sizes.append(j - start[j])
        j = start[j]
    return tuple(reversed(sizes))
