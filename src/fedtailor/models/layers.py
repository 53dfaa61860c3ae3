"""The few layers and sizes that the backbones share."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterable
from typing import Any

from torch import Tensor, nn

from fedtailor.core.errors import unknown

NORMS = ("batch", "group")
MOST_GROUPS = 32  # of GroupNorm
COUNTER = "num_batches_tracked"
OWN = "_own_network"  # in a layer's dict: it is of a user's own network


class Mean(nn.Module):
    """The mean over the positions of a sequence, padding included."""

    def forward(self, x: Tensor) -> Tensor:
        """(N, L, K) to (N, K)"""
        return x.mean(1)


def chain(**layers: nn.Module) -> nn.Sequential:
    """A sequence whose layers have names."""
    return nn.Sequential(OrderedDict(layers))


def two_convolutions(
    shape: tuple[int, int, int], channels: tuple[int, int], hidden: int
) -> nn.Sequential:
    """Two 5x5 convolutions, each pooled before its ReLU, and a hidden layer."""
    inputs, height, width = shape
    first, second = channels
    steps = ((5, 2), (5, 2))
    pixels = count_left(height, steps) * count_left(width, steps)
    return chain(
        conv1=nn.Conv2d(inputs, first, 5),
        pool1=nn.MaxPool2d(2),
        relu1=nn.ReLU(),
        conv2=nn.Conv2d(first, second, 5),
        pool2=nn.MaxPool2d(2),
        relu2=nn.ReLU(),
        flatten=nn.Flatten(),
        fc1=nn.Linear(second * pixels, hidden),
        relu3=nn.ReLU(),
    )


def count_left(side: int, steps: Iterable[tuple[int, int]]) -> int:
    """Pixels left of a side after unpadded convolutions, each a (kernel, pool after it)."""
    for kernel, pool in steps:
        side = (side - kernel + 1) // pool
    return side


def make_norm(norm: str, channels: int) -> nn.Module:
    """The normalisation layer of this name.

    GroupNorm gets the largest number of groups up to 32 that divides the channels.
    """
    if norm not in NORMS:
        raise unknown("norm", norm, NORMS)
    if norm == "batch":
        return nn.BatchNorm2d(channels)
    groups = max(n for n in range(1, MOST_GROUPS + 1) if channels % n == 0)
    return nn.GroupNorm(groups, channels)


def mark_as_own(network: nn.Module) -> None:
    """Let all layers remember that they are of a user's own network."""
    for m in network.modules():
        m.__dict__[OWN] = True


def is_own(network: nn.Module) -> bool:
    """Whether a network, or a part of it, is a user's own."""
    return any(OWN in m.__dict__ for m in network.modules())


def drop_counters(module: nn.Module) -> None:
    """Remove the batch counters of all BatchNorm layers, in place: their average means nothing."""
    for m in module.modules():
        if getattr(m, COUNTER, None) is not None:
            m._buffers[COUNTER] = None
            m.register_load_state_dict_pre_hook(_forget_counter)  # type: ignore[no-untyped-call]


def _forget_counter(
    module: nn.Module, state: dict[str, Any], prefix: str, *rest: object
) -> None:
    # PyTorch's BatchNorm adds a counter to every state without one, then finds no place for it
    state.pop(prefix + COUNTER, None)
