"""How good a model is on a client's data: sums only, so that a server learns no prediction."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.client import Examples
from fedtailor.core.tensors import onehot

PIECE = 500  # examples in one forward


class Tally(NamedTuple):
    """Sums over the examples of one part."""

    n: Tensor  # examples of every class
    correct: Tensor  # rightly predicted ones of every class
    loss: Tensor  # sum of the cross entropy


class Score(NamedTuple):
    """One model on one client."""

    val: Tally
    test: Tally
    notes: dict[str, Tensor]  # means of the method's diagnostics: "train/PIR", "test/PIR" ...


def tally(predict: Callable[[Tensor], Tensor], part: Examples) -> Tally:
    """Score logits on a part, some hundred examples at a time."""
    zeros = torch.zeros(part.classes, device=part.index.device)
    total = Tally(zeros, zeros, zeros.sum())
    for x, y, real in part.chunks(PIECE):
        logits = predict(x)
        mine = onehot(y, part.classes) * real[:, None]
        hit = (logits.argmax(-1) == y).to(mine.dtype)
        loss = (F.cross_entropy(logits, y, reduction="none") * real).sum()
        total = Tally(
            total.n + mine.sum(0), total.correct + (mine * hit[:, None]).sum(0), total.loss + loss
        )
    return total


def observe(
    notes: Callable[[Tensor, Tensor], dict[str, Tensor]], part: Examples, name: str
) -> dict[str, Tensor]:
    """Means of per-example diagnostics over a part."""
    sums: dict[str, Tensor] = {}
    n = torch.zeros((), device=part.index.device)
    for x, y, real in part.chunks(PIECE):
        n = n + real.sum()
        for key, value in notes(x, y).items():
            weighted = (value * real.reshape(-1, *[1] * (value.dim() - 1))).sum(0)
            sums[key] = sums[key] + weighted if key in sums else weighted
    return {f"{name}/{key}": value / n.clamp(min=1) for key, value in sums.items()}
