"""Schedules of the learning rate: over the rounds of a run, or over the steps of a round."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from fedtailor.core.errors import UserError, unknown
from fedtailor.core.tree import Params, Tree

EXAMPLES = {"constant": "constant", "step": "step:10:0.5", "cosine": "cosine:0.01"}


class Inner(Protocol):
    """An optimiser, as ``training/optim.py`` describes it."""

    def init(self, w: Params) -> Tree:
        """The first state."""
        ...

    def step(self, w: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """New parameters and state."""
        ...


class Schedule(NamedTuple):
    """How the rate goes on after a warm-up.

    ``constant``; ``step``: times ``factor`` every so many; ``cosine``: down to ``floor`` of it at
    the end.
    """

    kind: str = "constant"
    every: int = 1
    factor: float = 1.0
    floor: float = 0.0
    warmup: int = 0  # rounds or steps in which the rate rises to its full height

    def at(self, i: int | Tensor, total: int | Tensor) -> Any:
        """The factor on the rate of the i-th of ``total`` rounds or steps, counted from 0.

        A number for whole numbers, a tensor for tensors.
        """
        if self.kind == "constant" and not self.warmup:
            return 1.0
        plain = not isinstance(i, Tensor) and not isinstance(total, Tensor)
        place = torch.as_tensor(i, dtype=torch.float64)
        end = torch.as_tensor(total, dtype=torch.float64)
        found = self._after_warmup(place, end)
        if self.warmup:
            rising = (place + 1) / self.warmup
            found = torch.where(place < self.warmup, rising, found)
        return float(found) if plain else found

    def _after_warmup(self, place: Tensor, end: Tensor) -> Tensor:
        done = (place - self.warmup).clamp(min=0)
        if self.kind == "step":
            return self.factor ** (done / self.every).floor()
        if self.kind == "constant":
            return torch.ones_like(done)
        share = done / (end - self.warmup).clamp(min=1)
        height = (1 + (math.pi * share.clamp(max=1)).cos()) / 2
        return self.floor + (1 - self.floor) * height


def parse_schedule(text: str, warmup: int = 0) -> Schedule:
    """A schedule as the user writes it."""
    kind, *words = text.split(":")
    if kind not in EXAMPLES:
        raise unknown("schedule", kind, EXAMPLES)
    try:
        numbers = [float(word) for word in words]
    except ValueError:
        numbers = [math.nan]
    if kind == "constant" and not numbers:
        return Schedule(warmup=warmup)
    if kind == "cosine" and len(numbers) <= 1:
        floor = numbers[0] if numbers else 0.0
        if 0 <= floor < 1:
            return Schedule("cosine", floor=floor, warmup=warmup)
    if kind == "step" and len(numbers) == 2:
        every, factor = numbers
        if every >= 1 and every.is_integer() and 0 < factor <= 1:
            return Schedule("step", int(every), factor, warmup=warmup)
    raise UserError(
        f"schedule '{text}': write {EXAMPLES[kind]}"
        + (" (every 10 rounds times 0.5)" if kind == "step" else "")
    )


@dataclass(frozen=True)
class Scheduled:
    """An optimiser whose steps are lengthened or shortened from one to the next."""

    inner: Inner
    schedule: Schedule
    steps: int | Tensor  # of a round

    def init(self, w: Params) -> Tree:
        """No steps yet, and the inner optimiser's first state."""
        count = next(iter(w.values())).new_zeros(()) if w else torch.zeros(())
        return {"scheduled": count, "inner": self.inner.init(w)}

    def step(self, w: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """A step of the inner optimiser, as far as the schedule says."""
        count = state["scheduled"]
        new, inner = self.inner.step(w, gradient, state["inner"])
        factor = self.schedule.at(count, self.steps)
        moved: Params = {}
        for name, value in new.items():
            weight = torch.as_tensor(factor, dtype=value.dtype, device=value.device)
            moved[name] = torch.lerp(w[name], value, weight)
        return moved, {"scheduled": count + 1, "inner": inner}
