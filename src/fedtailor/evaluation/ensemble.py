"""Many personal models as one, for inputs whose owner is unknown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def combine(log_probabilities: Iterable[Tensor], y: Tensor) -> dict[str, Any]:
    """Accuracy of the mean log-probability, of the mean probability and of the vote."""
    logs = probabilities = votes = torch.zeros(())
    many = 0
    hits = 0.0
    for log in log_probabilities:
        log = log.double()
        logs = logs + log
        probabilities = probabilities + log.exp()
        chosen = log.argmax(-1)
        votes = votes + one_hot(chosen, log.shape[-1])
        many += 1
        hits += float((chosen == y).double().sum())
    if not many or not len(y):
        return {"accuracy": None, "n": len(y)}

    def accuracy(score: Tensor) -> float:
        hits = score.argmax(-1) == y
        return float(hits.double().mean())

    by = {
        "logmean": accuracy(logs),
        "probmean": accuracy(probabilities),
        "vote": accuracy(votes),
        "single": hits / (many * len(y)),  # the mean accuracy of the models one by one
    }
    return {"accuracy": by["logmean"], **by, "n": len(y)}
