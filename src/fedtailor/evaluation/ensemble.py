"""Many personal models as one, for inputs whose owner is unknown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import one_hot


def combine(log_probabilities: Iterable[Tensor], y: Tensor) -> dict[str, Any]:
    """Accuracy of the mean log-probability, of the mean probability and of the vote.

    Means are over the models that know the class: for the others, its log-probability is minus
    infinity. A class that nobody knows is never chosen.
    """
    logs = probabilities = votes = known = torch.zeros(())
    many = 0
    hits = 0.0
    for log in log_probabilities:
        log = log.double()
        knows = log > -torch.inf
        known = known + knows
        logs = logs + log.where(knows, 0.0)
        probabilities = probabilities + log.exp()
        chosen = log.argmax(-1)
        votes = votes + one_hot(chosen, log.shape[-1])
        many += 1
        hits += float((chosen == y).double().sum())
    if not many or not len(y):
        return {"accuracy": None, "n": len(y)}

    def average(total: Tensor) -> Tensor:
        return (total / known).nan_to_num(nan=-torch.inf)

    def accuracy(score: Tensor) -> float:
        hits = score.argmax(-1) == y
        return float(hits.double().mean())

    by = {
        "logmean": accuracy(average(logs)),
        "probmean": accuracy(average(probabilities)),
        "vote": accuracy(votes),
        "single": hits / (many * len(y)),  # the mean accuracy of the models one by one
    }
    return {"accuracy": by["logmean"], **by, "n": len(y)}
