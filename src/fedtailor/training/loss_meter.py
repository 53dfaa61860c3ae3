"""Collects the losses of a client's optimiser steps, without touching the training."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

import torch
from torch import Tensor


class LossSums(NamedTuple):
    """For every training of a visit, in order: the sum of its losses, and how many."""

    loss: Tensor
    steps: Tensor


class LossMeter:
    """The losses of one client in one visit.

    What a step minimises is what counts: the loss that the method gave, without what its
    optimiser adds to the gradient (weight decay, a pull towards another model).
    """

    def __init__(self) -> None:
        self._parts: list[list[Tensor]] = []
        self._weights: list[list[Tensor | None]] = []  # None: all clients count
        self._depth = 0
        # under vmap: 0 for a client that has run out of batches
        self.weight: Tensor | None = None

    def begin_training(self) -> None:
        """What follows is another training than before."""
        self._parts.append([])
        self._weights.append([])

    @contextmanager
    def inside_step(self) -> Iterator[None]:
        """While a step is computed; steps inside its loss are part of it."""
        self._depth += 1
        try:
            yield
        finally:
            self._depth -= 1

    def add(self, loss: Tensor) -> None:
        """A step has been taken with this loss."""
        if self._depth > 1:
            return
        if not self._parts:
            self.begin_training()
        if self.weight is not None:
            loss = torch.where(self.weight, loss, 0.0)
        self._parts[-1].append(loss)
        self._weights[-1].append(self.weight)

    def sum_up(self, device: torch.device) -> LossSums:
        """The sums of all trainings that took a step."""
        sums = [torch.stack(part).sum() for part in self._parts if part]
        steps = [_count(part, sums[0]) for part in self._weights if part]
        if not sums:
            nothing = torch.zeros(0, device=device)
            return LossSums(nothing, nothing)
        return LossSums(torch.stack(sums), torch.stack(steps))


def _count(weights: list[Tensor | None], like: Tensor) -> Tensor:
    """How many steps a client took, as a tensor like its losses."""
    known = [weight for weight in weights if weight is not None]
    count = torch.full_like(like, len(weights) - len(known))
    for weight in known:
        count = count + weight
    return count
