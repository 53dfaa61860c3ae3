"""What clients gain by a method: over training alone, and over one model for all."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from fedtailor.evaluation.paired import (
    Difference,
    compare_paired,
    correct_for_many,
    pair_clients,
)
from fedtailor.report.comparison_tables import LOCAL
from fedtailor.report.measures import Measure
from fedtailor.report.run_values import Result, list_client_results
from fedtailor.report.story.reported_runs import Group, Reported

ONE_MODEL = "fedavg"  # one model for all clients
LEVEL = 0.05
CELLS = 20_000  # client values in a page; more are thinned out


class ClientGain(NamedTuple):
    """By how much one client is better off; positive is better, whatever the measure."""

    seed: int
    client: int
    n: int  # its test examples
    gain: float


class GroupGain(NamedTuple):
    """What the clients of a method gain over a reference."""

    label: str
    reference: str
    difference: Difference  # positive is better
    corrected: float  # p by Holm, among all methods against this reference
    clients: list[ClientGain]

    @property
    def better(self) -> int:
        """Clients that gain."""
        return sum(one.gain > 0 for one in self.clients)

    @property
    def worse(self) -> int:
        """Clients that lose."""
        return sum(one.gain < 0 for one in self.clients)

    @property
    def is_certain(self) -> bool:
        """Whether the 95 % interval leaves zero out."""
        low, high = self.difference.interval()
        return low > 0 or high < 0

    @property
    def survives_correction(self) -> bool:
        """Whether it is more than chance among so many comparisons."""
        return self.corrected < LEVEL


def find_references(reported: Reported) -> dict[str, Group]:
    """What there is to compare with: training alone, and one model for all."""
    found = {}
    for method in (LOCAL, ONE_MODEL):
        group = reported.group(method)
        if group is not None:
            found[method] = group
    return found


def measure_gains(reported: Reported, reference: Group) -> list[GroupGain]:
    """Every other method against one, paired over seeds and clients of the same data."""
    found: list[tuple[str, Difference, list[ClientGain]]] = []
    for group in reported.groups:
        if group is reference:
            continue
        mine, theirs = pair_results(group, reference)
        difference = compare_paired(mine, theirs)
        if difference is None:
            continue
        clients = [
            ClientGain(seed, k, mine[seed][k].n, gap.value)
            for seed in sorted(mine.keys() & theirs.keys())
            for k, gap in zip(
                sorted(mine[seed].keys() & theirs[seed].keys()),
                pair_clients(mine[seed], theirs[seed]),
                strict=True,
            )
        ]
        found.append((group.label, difference, clients))
    corrected = correct_for_many([difference.p for _, difference, _ in found])
    return [
        GroupGain(label, reference.label, difference, p, clients)
        for (label, difference, clients), p in zip(found, corrected, strict=True)
    ]


def pair_results(one: Group, other: Group) -> tuple[Any, Any]:
    """The clients' results of both, of the seeds at which they ran on the same partition."""
    theirs = {run.seed: run.result["partition"] for run in other.runs}
    same = [
        run.seed for run in one.runs if theirs.get(run.seed) == run.result["partition"]
    ]
    return tuple(_list_results(group, same) for group in (one, other))  # type: ignore[return-value]


def _list_results(group: Group, seeds: Sequence[int]) -> dict[int, Any]:
    results: list[Result] = [run.result for run in group.runs if run.seed in seeds]
    return list_client_results(results)


# ---------------------------------------------------------------- words


def tell_interval(difference: Difference, measure: Measure, digits: int = 1) -> str:
    """``2.4 to 3.9``, in the units of the measure."""
    low, high = difference.interval()
    return f"{_number(low, measure, digits)} to {_number(high, measure, digits)}"


def _number(value: float, measure: Measure, digits: int) -> str:
    places = digits if measure.unit == "%" else digits + 2
    text = f"{measure.scale * value:.{places}f}"
    return text.replace("-", "−")


def tell_size(value: float, measure: Measure, digits: int = 1) -> str:
    """The size of a difference with its unit: ``3.1 points``."""
    size = _number(abs(value), measure, digits)
    return f"{size} {measure.points}".rstrip()


def tell_clients(gain: GroupGain) -> str:
    """``17 of 20 clients gain``, with what they are counted over."""
    count = len(gain.clients)
    seeds = len({one.seed for one in gain.clients})
    text = f"{gain.better} of {count} clients gain"
    if gain.worse == 0 and gain.better == count:
        text = f"all {count} clients gain"
    if seeds > 1:
        text += f" (counted over {seeds} seeds)"
    return text


def tell_gain(gain: GroupGain, measure: Measure, reference: str) -> str:
    """One sentence on one method against a reference, with its interval."""
    better = gain.difference.mean > 0
    size = tell_size(gain.difference.mean, measure)
    direction = "above" if better == measure.higher_is_better else "below"
    interval = tell_interval(_as_shown(gain.difference, measure), measure)
    text = f"{size} {direction} {reference} (95 % interval {interval})"
    if not gain.is_certain:
        text += ", which may be chance: the interval includes zero"
    return text


def _as_shown(difference: Difference, measure: Measure) -> Difference:
    """In the direction of the measure itself."""
    return difference._replace(mean=measure.sign * difference.mean)


# ---------------------------------------------------------------- for the page


def compose_gains(reported: Reported) -> list[dict[str, Any]]:
    """For each reference, every method's clients and its mean with an interval."""
    names = {LOCAL: "training alone", ONE_MODEL: "one model for all"}
    parts = []
    for method, reference in find_references(reported).items():
        found = measure_gains(reported, reference)
        if found:
            parts.append(
                {
                    "reference": reference.label,
                    "name": names[method],
                    "groups": [compose_group(gain) for gain in thin_out(found)],
                }
            )
    return parts


def thin_out(found: Sequence[GroupGain]) -> list[GroupGain]:
    """At most so many clients in the page; the counts and intervals are of all."""
    total = sum(len(gain.clients) for gain in found)
    step = -(-total // CELLS)
    return [gain._replace(clients=gain.clients[::step]) for gain in found]


def compose_group(gain: GroupGain) -> dict[str, Any]:
    """One method's gains as plain numbers."""
    low, high = gain.difference.interval()
    return {
        "method": gain.label,
        "mean": gain.difference.mean,
        "low": low,
        "high": high,
        "p": gain.difference.p,
        "corrected": gain.corrected,
        "seeds": gain.difference.seeds,
        "better": gain.better,
        "worse": gain.worse,
        "count": len(gain.clients),
        "clients": [list(one) for one in gain.clients],
    }
