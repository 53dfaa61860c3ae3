"""Small functions of tensors that several rooms use."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from fedtailor.core.tree import Tree, tensors


def onehot(y: Tensor, classes: int) -> Tensor:
    """One row of zeros and a one per label (F.one_hot looks at values, which vmap forbids)."""
    return (torch.arange(classes, device=y.device) == y[..., None]).to(torch.get_default_dtype())


def finite(tree: Tree) -> bool:
    """Whether all numbers are. A finite sum has finite terms; only an infinite one needs a closer look."""
    numbers = [x for x in tensors(tree) if x.is_floating_point() and x.numel()]
    if not numbers or math.isfinite(sum(x.sum() for x in numbers)):
        return True
    return all(bool(torch.isfinite(x).all()) for x in numbers)
