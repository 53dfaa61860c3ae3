"""Linear layers that see the same few inputs in every step, trained where all that they learn happens.

A step adds to such a layer's weight W only what maps those inputs: with Q an orthonormal basis of their span, W Q is
trained like any weight, by whatever optimiser, and what W does to everything else only decays. So r columns stand for
all of them in training, and a step costs a few thousand multiplications instead of millions.
"""

from __future__ import annotations

from typing import final

import torch
from torch import Tensor

from fedtailor.core.tree import Params


@final
class Span:
    """The span of some inputs, one a row."""

    def __init__(self, *inputs: Tensor) -> None:
        rows = torch.stack(inputs)
        self._basis = torch.linalg.qr(
            rows.mT
        ).Q  # Householder's: orthonormal even where inputs agree or are zero
        self.inputs = (rows @ self._basis).unbind()  # their coordinates

    def narrow(self, part: str, w: Params) -> Params:
        """The parameters of a part, its matrices narrowed to the span, and one that tells how the rest decays."""
        narrowed = {k: v @ self._basis if v.dim() == 2 else v for k, v in w.items()}
        return narrowed | {f"{part}.outside": self._basis.new_ones(())}

    def widen(self, part: str, w: Params, trained: Params) -> Params:
        """The trained parameters, their matrices as wide as in ``w``, from which training began."""
        decay, out = trained[f"{part}.outside"], dict[str, Tensor]()
        for k, before in w.items():
            if before.dim() == 2:
                inside = trained[k] - decay * (before @ self._basis)
                out[k] = torch.addmm(decay * before, inside, self._basis.mT)
            else:
                out[k] = trained[k]
        return out
