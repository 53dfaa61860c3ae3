"""Maximum mean discrepancy: how far apart two batches of features lie as samples of two distributions.

Gretton et al., A Kernel Two-Sample Test, JMLR 2012: the biased estimate of the square, diagonals included.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

BANDWIDTHS = (10.0, 15.0, 20.0, 50.0)  # of the kernels that FedCP and FedPHP add up


def mmd(a: Tensor, b: Tensor, bandwidths: Sequence[float] = BANDWIDTHS) -> Tensor:
    """Squared discrepancy of the rows of ``a`` and ``b`` under k(u, w) = sum_s exp(-||u - w||^2 / (2 s)).

    One kernel matrix of all rows together, K, and weights of 1/n and -1/m: weights K weights is the mean within a,
    plus the mean within b, minus twice the mean between them.
    """
    rows = torch.cat([a, b])
    weights = torch.cat([a.new_full(a.shape[:1], 1 / len(a)), b.new_full(b.shape[:1], -1 / len(b))])
    square = rows.square().sum(-1)
    distance = square[:, None] + square[None] - 2 * rows @ rows.T
    kernel = torch.stack([torch.exp(distance / (-2 * s)) for s in bandwidths]).sum(0)
    return weights @ kernel @ weights
