"""BBP-MAP: which hidden units of several networks are the same one.

Wang et al., Federated Learning with Matched Averaging, ICLR 2020, Sec. 2.2; the costs are those of
Yurochkin et al., Bayesian Nonparametric Federated Learning of Neural Networks, ICML 2019, Eq. (8).
A unit is Gaussian around its global unit, which is Gaussian itself; how many global units there are
follows a Beta-Bernoulli process, so there may be more than any network has. Given where the units
of all other networks belong, the best places for those of one network are an assignment problem.

How popular a global unit is counts as in the authors' code, for which their constants were chosen:
the logarithm of the odds once, and of ten owners at most. Twice, as the logarithm of a new unit's
odds, makes layers grow several times as much: of 64 units in each of 16 networks it makes 154
global ones instead of 79.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

POPULAR = 10  # owners above which a global unit attracts no more than with so many
NEVER = -1e30  # what a forbidden place gains: the solver takes no infinity


class Prior(NamedTuple):
    """What is believed before any unit is seen, and how long to search."""

    gamma: float  # gamma_0, mass of the process: the larger, the more global units
    sigma: float  # sigma^2, variance of a unit around its global unit
    sigma0: float  # sigma_0^2, variance of a global unit around the prior mean
    sweeps: int  # how often every network is matched anew after the first time


class GlobalUnits(NamedTuple):
    """The global units found so far."""

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
    """Find the same units in several networks.

    Args:
        units: every network's units, one a row.
        mean: mu_0, one value a column.
        prior: the constants of BBP-MAP.
        rng: decides in which order networks are matched anew.
        grow: whether there may be more global units than a network has. If not, all networks have
            as many units as there are global ones.
        groups: units change places only within so many runs of equal length.

    Returns:
        For every network the places of its units among the global ones, and the number of these.
    """
    matching = _Matching(units, mean, prior, grow, groups)
    largest_first = sorted(range(len(units)), key=lambda j: -len(units[j]))
    largest, *others = largest_first
    matching.begin_with(largest)
    for j in others:
        matching.assign(j)
    sweeps = prior.sweeps if others else 0
    for _ in range(sweeps):
        for j in rng.permutation(len(units)).tolist():
            matching.remove(j)
            matching.assign(j)
    return matching.places, len(matching.found.owners)


class _Matching:
    """The global units, and the places of every network's units among them."""

    found: GlobalUnits

    def __init__(
        self,
        units: Sequence[Tensor],
        mean: Tensor,
        prior: Prior,
        grow: bool,
        groups: int,
    ) -> None:
        self.prior = prior
        self.grow = grow
        self.groups = groups
        self.start = mean.cpu().double() / prior.sigma0
        self.values: list[Tensor] = []
        self.places: list[Tensor] = []
        for network in units:
            values = network.detach().cpu().double()
            self.values.append(values / prior.sigma)
            self.places.append(torch.arange(len(values)))

    def begin_with(self, j: int) -> None:
        """Make every unit of network j a global one."""
        total = self.start + self.values[j]
        owners = torch.ones(len(total), dtype=torch.int64)
        self.found = GlobalUnits(total, owners)

    def assign(self, j: int) -> None:
        """Find the best places for the units of network j, and add them there."""
        gain = self.weigh_places(j)
        _, columns = linear_sum_assignment(gain.numpy(), maximize=True)
        places = torch.from_numpy(columns)

        total, owners = self.found
        is_new = places >= len(owners)
        new = int(is_new.sum())
        places[is_new] = len(owners) + torch.arange(new)
        new_totals = self.start.expand(new, -1)
        total = torch.cat([total, new_totals])
        owners = torch.cat([owners, owners.new_zeros(new)])

        total = total.index_add(0, places, self.values[j])
        ones = torch.ones_like(places)
        owners = owners.index_add(0, places, ones)
        self.found = GlobalUnits(total, owners)
        self.places[j] = places

    def weigh_places(self, j: int) -> Tensor:
        """What the units of network j gain by every place; none outside of their run."""
        values = self.values[j]
        gain = weigh_places(
            self.found,
            values,
            self.start,
            self.prior,
            len(self.values),
            self.grow,
        )
        if self.groups > 1:
            units = len(values)
            run = torch.arange(units) // (units // self.groups)
            gain = torch.where(run[:, None] == run, gain, NEVER)
        return gain

    def remove(self, j: int) -> None:
        """Take the units of network j away; a global unit that no other network has is gone."""
        total, owners = self.found
        places = self.places[j]
        ones = torch.ones_like(places)
        total = total.index_add(0, places, self.values[j], alpha=-1)
        owners = owners.index_add(0, places, ones, alpha=-1)
        left = owners > 0
        self.found = GlobalUnits(total[left], owners[left])
        new_place = left.cumsum(0) - 1
        self.places = [new_place[old] for old in self.places]


def weigh_places(
    found: GlobalUnits,
    values: Tensor,
    start: Tensor,
    prior: Prior,
    networks: int,
    grow: bool,
) -> Tensor:
    """What every unit (row) gains by every global unit (column).

    This is twice the log of the posterior, up to a constant. With ``grow``, the columns behind
    those of the global units found already stand for a first, second ... new one.

    Args:
        found: the global units found already.
        values: the units of a network, by sigma^2.
        start: mu_0, by sigma_0^2.
        prior: the constants of BBP-MAP.
        networks: how many there are.
        grow: whether there may be new global units.
    """
    p = 1 / prior.sigma
    p0 = 1 / prior.sigma0
    total, owners = found
    weight = p0 + p * owners
    own = values.square().sum(1)
    theirs = total.square().sum(1)
    together = own[:, None] + 2 * values @ total.T + theirs
    gain = together / (weight + p) - theirs / weight
    popularity = owners.clamp(max=POPULAR)
    odds = popularity / (networks - popularity).double()
    gain = gain + torch.log(odds)
    if not grow:
        return gain
    new_gain = _weigh_new_places(values, start, prior, networks)
    return torch.cat([gain, new_gain], 1)


def _weigh_new_places(
    values: Tensor, start: Tensor, prior: Prior, networks: int
) -> Tensor:
    """What every unit (row) gains by a first, second ... new global unit (column)."""
    p = 1 / prior.sigma
    p0 = 1 / prior.sigma0
    alone = (values + start).square().sum(1)
    gain = alone / (p0 + p) - start.square().sum() / p0
    number = torch.arange(1, len(values) + 1)
    first_odds = 2 * math.log(prior.gamma / networks)
    log_odds = first_odds - 2 * torch.log(number.double())
    return gain[:, None] + log_odds


# ---------------------------------------------------------------- averages
def average_units(
    values: Sequence[Tensor], places: Sequence[Tensor], width: int
) -> Tensor:
    """The mean of every global unit over the networks that have it.

    Args:
        values: of every network, with units along the first axis.
        places: of every network's units among the global ones.
        width: how many global units there are.
    """
    first = values[0]
    total = first.new_zeros(width, *first.shape[1:])
    for x, place in zip(values, places, strict=True):
        place = place.to(x.device)
        total = total.index_add(0, place, x)
    owners = count_owners(places, width)
    return total / per_row(owners, total)


def count_owners(places: Sequence[Tensor], width: int) -> Tensor:
    """How many networks have every global unit."""
    together = torch.cat(list(places))
    return torch.bincount(together.cpu(), minlength=width)


def per_row(values: Tensor, x: Tensor) -> Tensor:
    """One value for every row of x, with x's dtype, device and number of axes."""
    other_axes = [1] * (x.dim() - 1)
    return values.to(x).reshape(-1, *other_axes)
