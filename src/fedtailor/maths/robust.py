"""Rules that merge vectors of which some may be wrong on purpose.

Every rule takes a matrix with one row a sender and gives one vector. Rows count alike:
a weight that a sender chooses would be a lever for an attacker. Where a rule must know
how many senders f lie, it assumes the most it can stand, which depends on the number of
senders alone.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from fedtailor.core.errors import UserError, unknown

Rule = Callable[[Tensor], Tensor]

WEISZFELD_STEPS = 100  # at most
CLOSE_ENOUGH = 1e-10  # relative change at which Weiszfeld's iteration ends
SMALLEST = 1e-12  # distance, so that a point at the median does not divide by zero


class RuleSpec(NamedTuple):
    """A rule's name, and the number after its colon where it takes one."""

    name: str
    number: float | None = None


# ---------------------------------------------------------------- rules
def take_median(rows: Tensor) -> Tensor:
    """The median of every coordinate; the mean of the two middle ones if there are two."""
    ordered = rows.sort(0).values
    n = len(rows)
    lower = ordered[(n - 1) // 2]
    upper = ordered[n // 2]
    return (lower + upper) / 2


def trim_mean(rows: Tensor, share: float) -> Tensor:
    """The mean of every coordinate without the largest and smallest ``share`` of values.

    Yin et al., Byzantine-Robust Distributed Learning, ICML 2018, Definition 2.
    """
    n = len(rows)
    cut = min(int(share * n), (n - 1) // 2)
    ordered = rows.sort(0).values
    return ordered[cut : n - cut].mean(0)


def choose_by_krum(rows: Tensor, many: int) -> Tensor:
    """The places of the ``many`` rows with the smallest Krum scores, the best first.

    Blanchard et al., Machine Learning with Adversaries, NeurIPS 2017: a row's score is
    the sum of its squared distances to its n - f - 2 nearest neighbours, n > 2f + 2.
    """
    n = len(rows)
    liars = max((n - 3) // 2, 0)
    return order_by_krum(rows, liars)[:many]


def order_by_krum(rows: Tensor, liars: int) -> Tensor:
    """The places of all rows by their Krum scores, the best first."""
    n = len(rows)
    nearest = max(n - liars - 2, 1)
    distances = torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist")
    squares = distances.square().sort(1).values
    # the first is the distance to itself
    scores = squares[:, 1 : 1 + nearest].sum(1)
    return torch.argsort(scores, stable=True)


def krum(rows: Tensor) -> Tensor:
    """The row nearest to its neighbours."""
    return rows[choose_by_krum(rows, 1)[0]]


def multikrum(rows: Tensor, many: int) -> Tensor:
    """The mean of the ``many`` rows that Krum likes best."""
    return rows[choose_by_krum(rows, many)].mean(0)


def find_geometric_median(rows: Tensor) -> Tensor:
    """The point with the smallest sum of distances to all rows (Weiszfeld's iteration).

    Pillutla et al., Robust Aggregation for Federated Learning, 2022 (RFA).
    """
    centre: Tensor = rows.mean(0)
    for _ in range(WEISZFELD_STEPS):
        distances = (rows - centre).norm(dim=1)
        weights = 1 / distances.clamp(min=SMALLEST)
        new = weights @ rows / weights.sum()
        step = (new - centre).norm()
        centre = new
        if step <= CLOSE_ENOUGH * centre.norm():
            break
    return centre


def clip_around_median(rows: Tensor, radius: float) -> Tensor:
    """The mean of all rows, each brought within ``radius`` of their median first.

    Karimireddy et al., Learning from History for Byzantine Robust Optimization, ICML
    2021, one step of centred clipping; its starting point is the coordinates' median.
    """
    centre = take_median(rows)
    gaps = rows - centre
    lengths = gaps.norm(dim=1).clamp(min=SMALLEST)
    factors = (radius / lengths).clamp(max=1.0)
    shortened: Tensor = gaps * factors[:, None]
    return centre + shortened.mean(0)


def bulyan(rows: Tensor) -> Tensor:
    """Repeated Krum, then the mean of the values nearest to every coordinate's median.

    El Mhamdi et al., The Hidden Vulnerability of Distributed Learning in Byzantium, ICML
    2018: chooses n - 2f rows, averages n - 4f values of each coordinate; n >= 4f + 3.
    """
    n = len(rows)
    liars = max((n - 3) // 4, 0)
    chosen: list[Tensor] = []
    left = rows
    for _ in range(n - 2 * liars):
        best = int(order_by_krum(left, liars)[0]) if len(left) > 1 else 0
        chosen.append(left[best])
        left = torch.cat([left[:best], left[best + 1 :]])
    selected = torch.stack(chosen)
    gaps = (selected - take_median(selected)).abs()
    nearest = torch.argsort(gaps, dim=0, stable=True)[: n - 4 * liars]
    return selected.gather(0, nearest).mean(0)


# ---------------------------------------------------------------- rules by name
RULES = (
    "mean",
    "median",
    "trimmed:SHARE",
    "krum",
    "multikrum:M",
    "geometric",
    "clip:C",
    "bulyan",
)
NEEDS_NUMBER = {
    "trimmed": "trimmed:0.1",
    "multikrum": "multikrum:5",
    "clip": "clip:1.0",
}


def parse_rule(text: str) -> RuleSpec:
    """A rule as options name it: ``median``, ``trimmed:0.1``."""
    name, _, number = text.partition(":")
    known = [rule.partition(":")[0] for rule in RULES]
    if name not in known:
        raise unknown("rule", name, known)
    if name not in NEEDS_NUMBER:
        if number:
            raise UserError(f"'{name}' takes no number")
        return RuleSpec(name)
    try:
        spec = RuleSpec(name, float(number))
    except ValueError:
        raise UserError(f"'{text}' needs a number: {NEEDS_NUMBER[name]}") from None
    _check_number(spec)
    return spec


def _check_number(spec: RuleSpec) -> None:
    """Refuse a number that makes no sense for its rule."""
    number = spec.number or 0.0
    if spec.name == "trimmed" and not 0 <= number < 0.5:
        raise UserError("trimmed: the share cut off each end is below 0.5")
    if spec.name == "multikrum" and (number < 1 or number != int(number)):
        raise UserError("multikrum: the number of uploads to average is 1, 2, 3 ...")
    if spec.name == "clip" and number <= 0:
        raise UserError("clip: the radius is above 0")


def make_rule(spec: RuleSpec) -> Rule:
    """The rule that was named; ``mean`` is the one without weights."""
    number = spec.number or 0.0
    rules: dict[str, Rule] = {
        "mean": lambda rows: rows.mean(0),
        "median": take_median,
        "trimmed": lambda rows: trim_mean(rows, number),
        "krum": krum,
        "multikrum": lambda rows: multikrum(rows, int(number)),
        "geometric": find_geometric_median,
        "clip": lambda rows: clip_around_median(rows, number),
        "bulyan": bulyan,
    }
    return rules[spec.name]
