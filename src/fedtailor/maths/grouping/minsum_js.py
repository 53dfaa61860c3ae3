"""Groups of clients with similar label distributions: Fed3+2p's Type-B groups, Eq. (10).

The objective is the sum of the Jensen-Shannon divergences over all ordered pairs inside groups
(min-sum clustering), or, with ``cost="mean"``, every group's sum divided by its size.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from scipy.cluster.hierarchy import cut_tree, linkage
from scipy.spatial.distance import squareform

from fedtailor.core.rng import Rng
from fedtailor.maths.grouping.divergence import normalise_rows, pairwise_js
from fedtailor.maths.grouping.members import (
    Array,
    Counts,
    Groups,
    Labels,
    collect_groups,
    tabulate_counts,
)

RESTARTS = 10
LARGE = 200  # clients from which on there are fewer restarts
GAIN = 1e-12  # a smaller one is rounding


def make_similar_groups(
    counts: Counts,
    groups: int,
    rng: Rng,
    *,
    cost: str = "sum",
) -> Groups:
    """Put clients into groups, none of them empty unless there are fewer clients than groups."""
    clients, n = tabulate_counts(counts)
    if not clients:
        return [[] for _ in range(groups)]
    js = pairwise_js(normalise_rows(n))
    problem = Problem(js, groups, cost)
    labels = search_groups(problem, rng.numpy())
    return collect_groups(clients, labels, groups)


def extend_similar_groups(groups: Groups, counts: Counts, new: Iterable[int]) -> Groups:
    """Add clients: each joins the group whose members are nearest to it on average.

    No other client moves. ``counts`` are those of all clients, new ones included.
    """
    extended = [list(group) for group in groups]
    clients, n = tabulate_counts(counts)
    js = pairwise_js(normalise_rows(n))
    row_of = {k: i for i, k in enumerate(clients)}
    for k in sorted(new):
        distances = np.full(len(extended), np.inf)
        to_all = js[row_of[k]]
        for j, group in enumerate(extended):
            if group:
                members = [row_of[i] for i in group]
                distances[j] = to_all[members].mean()
        nearest = int(np.argmin(distances))
        extended[nearest].append(k)
    return [sorted(group) for group in extended]


def suggest_group_count(
    counts: Counts,
    rng: Rng,
    *,
    cost: str = "sum",
    most: int | None = None,
) -> int:
    """The number of groups with the largest silhouette on sqrt(JS).

    Numbers from 2 to half the clients are tried, up to ``most`` if it is given.
    """
    clients, n = tabulate_counts(counts)
    half = -(-len(clients) // 2)  # rounded up
    top = min(half, most or len(clients))
    if top < 2:
        return 1
    js = pairwise_js(normalise_rows(n))
    generator = rng.numpy()
    scores = []
    for groups in range(2, top + 1):
        problem = Problem(js, groups, cost)
        labels = search_groups(problem, generator)
        scores.append(silhouette(np.sqrt(js), labels))
    return 2 + int(np.argmax(scores))


def silhouette(distance: Array, labels: Labels) -> float:
    """The mean silhouette (Rousseeuw, 1987); a client alone in its group counts zero."""
    clients = np.arange(len(labels))
    groups = int(labels.max()) + 1
    member = np.eye(groups)[labels]
    sums = distance @ member
    sizes = member.sum(0)

    own_size = sizes[labels]
    to_own = sums[clients, labels] / np.maximum(own_size - 1, 1)
    to_others = sums / np.maximum(sizes, 1)
    to_others[:, sizes == 0] = np.inf
    to_others[clients, labels] = np.inf
    to_nearest = to_others.min(1)

    larger = np.maximum(to_own, to_nearest)
    divisor = np.where(larger > 0, larger, 1)
    values = (to_nearest - to_own) / divisor
    values[own_size == 1] = 0.0
    return float(values.mean())


@dataclass(frozen=True)
class Problem:
    """Clients to put into groups of similar ones, and the objective."""

    js: Array  # between any two clients
    groups: int
    kind: str = "sum"  # of a group's cost

    def cost(self, inside: Array, sizes: Array) -> Array:
        """What groups with these sums of divergences and sizes add to the objective."""
        if self.kind == "mean":
            return inside / np.maximum(sizes, 1)
        return inside

    def members(self, labels: Labels) -> Array:
        """(clients, groups), 1 where a client is in a group."""
        return np.eye(self.groups)[labels]

    def objective(self, labels: Labels) -> float:
        """The objective of these groups."""
        member = self.members(labels)
        inside = (self.js @ member * member).sum(0)
        costs = self.cost(inside, member.sum(0))
        return float(costs.sum())


# ---------------------------------------------------------------- search
def search_groups(problem: Problem, rng: np.random.Generator) -> Labels:
    """Start from average linkage and from k-medoids, improve by moves and swaps, keep the best."""
    js = problem.js
    clients = len(js)
    if problem.groups >= clients:
        return np.arange(clients)
    tree = linkage(squareform(js, checks=False), "average")
    cut = cut_tree(tree, problem.groups)[:, 0]
    starts: list[Labels] = [cut.astype(np.int64)]
    restarts = max(1, RESTARTS * LARGE // max(clients, LARGE))
    for _ in range(restarts):
        start = _find_medoids(np.sqrt(js), problem.groups, rng)
        starts.append(start)
    best = starts[0]
    smallest = np.inf
    for start in starts:
        labels = _improve_groups(problem, start)
        found = round(problem.objective(labels), 12)
        if found < smallest:
            best = labels
            smallest = found
    return best


def _find_medoids(distance: Array, groups: int, rng: np.random.Generator) -> Labels:
    """k-medoids from random first medoids: assign clients and choose new medoids by turns."""
    clients = np.arange(len(distance))
    medoids = rng.choice(len(distance), groups, replace=False)
    while True:
        labels: Labels = np.argmin(distance[:, medoids], axis=1)
        # twins of a medoid must not empty its group
        labels[medoids] = np.arange(groups)
        new = [_find_medoid(distance, labels == j) for j in range(groups)]
        new_medoids = np.array(new)
        before = distance[clients, medoids[labels]].sum()
        after = distance[clients, new_medoids[labels]].sum()
        if after >= before - GAIN:
            return labels
        medoids = new_medoids


def _find_medoid(distance: Array, is_member: Array) -> int:
    """The member with the smallest sum of distances to all members."""
    members = np.flatnonzero(is_member)
    inside = distance[np.ix_(members, members)]
    nearest = np.argmin(inside.sum(0))
    return int(members[nearest])


def _improve_groups(problem: Problem, labels: Labels) -> Labels:
    """Make the best move of a client or, if none helps, the best swap of two, until none helps."""
    labels = labels.copy()
    while True:
        state = _SearchState(problem, labels)
        move = state.changes_by_move()
        i, group = np.unravel_index(int(move.argmin()), move.shape)
        if move[i, group] < -GAIN:
            labels[i] = group
            continue
        swap = state.changes_by_swap()
        i, j = np.unravel_index(int(swap.argmin()), swap.shape)
        if swap[i, j] >= -GAIN:
            return labels
        labels[[i, j]] = labels[[j, i]]


class _SearchState:
    """The groups of a local search, with the sums of divergences that moves and swaps need."""

    def __init__(self, problem: Problem, labels: Labels) -> None:
        self.problem = problem
        self.labels = labels
        self.clients = np.arange(len(labels))
        member = problem.members(labels)
        self.sizes = member.sum(0)
        # (clients, groups): to all members of a group
        self.to_group = problem.js @ member
        self.to_own = self.to_group[self.clients, labels]
        # over all ordered pairs of a group
        self.inside = (self.to_group * member).sum(0)

    def changes_by_move(self) -> Array:
        """(clients, groups): the change of the objective as a client moves to a group."""
        cost = self.problem.cost
        own = self.labels
        now = cost(self.inside, self.sizes)
        inside_without = self.inside[own] - 2 * self.to_own
        inside_with = self.inside + 2 * self.to_group
        leave = cost(inside_without, self.sizes[own] - 1) - now[own]
        join = cost(inside_with, self.sizes + 1)
        change: Array = leave[:, None] + join - now
        change[self.clients, own] = np.inf
        change[self.sizes[own] == 1] = np.inf  # no group may become empty
        return change

    def changes_by_swap(self) -> Array:
        """(clients, clients): the change of the objective as two clients change places."""
        own = self.labels
        to_group_of = self.to_group[:, own].T  # row i: to the group of client i
        replaced = to_group_of - self.problem.js - self.to_own[:, None]
        sizes = self.sizes[own]
        one_group = self.problem.cost(2 * replaced, sizes[:, None])
        change: Array = one_group + one_group.T
        change[own[:, None] == own] = np.inf
        return change
