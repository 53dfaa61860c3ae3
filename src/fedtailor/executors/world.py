"""What all clients of one run have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from fedtailor.data.federation import Federation
from fedtailor.filters import Filter
from fedtailor.method import Method
from fedtailor.models.backbone import Backbone
from fedtailor.training.optim import Plan
from fedtailor.training.private_gradient import SampleNoise
from fedtailor.training.task import Classification, Task

AnyMethod = Method[Any, Any, Any, Any]


@dataclass(frozen=True)
class World:
    """The method, network, data and settings of a run; it is copied to worker processes."""

    method: AnyMethod
    backbone: Backbone
    federation: Federation
    plan: Plan
    seed: int
    rounds: int
    filters: Sequence[Filter] = field(default=())
    dtype: torch.dtype = torch.float32
    device: str = "cpu"
    # noise on every sample's gradient
    sample_noise: SampleNoise | None = None
    # for which clients that never trained do, before they are scored
    newcomer_epochs: int = 1
    # what is learned, where it is not to tell the federation's classes apart
    chosen_task: Task | None = None

    @property
    def task(self) -> Task:
        """What the federation learns."""
        return self.chosen_task or Classification(self.federation.classes)
