"""Clients and their groups: label counts as a matrix, groups as lists or as labels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedtailor.core.rng import Rng

Array: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = NDArray[np.int64]  # by client, the number of its group
Counts: TypeAlias = Mapping[int, Tensor]  # by client, its examples of every class
Groups: TypeAlias = list[list[int]]  # clients of every group


def tabulate_counts(counts: Counts) -> tuple[list[int], Array]:
    """The clients in order, and their counts as rows of a matrix."""
    clients = sorted(counts)
    rows = [counts[k].tolist() for k in clients]
    return clients, np.array(rows, dtype=np.float64)


def collect_groups(clients: list[int], labels: Labels, groups: int) -> Groups:
    """The clients of every group, from the number of each client's group."""
    collected: Groups = [[] for _ in range(groups)]
    for k, label in zip(clients, labels, strict=True):
        collected[label].append(k)
    return sort_groups(collected)


def sort_groups(groups: Groups) -> Groups:
    """Groups by first member, empty ones last: the order tells nothing of how they were found."""
    members = sorted(sorted(group) for group in groups)
    full = [group for group in members if group]
    empty = [group for group in members if not group]
    return full + empty


def find_group(groups: Groups, k: int) -> int:
    """The number of client k's group; that of the largest group if it has none."""
    for i, group in enumerate(groups):
        if k in group:
            return i
    sizes = [len(group) for group in groups]
    return sizes.index(max(sizes))


def draw_groups(groups: Groups, share: float, rng: Rng) -> list[int]:
    """All members of a uniform share of the groups, at least one."""
    number = max(1, round(share * len(groups)))
    order = rng.permutation(len(groups)).tolist()
    members: list[int] = []
    for i in order[:number]:
        members += groups[i]
    return sorted(members)
