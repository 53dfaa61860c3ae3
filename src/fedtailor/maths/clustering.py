"""Groups of clients: agglomerative clustering, and the distances by which methods compare what clients uploaded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Literal

import torch
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from torch import Tensor
from torch.nn import functional as F

from fedtailor.core.tree import Params, learned

Linkage = Literal[
    "single", "complete", "average"
]  # the distance of two groups: of their nearest, farthest, all members
Measure = Literal["smallest", "entries", "sum"]  # how two subspaces are compared by angles

RANK = 1e-6  # a singular value below this share of the largest is zero but for rounding


# -------------------------------------------------------------------- groups
def agglomerate(
    distance: Tensor, linkage: Linkage, *, threshold: float = math.inf, count: int = 1
) -> list[int]:
    """Everybody's group: the nearest two merge until ``count`` are left or all lie further apart than ``threshold``.

    Groups are numbered in the order of their first members.
    """
    n = len(distance)
    groups = {i: [i] for i in range(n)}
    merges = (
        hierarchy.linkage(squareform(distance.double().cpu().numpy(), checks=False), linkage)
        if n > 1
        else []
    )
    for step, (a, b, height, _) in enumerate(merges):
        if len(groups) <= count or height > threshold:
            break
        groups[n + step] = groups.pop(int(a)) + groups.pop(int(b))
    ordered = sorted(sorted(members) for members in groups.values())
    of = {i: label for label, members in enumerate(ordered) for i in members}
    return [of[i] for i in range(n)]


def bisect(alpha: Tensor, linkage: Linkage) -> tuple[list[int], list[int], float]:
    """Everybody on one of two sides, by similarities; and the greatest similarity across."""
    side = agglomerate(1 - alpha, linkage, count=2)
    one, two = ([i for i, s in enumerate(side) if s == which] for which in (0, 1))
    return one, two, float(alpha[one][:, two].max())


def find_nearest(distance: Tensor, labels: Sequence[int], linkage: Linkage) -> tuple[int, float]:
    """The group nearest to a newcomer, and how far it is; ``distance`` is to the members, ``labels`` are theirs."""
    gaps: dict[int, float] = {}
    for label in sorted(set(labels)):
        mine = distance[[i for i, other in enumerate(labels) if other == label]]
        gap = {"single": mine.min(), "complete": mine.max(), "average": mine.mean()}[linkage]
        gaps[label] = float(gap)
    label = min(gaps, key=lambda g: gaps[g])
    return label, gaps[label]


def find_largest(labels: Iterable[int]) -> int:
    """The group with the most members (the first of them), 0 if there is none."""
    sizes = Counter(labels)
    return min(sizes, key=lambda label: (-sizes[label], label), default=0)


def tell_sizes(labels: Iterable[int]) -> str:
    """Groups in words: ``3 clusters of 4, 2 and 1 clients``."""
    sizes = [str(n) for n in sorted(Counter(labels).values(), reverse=True)]
    if len(sizes) < 2:
        return f"one cluster of {''.join(sizes) or 'no'} clients"
    return f"{len(sizes)} clusters of {', '.join(sizes[:-1])} and {sizes[-1]} clients"


# -------------------------------------------------------------------- models
def flatten(w: Params) -> Tensor:
    """The parameters as one vector; BatchNorm's statistics are left out, as their scale is the data's."""
    return torch.cat([v.flatten() for v in learned(w).values()])


def compare_directions(a: Tensor, b: Tensor) -> Tensor:
    """Cosines between the rows of ``a`` and those of ``b``; 0 for a row of zeros."""
    return F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T


# -------------------------------------------------------------------- subspaces
def find_directions(rows: Tensor, p: int) -> Tensor:
    """The first p principal directions of the rows, orthonormal; fewer where the rows span fewer.

    They are the left singular vectors of the matrix that has the rows as its columns, here by the eigenvectors of its
    smaller square: many times faster, and in double precision exact enough for the leading ones.
    """
    if len(rows) == 0:
        return rows
    x, wide = rows.double(), rows.shape[0] <= rows.shape[1]
    values, vectors = torch.linalg.eigh(x @ x.T if wide else x.T @ x)  # in ascending order
    values, vectors = values.flip(0)[:p], vectors.flip(1)[:, :p].T
    real = values > RANK**2 * values[0]
    found: Tensor = vectors[real] @ x / values[real, None].sqrt() if wide else vectors[real]
    return found.to(rows.dtype)


def measure_angles(
    a: Sequence[Tensor], b: Sequence[Tensor], measure: Measure = "smallest"
) -> Tensor:
    """Degrees between the spaces spanned by the rows of every ``a`` and every ``b``.

    ``smallest``: the smallest principal angle. ``entries``: the smallest angle between a row of one and a row of the
    other, which is no less. ``sum``: of the angles between first rows, second rows ...; rows are of length one.
    """
    left, right = [x.double() for x in a], [x.double() for x in b]
    if measure == "smallest":
        left, right = [_orthonormalise(x) for x in left], [_orthonormalise(x) for x in right]
    between = {"smallest": _smallest, "entries": _entries, "sum": _sum}[measure]
    degrees = [
        [math.degrees(between(x, y)) if len(x) and len(y) else 90.0 for y in right] for x in left
    ]
    return torch.tensor(degrees, dtype=torch.float64).reshape(len(a), len(b))


def _orthonormalise(rows: Tensor) -> Tensor:
    if len(rows) == 0:
        return rows
    _, s, directions = torch.linalg.svd(rows, full_matrices=False)
    basis: Tensor = directions[s > RANK * s[0]]
    return basis


def _smallest(a: Tensor, b: Tensor) -> float:
    """The angle of the nearest two unit vectors, by their distance: a cosine near 1 says little about a small angle."""
    u, _, v = torch.linalg.svd(a @ b.T)
    return 2 * math.asin(min(1.0, float((u[:, 0] @ a - v[0] @ b).norm()) / 2))


def _entries(a: Tensor, b: Tensor) -> float:
    return math.acos(min(1.0, float((a @ b.T).abs().max())))


def _sum(a: Tensor, b: Tensor) -> float:
    m = min(len(a), len(b))
    return float((a[:m] * b[:m]).sum(-1).abs().clamp(max=1.0).acos().sum())
