"""Whether two methods differ: differences paired over seeds and clients.

Two methods that ran on the same data with the same seed share the partition, so that every client
has a result of both. The difference of a seed is the mean of its clients' differences, weighted by
their test examples: the difference of the two accuracies over all examples. Its variance over
seeds and over clients is that of a random-effects model: the larger of what seeds and what clients
show. Where it is the seeds', their number decides the t distribution, and few seeds tell little.
With a single seed only the clients' variance is known: the interval then holds for other clients,
not for other runs.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

LEVEL = 0.05


class ClientResult(NamedTuple):
    """One client's measure in one run, and how many test examples it is over."""

    value: float
    n: int


# by seed and client
Results = Mapping[int, Mapping[int, ClientResult]]


class Difference(NamedTuple):
    """How much better one method is than another."""

    mean: float
    error: float  # standard error of the mean
    freedom: float  # degrees of freedom of its t distribution; infinite: a normal one
    seeds: int

    @property
    def p(self) -> float:
        """Two-sided: how likely so large a difference is where there is none."""
        if self.error == 0:
            return 1.0 if self.mean == 0 else 0.0
        from scipy import stats  # takes a second to import

        size = abs(self.mean) / self.error
        return float(2 * stats.t.sf(size, self.freedom))

    def interval(self, level: float = LEVEL) -> tuple[float, float]:
        """A confidence interval of ``1 - level``."""
        from scipy import stats

        reach = float(stats.t.ppf(1 - level / 2, self.freedom)) * self.error
        return self.mean - reach, self.mean + reach


def compare_paired(one: Results, other: Results) -> Difference | None:
    """How much better ``one`` is; None where no client has a result of both."""
    means: list[float] = []
    variances: list[float] = []  # of each seed's mean, over its clients
    clients = 0
    for seed in sorted(one.keys() & other.keys()):
        gaps = pair_clients(one[seed], other[seed])
        if gaps:
            mean, variance = weigh_gaps(gaps)
            means.append(mean)
            variances.append(variance)
            clients += len(gaps)
    if not means:
        return None
    count = len(means)
    by_clients = sum(variances) / count**2
    by_seeds = 0.0
    if count > 1:
        by_seeds = statistics.variance(means) / count
    freedom = clients - count
    if by_seeds > by_clients:
        freedom = count - 1
    variance = max(by_seeds, by_clients)
    return Difference(
        mean=statistics.fmean(means),
        error=math.sqrt(variance),
        freedom=max(freedom, 1),
        seeds=count,
    )


def pair_clients(
    one: Mapping[int, ClientResult], other: Mapping[int, ClientResult]
) -> list[ClientResult]:
    """By how much ``one`` is better at each client that both have."""
    gaps = []
    for k in sorted(one.keys() & other.keys()):
        value = one[k].value - other[k].value
        gaps.append(ClientResult(value, one[k].n))
    return gaps


def weigh_gaps(gaps: Sequence[ClientResult]) -> tuple[float, float]:
    """The weighted mean of clients' differences, and the variance of that mean."""
    total = sum(gap.n for gap in gaps)
    if not total:
        return 0.0, 0.0
    mean = 0.0
    for gap in gaps:
        mean += gap.n / total * gap.value
    if len(gaps) < 2:
        return mean, 0.0
    variance = 0.0
    for gap in gaps:
        distance = gap.value - mean
        variance += (gap.n / total * distance) ** 2
    return mean, variance * len(gaps) / (len(gaps) - 1)


def compare_summaries(
    one: tuple[float, float], other: tuple[float, float], seeds: int
) -> Difference:
    """Where only means and their standard errors are known: not paired, by t over the seeds.

    One seed says nothing of how much seeds differ, so that no difference is beyond chance.
    """
    mean = one[0] - other[0]
    if seeds < 2:
        return Difference(mean, math.inf, math.inf, seeds)
    error = math.sqrt(one[1] ** 2 + other[1] ** 2)
    return Difference(mean, error, 2 * (seeds - 1), seeds)


def correct_for_many(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: what each p is worth among so many comparisons."""
    order = sorted(range(len(p_values)), key=lambda i: p_values[i])
    corrected = [1.0] * len(p_values)
    largest = 0.0
    for rank, i in enumerate(order):
        worth = (len(p_values) - rank) * p_values[i]
        largest = max(largest, min(1.0, worth))
        corrected[i] = largest
    return corrected


def judge(differences: Sequence[Difference], level: float = LEVEL) -> list[int]:
    """For each difference, 1 if it is above chance, -1 if below, 0 if it may be chance.

    Both directions by the same test, corrected for the number of differences.
    """
    corrected = correct_for_many([difference.p for difference in differences])
    verdicts = []
    for difference, p in zip(differences, corrected, strict=True):
        sign = 1 if difference.mean > 0 else -1
        verdicts.append(sign if p < level else 0)
    return verdicts
