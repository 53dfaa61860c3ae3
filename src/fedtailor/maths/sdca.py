"""Linear models of related tasks, found by stochastic dual coordinate ascent.

Smith et al., Federated Multi-Task Learning, NeurIPS 2017. Task t has examples x_i with labels
y_i = +-1, the hinge loss and one dual variable an example, alpha_i with y_i alpha_i in [0, 1]. Of
all its data the others need only

    v_t = 1/n_t sum_i alpha_i x_i    and so    w_t = 1/lambda sum_s Sigma_ts v_s,  Sigma = Omega^-1.

Many classes are as many problems side by side, one against the rest, with one Sigma for all.
"""

from __future__ import annotations

import torch
from torch import Tensor

FLOOR = 1e-7  # least eigenvalue of W'W, so that no task is cut off


def climb(
    x: Tensor,
    y: Tensor,
    alpha: Tensor,
    w: Tensor,
    scale: float,
    order: Tensor,
) -> Tensor:
    """New dual variables after one exact step of coordinate ascent at every example in ``order``.

    The task's own share of the dual is maximised, the paper's Eq. (4).

    Args:
        x: inputs (n, d).
        y: labels of +-1 (n, classes).
        alpha: dual variables (n, classes).
        w: this task's models (classes, d).
        scale: by how much a change of v moves the models: rho Sigma_tt / lambda, where rho > 1
            makes up for the tasks that change theirs at the same time.
        order: positions of examples.
    """
    alpha = alpha.clone()
    w = w.clone()
    rate = scale / len(x)
    tiny = torch.finfo(x.dtype).tiny
    curvature = (rate * x.square().sum(1)).clamp(min=tiny)
    for i in order.tolist():
        gradient = y[i] - w @ x[i]
        best = alpha[i] + gradient / curvature[i]
        feasible = (y[i] * best).clamp(0, 1)
        new = y[i] * feasible
        change = new - alpha[i]
        w.addr_(change, x[i], alpha=rate)
        alpha[i] = new
    return alpha


def sum_up(alpha: Tensor, x: Tensor) -> Tensor:
    """v_t of every class: all that a task reveals of its data."""
    n = max(len(x), 1)
    return torch.mm(alpha.T, x) / n


def combine(sigma: Tensor, v: Tensor, lam: float) -> Tensor:
    """The models w_t of the tasks whose rows of Sigma are given, or of one, from all tasks' v."""
    w: Tensor = torch.tensordot(sigma.to(v), v, 1)
    return w / lam


def relate(w: Tensor) -> Tensor:
    """Sigma = (W'W)^1/2 / tr (W'W)^1/2, for which tr W Sigma^-1 W' is least.

    ``w`` (tasks, ...) has a row for every task.
    """
    rows = w.flatten(1).double()
    values, vectors = torch.linalg.eigh(rows @ rows.T)
    roots = values.clamp(min=FLOOR).sqrt()
    shares = roots / roots.sum()
    return torch.mm(vectors * shares, vectors.T)


def bound_together(sigma: Tensor) -> float:
    """rho: how much more several tasks' steps weigh together than each by itself."""
    if len(sigma) == 0:
        return 1.0
    ratios = sigma.abs().sum(1) / sigma.diagonal()
    return float(ratios.max())
