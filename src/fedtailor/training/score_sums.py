"""Measures of a classifier from sums that many clients' examples can be added into.

Macro F1 and balanced accuracy are exact. The calibration error has 15 equal bins. AUROC and
AUPRC come from histograms of the scores, so that no single score is sent: scores within one
bin count as equal. The bins are equal in asinh(logit(p)): narrow where p is near 1/2, and
narrow in p where it is near 0 or 1, where the scores of trained networks are. Up to 20
classes that is within 0.002 of scikit-learn's; more classes would need histograms larger
than a confusion matrix, so AUROC and AUPRC are not given there.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor.core.tensors import onehot

CONFIDENCE_BINS = 15
FEW_CLASSES = 20
BINS = 128  # of the scores of each class
REACH = 3.5  # asinh of the logit; beyond it (p within 1e-7 of 0 or 1) are the outermost bins


# ---------------------------------------------------------------- at the client
def sum_confidence(logs: Tensor, hit: Tensor, mask: Tensor) -> Tensor:
    """By bins of the largest probability: examples, hits, and the sum of that probability."""
    top = logs.max(-1).values.exp()
    bins = (top * CONFIDENCE_BINS).ceil() - 1  # (0, 1/15], (1/15, 2/15], ...
    places = onehot(bins.long().clamp(0, CONFIDENCE_BINS - 1), CONFIDENCE_BINS)
    places = places * mask[:, None]
    hits = places * hit[:, None]
    tops = places * top[:, None]
    return torch.stack([places.sum(0), hits.sum(0), tops.sum(0).to(places.dtype)])


def empty_ranking(classes: int, device: torch.device) -> Tensor:
    """No examples."""
    return torch.zeros(2, classes, count_bins(classes), device=device)


def count_bins(classes: int) -> int:
    """Bins of the scores of each class."""
    return BINS if classes <= FEW_CLASSES else 0


def count_scores(logs: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """For each class, by bins of its score, how many examples are of others and of it."""
    classes = logs.shape[-1]
    bins = count_bins(classes)
    if not bins:
        return empty_ranking(classes, logs.device)
    rest = torch.log1p(-logs.exp().clamp(max=1 - 1e-7))
    score = torch.asinh(logs - rest)
    place = ((score + REACH) * (bins / (2 * REACH))).long().clamp(0, bins - 1)
    is_class = onehot(target, classes).long()
    number = torch.arange(classes, device=logs.device)
    flat = (is_class * classes + number) * bins + place
    weight = mask[:, None].to(logs.dtype).expand(logs.shape)
    sums = torch.zeros(2 * classes * bins, device=logs.device, dtype=logs.dtype)
    counted = sums.scatter_add(0, flat.reshape(-1), weight.reshape(-1))
    return counted.reshape(2, classes, bins)


# ---------------------------------------------------------------- of the sums
def macro_f1(n: Tensor, correct: Tensor, predicted: Tensor) -> Tensor:
    """The mean F1 of all classes that occur or are predicted, as scikit-learn's."""
    both = n + predicted
    f1 = 2 * correct / both
    return f1[both > 0].mean()


def balanced_accuracy(n: Tensor, correct: Tensor) -> Tensor:
    """The mean recall of all classes that occur, as scikit-learn's."""
    recall = correct / n
    return recall[n > 0].mean()


def calibration_error(confidence: Tensor) -> Tensor:
    """The mean distance of bins' accuracies from their mean probabilities, by examples."""
    n, hits, top = confidence
    return (hits - top).abs().sum() / n.sum()


def auroc(ranking: Tensor) -> Tensor:
    """Area under the ROC curve, one class against the rest; the mean over classes.

    Classes that no example has, or that all have, are left out.
    """
    others, own = _both_sides(ranking)  # no class at all gives NaN
    below = others.cumsum(-1) - others
    wins = (own * (below + others / 2)).sum(-1)
    return (wins / own.sum(-1) / others.sum(-1)).mean()


def auprc(ranking: Tensor) -> Tensor:
    """Average precision, one class against the rest; the mean over classes."""
    others, own = _both_sides(ranking)
    others = others.flip(-1)
    own = own.flip(-1)
    # at the middle of a bin: half of its examples are above
    hits = own.cumsum(-1) - own / 2 + 0.5
    mistakes = others.cumsum(-1) - others / 2
    precision = hits / (hits + mistakes)
    gained = own / own.sum(-1, keepdim=True)
    return (precision * gained).sum(-1).mean()


def _both_sides(ranking: Tensor) -> tuple[Tensor, Tensor]:
    """Histograms of the classes that some examples have, and some do not."""
    counts = ranking.sum(-1)
    is_known = (counts > 0).all(0)
    return ranking[0, is_known], ranking[1, is_known]
