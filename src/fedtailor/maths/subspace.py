"""Training of linear layers that see the same few inputs in every step.

A gradient step changes the weight W of such a layer only on the span of its inputs; elsewhere W
only decays. With Q an orthonormal basis of the span, training the few columns of W Q therefore
gives what training W gives, with any optimiser, and a step costs thousands of multiplications
instead of millions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, final

import torch
from torch import Tensor

from fedtailor.core.tree import Params

Loss = Callable[[Params, Any], Tensor]  # of a model and a batch
# gives the model trained on a loss, like Client.train
Train = Callable[[Loss, Params], Params]


def train_in_span(
    train: Train,
    loss: Callable[..., Tensor],
    w: Params,
    part: str,
    inputs: Sequence[Tensor],
) -> Params:
    """Train a model in which the matrices of one part are only ever applied to the given inputs.

    Args:
        train: trains a model on a loss.
        loss: function of a model, a batch, and the inputs one by one.
        w: the model to start from.
        part: the name of the submodule.
        inputs: the inputs of all its matrices, constant during training.

    Returns:
        What ``train`` would give, up to rounding.
    """
    span = Span(*inputs)

    def loss_in_span(w: Params, batch: Any) -> Tensor:
        return loss(w, batch, *span.coordinates)

    trained = train(loss_in_span, span.restrict(part, w))
    return span.extend(part, w, trained)


@final
class Span:
    """The span of some vectors.

    Attributes:
        coordinates: of these vectors, in an orthonormal basis of their span.
    """

    def __init__(self, *vectors: Tensor) -> None:
        rows = torch.stack(vectors)
        # Householder's QR is orthonormal even where vectors agree or are zero
        self._basis = torch.linalg.qr(rows.mT).Q
        self.coordinates = (rows @ self._basis).unbind()

    def restrict(self, part: str, w: Params) -> Params:
        """The model with the matrices of a part restricted to the span.

        It has one more parameter, a 1 without a gradient, which measures how far weight decay
        shrinks everything outside the span.
        """
        restricted = dict(w)
        for name, value in w.items():
            if _is_matrix_of(part, name, value):
                restricted[name] = value @ self._basis
        restricted[_outside(part)] = self._basis.new_ones(())
        return restricted

    def extend(self, part: str, before: Params, trained: Params) -> Params:
        """The trained model with whole matrices again.

        Args:
            part: the name of the submodule.
            before: the model from which training began, with whole matrices.
            trained: what training made of ``restrict(part, before)``.
        """
        decay = trained[_outside(part)]
        extended: Params = {}
        for name, value in before.items():
            extended[name] = trained[name]
            if _is_matrix_of(part, name, value):
                inside = value @ self._basis
                change = trained[name] - decay * inside
                extended[name] = torch.addmm(decay * value, change, self._basis.mT)
        return extended


def _outside(part: str) -> str:
    """The name of the additional parameter."""
    return f"{part}.outside"


def _is_matrix_of(part: str, name: str, value: Tensor) -> bool:
    return name.startswith(f"{part}.") and value.dim() == 2
