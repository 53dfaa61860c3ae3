"""What clients learn to do: the loss, what is counted in tests, what decides.

Classification, the default, is here; every other task is a file of ``training/tasks``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import ClassVar, NamedTuple, Protocol

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


class Sums(NamedTuple):
    """Sums of a task without classes, over one part of a client's data."""

    n: Tensor  # examples
    sums: dict[str, Tensor]


AnyTally = Tally | Sums
Decided = Mapping[str, float]  # what validation data decided: a threshold
NOTHING: Decided = MappingProxyType({})
# measures of which less is better; of all others more is
LESS_IS_BETTER = frozenset({"loss", "ece", "mae", "rmse", "hamming_loss"})


class Task(Protocol):
    """What a federation learns. Methods and evaluation call the task, and never a loss by name.

    Derive from it, and give the members without a body: the others say what they do by default.
    """

    # as --task names it
    name: ClassVar[str] = ""
    # whether an output is a score of each class, and labels are classes
    has_classes: ClassVar[bool] = False
    # whether a measure is of pairs of examples, so that it needs all outputs of a client at once
    needs_all_examples: ClassVar[bool] = False
    # the best answer that looks at no input, in words
    trivial_answer: ClassVar[str] = "giving every example the same score"
    # names of the measures, for --select
    known_measures: ClassVar[tuple[str, ...]] = ()

    @property
    def primary(self) -> str:
        """Name of the measure that results are told by."""
        ...

    @property
    def higher_is_better(self) -> bool:
        """Whether a larger primary measure is better."""
        ...

    @property
    def select(self) -> str:
        """Name of the measure that chooses the round; the primary one where empty."""
        ...

    @property
    def outputs(self) -> int:
        """How many numbers the network gives for an example."""
        ...

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """The mean loss of a batch, to train on."""
        ...

    def losses(
        self, output: Tensor, target: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """The loss of every example; where ``mask`` is 0 there is none."""
        ...

    def empty_tally(self, device: torch.device) -> AnyTally:
        """The tally of no examples."""
        ...

    def tally(self, output: Tensor, target: Tensor, mask: Tensor) -> AnyTally:
        """The sums over one batch; examples where ``mask`` is 0 do not count."""
        ...

    def measures(
        self, tallies: Sequence[AnyTally], decided: Decided = NOTHING
    ) -> dict[str, float]:
        """The measures of several tallies together; empty without examples."""
        ...

    def decide(self, tallies: Sequence[AnyTally]) -> Decided:
        """What the tallies of validation data decide for those of test data."""
        return NOTHING

    def primary_measure(self, tally: AnyTally) -> float | None:
        """The measure that results are told by, of one client; None without examples."""
        return self.measures([tally]).get(self.primary)

    def trivial(self, tallies: Sequence[AnyTally]) -> float | None:
        """The primary measure of the best answer that looks at no input."""
        return None

    def answer(self, output: Tensor, decided: Decided = NOTHING) -> Tensor:
        """What is predicted, from the network's output: a class, a value."""
        return output

    def in_units(self, output: Tensor) -> Tensor:
        """The output as it is told: logits as they are, values in the target's units."""
        return output

    @property
    def chosen_by(self) -> str:
        """Name of the measure that chooses the round."""
        return self.select or self.primary

    def is_more_better(self, measure: str) -> bool:
        """Whether a larger value of a measure is better."""
        if measure == self.primary:
            return self.higher_is_better
        return measure not in LESS_IS_BETTER


@dataclass(frozen=True)
class Classification(Task):
    """One label out of ``classes`` for every example."""

    name: ClassVar[str] = "classification"
    has_classes: ClassVar[bool] = True
    trivial_answer: ClassVar[str] = "always naming the client's most frequent class"
    known_measures: ClassVar[tuple[str, ...]] = (
        "accuracy",
        "loss",
        "macro_f1",
        "balanced_accuracy",
        "ece",
        "auroc",
        "auprc",
    )

    classes: int
    primary: str = "accuracy"
    higher_is_better: bool = True
    select: str = ""
    # by class, what an example's loss is worth in training; all alike where empty
    weights: tuple[float, ...] = ()

    @property
    def outputs(self) -> int:
        """A logit for every class."""
        return self.classes

    def loss(self, output: Tensor, target: Tensor) -> Tensor:
        """Cross entropy of the logits, averaged over the batch by the classes' weights."""
        return F.cross_entropy(output, target, self._weights_like(output))

    def losses(
        self, output: Tensor, target: Tensor, mask: Tensor | None = None
    ) -> Tensor:
        """Cross entropy of every example's logits, times the weight of its class."""
        weight = self._weights_like(output)
        return F.cross_entropy(output, target, weight, reduction="none")

    def _weights_like(self, output: Tensor) -> Tensor | None:
        if not self.weights:
            return None
        return torch.tensor(self.weights, dtype=output.dtype, device=output.device)

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
        losses = F.cross_entropy(output, target, reduction="none")
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

    def measures(
        self, tallies: Sequence[AnyTally], decided: Decided = NOTHING
    ) -> dict[str, float]:
        """Over all examples: accuracy, mean loss, and what else their sums tell.

        ``loss`` is the log loss. AUROC and AUPRC are one class against the rest, averaged
        over the classes; they come from binned scores. ``ece`` is the expected calibration
        error with 15 bins.
        """
        total = add_tallies(tallies)
        if total is None:
            return {}
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
        return drop_unknown(found)

    def primary_measure(self, tally: AnyTally) -> float | None:
        """The same as ``measures`` gives, without the others: it is asked of every client."""
        if self.primary != "accuracy" or not isinstance(tally, Tally):
            return self.measures([tally]).get(self.primary)
        n = float(tally.n.sum())
        correct = float(tally.correct.sum())
        return correct / n if n else None

    def trivial(self, tallies: Sequence[AnyTally]) -> float | None:
        """The accuracy of naming every client's most frequent class, whatever the input."""
        most = sum(float(tally.n.max()) for tally in tallies)
        examples = sum(float(tally.n.sum()) for tally in tallies)
        return most / examples if examples else None

    def answer(self, output: Tensor, decided: Decided = NOTHING) -> Tensor:
        """The likeliest class."""
        return output.argmax(-1)


def add_tallies(tallies: Sequence[AnyTally]) -> Tally | None:
    """The sum of many clients' tallies, in double precision; None without examples."""
    if not any(bool(tally.n.sum()) for tally in tallies):
        return None
    parts = zip(*tallies, strict=True)
    return Tally(*map(_add_up, parts))


def add_sums(tallies: Sequence[AnyTally]) -> dict[str, Tensor]:
    """The sums of many clients, in double precision, with ``n``; empty without examples."""
    known = [tally for tally in tallies if isinstance(tally, Sums)]
    if not any(bool(tally.n.sum()) for tally in known):
        return {}
    names = known[0].sums
    found = {name: _add_up([tally.sums[name] for tally in known]) for name in names}
    return {**found, "n": _add_up([tally.n for tally in known])}


def drop_unknown(found: Mapping[str, Tensor]) -> dict[str, float]:
    """Measures as plain numbers, without those that these examples do not tell (NaN)."""
    numbers = {name: float(value) for name, value in found.items()}
    return {name: x for name, x in numbers.items() if not math.isnan(x)}


def _add_up(parts: Sequence[Tensor]) -> Tensor:
    """The sum of many tensors, in double precision."""
    doubles = [part.double() for part in parts]
    return torch.stack(doubles).sum(0)
