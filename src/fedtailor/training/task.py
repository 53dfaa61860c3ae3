"""What clients learn to do: the loss, what is counted in tests, what decides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.core.tensors import onehot


class Tally(NamedTuple):
    """Sums over one part of a client's data, which tell no single prediction."""

    n: Tensor  # examples of every class
    correct: Tensor  # correctly predicted examples of every class
    loss: Tensor  # sum of the losses


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
        return Tally(zeros, zeros, zeros.sum())

    def tally(self, output: Tensor, target: Tensor, mask: Tensor) -> Tally:
        """Examples and correct predictions by class, and the sum of the cross entropy."""
        labels = onehot(target, self.classes)
        labels = labels * mask[:, None]
        hit = output.argmax(-1) == target
        hits = labels * hit.to(labels.dtype)[:, None]
        losses = self.losses(output, target) * mask
        return Tally(
            n=labels.sum(0),
            correct=hits.sum(0),
            loss=losses.sum(),
        )

    def measures(self, tallies: Sequence[Tally]) -> dict[str, float]:
        """Accuracy over all examples, and their mean loss."""
        n = 0
        correct = 0.0
        loss = 0.0
        for tally in tallies:
            n += int(tally.n.sum())
            correct += float(tally.correct.sum())
            loss += float(tally.loss)
        if not n:
            return {}
        return {"accuracy": correct / n, "loss": loss / n}
