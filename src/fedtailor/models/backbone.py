"""A backbone is a feature extractor under a head; its parts have names that methods can speak of."""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from torch import Tensor, nn

from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params
from fedtailor.models.initial_values import draw, own_tensors, remember
from fedtailor.models.layers import drop_counters


class Backbone(nn.Module):
    """``head(base(x))``; methods name their private and shared parts by these two words.

    ``features``: width of what ``base`` gives. ``last``: name of the last linear layer. ``stages``: names of the
    submodules that hold parameters, in forward order (what FedPer, LG-FedAvg, FedMA and Fed3+2p cut between).
    ``kind``: the registry's name of the architecture, by which methods look up the paper's constants; empty for a
    network that is not the registry's. BatchNorm layers lose their batch counters; a parameter for which PyTorch has
    no rule keeps its value as the first one, even when the network moves to the meta device.
    """

    def __init__(
        self,
        base: nn.Module,
        head: nn.Module,
        *,
        features: int,
        last: str = "head",
        stages: Sequence[str] = (),
        kind: str = "",
    ) -> None:
        super().__init__()
        self.base, self.head = base, head
        self.features, self.last, self.kind = features, last, kind
        drop_counters(self)
        remember(self)
        self.stages = tuple(stages) or tuple(leading_modules(self))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        out: Tensor = self.head(self.base(x))
        return out

    @property
    def classes(self) -> int:
        """How many logits there are."""
        return cast(nn.Linear, self.get_submodule(self.last)).out_features


def leading_modules(module: nn.Module, prefix: str = "") -> list[str]:
    """Names of the outermost submodules that own parameters or buffers themselves, in order of registration.

    Together they hold all there is, and none holds another.
    """
    names: list[str] = []
    for name, m in module.named_children():
        names += [prefix + name] if own_tensors(m) else leading_modules(m, f"{prefix}{name}.")
    return names


def fresh(module: nn.Module, rng: Rng, prefix: str = "") -> Params:
    """New parameters and buffers for ``module``, distributed as PyTorch's own defaults, drawn from ``rng``.

    A module with another wish has a method ``fresh(name, shape, rng) -> Tensor | None`` for its own parameters. Named
    as in ``state_dict``, without BatchNorm's counter of batches.
    """
    w: Params = {}
    for i, (name, m) in enumerate(module.named_modules()):
        for j, (key, tensor) in enumerate(own_tensors(m).items()):
            w[f"{prefix}{name}.{key}" if name else f"{prefix}{key}"] = draw(
                m, key, tensor, rng.fold(i).fold(j)
            )
    return w
