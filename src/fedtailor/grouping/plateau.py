"""When training together has become flat: a curve of validation accuracies, made of what clients report."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from fedtailor.client import Client
from fedtailor.metrics.score import tally
from fedtailor.tree import Params


def validate(c: Client, w: Params) -> Tensor:
    """How many of the client's validation examples a model gets right, and how many there are."""
    score = tally(lambda x: c.model(w, x), c.val)
    return torch.stack([score.correct.sum(), score.n.sum()])


def extend_curve(curve: list[float], scores: Iterable[Tensor | None]) -> list[float]:
    """The curve with the accuracy over all examples reported; as it was where there are none."""
    told = [score for score in scores if score is not None]
    right, seen = torch.stack(told).sum(0).tolist() if told else (0.0, 0.0)
    return [*curve, right / seen] if seen else curve


def is_flat(curve: list[float], window: int, threshold: float) -> bool:
    """Whether the mean of the last ``window`` values is not ``threshold`` above that of as many before them."""
    late, early = curve[-window:], curve[-2 * window : -window]
    return len(early) == window and (sum(late) - sum(early)) / window < threshold
