"""Who masks with whom: all with all in small cohorts, else a graph in which all have few.

How many neighbours are enough follows Bell et al. (2020), section 3: with a random
arrangement no client may have ``threshold`` neighbours that collude with the server, and
every client must keep ``threshold`` that answer, but for a small probability.
"""

from __future__ import annotations

import math

from fedtailor.core.rng import Rng

COMPLETE = 32  # clients up to which all mask with all
COLLUDING = 0.2  # share of clients that may tell the server all they know
VANISHING = 0.2  # share of clients that may drop out
BROKEN = 2.0**-40  # probability that some client's neighbours give it away
STUCK = 2.0**-20  # probability that some client cannot be recovered


def count_needed(threshold: float, holders: int) -> int:
    """How many of those who hold shares must answer: two at least."""
    return max(2, math.ceil(threshold * holders - 1e-9))


def choose_degree(clients: int, threshold: float) -> int:
    """The least even number of neighbours that is safe; all others, if that is fewer."""
    if clients <= COMPLETE:
        return clients - 1
    for degree in range(2, clients - 1, 2):
        needed = count_needed(threshold, degree + 1)
        if _is_enough(clients, degree, needed):
            return degree
    return clients - 1


def _is_enough(clients: int, degree: int, needed: int) -> bool:
    """Whether both probabilities are small, for any of the clients."""
    others = clients - 1
    from scipy.stats import hypergeom  # takes a second to import

    colluding = hypergeom(others, round(COLLUDING * others), degree)
    answering = hypergeom(others, others - round(VANISHING * others), degree)
    is_private = clients * colluding.sf(needed - 1) <= BROKEN
    # a client's own answer counts, too
    is_safe = clients * answering.cdf(needed - 2) <= STUCK
    return bool(is_private and is_safe)


def connect(clients: list[int], degree: int, rng: Rng) -> dict[int, list[int]]:
    """Everybody's neighbours: so many on a ring in random order, half of them on each side."""
    if degree >= len(clients) - 1:
        return {k: [j for j in clients if j != k] for k in clients}
    order = [clients[i] for i in rng.permutation(len(clients)).tolist()]
    neighbours: dict[int, list[int]] = {}
    for place, k in enumerate(order):
        found: set[int] = set()
        for step in range(1, degree // 2 + 1):
            found.add(order[place - step])
            found.add(order[(place + step) % len(order)])
        neighbours[k] = sorted(found)
    return {k: neighbours[k] for k in clients}
