"""How good a model is on a client's data, in sums that tell no single prediction."""

from __future__ import annotations

from collections.abc import Callable
from itertools import zip_longest
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.tree import add, tensors
from fedtailor.training.client_data import Examples
from fedtailor.training.task import AnyTally, Task


class Score(NamedTuple):
    """One model on one client."""

    val: AnyTally
    test: AnyTally
    # means of what the method reports: "train/PIR", "test/PIR" ...
    diagnostics: dict[str, Tensor]


def find_wrong_tally(task: Task, score: Any) -> str:
    """What is wrong with a score that came from elsewhere; empty where nothing is."""
    if not isinstance(score, Score):
        return ""
    empty = task.empty_tally(torch.device("cpu"))
    for tally in (score.val, score.test):
        if type(tally) is not type(empty):
            return f"its score is of another task than {task.name}"
        sums = list(tensors(tally))
        for wanted, sent in zip_longest(tensors(empty), sums):
            if wanted is None or sent is None:
                return (
                    f"its score has {len(sums)} sums, which are not those of the task"
                )
            if sent.shape != wanted.shape:
                shapes = f"{tuple(sent.shape)}, not {tuple(wanted.shape)}"
                return f"its score has sums of shape {shapes}"
    return ""


def tally_examples(
    task: Task, predict: Callable[[Tensor], Tensor], examples: Examples
) -> AnyTally:
    """The task's sums over all examples, some hundred at a time.

    Of a task that compares examples with one another, over all of them together.
    """
    total = task.empty_tally(examples.index.device)
    if task.needs_all_examples:
        if not examples.index.shape[0]:
            return total
        outputs = examples.map(predict)
        return task.tally(outputs, examples.y, examples.mask)
    for x, y, mask in examples.chunks():
        total = add(total, task.tally(predict(x), y, mask))
    return total


def average_diagnostics(
    diagnose: Callable[[Tensor, Tensor], dict[str, Tensor]],
    examples: Examples,
    prefix: str,
) -> dict[str, Tensor]:
    """Means of per-example diagnostics, under names that begin with ``prefix``."""
    sums: dict[str, Tensor] = {}
    n = torch.zeros((), device=examples.index.device)
    for x, y, mask in examples.chunks():
        n = n + mask.sum()
        for name, value in diagnose(x, y).items():
            other_axes = [1] * (value.dim() - 1)
            weight = mask.reshape(-1, *other_axes)
            weighted = (value * weight).sum(0)
            sums[name] = sums[name] + weighted if name in sums else weighted
    n = n.clamp(min=1)
    return {f"{prefix}/{name}": value / n for name, value in sums.items()}
