"""A model as a module that torch can trace: tensors under their names, a function of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from fedtailor.core.tree import Params

Predict = Callable[[Params, Tensor], Tensor]


class Traceable(nn.Module):
    """``module(x)`` gives logits and probabilities; scaling of bytes is part of it."""

    def __init__(
        self, predict: Predict, parameters: Params, own_name: Callable[[str], str]
    ) -> None:
        """``predict`` takes the tensors under the names of ``parameters``.

        In the module they have the names that ``own_name`` gives.
        """
        super().__init__()
        self._predict = predict
        self._names = {name: own_name(name) for name in parameters}
        for name, value in parameters.items():
            self._add(self._names[name], value)
        self.eval()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and probabilities."""
        w = {name: self._find(own) for name, own in self._names.items()}
        logits = self._predict(w, x)
        return logits, logits.softmax(-1)

    def _add(self, name: str, value: Tensor) -> None:
        """A tensor in nested modules that hold nothing else."""
        owner: nn.Module = self
        *path, last = name.split(".")
        for step in path:
            if step not in owner._modules:
                owner.add_module(step, nn.Module())
            owner = owner.get_submodule(step)
        owner.register_buffer(last, value.detach().cpu().clone())

    def _find(self, name: str) -> Tensor:
        path, _, last = name.rpartition(".")
        return self.get_submodule(path).get_buffer(last)


def draw_inputs(
    shape: tuple[int, ...], dtype: str, vocabulary: int, batch: int
) -> Tensor:
    """Inputs that no client has, to trace and to compare with."""
    rng = torch.Generator()  # always the same ones
    size = (batch, *shape)
    if vocabulary:
        return torch.randint(0, vocabulary, size, generator=rng)
    if dtype == "uint8":
        return torch.randint(0, 256, size, generator=rng, dtype=torch.uint8)
    return torch.randn(size, generator=rng, dtype=torch.float32)
