"""Missing values of a table, filled in from the training samples of the same client."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor.core.errors import unknown

OPTIONS = ("median",)


def check_missing_option(missing: str | None) -> None:
    """Refuse an unknown way to fill in missing values."""
    if missing is not None and missing not in OPTIONS:
        raise unknown("way to fill in missing values", missing, OPTIONS)


def fill_missing_values(
    x: Tensor, owner: Tensor | None, standardise: bool, train: Tensor
) -> Tensor:
    """Twice the columns: the filled values, then 1 where a value had been missing and 0 elsewhere.

    A missing value becomes the median of its column over the training samples of the same owner,
    so that no client needs another's data; it becomes 0 if these have no value at all.

    Args:
        x: the table, with NaN for missing values.
        owner: the owner of every sample; without it, all samples have the same.
        standardise: whether to bring each owner's values to mean 0 and deviation 1 of its training
            samples.
        train: indices of the training samples.
    """
    is_training = torch.zeros(len(x), dtype=torch.bool)
    is_training[train] = True
    if owner is None:
        owner = torch.zeros(len(x), dtype=torch.int64)
    filled = x.clone()
    for k in range(int(owner.max()) + 1):
        own = owner == k
        filled[own] = _fill_client(x[own], is_training[own], standardise)
    indicators = torch.isnan(x).to(x.dtype)
    return torch.cat([filled, indicators], 1)


def _fill_client(x: Tensor, is_training: Tensor, standardise: bool) -> Tensor:
    """One client's table, filled in and standardised by its training samples."""
    is_missing = torch.isnan(x)
    if not is_training.any():
        return torch.where(is_missing, 0.0, x)
    medians = _compute_medians(x[is_training])
    filled = torch.where(is_missing, medians, x)
    if not standardise:
        return filled
    reference = filled[is_training]
    deviation = reference.std(0, correction=0)
    deviation = torch.where(deviation > 0, deviation, 1.0)
    return (filled - reference.mean(0)) / deviation


def _compute_medians(x: Tensor) -> Tensor:
    """The median of the values in every column, the mean of the middle two for an even number."""
    return x.nanquantile(0.5, 0).nan_to_num(0.0)
