"""Where the parameters of a network are cut between shared and private channels, and the parts.

A *model* here is a dict of parameters and buffers in the order of the network; a *part* of it holds
some of the channels of each.
"""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedtailor.core.tree import Params, tmap

# Name of a table of word vectors: it has a row for every word and a column for every channel.
TABLE = ".embedding.weight"
SLACK = 1e-9  # a share of 0.3 is 3 of 10 channels, whatever the last bit of the product says


# ---------------------------------------------------------------- borders
class Border(NamedTuple):
    """Where a parameter is cut."""

    axis: int  # 0: by output channel; 1: by input, for the last layer and word vectors
    shared: int  # how many of its channels are shared: the first ones
    size: int  # how many there are


Borders: TypeAlias = dict[str, Border]


def count_shared(width: int, p: float) -> int:
    """How many channels of a layer are shared if a share p is private.

    ceil(p width) are private, but for 0 < p < 1 at least one of either kind, if there are two.
    """
    if p <= 0:
        return width
    if p >= 1:
        return 0
    private = max(1, math.ceil(p * width - SLACK))
    return width - min(width - 1, private)


def draw_borders(w: Params, p: float) -> Borders:
    """Where every parameter and buffer of a ``Decoupled`` network is cut.

    The last layer's bias belongs to no channel: it is shared as long as any channel is.

    Args:
        w: the whole model.
        p: the share of private channels.
    """
    names = list(w)
    last = find_last_weight(w)
    end = names.index(last)
    borders: Borders = {}
    for name in names[:end]:
        axis = find_axis(name, last)
        size = w[name].shape[axis]
        shared = count_shared(size, p)
        borders[name] = Border(axis, shared, size)
    channels = borders[names[end - 1]].size
    features = w[last].shape[1]
    pixels = features // channels  # each is a feature of its channel
    shared = count_shared(channels, p) * pixels
    borders[last] = Border(1, shared, features)
    for name in names[end + 1 :]:
        size = len(w[name])
        shared = 0 if p >= 1 else size
        borders[name] = Border(0, shared, size)
    return borders


def find_last_weight(w: Params) -> str:
    """The name of the last layer's weight: the last matrix, as ``Decoupled`` makes sure."""
    for name in reversed(w):
        if w[name].dim() == 2:
            return name
    return ""


def find_axis(name: str, last: str) -> int:
    """The axis along which a parameter is cut: 1 for the last weight and word vectors, else 0."""
    if name == last or name.endswith(TABLE):
        return 1
    return 0


def has_two_sides(w: Params, borders: Borders) -> bool:
    """Whether every layer has channels of either kind, so that either kind is a network."""
    for name, value in w.items():
        border = borders[name]
        if value.dim() > 1 and not 0 < border.shared < border.size:
            return False
    return True


# ---------------------------------------------------------------- parts
def take_channels(
    w: Params,
    start: Borders | None = None,
    stop: Borders | None = None,
) -> Params:
    """The channels of a model from one border to another.

    Tensors are copied: a view of shared channels would carry private ones along. A parameter
    without channels in between is left out.

    Args:
        w: the model.
        start: the border where the part begins; with the first channel if None.
        stop: the border where it ends; behind the last channel if None.
    """
    last = find_last_weight(w)
    part: Params = {}
    for name, value in w.items():
        axis = find_axis(name, last)
        low = start[name].shared if start else 0
        high = stop[name].shared if stop else value.shape[axis]
        if high > low:
            channels = value.narrow(axis, low, high - low)
            part[name] = channels.clone()
    return part


def split_channels(w: Params, borders: Borders) -> tuple[Params, Params]:
    """The shared and the private channels."""
    shared = take_channels(w, stop=borders)
    private = take_channels(w, start=borders)
    return shared, private


def join_channels(*parts: Params) -> Params:
    """The channels of all parts, one part behind the other."""
    pieces: dict[str, list[Tensor]] = {}
    for part in parts:
        for name, value in part.items():
            pieces.setdefault(name, []).append(value)
    examples = {name: values[0] for name, values in pieces.items()}
    last = find_last_weight(examples)
    joined: Params = {}
    for name, values in pieces.items():
        axis = find_axis(name, last)
        joined[name] = torch.cat(values, axis)
    return joined


def overlay_channels(w: Params, first: Params) -> Params:
    """``w`` with its first channels replaced by those in ``first``; what is too much is ignored."""
    last = find_last_weight(w)
    result = dict(w)
    for name, value in first.items():
        axis = find_axis(name, last)
        size = w[name].shape[axis]
        count = min(size, value.shape[axis])
        replaced = value.narrow(axis, 0, count)
        rest = w[name].narrow(axis, count, size - count)
        result[name] = torch.cat([replaced, rest], axis)
    return result


def choose_channels(w: Params, first: Params, counts: Tensor) -> Params:
    """``w`` with the first channels of every parameter taken from another model.

    Args:
        w: a model.
        first: another one, of the same shape.
        counts: how many channels to take, by parameter; under vmap every client has its own.
    """
    last = find_last_weight(w)
    chosen: Params = {}
    for name, count in zip(w, counts.unbind(), strict=True):
        axis = find_axis(name, last)
        is_first = _number_channels(w[name], axis) < count
        chosen[name] = torch.where(is_first, first[name], w[name])
    return chosen


def _number_channels(value: Tensor, axis: int) -> Tensor:
    """0, 1, 2, ... along an axis, in a shape that broadcasts with ``value``."""
    positions = torch.arange(value.shape[axis], device=value.device)
    axes_behind = [1] * (value.dim() - 1 - axis)
    return positions.reshape(-1, *axes_behind)


def clear_shared(w: Params, borders: Borders) -> Params:
    """``w`` with zeros for its shared channels."""
    shared = take_channels(w, stop=borders)
    zeros = tmap(torch.zeros_like, shared)
    return overlay_channels(w, zeros)


def smooth_private(
    w: Params,
    new: Params,
    borders: Borders,
    weight: float,
) -> Params:
    """``new``, but private channels go only a share ``weight`` of the way from ``w``."""
    smoothed: Params = {}
    for name, border in borders.items():
        smoothed[name] = _smooth_behind(border, w[name], new[name], weight)
    return smoothed


def _smooth_behind(
    border: Border,
    old: Tensor,
    new: Tensor,
    weight: float,
) -> Tensor:
    """``new``, but channels behind the border go only a share ``weight`` of their way."""
    axis, shared, size = border
    private = size - shared
    if private == 0:
        return new
    unchanged = new.narrow(axis, 0, shared)
    before = old.narrow(axis, shared, private)
    after = new.narrow(axis, shared, private)
    smoothed = torch.lerp(before, after, weight)
    return torch.cat([unchanged, smoothed], axis)
