"""Hidden units within a network's parameters: taken out, put in other places, and as vectors to be compared."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from fedtailor.core.tree import Params, average, is_statistic, learned, part
from fedtailor.maths.matching.bbp import Prior, average_units
from fedtailor.maths.matching.wiring import Step, Wiring

BIAS = 0.1  # prior mean of a bias, as in the authors' code; that of a weight is 0


def keep_statistics(w: Params) -> Params:
    """BatchNorm's statistics."""
    return {k: x for k, x in w.items() if is_statistic(k)}


def take_layers(w: Params, step: Step) -> Params:
    """What is trained of the layers of one step."""
    return learned(part(w, *step.names))


def take_units(w: Params, wiring: Wiring, picks: Params) -> Params:
    """The smaller network that has, of every stream in ``picks``, these units alone."""
    out = dict(w)
    for stream, pick in picks.items():
        for name, axis, count in list(_find_units(out, wiring, stream)):
            x = torch.unflatten(out[name], axis, (count, -1))
            out[name] = x.index_select(axis, pick.to(x.device)).flatten(axis, axis + 1)
    return out


def place_units(w: Params, wiring: Wiring, stream: str, at: Tensor, width: int) -> Params:
    """The same network with the units of a stream in other places, among ``width``; nothing comes from the others."""
    out = dict(w)
    for name, axis, count in list(_find_units(w, wiring, stream)):
        x = torch.unflatten(out[name], axis, (count, -1))
        blank = x.new_zeros(*x.shape[:axis], width, *x.shape[axis + 1 :])
        out[name] = blank.index_copy(axis, at.to(x.device), x).flatten(axis, axis + 1)
    return out


def _find_units(w: Params, wiring: Wiring, stream: str) -> Iterator[tuple[str, int, int]]:
    """All that belongs to a stream's units: the parameter, the axis they are along, and how many there are.

    Behind Flatten a unit has several places along its axis, one for every pixel of its map.
    """
    width = len(
        next(
            x
            for step in wiring.steps
            if step.stream == stream
            for x in part(w, *step.names).values()
        )
    )
    for step in wiring.steps:
        for layer in step.layers:
            for name, x in part(w, layer.name).items():
                if step.stream == stream:
                    yield name, 0, width
                if layer.source == stream and x.dim() > 1:
                    yield name, 1, width


def list_units(layers: Params, step: Step) -> tuple[Tensor, Tensor]:
    """The units that a step makes, one a row, with all that goes into them; and the prior mean of such a row."""
    rows = {k: x.reshape(len(x), -1) for k, x in layers.items()}
    mean = [x.new_full(x.shape[1:], _believe(k, step)) for k, x in rows.items()]
    return torch.cat(list(rows.values()), 1), torch.cat(mean)


def _believe(name: str, step: Step) -> float:
    """mu_0, the prior mean of a parameter."""
    return (
        BIAS
        if name in {f"{layer.name}.bias" for layer in step.layers if layer.source is not None}
        else 0.0
    )


def average_layers(layers: Sequence[Params], at: Sequence[Tensor], width: int) -> Params:
    """Matched averaging: the mean of every unit over the networks that have it."""
    return {k: average_units([w[k] for w in layers], at, width) for k in layers[0]}


def shrink_layers(means: Params, step: Step, owners: Tensor, prior: Prior) -> Params:
    """The MAP estimates of units whose means over their n owners are given.

    (mu_0 / sigma_0^2 + n mean / sigma^2) / (1 / sigma_0^2 + n / sigma^2): the prior mean counts like some owners more.
    """
    share = owners.double() / (owners + prior.sigma / prior.sigma0)
    mu = {k: _believe(k, step) for k in means}
    return {k: mu[k] + _spread(share, x) * (x - mu[k]) for k, x in means.items()}


def average_classes(heads: Sequence[Params], counts: Sequence[Tensor], n: Tensor) -> Params:
    """The last layer: every class's row is the mean weighted by the examples of the class, by all if there is none."""
    plain, count = average(heads, n), torch.stack(list(counts)).double()
    share = (count / count.sum(0)).nan_to_num()  # (networks, classes)

    def mix(name: str, x: Tensor) -> Tensor:
        rows = [_spread(p, x) * w[name] for p, w in zip(share, heads, strict=True)]
        return torch.where(_spread(count.sum(0), x) > 0, torch.stack(rows).sum(0), x)

    return {k: mix(k, x) for k, x in plain.items()}


def _spread(per_row: Tensor, x: Tensor) -> Tensor:
    """A number for every row of x."""
    return per_row.to(x).reshape(-1, *[1] * (x.dim() - 1))
