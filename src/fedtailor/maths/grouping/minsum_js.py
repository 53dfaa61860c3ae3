"""Groups of clients with similar label distributions: Fed3+2p's Type-B coordinators, Eq. (10).

The objective is the sum of the Jensen-Shannon divergences over all ordered pairs inside groups (min-sum clustering),
or, with ``cost="mean"``, every group's sum divided by its size.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform

from fedtailor.core.rng import Rng
from fedtailor.maths.grouping.divergence import (
    Array,
    Counts,
    Groups,
    Labels,
    gather,
    js,
    normalise_rows,
    tabulate,
)

RESTARTS = 10
LARGE = 200  # clients from which on fewer restarts have to do
GAIN = 1e-12  # a smaller one is rounding


def group_lookalikes(counts: Counts, groups: int, rng: Rng, *, cost: str = "sum") -> Groups:
    """The clients in ``groups`` groups, none of them empty unless there are fewer clients than groups."""
    clients, n = tabulate(counts)
    if not clients:
        return [[] for _ in range(groups)]
    return gather(clients, cluster(js(normalise_rows(n)), groups, rng.numpy(), cost), groups)


def extend_lookalikes(groups: Groups, counts: Counts, new: Iterable[int]) -> Groups:
    """The groups with newcomers: each joins the group whose members are nearest to it on average.

    Nobody else moves. ``counts`` are everybody's, newcomers included.
    """
    out = [list(group) for group in groups]
    clients, n = tabulate(counts)
    far, at = js(normalise_rows(n)), {k: i for i, k in enumerate(clients)}
    for k in sorted(new):
        gap = [far[at[k], [at[i] for i in group]].mean() if group else np.inf for group in out]
        out[int(np.argmin(gap))].append(k)
    return [sorted(group) for group in out]


def suggest_groups(counts: Counts, rng: Rng, *, cost: str = "sum", most: int | None = None) -> int:
    """The number of groups, from 2 to half the clients (``most`` at most), with the largest silhouette on sqrt(JS)."""
    clients, n = tabulate(counts)
    top = min(-(-len(clients) // 2), most or len(clients))
    if top < 2:
        return 1
    far, generator = js(normalise_rows(n)), rng.numpy()
    scores = [silhouette(np.sqrt(far), cluster(far, m, generator, cost)) for m in range(2, top + 1)]
    return 2 + int(np.argmax(scores))


def cluster(far: Array, groups: int, rng: np.random.Generator, cost: str = "sum") -> Labels:
    """Start from average linkage and from k-medoids, improve by moves and swaps, keep the best."""
    if groups >= len(far):
        return np.arange(len(far))
    starts = [
        cut_tree(linkage(squareform(far, checks=False), "average"), groups)[:, 0].astype(np.int64)
    ]
    tries = max(1, RESTARTS * LARGE // max(len(far), LARGE))
    starts += [_find_medoids(np.sqrt(far), groups, rng) for _ in range(tries)]
    found = [_improve(far, labels, groups, cost) for labels in starts]
    return min(found, key=lambda labels: round(measure(far, labels, groups, cost), 12))


def measure(far: Array, labels: Labels, groups: int, cost: str = "sum") -> float:
    """The objective."""
    member = np.eye(groups)[labels]
    return float(_price((far @ member * member).sum(0), member.sum(0), cost).sum())


def silhouette(far: Array, labels: Labels) -> float:
    """The mean silhouette (Rousseeuw, 1987); a client alone in its group counts zero."""
    member = np.eye(int(labels.max()) + 1)[labels]
    sums, sizes, row = far @ member, member.sum(0), np.arange(len(far))
    own = sizes[labels]
    a = sums[row, labels] / np.maximum(own - 1, 1)
    other = sums / np.maximum(sizes, 1)
    other[:, sizes == 0], other[row, labels] = np.inf, np.inf
    b = other.min(1)
    largest = np.maximum(a, b)
    return float(
        np.where((own > 1) & (largest > 0), (b - a) / np.where(largest > 0, largest, 1), 0.0).mean()
    )


def _find_medoids(far: Array, groups: int, rng: np.random.Generator) -> Labels:
    """k-medoids from random first medoids, by turns of assigning and recentring."""
    medoids = rng.choice(len(far), groups, replace=False)
    while True:
        labels: Labels = np.argmin(far[:, medoids], axis=1)
        labels[medoids] = np.arange(groups)  # twins of a medoid must not empty its group
        members = [np.flatnonzero(labels == j) for j in range(groups)]
        new = np.array([m[int(np.argmin(far[np.ix_(m, m)].sum(0)))] for m in members])
        if (
            far[np.arange(len(far)), new[labels]].sum()
            >= far[np.arange(len(far)), medoids[labels]].sum() - GAIN
        ):
            return labels
        medoids = new


def _improve(far: Array, labels: Labels, groups: int, cost: str) -> Labels:
    """The best move of one client, or, where none helps, the best swap of two, until none helps either."""
    labels, row = labels.copy(), np.arange(len(far))
    while True:
        member = np.eye(groups)[labels]
        near, sizes = (
            far @ member,
            member.sum(0),
        )  # near[i, c]: sum of the divergences between i and group c
        inside, own = (near * member).sum(0), near[row, labels]
        now = _price(inside, sizes, cost)
        leave = _price(inside[labels] - 2 * own, sizes[labels] - 1, cost) - now[labels]
        move = leave[:, None] + _price(inside + 2 * near, sizes + 1, cost) - now
        move[row, labels], move[sizes[labels] == 1] = np.inf, np.inf
        i, b = np.unravel_index(int(np.argmin(move)), move.shape)
        if move[i, b] < -GAIN:
            labels[i] = b
            continue
        change = _price(2 * (near[:, labels].T - far - own[:, None]), sizes[labels][:, None], cost)
        swap = change + change.T  # change[i, j]: of i's group, as j replaces i
        swap[labels[:, None] == labels] = np.inf
        i, j = np.unravel_index(int(np.argmin(swap)), swap.shape)
        if swap[i, j] >= -GAIN:
            return labels
        labels[i], labels[j] = labels[j], labels[i]


def _price(inside: Array, size: Array, cost: str) -> Array:
    """What a group with this sum of divergences and this size adds to the objective."""
    return inside / np.maximum(size, 1) if cost == "mean" else inside
