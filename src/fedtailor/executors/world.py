"""What all clients of one run have in common."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from fedtailor.data.federation import Federation
from fedtailor.method import Method
from fedtailor.models.backbone import Backbone
from fedtailor.training.optim import Plan

AnyMethod = Method[Any, Any, Any, Any]


@dataclass(frozen=True)
class World:
    """What every place of one run has in common; it travels to worker processes."""

    method: AnyMethod
    backbone: Backbone
    federation: Federation
    plan: Plan
    seed: int
    rounds: int
    bn: str = "average"
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
