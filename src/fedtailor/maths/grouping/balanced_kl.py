"""Groups whose labels together are like those of all clients: Fed3+2p's Type-A groups, Eq. (5).

The objective is sum_c KL(P_{D^c} || P_D), over groups of equal size give or take one. Without that
constraint a few clients with typical labels would be alone and all others in one group.
``weights="size"`` weighs every group by its share of the examples.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from fedtailor.core.errors import unknown
from fedtailor.core.rng import Rng
from fedtailor.maths.grouping.divergence import TINY, kl
from fedtailor.maths.grouping.members import (
    Array,
    Counts,
    Groups,
    Labels,
    collect_groups,
    sort_groups,
    tabulate_counts,
)

SOLVERS = ("balanced_kl", "greedy_astraea", "random")
RESTARTS = 10
LARGE = 200  # clients from which on there are fewer restarts
FEW = 1000  # groupings that are all tried
GAIN = 1e-12  # a smaller one is rounding


def make_balanced_groups(
    counts: Counts,
    groups: int,
    rng: Rng,
    *,
    how: str = "balanced_kl",
    weights: str = "uniform",
    target: Counts | None = None,
) -> Groups:
    """Put clients into balanced groups.

    Args:
        counts: the clients to group.
        groups: how many groups to form; some are empty where there are fewer clients.
        rng: decides between equally good groups.
        how: the solver.
        weights: of the groups in the objective, "uniform" or "size".
        target: the clients whose labels the groups shall be like; those in ``counts`` if not given.
    """
    if how not in SOLVERS:
        raise unknown("grouping", how, SOLVERS)
    clients, n = tabulate_counts(counts)
    if not clients:
        return [[] for _ in range(groups)]
    _, target_rows = tabulate_counts(target or counts)
    problem = Problem(n, groups, target_rows.sum(0), weights)
    if groups >= len(clients):
        labels = np.arange(len(clients))
    elif how == "random":
        labels = split_randomly(problem, rng.numpy())
    elif how == "greedy_astraea":
        labels = fill_one_by_one(problem)
    else:
        labels = search_groups(problem, rng.numpy())
    return collect_groups(clients, labels, groups)


def extend_balanced_groups(
    groups: Groups,
    counts: Counts,
    new: Iterable[int],
    weights: str = "uniform",
) -> Groups:
    """Add clients: each joins the group, among the smallest, that keeps the objective smallest.

    No other client moves, and sizes that differed by at most one still do. ``counts`` are those of
    all clients, new ones included.
    """
    extended = [list(group) for group in groups]
    clients, n = tabulate_counts(counts)
    problem = Problem(n, len(groups), n.sum(0), weights)
    row_of = {k: i for i, k in enumerate(clients)}
    for k in sorted(new):
        smallest = min(len(group) for group in extended)
        open_groups = [group for group in extended if len(group) == smallest]
        joint_counts = []
        for group in open_groups:
            rows = [row_of[i] for i in group]
            joint_counts.append(n[rows].sum(0))
        change = problem.changes(np.stack(joint_counts), n[row_of[k]])
        best = int(np.argmin(change))
        open_groups[best].append(k)
    return sort_groups(extended)


@dataclass(frozen=True)
class Problem:
    """Clients to put into balanced groups, and the objective."""

    n: Array  # label counts, one row a client
    groups: int
    target: Array  # label counts of all clients together
    weights: str = "uniform"

    def cost(self, joint: Array) -> Array:
        """What groups with these joint counts, (R,) or (..., R), add to the objective."""
        divergence = kl(joint, self.target)
        if self.weights == "size":
            share = joint.sum(-1)
            divergence = divergence * share / max(self.target.sum(), TINY)
        return divergence

    def changes(self, joint: Array, more: Array) -> Array:
        """How the cost of every group changes as ``more`` examples join it."""
        return self.cost(joint + more) - self.cost(joint)

    def join_counts(self, labels: Labels) -> Array:
        """The joint counts of every group."""
        joint = np.zeros((self.groups, len(self.target)))
        np.add.at(joint, labels, self.n)
        return joint

    def objective(self, labels: Labels) -> float:
        """The objective of these groups."""
        joint = self.join_counts(labels)
        return float(self.cost(joint).sum())

    def sizes(self) -> tuple[int, int]:
        """The size of the smaller groups, and how many groups have one client more."""
        return divmod(len(self.n), self.groups)

    def list_sizes(self) -> list[int]:
        """The size of every group, larger ones first."""
        small, larger = self.sizes()
        return [small + (j < larger) for j in range(self.groups)]


# ---------------------------------------------------------------- solvers
def search_groups(problem: Problem, rng: np.random.Generator) -> Labels:
    """Build groups hardest clients first, improve by moves and swaps, restart from random orders.

    Where there are few ways to group the clients, all are tried.
    """
    clients = len(problem.n)
    if count_ways(clients, problem.groups) <= FEW:
        return _try_all_ways(problem)
    hardness = problem.n.sum(1) * kl(problem.n, problem.target)
    restarts = max(1, RESTARTS * LARGE // max(clients, LARGE))
    best: Labels = np.empty(0, dtype=np.int64)
    smallest = np.inf
    for i in range(restarts):
        order = rng.permutation(clients)
        if i == 0:
            hardest_first = np.argsort(-hardness[order], kind="stable")
            order = order[hardest_first]  # ties in random order
        labels = _build_groups(problem, order)
        labels = _improve_groups(problem, labels)
        found = problem.objective(labels)
        if found < smallest - GAIN:
            best = labels
            smallest = found
    return best


def fill_one_by_one(problem: Problem) -> Labels:
    """Astraea's greedy scheduling: fill a group by the clients that bring it nearest the target."""
    n = problem.n
    labels = np.full(len(n), -1, dtype=np.int64)
    for j, size in enumerate(problem.list_sizes()):
        joint = np.zeros(len(problem.target))
        for _ in range(size):
            left = np.flatnonzero(labels < 0)
            divergence = kl(joint + n[left], problem.target)
            chosen = left[np.argmin(divergence)]
            labels[chosen] = j
            joint = joint + n[chosen]
    return labels


def split_randomly(problem: Problem, rng: np.random.Generator) -> Labels:
    """Groups of equal size, give or take one, in a random order of clients."""
    order = rng.permutation(len(problem.n))
    groups = np.arange(problem.groups)
    labels = np.empty(len(order), dtype=np.int64)
    labels[order] = np.repeat(groups, problem.list_sizes())
    return labels


# ---------------------------------------------------------------- all ways
def count_ways(clients: int, groups: int) -> int:
    """In how many ways clients can be put into groups of equal size, give or take one."""
    small, larger = divmod(clients, groups)
    # groups of one size have no order
    orders = math.factorial(larger) * math.factorial(groups - larger)
    orders_inside = math.factorial(small) ** groups * (small + 1) ** larger
    ways: int = math.factorial(clients) // (orders_inside * orders)
    return ways


def list_ways(clients: int, groups: int) -> Iterator[list[int]]:
    """All of these ways, each as the group of every client."""
    small, larger = divmod(clients, groups)

    def continue_way(labels: list[int], sizes: list[int]) -> Iterator[list[int]]:
        if len(labels) == clients:
            if min(sizes) >= small:
                yield labels
            return
        grown = sum(size > small for size in sizes)
        limit = small + (grown < larger)  # only so many groups may have one client more
        used = groups - sizes.count(0)
        # empty groups are all alike: only the first of them is tried
        for j in range(min(used + 1, groups)):
            if sizes[j] < limit:
                next_sizes = list(sizes)
                next_sizes[j] += 1
                yield from continue_way([*labels, j], next_sizes)

    return continue_way([], [0] * groups)


def _try_all_ways(problem: Problem) -> Labels:
    """The best of all ways to form balanced groups; the first of several."""
    found = list(list_ways(len(problem.n), problem.groups))
    ways = np.array(found)
    members = np.eye(problem.groups)[ways]
    joint = members.transpose(0, 2, 1) @ problem.n
    costs = problem.cost(joint)
    objectives = costs.sum(-1).round(12)
    best: Labels = ways[np.argmin(objectives)]
    return best


# ---------------------------------------------------------------- local search
def _build_groups(problem: Problem, order: Labels) -> Labels:
    """Put each client in turn into the group, not full, that keeps the objective smallest."""
    n = problem.n
    small, larger = problem.sizes()
    labels = np.full(len(n), -1, dtype=np.int64)
    sizes = np.zeros(problem.groups, dtype=np.int64)
    joint = np.zeros((problem.groups, len(problem.target)))
    for i in order:
        grown = np.count_nonzero(sizes > small)
        limit = small + (grown < larger)  # only so many groups may have one client more
        change = problem.changes(joint, n[i])
        change[sizes >= limit] = np.inf
        j = int(np.argmin(change))
        labels[i] = j
        sizes[j] += 1
        joint[j] += n[i]
    return labels


def _improve_groups(problem: Problem, labels: Labels) -> Labels:
    """Move or swap one client at a time, to its best place, until no client gains."""
    state = _SearchState(problem, labels.copy())
    clients = len(labels)
    without_gain = 0  # clients in a row
    i = 0
    while without_gain < clients:
        swap = state.changes_by_swap(i)
        move = state.changes_by_move(i)
        other = int(np.argmin(swap))
        group = int(np.argmin(move))
        without_gain += 1
        if min(swap[other], move[group]) < -GAIN:
            if swap[other] <= move[group]:
                state.swap(i, other)
            else:
                state.move(i, group)
            without_gain = 0
        i = (i + 1) % clients
    return state.labels


class _SearchState:
    """The groups of a local search, with what they cost now."""

    def __init__(self, problem: Problem, labels: Labels) -> None:
        self.problem = problem
        self.labels = labels
        self._update()

    def swap(self, i: int, other: int) -> None:
        """Let two clients change places."""
        group = self.labels[i]
        self.labels[i] = self.labels[other]
        self.labels[other] = group
        self._update()

    def move(self, i: int, group: int) -> None:
        """Move client i to another group."""
        self.labels[i] = group
        self._update()

    def changes_by_swap(self, i: int) -> Array:
        """The change of the objective as client i and another change places, for every other."""
        n = self.problem.n
        mine = self.labels[i]
        my_group = self.joint[mine] - n[i] + n
        other_groups = self.joint[self.labels] - n + n[i]
        after = self.problem.cost(my_group) + self.problem.cost(other_groups)
        change: Array = after - self.now[mine] - self.now[self.labels]
        change[self.labels == mine] = np.inf
        return change

    def changes_by_move(self, i: int) -> Array:
        """The change of the objective as client i moves to a group, for every smaller group."""
        moved = self.problem.n[i]
        mine = self.labels[i]
        my_group = self.joint[mine] - moved
        other_groups = self.joint + moved
        after = self.problem.cost(my_group) + self.problem.cost(other_groups)
        change: Array = after - self.now[mine] - self.now
        sizes = np.bincount(self.labels, minlength=self.problem.groups)
        change[sizes >= sizes[mine]] = np.inf
        return change

    def _update(self) -> None:
        self.joint = self.problem.join_counts(self.labels)
        self.now = self.problem.cost(self.joint)
