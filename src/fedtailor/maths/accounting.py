"""How much privacy a sequence of Gaussian mechanisms spends, by Opacus' accountants.

A step adds noise of standard deviation ``noise`` x sensitivity to a sum over people (or
samples), each of which is in it with probability ``rate``, drawn by itself (Poisson
sampling). A rate of 1 claims no amplification and is right whoever takes part.
Neighbours differ by one person more or less.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, NamedTuple

from fedtailor.core.errors import UserError

ACCOUNTANTS = ("rdp", "prv")
# relative precision of a noise that is solved for
PRECISION = 1e-3
MOST_NOISE = 1e6


class Step(NamedTuple):
    """One release, or several alike."""

    noise: float  # standard deviation by sensitivity
    rate: float  # probability to be in it
    times: int = 1


def check_accountant() -> None:
    """Refuse where Opacus is not installed."""
    if find_spec("opacus") is None:
        raise UserError(
            "differential privacy needs Opacus' accountants:"
            " pip install 'fedtailor[dp]'"
        )


def spend(steps: Sequence[Step], delta: float, accountant: str = "rdp") -> float:
    """The epsilon of all steps together at this delta."""
    if not steps:
        return 0.0
    if any(step.noise <= 0 for step in steps):
        return math.inf
    with warnings.catch_warnings():
        # orders at the end of the list, packages that Opacus' other parts would like
        warnings.simplefilter("ignore")
        from opacus.accountants import create_accountant

        counter: Any = create_accountant(accountant)
        counter.history = [(s.noise, s.rate, s.times) for s in merge_steps(steps)]
        return float(counter.get_epsilon(delta))


def merge_steps(steps: Sequence[Step]) -> list[Step]:
    """Steps that are alike, counted together; their order does not matter."""
    counts: dict[tuple[float, float], int] = {}
    for step in steps:
        key = (step.noise, step.rate)
        counts[key] = counts.get(key, 0) + step.times
    return [Step(noise, rate, times) for (noise, rate), times in counts.items()]


def solve_noise(
    epsilon: float, delta: float, rate: float, times: int, accountant: str = "rdp"
) -> float:
    """The least noise with which so many steps stay within epsilon."""

    def is_enough(noise: float) -> bool:
        return spend([Step(noise, rate, times)], delta, accountant) <= epsilon

    high = 1.0
    if accountant != "rdp":  # whose bound is the loosest, and costs nothing
        high = solve_noise(epsilon, delta, rate, times)
    while not is_enough(high):
        high *= 2
        if high > MOST_NOISE:
            raise UserError(
                f"dp_epsilon={epsilon} cannot be kept for {times} rounds with any"
                " useful noise; allow more, or fewer rounds"
            )
    low = high / 2
    while low > PRECISION and is_enough(low):
        high = low
        low /= 2
    while high - low > PRECISION * high:
        middle = (low + high) / 2
        if is_enough(middle):
            high = middle
        else:
            low = middle
    return high
