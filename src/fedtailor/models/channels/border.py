"""Where the parameters of a network are cut between shared and private channels, and what is done with the parts."""

from __future__ import annotations

import math
from typing import NamedTuple, TypeAlias

import torch
from torch import Tensor

from fedtailor.core.tree import Params

TABLE = ".embedding.weight"  # what a table of word vectors is called: a row for every word, a column for every channel
SLACK = 1e-9  # a share of 0.3 is 3 of 10 channels, whatever the last bit of the product says


class Border(NamedTuple):
    """Where a parameter is cut."""

    axis: int  # 0: by output channel; 1: by input, the last layer, and word vectors
    at: int  # how many of its channels are shared: the first ones
    size: int  # how many there are


Borders: TypeAlias = dict[str, Border]


def count_shared(width: int, p: float) -> int:
    """How many of a layer's channels are shared: ceil(p width) are not, and neither kind dies out for 0 < p < 1."""
    if p <= 0 or p >= 1:
        return width if p <= 0 else 0
    return width - min(width - 1, max(1, math.ceil(p * width - SLACK)))


def draw_borders(w: Params, p: float) -> Borders:
    """Where every parameter and buffer of a Decoupled's whole model is cut, for a share p of private channels.

    The last layer's bias belongs to no channel: it is shared as long as any channel is.
    """
    names, last = list(w), find_last(w)
    end = names.index(last)
    axes = {k: find_axis(k, last) for k in names[:end]}
    borders = {
        k: Border(axis, count_shared(w[k].shape[axis], p), w[k].shape[axis])
        for k, axis in axes.items()
    }
    channels, features = borders[names[end - 1]].size, w[last].shape[1]
    # a channel has a feature for each of its pixels
    borders[last] = Border(1, count_shared(channels, p) * (features // channels), features)
    return borders | {k: Border(0, 0 if p >= 1 else len(w[k]), len(w[k])) for k in names[end + 1 :]}


def find_last(w: Params) -> str:
    """The weight of the last layer: Decoupled lets no matrix follow."""
    return next((k for k in reversed(w) if w[k].dim() == 2), "")


def find_axis(k: str, last: str) -> int:
    """The axis along which a parameter is cut: the second one of the last layer's weight and of word vectors."""
    return int(k == last or k.endswith(TABLE))


def has_two_sides(w: Params, borders: Borders) -> bool:
    """Whether every layer has channels of either kind, so that either kind is a network."""
    return all(0 < borders[k].at < borders[k].size for k, x in w.items() if x.dim() > 1)


def split_parts(w: Params, *at: Borders) -> list[Params]:
    """The channels before the first border, between it and the next, ..., behind the last; no part has empty tensors.

    In memory of their own: a view of shared channels would carry the private ones along.
    """
    parts: list[Params] = [{} for _ in range(len(at) + 1)]
    for k, x in w.items():
        axis, size = at[0][k].axis, at[0][k].size
        cuts = [0, *(borders[k].at for borders in at), size]
        for part, start, stop in zip(parts, cuts, cuts[1:], strict=False):
            if stop > start:
                part[k] = x.narrow(axis, start, stop - start).clone()
    return parts


def join_parts(*parts: Params) -> Params:
    """The channels of all parts, one part behind the other."""
    names = dict.fromkeys(k for part in parts for k in part)
    last = find_last({k: part[k] for part in parts for k in part})
    return {
        k: torch.cat([part[k] for part in parts if k in part], find_axis(k, last)) for k in names
    }


def overlay(w: Params, first: Params) -> Params:
    """``w`` with its first channels replaced by those there are in ``first``; what goes beyond ``w`` is left out."""
    out, last = dict(w), find_last(w)
    for k, x in first.items():
        axis = find_axis(k, last)
        size = w[k].shape[axis]
        have = min(size, x.shape[axis])
        out[k] = torch.cat([x.narrow(axis, 0, have), w[k].narrow(axis, have, size - have)], axis)
    return out


def choose(w: Params, first: Params, at: Tensor) -> Params:
    """``w`` with the first at[i] channels of its i-th parameter from ``first``; under vmap every client has its own."""
    last = find_last(w)

    def pick(k: str, x: Tensor, n: Tensor) -> Tensor:
        axis = find_axis(k, last)
        places = torch.arange(x.shape[axis], device=x.device).reshape(
            -1, *[1] * (x.dim() - 1 - axis)
        )
        return torch.where(places < n, first[k], x)

    return {k: pick(k, x, n) for (k, x), n in zip(w.items(), at.unbind(), strict=True)}


def clear_shared(w: Params, borders: Borders) -> Params:
    """``w`` with zeros for its shared channels."""
    return overlay(w, {k: torch.zeros_like(x) for k, x in split_parts(w, borders)[0].items()})


def smooth_private(w: Params, new: Params, borders: Borders, weight: float) -> Params:
    """``new``, but every private channel has gone only ``weight`` of its way from ``w``."""

    def mix(x: Tensor, y: Tensor, b: Border) -> Tensor:
        rest = b.axis, b.at, b.size - b.at
        return torch.cat(
            [y.narrow(b.axis, 0, b.at), torch.lerp(x.narrow(*rest), y.narrow(*rest), weight)],
            b.axis,
        )

    return {k: new[k] if b.at == b.size else mix(w[k], new[k], b) for k, b in borders.items()}
