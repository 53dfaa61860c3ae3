"""BBP-MAP: which hidden units of several networks are the same one, where there may be more than any network has.

Wang et al., Federated Learning with Matched Averaging, ICLR 2020, Sec. 2.2; the costs are those of Yurochkin et al.,
Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019, Eq. (8). A unit is Gaussian around its global
unit, which is Gaussian itself; how many of these there are follows a Beta-Bernoulli process. Given where the units of
all other networks belong, the best places for those of one network are an assignment problem.

How popular a global unit is counts as in the authors' code, for which their constants were chosen: the logarithm of the
odds once, and of ten owners at most. Twice, as the logarithm of a new unit's odds, makes layers grow several times as
much: of 64 units in each of 16 networks it makes 154 global ones instead of 79.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

POPULAR = 10  # owners above which a global unit draws no more than with so many
NEVER = -1e30  # what a forbidden place gains: the solver takes no infinity


class Prior(NamedTuple):
    """What is believed before any unit is seen, and how long to look."""

    gamma: float  # gamma_0, mass of the process: the larger it is, the more global units there are
    sigma: float  # sigma^2, variance of a unit around its global unit
    sigma0: float  # sigma_0^2, variance of a global unit around the prior mean
    sweeps: int  # how often every network is matched anew after the first time


class Found(NamedTuple):
    """The global units."""

    total: Tensor  # (L, d), mu_0 / sigma_0^2 + the sum of their units / sigma^2
    owners: Tensor  # (L,), how many networks have them


def match_units(
    units: Sequence[Tensor],
    mean: Tensor,
    prior: Prior,
    rng: np.random.Generator,
    *,
    grow: bool,
    groups: int = 1,
) -> tuple[list[Tensor], int]:
    """For every network the places of its units among the global ones, and the number of these.

    ``units``: a network's units, one a row. ``mean``: mu_0, one value a column. Without ``grow`` all networks have as
    many units as there are global ones, and they change places only within ``groups`` runs of equal length.
    """
    values = [u.detach().cpu().double() / prior.sigma for u in units]
    start = mean.cpu().double() / prior.sigma0
    first, *others = sorted(range(len(values)), key=lambda j: -len(values[j]))
    at = [torch.arange(len(v)) for v in values]
    found = Found(start + values[first], torch.ones(len(values[first]), dtype=torch.int64))
    for j in others:
        found, at[j] = _place(found, values[j], start, prior, len(values), grow, groups)
    for _ in range(prior.sweeps if others else 0):
        for j in rng.permutation(len(values)).tolist():
            found, at = _remove(found, values[j], at, j)
            found, at[j] = _place(found, values[j], start, prior, len(values), grow, groups)
    return at, len(found.owners)


def weigh_places(
    found: Found, values: Tensor, start: Tensor, prior: Prior, networks: int, grow: bool
) -> Tensor:
    """What every unit (row) gains by every global unit (column): twice the log of the posterior, up to a constant.

    With ``grow``, the columns behind those of the units found already stand for a first, second ... new one.
    """
    p, p0 = 1 / prior.sigma, 1 / prior.sigma0
    total, owners = found
    weight, own, theirs = p0 + p * owners, values.square().sum(1)[:, None], total.square().sum(1)
    old = (own + 2 * values @ total.T + theirs) / (weight + p) - theirs / weight
    many = owners.clamp(max=POPULAR)
    old = old + torch.log(many / (networks - many).double())
    if not grow:
        return old
    new = (values + start).square().sum(1) / (p0 + p) - start.square().sum() / p0
    more = 2 * math.log(prior.gamma / networks) - 2 * torch.log(
        torch.arange(1, len(values) + 1).double()
    )
    return torch.cat([old, new[:, None] + more], 1)


def _place(
    found: Found,
    values: Tensor,
    start: Tensor,
    prior: Prior,
    networks: int,
    grow: bool,
    groups: int,
) -> tuple[Found, Tensor]:
    """Where the units of one network belong, and the global units with them."""
    gain = weigh_places(found, values, start, prior, networks, grow)
    if groups > 1:
        run = torch.arange(len(values)) // (len(values) // groups)
        gain = torch.where(run[:, None] == run, gain, NEVER)
    at = torch.from_numpy(linear_sum_assignment(gain.numpy(), maximize=True)[1])
    new = at >= len(found.owners)
    more = int(new.sum())
    at[new] = len(found.owners) + torch.arange(more)
    total = torch.cat([found.total, start.expand(more, -1)]).index_add(0, at, values)
    owners = torch.cat([found.owners, found.owners.new_zeros(more)])
    return Found(total, owners.index_add(0, at, torch.ones_like(at))), at


def _remove(found: Found, values: Tensor, at: list[Tensor], j: int) -> tuple[Found, list[Tensor]]:
    """The global units without those of network j; one that nobody else has is gone."""
    total = found.total.index_add(0, at[j], values, alpha=-1)
    owners = found.owners.index_add(0, at[j], torch.ones_like(at[j]), alpha=-1)
    left = owners > 0
    place = left.cumsum(0) - 1
    return Found(total[left], owners[left]), [place[a] for a in at]


def average_units(values: Sequence[Tensor], at: Sequence[Tensor], width: int) -> Tensor:
    """The mean of every global unit over the networks that have it; ``values`` have units along the first axis."""
    total = values[0].new_zeros(width, *values[0].shape[1:])
    for x, a in zip(values, at, strict=True):
        total = total.index_add(0, a.to(x.device), x)
    count = count_owners(at, width).to(total).reshape(-1, *[1] * (total.dim() - 1))
    return total / count


def count_owners(at: Sequence[Tensor], width: int) -> Tensor:
    """How many networks have every global unit."""
    return torch.bincount(torch.cat(list(at)).cpu(), minlength=width)
