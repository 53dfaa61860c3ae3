"""How far label distributions are from one another, in nats."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

Array: TypeAlias = NDArray[np.float64]
Labels: TypeAlias = NDArray[np.int64]  # by client, the number of its group
Counts: TypeAlias = Mapping[int, Tensor]  # by client, its examples of every class
Groups: TypeAlias = list[list[int]]

TINY = 1e-300  # stands for zero under a logarithm


def tabulate(counts: Counts) -> tuple[list[int], Array]:
    """The clients in order, and their counts as rows."""
    clients = sorted(counts)
    return clients, np.array([counts[k].tolist() for k in clients], dtype=np.float64)


def gather(clients: list[int], labels: Labels, groups: int) -> Groups:
    """Labels as sorted lists of clients."""
    out: Groups = [[] for _ in range(groups)]
    for k, label in zip(clients, labels.tolist(), strict=True):
        out[label].append(k)
    return sort_groups(out)


def sort_groups(groups: Groups) -> Groups:
    """By first member, empty groups last: an order that says nothing of how they were found."""
    return sorted(map(sorted, groups), key=lambda group: (not group, group))


def normalise_rows(n: Array) -> Array:
    """Counts as distributions; a row without examples gets that of all rows together, the neutral one."""
    total = n.sum(0)
    neutral = total / total.sum() if total.sum() > 0 else np.full(n.shape[1], 1 / n.shape[1])
    size = n.sum(1, keepdims=True)
    p: Array = np.where(size > 0, n / np.where(size > 0, size, 1), neutral)
    return p


def kl(n: Array, target: Array) -> Array:
    """KL(n/|n| || target/|target|) along the last axis, from counts; where n is nothing, so is its distance."""
    size = np.maximum(n.sum(-1), TINY)
    inner = ((n * _log(n)).sum(-1) - n @ _log(target)) / size
    out: Array = np.where(size > TINY, inner - np.log(size / max(target.sum(), TINY)), 0.0)
    return out


def js(p: Array) -> Array:
    """The Jensen-Shannon divergence between all rows: 0 to log 2, symmetric to the last bit."""
    own = _entropy(p)
    rows = [_entropy((row + p) / 2) - (h + own) / 2 for row, h in zip(p, own, strict=True)]
    out: Array = np.maximum(np.stack(rows), 0.0)
    np.fill_diagonal(out, 0.0)
    return out


def _entropy(p: Array) -> Array:
    out: Array = -(p * _log(p)).sum(-1)
    return out


def _log(x: Array) -> Array:
    """log x, and some finite number where there is nothing: 0 log 0 = 0."""
    out: Array = np.log(np.maximum(x, TINY))
    return out
