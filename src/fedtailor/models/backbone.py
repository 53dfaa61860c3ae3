"""A backbone is a feature extractor under a head; its parts have names that methods use."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import cast

from torch import Tensor, nn

from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params
from fedtailor.models.initial_values import draw_value, keep_given_values, own_tensors
from fedtailor.models.layers import drop_counters


class Backbone(nn.Module):
    """``head(base(x))``; methods name their private and shared parts by these two words.

    ``features``: number of outputs of ``base``. ``last``: name of the last linear layer.
    ``stages``: names of the submodules that hold parameters, in forward order (what FedPer,
    LG-FedAvg, FedMA and Fed3+2p cut between). ``kind``: the registry's name of the architecture, by
    which methods look up the paper's constants; empty for a network that is not the registry's.
    ``own_names``: what the prefixes of parameter names were in a user's own network.

    BatchNorm layers lose their batch counters. A parameter for which PyTorch has no rule keeps its
    value as the first one, even when the network moves to the meta device.
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
        own_names: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()
        self.base = base
        self.head = head
        self.features = features
        self.last = last
        self.kind = kind
        self.own_names = dict(own_names or {})
        drop_counters(self)
        keep_given_values(self)
        self.stages = tuple(stages or leading_modules(self))

    def forward(self, x: Tensor) -> Tensor:
        """Logits."""
        logits: Tensor = self.head(self.base(x))
        return logits

    def own_name(self, name: str) -> str:
        """What a parameter is called in the user's own network."""
        for prefix, own in self.own_names.items():
            if name.startswith(prefix):
                return own + name.removeprefix(prefix)
        return name

    @property
    def classes(self) -> int:
        """Number of logits."""
        layer = self.get_submodule(self.last)
        return cast(nn.Linear, layer).out_features


def leading_modules(module: nn.Module, prefix: str = "") -> list[str]:
    """Names of the outermost submodules that have parameters or buffers of their own, in order.

    Together they hold all parameters and buffers, and none holds another. The order is that of
    registration.
    """
    names: list[str] = []
    for name, child in module.named_children():
        path = prefix + name
        if own_tensors(child):
            names.append(path)
        else:
            names += leading_modules(child, f"{path}.")
    return names


def fresh(
    module: nn.Module, rng: Rng, prefix: str = "", *, new_head: bool = False
) -> Params:
    """New parameters and buffers for ``module``, drawn from ``rng``.

    A network that starts from given values has those, but for its head where ``new_head`` asks for
    one that is drawn.

    They are distributed as PyTorch's own defaults, in ResNets as torchvision's. A module that wants
    others has a method ``fresh(name, shape, rng) -> Tensor | None`` for its own parameters. Names
    are those of ``state_dict``, without BatchNorm's counter of batches.
    """
    w: Params = {}
    for i, (path, m) in enumerate(module.named_modules()):
        place = f"{prefix}{path}." if path else prefix
        for j, (name, tensor) in enumerate(own_tensors(m).items()):
            stream = rng.fold(i).fold(j)
            anew = new_head and "head." in place
            w[place + name] = draw_value(m, name, tensor, stream, anew=anew)
    return w
