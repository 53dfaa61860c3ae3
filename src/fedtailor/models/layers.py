"""The few layers and sizes the backbones share."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

from torch import Tensor, nn

from fedtailor.core.errors import unknown

NORMS = ("batch", "group")
GROUPS = 32  # of GroupNorm, at most
COUNTER = "num_batches_tracked"


def chain(**layers: nn.Module) -> nn.Sequential:
    """A sequence whose layers have names."""
    return nn.Sequential(OrderedDict(layers))


def shrink(side: int, *steps: tuple[int, int]) -> int:
    """What is left of a side after unpadded convolutions, each a (kernel, pool after it)."""
    for kernel, pool in steps:
        side = (side - kernel + 1) // pool
    return side


def normalise(norm: str, channels: int) -> nn.Module:
    """The normalisation layer of this name; GroupNorm has as many groups as divide the channels, 32 at most."""
    if norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    return nn.GroupNorm(max(g for g in range(1, GROUPS + 1) if channels % g == 0), channels)


def drop_counters(module: nn.Module) -> None:
    """Take the batch counters out of all BatchNorm layers of ``module``, in place: an average of them means nothing."""
    for m in module.modules():
        if getattr(m, COUNTER, None) is not None:
            m._buffers[COUNTER] = None
            m.register_load_state_dict_pre_hook(_forget_counter)  # type: ignore[no-untyped-call]


def _forget_counter(module: nn.Module, state: dict[str, Any], prefix: str, *rest: object) -> None:
    # stock BatchNorm adds a counter to every state that has none, and then finds no place for it
    state.pop(prefix + COUNTER, None)


class Mean(nn.Module):
    """The mean over the positions of a sequence, padding included."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, L, K) to (N, K)"""
        return x.mean(1)
