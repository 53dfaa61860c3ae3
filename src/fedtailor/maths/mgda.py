"""MGDA-UB: weights for the losses of several tasks, such that the sum of their gradients is as short as it can be.

Sener and Koltun, Multi-Task Learning as Multi-Objective Optimization, NeurIPS 2018, Algorithm 2. Such a sum is a
direction in which no task gets worse. The gradients are those by the representation, which all tasks share; all that
is needed of them is their Gram matrix.

Nothing here looks at values to decide what to do next, so that all of it runs under ``vmap``. The solver takes a fixed
number of steps; one that has arrived stands still.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

GradNorm = Literal["none", "l2", "loss", "loss+"] | None


def head_gram(weight: Tensor, error: Tensor, task: Tensor, tasks: int) -> Tensor:
    """Inner products <dL_s/dz, dL_t/dz> for tasks whose heads are rows of one linear layer upon the representation z.

    ``weight`` (R, d): the layer. ``error`` (B, R): the derivative of each row's own task by the row's logit. ``task``
    (R,): whose row it is. Since dL_t/dz is error_t weight_t, neither a second forward nor a backward is needed.
    """
    rows = (weight @ weight.T) * (error.T @ error)
    owner = (torch.arange(tasks, device=task.device) == task[:, None]).to(weight.dtype)
    return owner.T @ rows @ owner


def normalise(gram: Tensor, loss: Tensor, how: GradNorm) -> Tensor:
    """The Gram matrix of gradients divided by their lengths (l2), by their tasks' losses (loss) or by both (loss+)."""
    if how in (None, "none"):
        return gram
    length = gram.diagonal().clamp(min=0).sqrt()
    size = length if how == "l2" else loss if how == "loss" else loss * length
    scale = 1 / size.clamp(min=torch.finfo(gram.dtype).tiny ** 0.5)
    return gram * scale[:, None] * scale


def balance(first: Tensor, second: Tensor, both: Tensor) -> Tensor:
    """The share of the first of two gradients in their shortest mix, from their squared lengths and inner product."""
    apart = first + second - 2 * both
    return ((second - both) / apart.clamp(min=torch.finfo(apart.dtype).tiny)).clamp(0, 1)


def min_norm(gram: Tensor, active: Tensor, steps: int) -> Tensor:
    """The weights alpha >= 0 with sum 1 that make alpha' gram alpha least; those of tasks not active are 0.

    Two tasks have a closed form. For more it is the start, and Frank-Wolfe goes on from there in its pairwise form
    (Lacoste-Julien and Jaggi, On the Global Linear Convergence of Frank-Wolfe Optimization Variants, NeurIPS 2015): a
    step moves weight from the worst task that has some to the best one, as far as pays. Where tasks are many, two steps
    for each come nearer than hundreds of the original form, which must shrink all weights to change one.
    """
    alpha = _start(gram, active)
    if len(gram) <= 2:
        return alpha
    slots, slope = torch.arange(len(gram), device=gram.device), gram @ alpha
    size, fine = torch.where(active, gram.diagonal(), 0.0).max(), torch.finfo(gram.dtype).eps
    noise, order = 4 * fine * size, slots.to(gram.dtype) / len(gram) * fine ** (2 / 3) * size
    for _ in range(steps):
        rank = slope + order  # a step leaves two slopes equal; rounding must not say which is less
        best = torch.where(active, rank, torch.inf).argmin()
        worst = torch.where(alpha > 0, rank, -torch.inf).argmax()
        away = (slots == worst).to(gram.dtype)
        move = (slots == best).to(gram.dtype) - away
        turn, gain = gram @ move, -(slope @ move)
        step = torch.minimum(gain / (move @ turn).clamp(min=noise), alpha @ away)
        step = torch.where(gain > noise, step, 0.0)  # arrived: what is left to gain is rounding
        alpha, slope = torch.addcmul(alpha, move, step), torch.addcmul(slope, turn, step)
    return alpha


def _start(gram: Tensor, active: Tensor) -> Tensor:
    """The best pair of tasks, or all alike where that is better."""
    length = gram.diagonal()
    share = balance(length[:, None], length[None], gram)
    norm = share**2 * length[:, None] + 2 * share * (1 - share) * gram + (1 - share) ** 2 * length
    best = torch.where(active[:, None] & active, norm, torch.inf).flatten().argmin()
    pick = _point(best, norm)
    pair = (pick * share).sum(1) + (pick * (1 - share)).sum(0)
    alike = active.to(gram.dtype) / active.sum()
    return torch.where(alike @ gram @ alike < pair @ gram @ pair, alike, pair)


def _point(index: Tensor, like: Tensor) -> Tensor:
    """Zeros in the shape of ``like``, and a one at ``index``, counted in reading order."""
    slots = torch.arange(like.numel(), device=like.device)
    return (slots == index).to(like.dtype).reshape(like.shape)


def lift(alpha: Tensor, active: Tensor, least: float) -> Tensor:
    """Weights of which no active task has less than ``least`` (or than an equal share, where that is less)."""
    floor = active.to(alpha.dtype) / torch.clamp(active.sum() * least, min=1) * least
    return floor + (1 - floor.sum()) * alpha
