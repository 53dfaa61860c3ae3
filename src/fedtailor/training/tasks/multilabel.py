"""Several labels for every example, each of which is there or not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.training import score_sums
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
class MultiLabel(Task):
    """Binary cross entropy of every label; told by the mean AUROC of the labels."""

    name: ClassVar[str] = "multilabel"
    known_measures: ClassVar[tuple[str, ...]] = (
        "auroc",
        "auprc",
        "macro_f1",
        "micro_f1",
        "exact_match",
        "hamming_loss",
        "loss",
    )

    labels: int
    primary: str = "auroc"
    higher_is_better: bool = True
    select: str = ""

    @property
    def outputs(self) -> int:
        """A logit for every label."""
        return self.labels

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Binary cross entropy of all labels."""
        return self.losses(output, target).mean()

    def losses(
        self, output: Tensor, target: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Binary cross entropy of every example, averaged over the labels."""
        wanted = target.to(output.dtype)
        each = F.binary_cross_entropy_with_logits(output, wanted, reduction="none")
        return each.mean(-1)

    def empty_tally(self, device: torch.device) -> Sums:
        """Zeros."""
        zero = torch.zeros((), device=device)
        zeros = torch.zeros(self.labels, device=device)
        ranking = torch.zeros(2, self.labels, score_sums.BINS, device=device)
        sums = {
            "loss": zero,
            "exact": zero,
            "hits": zeros,
            "predicted": zeros,
            "present": zeros,
            "ranking": ranking,
        }
        return Sums(zero, sums)

    def tally(self, output: Tensor, target: Tensor, mask: Tensor) -> Sums:
        """Counts by label, and by bins of the scores."""
        weight = mask[:, None]
        present = target.to(mask.dtype)
        answers = self.answer(output).to(mask.dtype)
        exact = (answers == present).all(-1)
        losses = self.losses(output, target) * mask
        sums = {
            "loss": losses.sum(),
            "exact": (exact * mask).sum(),
            "hits": (answers * present * weight).sum(0),
            "predicted": (answers * weight).sum(0),
            "present": (present * weight).sum(0),
            "ranking": score_sums.count_sides(F.logsigmoid(output), present, mask),
        }
        return Sums(mask.sum(), sums)

    def measures(
        self, tallies: Sequence[AnyTally], decided: Decided = NOTHING
    ) -> dict[str, float]:
        """Over all examples: means over the labels, and shares of examples."""
        total = add_sums(tallies)
        if not total:
            return {}
        n = total["n"]
        hits = total["hits"]
        both = total["predicted"] + total["present"]
        found = {
            "auroc": score_sums.auroc(total["ranking"]),
            "auprc": score_sums.auprc(total["ranking"]),
            "macro_f1": score_sums.macro_f1(total["present"], hits, total["predicted"]),
            "micro_f1": 2 * hits.sum() / both.sum(),
            "exact_match": total["exact"] / n,
            "hamming_loss": (both - 2 * hits).sum() / (n * self.labels),
            "loss": total["loss"] / n,
        }
        return drop_unknown(found)

    def trivial(self, tallies: Sequence[AnyTally]) -> float | None:
        """The AUROC of giving every example the same scores."""
        return 0.5

    def answer(self, output: Tensor, decided: Decided = NOTHING) -> Tensor:
        """1 for every label that is more likely there than not."""
        return (output > 0).long()


def make(target: Target) -> MultiLabel:
    """So many labels."""
    return MultiLabel(target.classes, select=target.select)
