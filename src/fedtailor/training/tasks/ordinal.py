"""Ratings: classes 0 .. C-1 in an order, where a near miss is better than a wide one.

The network has C-1 logits, and the k-th says whether the rating is above k (Frank and Hall, ECML
2001; as one network, Niu et al., CVPR 2016). The rating is how many of them say yes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.core.errors import UserError
from fedtailor.core.tensors import onehot
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


@dataclass(frozen=True)
class Ordinal(Task):
    """One of ``levels`` ordered ratings for every example."""

    name: ClassVar[str] = "ordinal"
    trivial_answer: ClassVar[str] = "always giving the client's own best single rating"
    known_measures: ClassVar[tuple[str, ...]] = (
        "mae",
        "rmse",
        "accuracy",
        "within_one",
        "kappa",
        "loss",
    )

    levels: int
    primary: str = "mae"
    higher_is_better: bool = False
    select: str = ""

    @property
    def outputs(self) -> int:
        """A logit for every step from a rating to the next."""
        return self.levels - 1

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Binary cross entropy of all steps."""
        return self.losses(output, target).mean()

    def losses(
        self, output: Tensor, target: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Binary cross entropy of every example, averaged over the steps."""
        steps = torch.arange(self.outputs, device=output.device)
        above = (target[..., None] > steps).to(output.dtype)
        each = F.binary_cross_entropy_with_logits(output, above, reduction="none")
        return each.mean(-1)

    def empty_tally(self, device: torch.device) -> Sums:
        """Zeros."""
        zero = torch.zeros((), device=device)
        confusion = torch.zeros(self.levels, self.levels, device=device)
        return Sums(zero, {"loss": zero, "confusion": confusion})

    def tally(self, output: Tensor, target: Tensor, mask: Tensor) -> Sums:
        """By true and predicted rating, how many examples."""
        truth = onehot(target, self.levels) * mask[:, None]
        answers = onehot(self.answer(output), self.levels)
        losses = self.losses(output, target) * mask
        sums = {"loss": losses.sum(), "confusion": truth.T @ answers}
        return Sums(mask.sum(), sums)

    def measures(
        self, tallies: Sequence[AnyTally], decided: Decided = NOTHING
    ) -> dict[str, float]:
        """Over all examples: mean distance, hits, and Cohen's kappa with squared weights."""
        total = add_sums(tallies)
        if not total:
            return {}
        n = total["n"]
        confusion = total["confusion"]
        gap = self._gaps(confusion)
        by_chance = torch.outer(confusion.sum(1), confusion.sum(0)) / n
        disagreement = (gap.square() * confusion).sum()
        expected = (gap.square() * by_chance).sum()
        found = {
            "mae": (gap * confusion).sum() / n,
            "rmse": (disagreement / n).sqrt(),
            "accuracy": confusion.trace() / n,
            "within_one": confusion[gap <= 1].sum() / n,
            "kappa": 1 - disagreement / expected,
            "loss": total["loss"] / n,
        }
        return drop_unknown(found)

    def trivial(self, tallies: Sequence[AnyTally]) -> float | None:
        """The mean distance of always giving every client's own median rating."""
        distance = 0.0
        examples = 0.0
        for tally in tallies:
            assert isinstance(tally, Sums)
            confusion = tally.sums["confusion"]
            by_answer = confusion.sum(1) @ self._gaps(confusion)
            distance += float(by_answer.min())
            examples += float(tally.n)
        return distance / examples if examples else None

    def answer(self, output: Tensor, decided: Decided = NOTHING) -> Tensor:
        """How many steps are more likely taken than not."""
        return (output > 0).sum(-1)

    def _gaps(self, like: Tensor) -> Tensor:
        """The distances between all ratings."""
        levels = torch.arange(self.levels, dtype=like.dtype, device=like.device)
        return (levels[:, None] - levels).abs()


def make(target: Target) -> Ordinal:
    """Ratings of so many levels."""
    if target.classes < 2:
        raise UserError("task=ordinal: there must be two ratings at least")
    return Ordinal(target.classes, select=target.select)
