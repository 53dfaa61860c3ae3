"""What a file of ``models/architectures`` says about each of its networks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from torch import nn

from fedtailor.models.backbone import Backbone
from fedtailor.models.input_checks import Request


@dataclass(frozen=True)
class Architecture:
    """How to build a network, where it comes from, and the input for which its size is listed.

    ``learning_rate``: the default for local training, or a function of the network where it depends
    on its size.
    """

    build: Callable[[Request], Backbone]
    learning_rate: float | Callable[[Backbone], float]
    layers: str
    source: str
    shape: tuple[int, ...]
    classes: int
    vocabulary: int = 0
    variants: tuple[str, ...] = ()  # examples of what may stand after the name's colon


def add_linear_head(base: nn.Module, features: int, request: Request) -> Backbone:
    """The backbone of ``base``, which gives so many features, and one linear layer."""
    head = nn.Linear(features, request.classes)
    return Backbone(base, head, features=features, kind=request.name)
