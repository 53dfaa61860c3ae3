"""Local training by ``torch.func``, which also runs under ``vmap``.

The invariant: gives what ``training/in_place.py`` gives, up to rounding.
``tests/training/test_training_paths.py`` compares both.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.tree import Params, Tree, combine, partition, tmap
from fedtailor.training.client_data import Batch
from fedtailor.training.in_place import Loss, Training, copy_buffers, detach
from fedtailor.training.net import Template


def step(
    training: Training, loss: Loss, w: Params, state: Tree, batch: Batch, has_aux: bool
) -> tuple[Params, Tree, Any]:
    """One step; gives the new model, optimiser's state and auxiliary output."""
    template, names, optimiser, seen = training
    trained = {name: w[name] for name in names}
    found = _differentiate(template, loss, w, trained, batch, has_aux)
    seen(found.loss)
    if state is None:
        state = optimiser.init(trained)
    new, state = optimiser.step(trained, found.grads, state)
    return w | new | found.buffers, state, found.aux


def gradient(
    template: Template, loss: Loss, w: Params, names: Sequence[str], batch: Batch
) -> Params:
    """The gradient of a loss."""
    trained = {name: w[name] for name in names}
    return _differentiate(template, loss, w, trained, batch, has_aux=False).grads


class _Derivative(NamedTuple):
    """What one backward pass gives."""

    grads: Params
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
) -> _Derivative:
    """Gradients by the trained parameters, new buffers, auxiliary output and loss."""

    # of the auxiliary output: torch.func passes only tensors out
    structure: list[Any] = []

    def value(trained: Params) -> tuple[Tensor, tuple[Params, list[Tensor], Tensor]]:
        buffers = copy_buffers(template, w)
        template.begin_step(batch)
        with template.train(buffers.values()):
            result = loss(w | trained | buffers, batch)
        number, aux = result if has_aux else (result, None)
        tensors, rest = partition(aux)
        structure.append(rest)
        further = (tmap(detach, buffers), tmap(detach, tensors), number.detach())
        return number, further

    grads, further = torch.func.grad(value, has_aux=True)(trained)
    buffers, tensors, number = further
    return _Derivative(grads, buffers, combine(tensors, structure[0]), number)
