"""Clusters of clients, and the distances by which methods compare what clients uploaded."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal

import torch
from scipy.cluster import hierarchy
from scipy.spatial.distance import squareform
from torch import Tensor
from torch.nn import functional as F

from fedtailor.core.tree import Params, learned

# the distance of two clusters is that of their nearest, of their farthest, or of all members
Linkage = Literal["single", "complete", "average"]
# how two subspaces are compared by angles
Measure = Literal["smallest", "entries", "sum"]

RANK = 1e-6  # a singular value below this share of the largest is zero but for rounding


# ---------------------------------------------------------------- clusters
def agglomerate(
    distance: Tensor,
    linkage: Linkage,
    *,
    threshold: float = math.inf,
    count: int = 1,
) -> list[int]:
    """Agglomerative clustering: merge the nearest two clusters, again and again.

    Args:
        distance: between any two clients.
        linkage: what the distance between two clusters is.
        threshold: clusters further apart are not merged.
        count: so many clusters are left at least.

    Returns:
        The cluster of every client; clusters are numbered in the order of their first members.
    """
    n = len(distance)
    members = {i: [i] for i in range(n)}
    new = n  # the number of the next cluster
    for a, b, height, _ in _list_merges(distance, linkage):
        if len(members) <= count or height > threshold:
            break
        first = members.pop(int(a))
        second = members.pop(int(b))
        members[new] = first + second
        new += 1
    clusters = sorted(sorted(cluster) for cluster in members.values())
    labels = [0] * n
    for label, cluster in enumerate(clusters):
        for i in cluster:
            labels[i] = label
    return labels


def _list_merges(distance: Tensor, linkage: Linkage) -> Sequence[tuple[float, ...]]:
    """Two clusters, their distance and their size, for every merge; new clusters count from n."""
    if len(distance) < 2:
        return []
    square = distance.double().cpu().numpy()
    condensed = squareform(square, checks=False)
    merges: Sequence[tuple[float, ...]] = hierarchy.linkage(condensed, linkage)
    return merges


def bisect(alpha: Tensor, linkage: Linkage) -> tuple[list[int], list[int], float]:
    """Two clusters by similarities ``alpha``, and the greatest similarity between them."""
    labels = agglomerate(1 - alpha, linkage, count=2)
    one = [i for i, label in enumerate(labels) if label == 0]
    two = [i for i, label in enumerate(labels) if label == 1]
    across = alpha[one][:, two]
    return one, two, float(across.max())


def find_nearest(
    distance: Tensor, labels: Sequence[int], linkage: Linkage
) -> tuple[int, float]:
    """The cluster nearest to a new client, and how far it is.

    Args:
        distance: from the new client to every other one.
        labels: the clusters of the others.
        linkage: what the distance to a cluster is.
    """
    gaps: dict[int, float] = {}
    for label in sorted(set(labels)):
        members = [i for i, other in enumerate(labels) if other == label]
        gaps[label] = _distance_to_cluster(distance[members], linkage)
    nearest = min(gaps, key=lambda label: gaps[label])
    return nearest, gaps[nearest]


def _distance_to_cluster(distance: Tensor, linkage: Linkage) -> float:
    if linkage == "single":
        return float(distance.min())
    if linkage == "complete":
        return float(distance.max())
    return float(distance.mean())


def find_largest(labels: Iterable[int]) -> int:
    """The cluster with the most members, the first of several; 0 if there is none."""
    sizes = Counter(labels)
    if not sizes:
        return 0
    most = max(sizes.values())
    return min(label for label, size in sizes.items() if size == most)


def list_members(cluster: Mapping[int, int]) -> list[list[int]]:
    """The members of every cluster, from each member's cluster."""
    found: dict[int, list[int]] = {}
    for k in sorted(cluster):
        found.setdefault(cluster[k], []).append(k)
    return [found[c] for c in sorted(found)]


def tell_sizes(labels: Iterable[int]) -> str:
    """The sizes of clusters in words: ``3 clusters of 4, 2 and 1 clients``."""
    sizes = sorted(Counter(labels).values(), reverse=True)
    if not sizes:
        return "one cluster of no clients"
    *others, last = [str(size) for size in sizes]
    if not others:
        return f"one cluster of {last} clients"
    return f"{len(sizes)} clusters of {', '.join(others)} and {last} clients"


# ---------------------------------------------------------------- models
def flatten(w: Params) -> Tensor:
    """The parameters as one vector; without BatchNorm's statistics, whose scale is the data's."""
    vectors = [value.flatten() for value in learned(w).values()]
    return torch.cat(vectors)


def compare_directions(a: Tensor, b: Tensor) -> Tensor:
    """Cosines between the rows of ``a`` and those of ``b``; 0 for a row of zeros."""
    a = F.normalize(a, dim=-1)
    b = F.normalize(b, dim=-1)
    return a @ b.T


# ---------------------------------------------------------------- subspaces
def find_directions(rows: Tensor, p: int) -> Tensor:
    """The first p principal directions of the rows, orthonormal; fewer where the rows span fewer.

    They are the left singular vectors of the matrix that has the rows as its columns, found as the
    eigenvectors of its smaller square: many times faster, and in double precision exact enough for
    the leading ones.
    """
    if len(rows) == 0:
        return rows
    x = rows.double()
    is_wide = rows.shape[0] <= rows.shape[1]
    square = x @ x.T if is_wide else x.T @ x
    ascending, columns = torch.linalg.eigh(square)
    values = ascending.flip(0)[:p]
    vectors = columns.flip(1)[:, :p].T
    is_real = values > RANK**2 * values[0]
    values = values[is_real]
    vectors = vectors[is_real]
    if is_wide:
        vectors = vectors @ x / values[:, None].sqrt()
    directions: Tensor = vectors.to(rows.dtype)
    return directions


def measure_angles(
    a: Sequence[Tensor], b: Sequence[Tensor], measure: Measure = "smallest"
) -> Tensor:
    """Degrees between the spaces spanned by the rows of every ``a`` and every ``b``.

    Args:
        a: bases, with rows of length one.
        b: other bases.
        measure: ``smallest`` is the smallest principal angle, ``entries`` the smallest angle
            between a row of one and a row of the other, which is no less, ``sum`` the sum of the
            angles between first rows, second rows ...
    """
    left = [x.double() for x in a]
    right = [x.double() for x in b]
    if measure == "smallest":
        left = [_orthonormalise(x) for x in left]
        right = [_orthonormalise(x) for x in right]
    shape = (len(a), len(b))
    degrees = torch.full(shape, 90.0, dtype=torch.float64)
    for i, x in enumerate(left):
        for j, y in enumerate(right):
            if len(x) and len(y):
                angle = ANGLES[measure](x, y)
                degrees[i, j] = math.degrees(angle)
    return degrees


def _orthonormalise(rows: Tensor) -> Tensor:
    if len(rows) == 0:
        return rows
    _, singular, directions = torch.linalg.svd(rows, full_matrices=False)
    basis: Tensor = directions[singular > RANK * singular[0]]
    return basis


def _smallest_angle(a: Tensor, b: Tensor) -> float:
    """The smallest principal angle.

    It is found by the distance of the nearest two unit vectors: a cosine near 1 says little about a
    small angle.
    """
    u, _, v = torch.linalg.svd(a @ b.T)
    nearest_a = u[:, 0] @ a
    nearest_b = v[0] @ b
    distance = float((nearest_a - nearest_b).norm())
    return 2 * math.asin(min(1.0, distance / 2))


def _smallest_of_entries(a: Tensor, b: Tensor) -> float:
    cosines = (a @ b.T).abs()
    return math.acos(min(1.0, float(cosines.max())))


def _sum_of_angles(a: Tensor, b: Tensor) -> float:
    rows = min(len(a), len(b))
    cosines = (a[:rows] * b[:rows]).sum(-1)
    angles = cosines.abs().clamp(max=1.0).acos()
    return float(angles.sum())


ANGLES: dict[Measure, Callable[[Tensor, Tensor], float]] = {
    "smallest": _smallest_angle,
    "entries": _smallest_of_entries,
    "sum": _sum_of_angles,
}
