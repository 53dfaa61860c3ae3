"""What a client changed: its upload's tensors beside those of the same name it was sent."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, Tree, combine, partition
from fedtailor.core.wire import encode, split


def named_tensors(tree: Tree) -> Params:
    """The tensors of a message by their paths, such as ``w/head.weight``."""
    named, _ = split(encode(tree))
    return named


def replace_tensors(tree: Tree, new: Params) -> Tree:
    """The message with other tensors, given by path."""
    _, rest = partition(tree)
    values = [new[path] for path in named_tensors(tree)]
    return combine(values, rest)


def measure_change(up: Tree, down: Tree) -> Params:
    """By path, what was added to the tensors that were sent; others count as a whole."""
    received = named_tensors(down)
    change: Params = {}
    for path, sent in named_tensors(up).items():
        base = received.get(path)
        if base is None or base.shape != sent.shape:
            change[path] = sent
        else:
            change[path] = sent - base
    return change


def map_change(function: Callable[[Params], Params], up: Tree, down: Tree) -> Tree:
    """The upload whose change is what ``function`` makes of the real one.

    Tensors of whole numbers stay as they are.
    """
    sent = named_tensors(up)
    change = {
        path: value
        for path, value in measure_change(up, down).items()
        if value.is_floating_point()
    }
    new = dict(sent)
    for path, value in function(change).items():
        # what was sent, plus the gap between the new change and the real one
        new[path] = sent[path] + (value - change[path])
    return replace_tensors(up, new)


def draw_normal(like: Params, rng: Rng) -> Params:
    """Standard normal numbers, shaped like the tensors."""
    drawn: Params = {}
    for i, (path, value) in enumerate(like.items()):
        numbers = rng.fold(i).normal(*value.shape)
        drawn[path] = numbers.to(value.dtype)
    return drawn


def multiply(change: Params, factor: float) -> Params:
    """The change, longer, shorter or turned round."""
    return {path: factor * value for path, value in change.items()}


def measure_norm(change: Params) -> Tensor:
    """The Euclidean length of all tensors together, in double precision."""
    total = torch.zeros((), dtype=torch.float64)
    for value in change.values():
        square = value.double().square().sum()
        total = total + square.cpu()
    return total.sqrt()
