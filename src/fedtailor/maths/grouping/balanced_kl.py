"""Groups whose joint label distribution mirrors everybody's: Fed3+2p's Type-A coordinators, Eq. (5).

The objective is sum_c KL(P_{D^c} || P_D), over groups of equal size give or take one: without that constraint a few
clients that happen to look like everybody would sit alone and all others in one group. ``weights="size"`` weighs
every group by its share of the examples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from fedtailor.core.errors import unknown
from fedtailor.core.rng import Rng
from fedtailor.maths.grouping.divergence import (
    TINY,
    Array,
    Counts,
    Groups,
    Labels,
    gather,
    kl,
    sort_groups,
    tabulate,
)

SOLVERS = ("balanced_kl", "greedy_astraea", "random")
RESTARTS = 10
LARGE = 200  # clients from which on fewer restarts have to do
FEW = 1000  # groupings that are all tried
GAIN = 1e-12  # a smaller one is rounding


def group_mirrors(
    counts: Counts,
    groups: int,
    rng: Rng,
    *,
    how: str = "balanced_kl",
    weights: str = "uniform",
    everybody: Counts | None = None,
) -> Groups:
    """The clients in ``groups`` groups that mirror ``everybody``, by default these clients themselves."""
    if how not in SOLVERS:
        raise unknown("grouping", how, SOLVERS)
    clients, n = tabulate(counts)
    if not clients:
        return [[] for _ in range(groups)]
    cost = Cost(tabulate(everybody or counts)[1].sum(0), weights)
    if groups >= len(clients):
        labels = np.arange(len(clients))
    elif how == "random":
        labels = _deal(rng.numpy().permutation(len(clients)), groups)
    elif how == "greedy_astraea":
        labels = fill_one_by_one(n, groups, cost)
    else:
        labels = balance(n, groups, cost, rng.numpy())
    return gather(clients, labels, groups)


def extend_mirrors(
    groups: Groups, counts: Counts, new: Iterable[int], weights: str = "uniform"
) -> Groups:
    """The groups with newcomers: each goes where the objective gets smallest, among the smallest groups.

    Nobody else moves, and sizes that differed by one at most still do. ``counts`` are everybody's, newcomers included.
    """
    out = [list(group) for group in groups]
    clients, n = tabulate(counts)
    row = dict(zip(clients, n, strict=True))
    cost = Cost(n.sum(0), weights)
    for k in sorted(new):
        least = min(map(len, out))
        open_to = [j for j, group in enumerate(out) if len(group) == least]
        joint = np.stack([_sum_rows(n, [row[i] for i in out[j]]) for j in open_to])
        change = cost.of(joint + row[k]) - cost.of(joint)
        out[open_to[int(np.argmin(change))]].append(k)
    return sort_groups(out)


@dataclass(frozen=True)
class Cost:
    """What groups with given joint counts add to the objective."""

    target: Array
    weights: str = "uniform"

    def of(self, joint: Array) -> Array:
        """Of one group (R,) or many (..., R)."""
        far = kl(joint, self.target)
        return far * joint.sum(-1) / max(self.target.sum(), TINY) if self.weights == "size" else far

    def total(self, n: Array, labels: Labels, groups: int) -> float:
        """The objective."""
        return float(self.of(_join(n, labels, groups)).sum())


def balance(n: Array, groups: int, cost: Cost, rng: np.random.Generator) -> Labels:
    """Construct hardest first, improve by moves and swaps, restart from random orders, keep the best.

    Where there are few ways to group the clients, all are tried.
    """
    if _count_ways(len(n), groups) <= FEW:
        ways = np.array(list(_list_ways(len(n), groups)))
        joint = np.eye(groups)[ways].transpose(0, 2, 1) @ n
        chosen: Labels = ways[int(np.argmin(cost.of(joint).sum(-1).round(12)))]
        return chosen
    hard = -n.sum(1) * kl(n, cost.target)
    tries = max(1, RESTARTS * LARGE // max(len(n), LARGE))
    best, least = np.empty(0, dtype=np.int64), np.inf
    for i in range(tries):
        order = rng.permutation(len(n))
        if i == 0:
            order = order[np.argsort(hard[order], kind="stable")]  # ties in random order
        labels = _improve(n, _construct(n, groups, cost, order), groups, cost)
        if (found := cost.total(n, labels, groups)) < least - GAIN:
            best, least = labels, found
    return best


def fill_one_by_one(n: Array, groups: int, cost: Cost) -> Labels:
    """Astraea's greedy scheduling: fill a group with whoever brings it nearest to the target, then the next one."""
    labels = np.full(len(n), -1, dtype=np.int64)
    for j, size in enumerate(_sizes(len(n), groups)):
        joint = np.zeros(n.shape[1])
        for _ in range(size):
            left = np.flatnonzero(labels < 0)
            chosen = left[int(np.argmin(kl(joint + n[left], cost.target)))]
            labels[chosen], joint = j, joint + n[chosen]
    return labels


def _count_ways(clients: int, groups: int) -> int:
    """In how many ways clients can be put into groups of equal size, give or take one."""
    small, more = divmod(clients, groups)
    same = math.factorial(more) * math.factorial(groups - more)  # groups of one size have no order
    ways: int = math.factorial(clients) // (
        math.factorial(small) ** groups * (small + 1) ** more * same
    )
    return ways


def _list_ways(clients: int, groups: int) -> Iterator[list[int]]:
    """All of them, as labels."""
    small, more = divmod(clients, groups)

    def go(labels: list[int], sizes: list[int]) -> Iterator[list[int]]:
        if len(labels) == clients:
            if min(sizes) >= small:
                yield labels
            return
        limit = small + (sum(size > small for size in sizes) < more)
        used = groups - sizes.count(0)
        for j in range(
            min(used + 1, groups)
        ):  # empty groups are all alike: only the first of them is tried
            if sizes[j] < limit:
                yield from go([*labels, j], [size + (i == j) for i, size in enumerate(sizes)])

    return go([], [0] * groups)


def _construct(n: Array, groups: int, cost: Cost, order: Sequence[int] | Labels) -> Labels:
    """Each client in turn into the group that is not full and for which the objective then is smallest."""
    small, more = divmod(len(n), groups)
    labels, sizes = np.full(len(n), -1, dtype=np.int64), np.zeros(groups, dtype=np.int64)
    joint = np.zeros((groups, n.shape[1]))
    for i in order:
        limit = small + (int((sizes > small).sum()) < more)  # only so many groups may have one more
        change = np.where(sizes < limit, cost.of(joint + n[i]) - cost.of(joint), np.inf)
        j = int(np.argmin(change))
        labels[i], sizes[j], joint[j] = j, sizes[j] + 1, joint[j] + n[i]
    return labels


def _improve(n: Array, labels: Labels, groups: int, cost: Cost) -> Labels:
    """Move or swap one client at a time, to its best place, until nobody gains."""
    labels = labels.copy()
    joint, quiet, i = _join(n, labels, groups), 0, 0
    now = cost.of(joint)
    while quiet < len(n):
        a, sizes = labels[i], np.bincount(labels, minlength=groups)
        swap = (
            cost.of(joint[a] - n[i] + n) + cost.of(joint[labels] - n + n[i]) - now[a] - now[labels]
        )
        move = cost.of(joint[a] - n[i]) + cost.of(joint + n[i]) - now[a] - now
        swap[labels == a], move[sizes >= sizes[a]] = np.inf, np.inf
        j, b = int(np.argmin(swap)), int(np.argmin(move))
        quiet += 1
        if min(swap[j], move[b]) < -GAIN:
            if swap[j] <= move[b]:
                labels[i], labels[j] = labels[j], a
            else:
                labels[i] = b
            joint, quiet = _join(n, labels, groups), 0
            now = cost.of(joint)
        i = (i + 1) % len(n)
    return labels


def _join(n: Array, labels: Labels, groups: int) -> Array:
    """The joint counts of every group."""
    joint = np.zeros((groups, n.shape[1]))
    np.add.at(joint, labels, n)
    return joint


def _sum_rows(n: Array, rows: list[Array]) -> Array:
    return np.sum(rows, axis=0) if rows else np.zeros(n.shape[1])


def _sizes(clients: int, groups: int) -> list[int]:
    small, more = divmod(clients, groups)
    return [small + 1] * more + [small] * (groups - more)


def _deal(order: Labels, groups: int) -> Labels:
    """The first some into the first group, and so on."""
    labels = np.empty(len(order), dtype=np.int64)
    labels[order] = np.repeat(np.arange(groups), _sizes(len(order), groups))
    return labels
