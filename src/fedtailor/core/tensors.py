"""Small functions of tensors that several rooms use."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedtailor.core.tree import Tree, tensors


def onehot(y: Tensor, classes: int) -> Tensor:
    """Rows of zeros with a one at each label: (...) to (..., classes).

    ``F.one_hot`` looks at values, which vmap forbids.
    """
    labels = torch.arange(classes, device=y.device)
    matches = labels == y[..., None]
    return matches.to(torch.get_default_dtype())


def finite(tree: Tree) -> bool:
    """Whether all floating point numbers of a tree are finite."""
    numbers: list[Tensor] = []
    for x in tensors(tree):
        if x.is_floating_point() and x.numel():
            numbers.append(x)
    if not numbers:
        return True
    total = sum(x.sum() for x in numbers)
    if math.isfinite(total):  # a finite sum has finite terms
        return True
    return all(bool(torch.isfinite(x).all()) for x in numbers)
