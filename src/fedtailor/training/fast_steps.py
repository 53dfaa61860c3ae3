"""Optimiser steps in place, in few passes through memory.

Private torch functions (``_foreach_*``, ``_fused_sgd_``) are used in this file alone.
An optimiser that is not known here takes its own ``step``, which is copied into place.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import torch
from torch import Tensor

from fedtailor.core.tree import Params, Tree, part
from fedtailor.models.factored_linear import FactoredGradient
from fedtailor.training.optim import SGD, Groups, Optimiser, Pull, names_under


def step_in_place(
    optimiser: Optimiser, w: Params, gradient: Params, state: Tree
) -> Tree:
    """``optimiser.step`` written into ``w``; gives the new state. The gradient may be used up.

    A class that derives from a known one may do something else, so it runs as it is.
    """
    if type(optimiser) is Groups:
        return {
            prefix: step_in_place(
                inner, part(w, prefix), part(gradient, prefix), state[prefix]
            )
            for prefix, inner in optimiser.by.items()
        }
    if type(optimiser) is Pull:
        if not optimiser.is_lerp:
            whole = optimiser.whole_gradient(w, gradient)
            return step_in_place(optimiser.inner, w, whole, state)
        pull_in_place(optimiser, w, gradient)
        return step_in_place(optimiser.inner, w, gradient, state)
    if type(optimiser) is SGD:
        sgd_in_place(optimiser, w, gradient, state)
        return state
    dense = {name: g.to_dense() if g.is_sparse else g for name, g in gradient.items()}
    new, state = optimiser.step(w, dense, state)
    for name, value in new.items():
        w[name].copy_(value)
    return state


def pull_in_place(optimiser: Pull, w: Params, names: Iterable[str]) -> None:
    """Move parameters towards the centre."""
    weight = optimiser.lerp_weight()
    for name in names:
        w[name].lerp_(optimiser.centre[name], weight)


def sgd_in_place(sgd: SGD, w: Params, gradient: Params, momentum: Tree) -> None:
    """A step of SGD in few passes through memory."""
    names = list(gradient)
    if any(gradient[name].is_sparse for name in names):
        names = [
            name for name in names if not step_sparse(sgd, w[name], gradient, name)
        ]
    if not names:
        return
    params = [w[name] for name in names]
    grads = [gradient[name] for name in names]
    if sgd.weight_decay and not sgd.momentum and are_contiguous(params + grads):
        fused_sgd(sgd, params, grads)  # with momentum this would round differently
        return
    if sgd.weight_decay and have_own_memory(grads):
        torch._foreach_add_(grads, params, alpha=sgd.weight_decay)
    elif sgd.weight_decay:
        grads = list(torch._foreach_add(grads, params, alpha=sgd.weight_decay))
    if sgd.momentum:
        moments = [momentum[name] for name in names]
        torch._foreach_mul_(moments, sgd.momentum)
        torch._foreach_add_(moments, grads)
        if sgd.nesterov:
            moments = list(torch._foreach_add(grads, moments, alpha=sgd.momentum))
        grads = moments
    torch._foreach_add_(params, grads, alpha=-sgd.lr)


def fused_sgd(sgd: SGD, params: list[Tensor], grads: list[Tensor]) -> None:
    """Weight decay and update in one pass."""
    torch._fused_sgd_(
        params,
        grads,
        [],
        weight_decay=sgd.weight_decay,
        momentum=0.0,
        lr=sgd.lr,
        dampening=0.0,
        nesterov=False,
        maximize=False,
        is_first_step=False,
    )


def step_sparse(sgd: SGD, param: Tensor, gradient: Params, name: str) -> bool:
    """Change only the rows that have a gradient; whether that was possible.

    Weight decay and momentum change every row: then the gradient is made dense instead.
    """
    if not gradient[name].is_sparse:
        return False
    if not sgd.is_plain:
        gradient[name] = gradient[name].to_dense()
        return False
    param.add_(gradient[name], alpha=-sgd.lr)
    return True


def are_contiguous(tensors: Sequence[Tensor]) -> bool:
    """Whether all tensors are."""
    return all(tensor.is_contiguous() for tensor in tensors)


def have_own_memory(grads: Sequence[Tensor]) -> bool:
    """Whether no two gradients share memory, so that one can be changed without the other."""
    return are_contiguous(grads) and len({g.data_ptr() for g in grads}) == len(grads)


# ---------------------------------------------------------------- gradients in factors
def accepts_factors(optimiser: Optimiser, name: str) -> bool:
    """Whether ``step_by_factors`` can train this parameter."""
    if type(optimiser) is Groups:
        return any(
            accepts_factors(inner, name)
            for prefix, inner in optimiser.by.items()
            if names_under([name], [prefix])
        )
    if type(optimiser) is Pull:
        return optimiser.is_lerp
    return type(optimiser) is SGD and not optimiser.momentum


def step_by_factors(
    optimiser: Optimiser, w: Params, gradient: Mapping[str, FactoredGradient]
) -> None:
    """A step on gradients in factors: each is added to its parameter while it is multiplied out."""
    if not gradient:
        return
    if isinstance(optimiser, Groups):
        for prefix, inner in optimiser.by.items():
            mine = {name: gradient[name] for name in names_under(gradient, [prefix])}
            step_by_factors(inner, w, mine)
        return
    sgd = optimiser
    if isinstance(optimiser, Pull):
        pull_in_place(optimiser, w, gradient)
        sgd = optimiser.inner
    if not isinstance(sgd, SGD):
        return
    for name, factors in gradient.items():
        factors.add_to_(w[name], 1 - sgd.lr * sgd.weight_decay, -sgd.lr)
