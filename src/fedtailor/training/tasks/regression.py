"""A number for every example.

Networks learn it in units of the standard deviation from the mean of all clients' training
targets, so that learning rates mean the same for blood sugar and for house prices. The two numbers
follow from three sums of each client (examples, targets, squares). Measures and predictions are in
the target's own units.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.training.task import (
    NOTHING,
    AnyTally,
    Decided,
    Sums,
    Task,
    add_sums,
    drop_unknown,
)
from fedtailor.training.tasks.target import Target

NAMES = ("loss", "absolute", "square", "offset", "spread", "from_mean")


@dataclass(frozen=True)
class Regression(Task):
    """Mean squared error; told by RMSE, MAE and R2."""

    name: ClassVar[str] = "regression"
    trivial_answer: ClassVar[str] = "always predicting the mean of all training targets"
    known_measures: ClassVar[tuple[str, ...]] = ("rmse", "mae", "r2", "loss")

    mean: float = 0.0
    std: float = 1.0
    primary: str = "rmse"
    higher_is_better: bool = False
    select: str = ""

    @property
    def outputs(self) -> int:
        """One number."""
        return 1

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Mean squared error, in units of the targets' variance."""
        return F.mse_loss(output.squeeze(-1), self._standardise(target, output))

    def losses(
        self, output: Tensor, target: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Squared error of every example."""
        wanted = self._standardise(target, output)
        return (output.squeeze(-1) - wanted).square()

    def empty_tally(self, device: torch.device) -> Sums:
        """Zeros."""
        zero = torch.zeros((), device=device)
        return Sums(zero, dict.fromkeys(NAMES, zero))

    def tally(self, output: Tensor, target: Tensor, mask: Tensor) -> Sums:
        """Sums of errors, and of distances of the targets from the mean in training."""
        error = self.in_units(output) - target
        offset = target - self.mean
        each = {
            "loss": self.losses(output, target),
            "absolute": error.abs(),
            "square": error.square(),
            "offset": offset,
            "spread": offset.square(),
            "from_mean": offset.abs(),
        }
        sums = {name: (value * mask).sum() for name, value in each.items()}
        return Sums(mask.sum(), sums)

    def measures(
        self, tallies: Sequence[AnyTally], decided: Decided = NOTHING
    ) -> dict[str, float]:
        """Over all examples: RMSE, MAE and R2 (1 - squared errors / squares about the mean)."""
        total = add_sums(tallies)
        if not total:
            return {}
        n = total["n"]
        about_mean = total["spread"] - total["offset"].square() / n
        known = about_mean > 0
        r2 = 1 - total["square"] / about_mean
        found = {
            "rmse": (total["square"] / n).sqrt(),
            "mae": total["absolute"] / n,
            "r2": torch.where(known, r2, torch.nan),
            "loss": total["loss"] / n,
        }
        return drop_unknown(found)

    def trivial(self, tallies: Sequence[AnyTally]) -> float | None:
        """The measure of always predicting the mean of all training targets."""
        total = add_sums(tallies)
        if not total:
            return None
        found = {
            "rmse": (total["spread"] / total["n"]).sqrt(),
            "mae": total["from_mean"] / total["n"],
        }
        return float(found[self.primary])

    def answer(self, output: Tensor, decided: Decided = NOTHING) -> Tensor:
        """The value."""
        return self.in_units(output)

    def in_units(self, output: Tensor) -> Tensor:
        """The network's output in the target's own units."""
        return output.squeeze(-1) * self.std + self.mean

    def _standardise(self, target: Tensor, output: Tensor) -> Tensor:
        wanted = (target - self.mean) / self.std
        return wanted.to(output.dtype)


def make(target: Target) -> Regression:
    """A number whose mean and deviation are known."""
    return Regression(target.mean, target.std, select=target.select)
