"""MGDA-UB: weights for the losses of several tasks that make the sum of their gradients shortest.

Sener and Koltun, Multi-Task Learning as Multi-Objective Optimization, NeurIPS 2018. Theirs are the
problem (Eq. 3, and its upper bound by gradients with respect to the representation, MGDA-UB), the
closed form for two tasks (Algorithm 1) and Frank-Wolfe (the procedure in Algorithm 2). What is done
with the weights is not in this file: in their Algorithm 2 they weigh only the step of the shared
parameters (line 5); every task's own parameters follow their plain gradients (lines 1 to 3).

A step against the shortest weighted sum makes no task worse, to first order. This holds for the
gradients that the weights were made for: not for weights of normalised gradients that are then
applied to gradients as they are (``normalise``), nor for ones that were lifted (``lift``). With
gradients by the representation it also needs a representation whose derivative by the parameters
has full rank (their Theorem 1).

Different from the paper: the solver moves weight between two tasks (``min_norm``), and no step is
kept away from the ends of its interval, as their code does (0.001 and 0.999), so that a weight may
be 0. No value decides what is computed next, so that everything runs under ``vmap``: the solver
takes a fixed number of steps, and steps after the optimum change nothing.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import torch
from torch import Tensor

GradNorm = Literal["none", "l2", "loss", "loss+"] | None


# ---------------------------------------------------------------- the Gram matrix
def head_gram(
    weight: Tensor,
    error: Tensor,
    task: Tensor,
    tasks: int,
) -> Tensor:
    """Inner products <dL_s/dz, dL_t/dz> of tasks whose heads are rows of one linear layer.

    dL_t/dz is error_t weight_t, so that neither a second forward nor a backward pass is needed.

    Args:
        weight: (R, d), the layer's weight; it is applied to the representation z.
        error: (B, R), the derivative of each row's own task loss by the row's logit.
        task: (R,), the task of each row.
        tasks: how many there are.
    """
    weights = weight @ weight.T
    errors = error.T @ error
    products = weights * errors  # of single rows
    numbers = torch.arange(tasks, device=task.device)
    is_owner = numbers == task[:, None]
    owner = is_owner.to(weight.dtype)
    return owner.T @ products @ owner


def normalise(gram: Tensor, loss: Tensor, how: GradNorm) -> Tensor:
    """The Gram matrix of gradients divided by their lengths (l2), their losses, or both (loss+).

    An option of Sener and Koltun's code, not of their paper. Weights made from the result are
    applied to gradients that are not divided, there as here, so that the weighted sum need not be a
    direction in which all losses fall. Among gradients of length one all weights are nearly equal.
    """
    if how in (None, "none"):
        return gram
    square = gram.diagonal()
    length = square.clamp(min=0).sqrt()
    if how == "l2":
        divisor = length
    elif how == "loss":
        divisor = loss
    else:
        divisor = loss * length
    tiny = torch.finfo(gram.dtype).tiny
    scale = 1 / divisor.clamp(min=tiny**0.5)
    return gram * scale[:, None] * scale


# ---------------------------------------------------------------- the shortest sum
def min_norm(gram: Tensor, active: Tensor, steps: int) -> Tensor:
    """The weights alpha >= 0 with sum 1 that minimise alpha' gram alpha.

    Two tasks have a closed form (Sener and Koltun, Algorithm 1). With more, they take Frank-Wolfe
    (Algorithm 2) from equal weights, their code from the best pair. Here it goes on from the better
    of the two, in its pairwise form (Lacoste-Julien and Jaggi, On the Global Linear Convergence of
    Frank-Wolfe Optimization Variants, NeurIPS 2015), which is not theirs. The original form must
    shrink all weights to change one: with many tasks, two pairwise steps per task come closer than
    hundreds of its steps. The optimum is the same.

    Args:
        gram: (T, T), inner products of the tasks' gradients.
        active: (T,) bool; the other tasks get weight 0.
        steps: of Frank-Wolfe.
    """
    alpha = _start(gram, active)
    if len(gram) <= 2:
        return alpha
    problem = _make_problem(gram, active)
    slope = gram @ alpha
    for _ in range(steps):
        alpha, slope = _move_weight(problem, alpha, slope)
    return alpha


def balance(first: Tensor, second: Tensor, both: Tensor) -> Tensor:
    """The share of the first of two gradients in their shortest mixture (their Algorithm 1).

    Args:
        first, second: the squared lengths of the two.
        both: their inner product.
    """
    apart = first + second - 2 * both
    tiny = torch.finfo(apart.dtype).tiny
    apart = apart.clamp(min=tiny)
    share = (second - both) / apart
    return share.clamp(0, 1)


def lift(alpha: Tensor, active: Tensor, least: float) -> Tensor:
    """Weights of which no active task has less than ``least`` (or an equal share, if smaller).

    Not in Sener and Koltun's paper; their code has no such floor either.
    """
    demand = active.sum() * least
    excess = demand.clamp(min=1)
    floor = active.to(alpha.dtype) / excess * least
    rest = 1 - floor.sum()
    return floor + rest * alpha


def _start(gram: Tensor, active: Tensor) -> Tensor:
    """The best mixture of two tasks, or equal weights where these are better."""
    length = gram.diagonal()
    first = length[:, None]
    second = length[None]
    share = balance(first, second, gram)
    rest = 1 - share
    norm = share**2 * first
    norm = norm + 2 * share * rest * gram
    norm = norm + rest**2 * second
    is_allowed = active[:, None] & active
    allowed = torch.where(is_allowed, norm, torch.inf)
    positions = torch.arange(norm.numel(), device=norm.device)
    is_best = positions == allowed.flatten().argmin()
    best = is_best.to(gram.dtype).reshape(norm.shape)
    weights_of_first = (best * share).sum(1)
    weights_of_second = (best * rest).sum(0)
    pair = weights_of_first + weights_of_second
    equal = active.to(gram.dtype) / active.sum()
    equal_is_better = _square(equal, gram) < _square(pair, gram)
    return torch.where(equal_is_better, equal, pair)


def _square(alpha: Tensor, gram: Tensor) -> Tensor:
    """The squared length of a weighted sum of gradients."""
    return alpha @ gram @ alpha


class _Problem(NamedTuple):
    """What all steps of the solver have in common."""

    gram: Tensor
    active: Tensor
    positions: Tensor  # 0, 1, 2, ...
    noise: Tensor  # gains below it are rounding
    order: Tensor  # added to slopes, so that rounding does not decide which of equal ones is less


def _make_problem(gram: Tensor, active: Tensor) -> _Problem:
    """The problem, with what rounding can do to its numbers."""
    tasks = len(gram)
    eps = torch.finfo(gram.dtype).eps
    squares = torch.where(active, gram.diagonal(), 0.0)
    largest = squares.max()
    positions = torch.arange(tasks, device=gram.device)
    share = positions.to(gram.dtype) / tasks
    return _Problem(
        gram=gram,
        active=active,
        positions=positions,
        noise=4 * eps * largest,
        order=share * eps ** (2 / 3) * largest,
    )


def _move_weight(
    problem: _Problem, alpha: Tensor, slope: Tensor
) -> tuple[Tensor, Tensor]:
    """Move weight from the worst task that has some to the best one, as far as it shortens the sum.

    Args:
        problem: what to solve.
        alpha: the weights so far.
        slope: gram @ alpha.

    Returns:
        The new weights and slopes.
    """
    rank = slope + problem.order
    has_weight = alpha > 0
    best = torch.where(problem.active, rank, torch.inf).argmin()
    worst = torch.where(has_weight, rank, -torch.inf).argmax()
    from_worst = (problem.positions == worst).to(alpha.dtype)
    to_best = (problem.positions == best).to(alpha.dtype)
    direction = to_best - from_worst
    slope_change = problem.gram @ direction
    gain = -(slope @ direction)
    curvature = direction @ slope_change
    best_step = gain / curvature.clamp(min=problem.noise)
    largest_step = alpha @ from_worst
    step = torch.minimum(best_step, largest_step)
    step = torch.where(gain > problem.noise, step, 0.0)
    alpha = torch.addcmul(alpha, direction, step)
    slope = torch.addcmul(slope, slope_change, step)
    return alpha, slope
