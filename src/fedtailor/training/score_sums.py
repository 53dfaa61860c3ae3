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
ALMOST_ONE = 1 - 1e-7
REACH = 3.5  # asinh of the logit; beyond it (p within 1e-7 of 0 or 1) are the outermost bins


# ---------------------------------------------------------------- at the client
def sum_confidence(logs: Tensor, hit: Tensor, mask: Tensor) -> Tensor:
    """By bins of the largest probability: examples, hits, and the sum of that probability."""
    top = logs.amax(-1)
    top = top.exp()
    scaled = top * CONFIDENCE_BINS
    last = CONFIDENCE_BINS - 1
    bins = scaled.ceil() - 1  # (0, 1/15], (1/15, 2/15], ...
    bins = bins.long()
    bins = bins.clamp(0, last)
    places = onehot(bins, CONFIDENCE_BINS)
    places = places * mask[:, None]
    hits = places * hit[:, None]
    tops = places * top[:, None]
    tops = tops.to(places.dtype)
    sums = torch.stack([places, hits, tops])
    return sums.sum(1)


def empty_ranking(classes: int, device: torch.device) -> Tensor:
    """No examples."""
    bins = count_bins(classes)
    return torch.zeros(2, classes, bins, device=device)


def count_bins(classes: int) -> int:
    """Bins of the scores of each class."""
    if classes > FEW_CLASSES:
        return 0
    return BINS


def count_scores(logs: Tensor, target: Tensor, mask: Tensor) -> Tensor:
    """For each class, by bins of its score, how many examples are of others and of it."""
    classes = logs.shape[-1]
    if not count_bins(classes):
        return empty_ranking(classes, logs.device)
    return count_sides(logs, onehot(target, classes), mask)


def count_sides(logs: Tensor, labels: Tensor, mask: Tensor) -> Tensor:
    """For each class, by bins of its score, the examples whose label is 0 and is 1."""
    classes = logs.shape[-1]
    empty = torch.zeros(2, classes, BINS, device=logs.device)
    side = labels.long()
    number = torch.arange(classes, device=logs.device)
    row = side * classes + number
    place = row * BINS + find_bins(logs)
    weight = mask[:, None]
    weight = weight.to(empty.dtype)
    weight = weight.expand(logs.shape)
    counted = empty.flatten()
    counted = counted.scatter_add(0, place.flatten(), weight.flatten())
    return counted.reshape(empty.shape)


def find_bins(logs: Tensor) -> Tensor:
    """The bin of every log-probability."""
    p = logs.exp()
    p = p.clamp(max=ALMOST_ONE)
    others = torch.log1p(-p)
    score = torch.asinh(logs - others)
    share = score / REACH
    bins = (share + 1) * (BINS / 2)
    bins = bins.long()
    return bins.clamp(0, BINS - 1)


# ---------------------------------------------------------------- of the sums
def macro_f1(n: Tensor, correct: Tensor, predicted: Tensor) -> Tensor:
    """The mean F1 of all classes that occur or are predicted, as scikit-learn's."""
    both = n + predicted
    f1 = 2 * correct / both
    is_known = both > 0
    return f1[is_known].mean()


def balanced_accuracy(n: Tensor, correct: Tensor) -> Tensor:
    """The mean recall of all classes that occur, as scikit-learn's."""
    recall = correct / n
    is_known = n > 0
    return recall[is_known].mean()


def calibration_error(confidence: Tensor) -> Tensor:
    """The mean distance of bins' accuracies from their mean probabilities, by examples."""
    n, hits, top = confidence
    gaps = (hits - top).abs()
    return torch.div(gaps.sum(), n.sum())


def auroc(ranking: Tensor) -> Tensor:
    """Area under the ROC curve, one class against the rest; the mean over classes.

    Classes that no example has, or that all have, are left out. NaN where none is left.
    """
    others, own = _both_sides(ranking)
    up_to = others.cumsum(-1)
    below = up_to - others / 2  # of those in the same bin, half
    wins = own * below
    pairs = own.sum(-1) * others.sum(-1)
    areas = wins.sum(-1) / pairs
    return areas.mean()


def auprc(ranking: Tensor) -> Tensor:
    """Average precision, one class against the rest; the mean over classes."""
    others, own = _both_sides(ranking)
    others = others.flip(-1)
    own = own.flip(-1)
    # as if the examples of a bin were in random order
    hits = own.cumsum(-1)
    hits = hits - own / 2 + 0.5
    mistakes = others.cumsum(-1)
    mistakes = mistakes - others / 2
    precision = hits / (hits + mistakes)
    weighted = precision * own
    average = weighted.sum(-1) / own.sum(-1)
    return average.mean()


def _both_sides(ranking: Tensor) -> tuple[Tensor, Tensor]:
    """Histograms of the classes that some examples have, and some do not."""
    counts = ranking.sum(-1)
    is_known = (counts > 0).all(0)
    others, own = ranking
    return others[is_known], own[is_known]
