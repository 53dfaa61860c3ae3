"""Curves over rounds: mean over seeds, and how far seeds differ."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from fedtailor.report.measures import Measure, describe_measure
from fedtailor.report.story.reported_runs import Group, Record, Reported, ReportedRun

POINTS = 200  # of a curve; more are thinned out
BEFORE = "before"
AFTER = "after"


class Phase(NamedTuple):
    """A moment or a model that curves are about."""

    key: str
    label: str
    read: Callable[[Record], dict[str, Any]]


def _read_view(name: str) -> Callable[[Record], dict[str, Any]]:
    def read(record: Record) -> dict[str, Any]:
        found: dict[str, Any] = record.get("views", {}).get(name) or {}
        return found

    return read


def _read_part(part: str) -> Callable[[Record], dict[str, Any]]:
    def read(record: Record) -> dict[str, Any]:
        found: dict[str, Any] = record["evaluation"].get(part) or {}
        return found

    return read


PHASES = (
    Phase(BEFORE, "test data, before local training", _read_part("test")),
    Phase(AFTER, "test data, after local training", _read_view("after")),
    Phase("global", "test data, the global model", _read_view("global_ptest")),
    Phase("validation", "validation data", _read_part("val")),
    Phase("training", "training data, while training", lambda r: r.get("training", {})),
)


class Curve(NamedTuple):
    """A curve of one group: a mean and, of several seeds, a standard deviation."""

    rounds: list[int]
    mean: list[float]
    deviation: list[float]  # empty for a single seed


def list_curve_measures(reported: Reported) -> list[Measure]:
    """What curves there are: the deciding measure, and the loss."""
    deciding = reported.measure
    loss = describe_measure("loss", "", higher_is_better=False)
    return [deciding] if deciding.name == "loss" else [deciding, loss]


def draw_curve(group: Group, phase: Phase, measure: str) -> Curve | None:
    """The mean over the seeds, at rounds that all of them have."""
    by_seed = [_read_curve(run, phase, measure) for run in group.runs]
    common = set.intersection(*(set(curve) for curve in by_seed))
    rounds = sorted(common)
    if not rounds:
        return None
    values = [[curve[t] for curve in by_seed] for t in rounds]
    mean = [statistics.fmean(of_round) for of_round in values]
    deviation = []
    if len(by_seed) > 1:
        deviation = [statistics.stdev(of_round) for of_round in values]
    return Curve(rounds, mean, deviation)


def _read_curve(run: ReportedRun, phase: Phase, measure: str) -> dict[int, float]:
    found = {}
    for record in run.evaluated:
        value = phase.read(record).get(measure)
        if value is not None:
            found[record["t"]] = float(value)
    return found


def compose_curves(reported: Reported) -> list[dict[str, Any]]:
    """For every measure and phase, the curves of all groups that have it."""
    parts = []
    for measure in list_curve_measures(reported):
        for phase in PHASES:
            series = []
            for group in reported.groups:
                curve = draw_curve(group, phase, measure.name)
                if curve is not None:
                    series.append({"method": group.label, "points": list_points(curve)})
            if series:
                about = {"measure": measure.name, "phase": phase.key}
                parts.append({**about, "label": phase.label, "series": series})
    return parts


def list_points(curve: Curve) -> list[list[float]]:
    """Round, mean and, of several seeds, low and high; the last round always among them."""
    places = thin_places(len(curve.rounds), POINTS)
    points = []
    for i in places:
        point = [curve.rounds[i], round(curve.mean[i], 5)]
        if curve.deviation:
            reach = curve.deviation[i]
            point += [round(curve.mean[i] - reach, 5), round(curve.mean[i] + reach, 5)]
        points.append(point)
    return points


def thin_places(count: int, most: int) -> list[int]:
    """At most about so many places of a list, evenly, with the last one."""
    step = max(1, -(-count // most))
    return sorted({*range(0, count, step), count - 1}) if count else []


# ---------------------------------------------------------------- marks


class Event(NamedTuple):
    """Something in a round that a curve must be read with."""

    t: int
    kind: str  # "members" or "skipped"
    text: str


def list_events(run: ReportedRun) -> list[Event]:
    """Rounds that were skipped, and rounds at which clients joined or left."""
    events = []
    for record in run.records:
        used = set(record["clients"]) - {int(k) for k in record["lost"]}
        if not used:
            events.append(Event(record["t"], "skipped", "round skipped: no reply"))
    return sorted(events + _list_changes(run))


def _list_changes(run: ReportedRun) -> list[Event]:
    """By whose models were evaluated; not told where only some are at a time."""
    if run.config.get("evaluate_clients", "all") != "all":
        return []
    events = []
    before: set[str] | None = None
    for record in run.evaluated:
        members = set(record["evaluation"]["clients"])
        if before is not None and members != before:
            text = tell_change(len(members - before), len(before - members))
            events.append(Event(record["t"], "members", text))
        before = members
    return events


def tell_change(joined: int, left: int) -> str:
    """``2 clients join, 1 leaves``."""
    texts = []
    if joined:
        texts.append(f"{joined} {'client joins' if joined == 1 else 'clients join'}")
    if left:
        texts.append(f"{left} {'client leaves' if left == 1 else 'clients leave'}")
    return ", ".join(texts)


def compose_events(groups: Sequence[Group]) -> list[dict[str, Any]]:
    """The events of all runs, each told once where all runs of a group share it."""
    found: dict[tuple[str, Event], list[int]] = {}
    for group in groups:
        for run in group.runs:
            for event in list_events(run):
                found.setdefault((group.label, event), []).append(run.seed)
    return [
        {"method": label, "seeds": seeds, **event._asdict()}
        for (label, event), seeds in found.items()
    ]
