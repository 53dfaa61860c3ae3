"""What clients learn to do: the loss, what is counted in tests, what decides."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.core.tensors import onehot
from fedtailor.training import score_sums


class Tally(NamedTuple):
    """Sums over one part of a client's data: this is all that the server learns of it.

    Sums over many examples tell no single prediction. Where a client has a single example
    of a class, they tell that one: whether it was right, and about how sure the model was.
    """

    n: Tensor  # examples of every class
    correct: Tensor  # correctly predicted examples of every class
    loss: Tensor  # sum of the losses
    predicted: Tensor  # examples that every class was predicted for
    # by bins of the predicted class's probability: examples, hits, sum of the probability
    confidence: Tensor
    # (2, classes, bins): by bins of a class's probability, examples of other classes and
    # of the class itself
    ranking: Tensor


class Task(Protocol):
    """What a federation learns. Methods and evaluation call the task, and never a loss by name."""

    @property
    def primary(self) -> str:
        """Name of the measure that decides which round is best."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger primary measure is better."""
        ...

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean loss of a batch, to train on."""
        ...

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """The loss of every example."""
        ...

    def empty_tally(self, device: torch.device) -> Tally:
        """The tally of no examples."""
        ...

    def tally(self, output: Tensor, target: Tensor, mask: Tensor) -> Tally:
        """The sums over one batch; examples where ``mask`` is 0 do not count."""
        ...

    def measures(self, tallies: Sequence[Tally]) -> dict[str, float]:
        """The measures of several tallies together; empty without examples."""
        ...

    def primary_measure(self, tally: Tally) -> float | None:
        """The measure that decides, of one client; None without examples."""
        ...


@dataclass(frozen=True)
class Classification:
    """One label out of ``classes`` for every example."""

    classes: int
    primary: str = "accuracy"
    higher_is_better: bool = True

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross entropy of the logits, averaged over the batch."""
        return F.cross_entropy(output, target)

    def losses(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross entropy of every example's logits."""
        return F.cross_entropy(output, target, reduction="none")

    def empty_tally(self, device: torch.device) -> Tally:
        """Zeros."""
        zeros = torch.zeros(self.classes, device=device)
        bins = torch.zeros(3, score_sums.CONFIDENCE_BINS, device=device)
        ranking = score_sums.empty_ranking(self.classes, device)
        return Tally(zeros, zeros, zeros.sum(), zeros, bins, ranking)

    def tally(self, output: Tensor, target: Tensor, mask: Tensor) -> Tally:
        """Counts by class and by bins of the scores, and the sum of the cross entropy."""
        labels = onehot(target, self.classes)
        labels = labels * mask[:, None]
        chosen = output.argmax(-1)
        hit = chosen == target
        hit = hit.to(labels.dtype)
        hits = labels * hit[:, None]
        answers = onehot(chosen, self.classes)
        answers = answers * mask[:, None]
        losses = self.losses(output, target)
        losses = losses * mask
        logs = output.log_softmax(-1)
        return Tally(
            n=labels.sum(0),
            correct=hits.sum(0),
            loss=losses.sum(),
            predicted=answers.sum(0),
            confidence=score_sums.sum_confidence(logs, hit, mask),
            ranking=score_sums.count_scores(logs, target, mask),
        )

    def measures(self, tallies: Sequence[Tally]) -> dict[str, float]:
        """Over all examples: accuracy, mean loss, and what else their sums tell.

        ``loss`` is the log loss. AUROC and AUPRC are one class against the rest, averaged
        over the classes; they come from binned scores. ``ece`` is the expected calibration
        error with 15 bins.
        """
        if not any(bool(tally.n.sum()) for tally in tallies):
            return {}
        parts = zip(*tallies, strict=True)
        total = Tally(*map(_add_up, parts))
        n = total.n
        correct = total.correct
        found = {
            "accuracy": correct.sum() / n.sum(),
            "loss": total.loss / n.sum(),
            "macro_f1": score_sums.macro_f1(n, correct, total.predicted),
            "balanced_accuracy": score_sums.balanced_accuracy(n, correct),
            "ece": score_sums.calibration_error(total.confidence),
            "auroc": score_sums.auroc(total.ranking),
            "auprc": score_sums.auprc(total.ranking),
        }
        numbers = {name: float(value) for name, value in found.items()}
        return {name: x for name, x in numbers.items() if not math.isnan(x)}

    def primary_measure(self, tally: Tally) -> float | None:
        """The same as ``measures`` gives, without the others: it is asked of every client."""
        if self.primary != "accuracy":
            return self.measures([tally]).get(self.primary)
        n = float(tally.n.sum())
        correct = float(tally.correct.sum())
        return correct / n if n else None


def _add_up(parts: Sequence[Tensor]) -> Tensor:
    """The sum of many tensors, in double precision."""
    doubles = [part.double() for part in parts]
    return torch.stack(doubles).sum(0)
