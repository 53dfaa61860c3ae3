"""Missing values of a table, filled in from the training samples of the same client."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor.core.errors import unknown

WAYS = ("median",)


def check_way(missing: str | None) -> None:
    """Refuse a way to fill gaps that there is not."""
    if missing is not None and missing not in WAYS:
        raise unknown("way to fill in missing values", missing, WAYS)


def fill_gaps(x: Tensor, owner: Tensor | None, standardise: bool, train: Tensor) -> Tensor:
    """Twice the columns: values with gaps filled in, then 1 where a value had been missing and 0 elsewhere.

    A gap becomes the median of its column over the training samples of the same owner, so that nobody needs another's
    data; it becomes 0 where they have no value at all. ``standardise`` brings the values to mean 0 and deviation 1 of
    the same samples. Without owners, all training samples count.
    """
    gone = torch.isnan(x)
    owner = torch.zeros(len(x), dtype=torch.int64) if owner is None else owner
    chosen = torch.zeros(len(x), dtype=torch.bool)
    chosen[train] = True
    out = x.clone()
    for k in range(int(owner.max()) + 1):
        mine = owner == k
        seen = x[mine & chosen]
        median = _median(seen) if len(seen) else x.new_zeros(x.shape[1])
        out[mine] = torch.where(gone[mine], median, x[mine])
        if standardise and len(seen):
            fitted = out[mine & chosen]
            deviation = fitted.std(0, correction=0)
            out[mine] = (out[mine] - fitted.mean(0)) / torch.where(deviation > 0, deviation, 1.0)
    return torch.cat([out, gone.to(x.dtype)], 1)


def _median(x: Tensor) -> Tensor:
    """The median of what is there in every column, the middle of the two middle ones for an even number."""
    return x.nanquantile(0.5, 0).nan_to_num(0.0)
