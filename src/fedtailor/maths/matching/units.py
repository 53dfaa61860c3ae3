"""Hidden units within a network's parameters: take out, move, compare and average them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, average, is_statistic, learned, part
from fedtailor.maths.matching.bbp import Prior, average_units, match_units, per_row
from fedtailor.maths.matching.wiring import Step, Wiring

BIAS = 0.1  # prior mean of a bias, as in the authors' code; that of a weight is 0


# ---------------------------------------------------------------- parts of a network
def take_statistics(w: Params) -> Params:
    """The running statistics of BatchNorm."""
    return {name: x for name, x in w.items() if is_statistic(name)}


def take_layers(w: Params, step: Step) -> Params:
    """What is trained of the layers of one step."""
    return learned(part(w, *step.names))


def take_units(w: Params, wiring: Wiring, picks: Params) -> Params:
    """The smaller network that has, of every stream in ``picks``, only these units."""
    taken = dict(w)
    for stream, pick in picks.items():
        for name, axis, units in _find_units(taken, wiring, stream):
            x = torch.unflatten(taken[name], axis, (units, -1))
            x = x.index_select(axis, pick.to(x.device))
            taken[name] = x.flatten(axis, axis + 1)
    return taken


def place_units(
    w: Params,
    wiring: Wiring,
    stream: str,
    places: Tensor,
    width: int,
) -> Params:
    """The network with the units of a stream in other places, among ``width``.

    Units in the places between are zero, so that nothing comes from them.
    """
    placed = dict(w)
    for name, axis, units in _find_units(w, wiring, stream):
        x = torch.unflatten(placed[name], axis, (units, -1))
        shape = list(x.shape)
        shape[axis] = width
        wide = x.new_zeros(shape)
        wide.index_copy_(axis, places.to(x.device), x)
        placed[name] = wide.flatten(axis, axis + 1)
    return placed


class _UnitAxis(NamedTuple):
    """Where a stream's units are in a parameter."""

    name: str
    axis: int
    units: int


def _find_units(w: Params, wiring: Wiring, stream: str) -> list[_UnitAxis]:
    """All parameters that belong to a stream's units.

    Behind Flatten a unit has several places along its axis, one for every pixel of its map.
    """
    units = _count_units(w, wiring, stream)
    found: list[_UnitAxis] = []
    for step in wiring.steps:
        for layer in step.layers:
            for name, x in part(w, layer.name).items():
                if step.stream == stream:
                    found.append(_UnitAxis(name, 0, units))
                if layer.source == stream and x.dim() > 1:
                    found.append(_UnitAxis(name, 1, units))
    return found


def _count_units(w: Params, wiring: Wiring, stream: str) -> int:
    """How many units a stream has in this network."""
    for step in wiring.steps:
        if step.stream == stream:
            made = part(w, *step.names)
            first = next(iter(made.values()))
            return len(first)
    raise KeyError(stream)


# ---------------------------------------------------------------- matching
def match_layer(
    layers: Sequence[Params],
    step: Step,
    wiring: Wiring,
    prior: Prior,
    rng: Rng,
) -> tuple[list[Tensor], int]:
    """The places of all networks' units in a layer, and how many places there are.

    Where an earlier step has decided on the order of the units, they stay in their places.
    """
    units = [list_units(layer) for layer in layers]
    if not step.decides:
        width = len(units[0])
        return [torch.arange(width) for _ in units], width
    stream = wiring.streams[step.stream]
    return match_units(
        units,
        list_prior_means(layers[0], step),
        prior,
        rng.numpy(),
        grow=stream.grows,
        groups=stream.groups,
    )


def list_units(layers: Params) -> Tensor:
    """The units that layers make, one a row, with all that goes into them."""
    rows = []
    for x in layers.values():
        rows.append(x.reshape(len(x), -1))
    return torch.cat(rows, 1)


def list_prior_means(layers: Params, step: Step) -> Tensor:
    """mu_0, the prior mean of every value of a unit."""
    means = []
    for name, x in layers.items():
        values_of_unit = x[0].numel()
        mean = _prior_mean(name, step)
        means.append(x.new_full((values_of_unit,), mean))
    return torch.cat(means)


def _prior_mean(name: str, step: Step) -> float:
    """mu_0 of a parameter."""
    for layer in step.layers:
        is_normalisation = layer.source is None
        if name == f"{layer.name}.bias" and not is_normalisation:
            return BIAS
    return 0.0


# ---------------------------------------------------------------- averages
def average_layers(
    layers: Sequence[Params], places: Sequence[Tensor], width: int
) -> Params:
    """Matched averaging: the mean of every unit over the networks that have it."""
    means: Params = {}
    for name in layers[0]:
        values = [layer[name] for layer in layers]
        means[name] = average_units(values, places, width)
    return means


def shrink_layers(means: Params, step: Step, owners: Tensor, prior: Prior) -> Params:
    """The MAP estimates of units whose means over their n owners are given.

    (mu_0 / sigma_0^2 + n mean / sigma^2) / (1 / sigma_0^2 + n / sigma^2): the prior mean counts
    like some more owners.
    """
    share = owners.double() / (owners + prior.sigma / prior.sigma0)
    estimates: Params = {}
    for name, x in means.items():
        mu = _prior_mean(name, step)
        shrink = per_row(share, x)
        estimates[name] = mu + shrink * (x - mu)
    return estimates


def average_classes(
    heads: Sequence[Params], counts: Sequence[Tensor], n: Tensor
) -> Params:
    """The mean of last layers: every class's row is weighted by the examples of the class.

    A class without examples is weighted by all examples.

    Args:
        heads: last layers, with classes along the first axis.
        counts: examples of every class that each network has seen.
        n: all examples of each network.
    """
    count = torch.stack(list(counts)).double()
    total = count.sum(0)
    shares = (count / total).nan_to_num()  # (networks, classes)
    means: Params = {}
    for name, plain in average(heads, n).items():
        weighted = []
        for share, head in zip(shares, heads, strict=True):
            weight = per_row(share, plain)
            weighted.append(weight * head[name])
        by_class = torch.stack(weighted).sum(0)
        has_examples = per_row(total, plain) > 0
        means[name] = torch.where(has_examples, by_class, plain)
    return means
