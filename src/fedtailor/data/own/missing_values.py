"""Missing values of a table, filled in from the training samples of the same client."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from fedtailor.core.errors import unknown
from fedtailor.data.federation import TableFill

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


def find_fills(
    x: Tensor,
    owner: Tensor | None,
    standardise: bool,
    train: Sequence[Tensor],
) -> list[TableFill | None]:
    """What further rows of every client are filled in with.

    None for a client whose samples are of several owners, who fill in each by their own.
    """
    if owner is None:
        owner = torch.zeros(len(x), dtype=torch.int64)
    is_training = torch.zeros(len(x), dtype=torch.bool)
    is_training[torch.cat(list(train))] = True
    fills: list[TableFill | None] = []
    for indices in train:
        owners = torch.bincount(owner[indices]).nonzero()[:, 0]
        if len(owners) == 1:
            reference = x[is_training & (owner == owners)]
            fills.append(_find_fill(reference, standardise))
        else:
            fills.append(None)
    return fills


def _fill_client(x: Tensor, is_training: Tensor, standardise: bool) -> Tensor:
    """One client's table, filled in and standardised by its training samples."""
    is_missing = torch.isnan(x)
    if not is_training.any():
        return torch.where(is_missing, 0.0, x)
    medians = _compute_medians(x[is_training])
    filled = torch.where(is_missing, medians, x)
    if not standardise:
        return filled
    mean, deviation = _compute_scale(filled[is_training])
    return (filled - mean) / deviation


def _find_fill(reference: Tensor, standardise: bool) -> TableFill:
    """What the training samples of an owner say about further ones."""
    medians = _compute_medians(reference)
    mean = torch.zeros_like(medians)
    deviation = torch.ones_like(medians)
    if standardise:
        filled = torch.where(torch.isnan(reference), medians, reference)
        mean, deviation = _compute_scale(filled)
    return TableFill(
        tuple(medians.tolist()), tuple(mean.tolist()), tuple(deviation.tolist())
    )


def _compute_scale(reference: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and deviation of every column; a constant column is not scaled."""
    deviation = reference.std(0, correction=0)
    return reference.mean(0), torch.where(deviation > 0, deviation, 1.0)


def _compute_medians(x: Tensor) -> Tensor:
    """The median of the values in every column, the mean of the middle two for an even number."""
    return x.nanquantile(0.5, 0).nan_to_num(0.0)
