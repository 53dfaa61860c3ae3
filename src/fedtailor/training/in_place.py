"""Local training by plain autograd, with parameters changed in place.

The invariant: ``train`` gives what as many calls of ``step`` give, bit for bit, and
``training/functional.py``, which runs under ``vmap``, gives the same up to rounding.
``tests/training/test_training_paths.py`` compares all three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.tree import Params, Tree, tmap
from fedtailor.core.wire import own
from fedtailor.models.factored_linear import Collector, FactoredGradient
from fedtailor.training.client_data import Batch
from fedtailor.training.fast_steps import (
    accepts_factors,
    step_by_factors,
    step_in_place,
)
from fedtailor.training.net import Template
from fedtailor.training.optim import Optimiser

# a scalar tensor, or (scalar tensor, auxiliary output)
Loss = Callable[[Params, Batch], Any]


class Training(NamedTuple):
    """What is trained, and how."""

    template: Template
    names: Sequence[str]  # of the parameters to train
    optimiser: Optimiser
    # is told the loss of every step
    seen: Callable[[Tensor], None] = lambda loss: None


def train(
    training: Training, loss: Loss, w: Params, state: Tree, batches: Iterable[Batch]
) -> tuple[Params, Tree]:
    """Train on all batches; gives the new model and the optimiser's state."""
    template, names, optimiser, seen = training
    leaves = {name: w[name].detach().clone().requires_grad_() for name in names}
    buffers = copy_buffers(template, w)
    model = w | leaves | buffers
    values = tmap(detach, leaves)  # the same memory, invisible to autograd
    state = optimiser.init(values) if state is None else own(state)
    collector = Collector(leaves, partial(accepts_factors, optimiser))
    with template.differentiate(buffers.values(), collector, sparse=True):
        for batch in batches:
            template.begin_step(batch)
            value = loss(model, batch)
            seen(value.detach())
            whole, factored = collector.grad(value)
            state = step_in_place(optimiser, values, whole, state)
            step_by_factors(optimiser, values, factored)
    return w | values | buffers, state


def step(
    training: Training, loss: Loss, w: Params, state: Tree, batch: Batch, has_aux: bool
) -> tuple[Params, Tree, Any]:
    """One step; gives the new model, optimiser's state and auxiliary output."""
    template, names, optimiser, seen = training
    trained = {name: w[name] for name in names}
    factors = partial(accepts_factors, optimiser)
    found = _differentiate(template, loss, w, trained, batch, has_aux, factors)
    seen(found.loss)
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
    found = _differentiate(template, loss, w, trained, batch, False, lambda _: False)
    return found.whole


class _Derivative(NamedTuple):
    """What one backward pass gives."""

    whole: Params
    factored: dict[str, FactoredGradient]
    buffers: Params  # as the forward pass left them
    aux: Any
    loss: Tensor


def _differentiate(
    template: Template,
    loss: Loss,
    w: Params,
    trained: Params,
    batch: Batch,
    has_aux: bool,
    factors: Callable[[str], bool],
) -> _Derivative:
    """The gradient by the trained parameters, in factors where ``factors`` allows it."""
    has_history = any(value.requires_grad for value in trained.values())
    is_inner = torch.is_grad_enabled() and has_history
    if not is_inner:
        trained = {name: x.detach().requires_grad_() for name, x in trained.items()}
    buffers = copy_buffers(template, w)
    collector = Collector(trained, factors)
    template.begin_step(batch)
    with template.differentiate(buffers.values(), collector, sparse=False):
        result = loss(w | trained | buffers, batch)
    value, aux = result if has_aux else (result, None)
    if not is_inner:
        whole, factored = collector.grad(value)
        aux = tmap(detach, aux)
        return _Derivative(whole, factored, buffers, aux, value.detach())
    # part of another loss: the gradient itself must have a gradient
    found = torch.autograd.grad(
        value, list(trained.values()), create_graph=True, materialize_grads=True
    )
    whole = dict(zip(trained, found, strict=True))
    return _Derivative(whole, {}, buffers, aux, value.detach())


def copy_buffers(template: Template, w: Params) -> Params:
    """Copies of a model's buffers, which training may overwrite."""
    return {
        name: value.clone() for name, value in w.items() if name in template.buffers
    }


def detach(value: Any) -> Any:
    """A tensor without its history; anything else as it is."""
    return value.detach() if isinstance(value, Tensor) else value
