"""How good a model is on a client's data, in sums that tell no single prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.tree import add
from fedtailor.training.client_data import Examples
from fedtailor.training.task import Tally, Task


class Score(NamedTuple):
    """One model on one client."""

    val: Tally
    test: Tally
    # means of what the method reports: "train/PIR", "test/PIR" ...
    diagnostics: dict[str, Tensor]


def find_wrong_tally(task: Task, score: Any) -> str:
    """What is wrong with a score that came from elsewhere; empty where nothing is."""
    if not isinstance(score, Score):
        return ""
    empty = task.empty_tally(torch.device("cpu"))
    for tally in (score.val, score.test):
        for wanted, sent in zip(empty, tally, strict=True):
            if sent.shape != wanted.shape:
                shapes = f"{tuple(sent.shape)}, not {tuple(wanted.shape)}"
                return f"its score has sums of shape {shapes}"
    return ""


def tally_examples(
    task: Task, predict: Callable[[Tensor], Tensor], examples: Examples
) -> Tally:
    """The task's sums over all examples, some hundred at a time."""
    total = task.empty_tally(examples.index.device)
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
