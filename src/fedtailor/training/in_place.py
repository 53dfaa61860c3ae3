"""Local training by plain autograd: leaf tensors that the optimiser changes where they lie in memory.

The invariant: ``train`` gives what as many calls of ``step`` give, bit for bit, and
``training/functional.py``, which runs under ``vmap``, gives the same up to rounding.
``tests/training/test_training_paths.py`` compares all three.

Private torch functions (``_foreach_*``, ``_fused_sgd_``) and gradients in factors are used in this
file alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.tree import Params, Tree, part, tmap
from fedtailor.core.wire import own
from fedtailor.models.factored_linear import Collector, FactoredGradient
from fedtailor.training.client_data import Batch
from fedtailor.training.net import Template
from fedtailor.training.optim import SGD, Groups, Optimiser, Pull, names_under

Loss = Callable[[Params, Batch], Any]  # a scalar tensor, or (scalar tensor, auxiliary output)


def train(
    template: Template,
    loss: Loss,
    w: Params,
    names: Sequence[str],
    optimiser: Optimiser,
    state: Tree,
    batches: Iterable[Batch],
) -> tuple[Params, Tree]:
    """Train the named parameters of ``w`` on all batches; gives the new model and optimiser state."""
    leaves = {name: w[name].detach().clone().requires_grad_() for name in names}
    buffers = copy_buffers(template, w)
    model = w | leaves | buffers
    values = {name: leaf.detach() for name, leaf in leaves.items()}  # same memory, no autograd
    state = optimiser.init(values) if state is None else own(state)
    collector = Collector(leaves, lambda name: accepts_factors(optimiser, name))
    with template.train(buffers.values()), template.sparse(True), template.collect(collector):
        for batch in batches:
            whole, factored = collector.grad(loss(model, batch))
            state = step_in_place(optimiser, values, whole, state)
            step_by_factors(optimiser, values, factored)
    return w | values | buffers, state


def step(
    template: Template,
    loss: Loss,
    w: Params,
    names: Sequence[str],
    optimiser: Optimiser,
    state: Tree,
    batch: Batch,
    has_aux: bool,
) -> tuple[Params, Tree, Any]:
    """One step; ``w`` stays as it is. Gives the new model, optimiser state and auxiliary output."""
    trained = {name: w[name] for name in names}
    found = _differentiate(
        template, loss, w, trained, batch, has_aux, lambda name: accepts_factors(optimiser, name)
    )
    if state is None:
        state = optimiser.init(trained)
    new, state = optimiser.step(trained, found.whole, state)
    by_factors = {name: w[name].clone() for name in found.factored}
    step_by_factors(optimiser, by_factors, found.factored)
    return w | new | by_factors | found.buffers, state, found.aux


def gradient(
    template: Template, loss: Loss, w: Params, names: Sequence[str], batch: Batch
) -> Params:
    """The gradient of a loss; differentiable where it is part of another loss."""
    trained = {name: w[name] for name in names}
    return _differentiate(template, loss, w, trained, batch, False, lambda name: False).whole


class _Derivative(NamedTuple):
    """What one backward pass gives."""

    whole: Params
    factored: dict[str, FactoredGradient]
    buffers: Params  # as the forward pass left them
    aux: Any


def _differentiate(
    template: Template,
    loss: Loss,
    w: Params,
    trained: Params,
    batch: Batch,
    has_aux: bool,
    factors: Callable[[str], bool],
) -> _Derivative:
    """The gradient of a loss by the trained parameters, in factors where ``factors`` allows it."""
    is_inner = torch.is_grad_enabled() and any(v.requires_grad for v in trained.values())
    if not is_inner:
        trained = {name: value.detach().requires_grad_() for name, value in trained.items()}
    buffers = copy_buffers(template, w)
    collector = Collector(trained, factors)
    with template.train(buffers.values()), template.sparse(False), template.collect(collector):
        result = loss(w | trained | buffers, batch)
    value, aux = result if has_aux else (result, None)
    if not is_inner:
        whole, factored = collector.grad(value)
        return _Derivative(whole, factored, buffers, tmap(detach, aux))
    # part of another loss: the gradient itself must have a gradient
    found = torch.autograd.grad(
        value, list(trained.values()), create_graph=True, materialize_grads=True
    )
    return _Derivative(dict(zip(trained, found, strict=True)), {}, buffers, aux)


def copy_buffers(template: Template, w: Params) -> Params:
    """Copies of a model's buffers, which training may overwrite."""
    return {name: value.clone() for name, value in w.items() if name in template.buffers}


def detach(value: Any) -> Any:
    """A tensor without its history; anything else as it is."""
    return value.detach() if isinstance(value, Tensor) else value


# ---------------------------------------------------------------- optimisers, in place
def step_in_place(optimiser: Optimiser, w: Params, gradient: Params, state: Tree) -> Tree:
    """``optimiser.step`` written into ``w``; gives the new state. The gradient may be used up.

    A class that derives from a known one may do something else, so it runs as it is.
    """
    if type(optimiser) is Groups:
        return {
            prefix: step_in_place(inner, part(w, prefix), part(gradient, prefix), state[prefix])
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
        names = [name for name in names if not step_sparse(sgd, w[name], gradient, name)]
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
