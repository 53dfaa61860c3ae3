"""How far label distributions are from one another, in nats."""

from __future__ import annotations

import numpy as np

from fedtailor.maths.grouping.members import Array

TINY = 1e-300  # stands for zero under a logarithm


def normalise_rows(n: Array) -> Array:
    """Counts as distributions; a row without examples gets that of all rows together."""
    total = n.sum(0)
    classes = n.shape[1]
    neutral = np.full(classes, 1 / classes)
    if total.sum() > 0:
        neutral = total / total.sum()
    size = n.sum(1, keepdims=True)
    shares = n / np.where(size > 0, size, 1)
    p: Array = np.where(size > 0, shares, neutral)
    return p


def kl(n: Array, target: Array) -> Array:
    """KL(n/|n| || target/|target|) along the last axis, from counts; 0 where n has no examples."""
    size = np.maximum(n.sum(-1), TINY)
    target_size = max(target.sum(), TINY)
    log_likelihood = n @ _log(target)
    inner = ((n * _log(n)).sum(-1) - log_likelihood) / size
    divergence = inner - np.log(size / target_size)
    result: Array = np.where(size > TINY, divergence, 0.0)
    return result


def pairwise_js(p: Array) -> Array:
    """The Jensen-Shannon divergence between all rows: 0 to log 2, symmetric to the last bit."""
    entropies = _entropy(p)
    rows = []
    for row, entropy in zip(p, entropies, strict=True):
        mixed = _entropy((row + p) / 2)
        rows.append(mixed - (entropy + entropies) / 2)
    divergence: Array = np.maximum(np.stack(rows), 0.0)
    np.fill_diagonal(divergence, 0.0)
    return divergence


def _entropy(p: Array) -> Array:
    entropy: Array = -(p * _log(p)).sum(-1)
    return entropy


def _log(x: Array) -> Array:
    """log x, and a finite number where x is 0, so that 0 log 0 = 0."""
    logarithm: Array = np.log(np.maximum(x, TINY))
    return logarithm
