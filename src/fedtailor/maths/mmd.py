"""Maximum mean discrepancy: how different two batches of features are as samples of distributions.

Gretton et al., A Kernel Two-Sample Test, JMLR 2012: the biased estimate of the squared discrepancy,
diagonals included.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)  # of the kernels that FedCP and FedPHP add up


def mmd(
    a: Tensor,
    b: Tensor,
    bandwidths: Sequence[float] = BANDWIDTHS,
) -> Tensor:
    """The squared discrepancy of the rows of ``a`` and the rows of ``b``.

    The kernel is k(u, w) = sum_s exp(-||u - w||^2 / (2 s)). With the kernel matrix K of all rows,
    and weights of 1/n for the rows of a and -1/m for those of b, weights' K weights is the mean
    within a, plus the mean within b, minus twice the mean between them.
    """
    rows = torch.cat([a, b])
    square = rows.square().sum(-1)
    squares = square[:, None] + square[None]
    distance = squares - 2 * rows @ rows.T
    kernels = [torch.exp(distance / (-2 * s)) for s in bandwidths]
    kernel = torch.stack(kernels).sum(0)
    weights = torch.cat(
        [
            _repeat(1 / len(a), a),
            _repeat(-1 / len(b), b),
        ]
    )
    return weights @ kernel @ weights


def _repeat(value: float, rows: Tensor) -> Tensor:
    """The value once for every row."""
    return rows.new_full(rows.shape[:1], value)
