"""Yes or no: ranked by the probability of class 1, decided by a threshold.

The network has two logits, as in classification, so every method can do it. The threshold is the
one with the best F1 on all clients' validation data; it comes from binned scores
(``training/score_sums.py``), so that no single score is sent.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.training import score_sums
from fedtailor.training.score_sums import BINS, REACH
from fedtailor.training.task import (
    NOTHING,
    AnyTally,
    Classification,
    Decided,
    add_tallies,
    drop_unknown,
)
from fedtailor.training.tasks.target import Target

EVEN = 0.5  # the threshold where nothing decides another


@dataclass(frozen=True)
class Binary(Classification):
    """Class 1 or class 0 for every example."""

    name: ClassVar[str] = "binary"
    trivial_answer: ClassVar[str] = "giving every example the same score"
    known_measures: ClassVar[tuple[str, ...]] = (
        "auroc",
        "auprc",
        "f1",
        "precision",
        "recall",
        "balanced_accuracy",
        "accuracy",
        "loss",
        "ece",
    )

    primary: str = "auroc"

    def decide(self, tallies: Sequence[AnyTally]) -> Decided:
        """The threshold with the best F1, the lowest of equals; 1/2 without both classes."""
        total = add_tallies(tallies)
        if total is None or not bool((total.n > 0).all()):
            return {"threshold": EVEN}
        f1 = _f1(*_count_above(total.ranking))
        return {"threshold": _edge(int(f1.argmax()))}

    def measures(
        self, tallies: Sequence[AnyTally], decided: Decided = NOTHING
    ) -> dict[str, float]:
        """AUROC and AUPRC of class 1, and the measures of the decision at the threshold."""
        total = add_tallies(tallies)
        if total is None:
            return {}
        threshold = decided.get("threshold", EVEN)
        place = _bin_of(threshold)
        hits, false_alarms, positives = _count_above(total.ranking)
        hit = hits[place]
        alarm = false_alarms[place]
        negatives = total.n.sum() - positives
        recall = hit / positives
        specificity = 1 - alarm / negatives
        right = hit + negatives - alarm
        of_one = total.ranking[:, 1:]
        found = {
            "auroc": score_sums.auroc(of_one),
            "auprc": score_sums.auprc(of_one),
            "f1": _f1(hit, alarm, positives),
            "precision": hit / (hit + alarm),
            "recall": recall,
            "balanced_accuracy": (recall + specificity) / 2,
            "accuracy": right / total.n.sum(),
            "loss": total.loss / total.n.sum(),
            "ece": score_sums.calibration_error(total.confidence),
            "threshold": torch.tensor(threshold),
        }
        return drop_unknown(found)

    def primary_measure(self, tally: AnyTally) -> float | None:
        """One client's AUROC; None for a client with one class only."""
        return self.measures([tally]).get(self.primary)

    def trivial(self, tallies: Sequence[AnyTally]) -> float | None:
        """The AUROC of giving every example the same score."""
        return 0.5

    def answer(self, output: Tensor, decided: Decided = NOTHING) -> Tensor:
        """Class 1 where its probability reaches the threshold."""
        p = output.softmax(-1)[..., 1]
        yes = p >= decided.get("threshold", EVEN)
        return yes.long()


def _count_above(ranking: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """By the threshold's bin: positives and negatives at or above it; and all positives."""
    negatives, positives = ranking[:, 1]
    above = positives.flip(0).cumsum(0).flip(0)
    wrongly = negatives.flip(0).cumsum(0).flip(0)
    return above, wrongly, positives.sum()


def _f1(hits: Tensor, false_alarms: Tensor, positives: Tensor) -> Tensor:
    return 2 * hits / (hits + false_alarms + positives)


def _edge(place: int) -> float:
    """The probability at which a bin of scores begins."""
    share = place / (BINS / 2) - 1
    logit = math.sinh(share * REACH)
    return 1 / (1 + math.exp(-logit))


def _bin_of(threshold: float) -> int:
    """The bin that begins at a threshold."""
    logit = math.log(threshold) - math.log1p(-threshold)
    share = math.asinh(logit) / REACH
    place = round((share + 1) * (BINS / 2))
    return min(max(place, 0), BINS - 1)


def make(target: Target) -> Binary:
    """A decision between two classes."""
    if target.classes != 2:
        raise UserError(
            f"task=binary: there are {target.classes} classes, not two; leave --task out"
        )
    return Binary(2, select=target.select, weights=target.weights)
