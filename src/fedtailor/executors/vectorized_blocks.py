"""How clients of different sizes are cut into blocks that take their steps together."""

from __future__ import annotations

from functools import lru_cache

OVERHEAD = 16  # what one step of a block costs beside its clients, in clients: measured on a small MLP and CNN


@lru_cache(maxsize=8)
def cut(steps: tuple[int, ...], most: int, overhead: float = OVERHEAD) -> tuple[int, ...]:
    """Sizes of consecutive blocks, each of at most ``most`` clients, that cost least; ``steps`` must not increase.

    A block takes as many steps as its first client, and all of its clients pay for them: few large blocks waste work
    where sizes differ, many small ones waste overhead.
    """
    n = len(steps)
    least, first = (
        [0.0] * (n + 1),
        [0] * (n + 1),
    )  # cost of the first j clients, and where their last block begins
    for j in range(1, n + 1):
        choices = (
            (least[i] + steps[i] * (overhead + j - i), i) for i in range(max(0, j - most), j)
        )
        least[j], first[j] = min(choices)
    sizes: list[int] = []
    j = n
    while j:
        sizes.append(j - first[j])
        j = first[j]
    return tuple(sizes[::-1])
