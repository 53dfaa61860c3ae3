"""What single clients get: over rounds, at the chosen round, and of which data."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from typing import Any

import torch

from fedtailor.core.errors import UserError
from fedtailor.experiment.data_outline import read_outline
from fedtailor.experiment.run_folder import OUTLINE
from fedtailor.report.run_values import list_values
from fedtailor.report.story.curves import thin_places
from fedtailor.report.story.reported_runs import Reported, ReportedRun

COLUMNS = 60  # rounds of a heat map
CELLS = 150_000  # of all heat maps of a page
BUBBLES = 20_000  # of a partition


# ---------------------------------------------------------------- heat maps


def compose_heat_maps(reported: Reported) -> list[dict[str, Any]]:
    """Every client's result over the rounds; of one seed where all would be too many."""
    maps = [
        compose_heat_map(group.label, run)
        for group in reported.groups
        for run in group.runs
    ]
    maps = [one for one in maps if one["rounds"]]
    if sum(len(one["rounds"]) * len(one["clients"]) for one in maps) <= CELLS:
        return maps
    first = {one["method"]: one for one in reversed(maps)}
    kept = [one for one in maps if first[one["method"]] is one]
    return [one for one in kept if len(one["clients"]) * COLUMNS * len(kept) <= CELLS]


def compose_heat_map(label: str, run: ReportedRun) -> dict[str, Any]:
    """A row for every client, a column for every evaluated round."""
    records = run.evaluated
    columns = [records[i] for i in thin_places(len(records), COLUMNS)]
    clients = sorted({int(k) for one in columns for k in one["evaluation"]["clients"]})
    rows = []
    for k in clients:
        row = [one["evaluation"]["clients"].get(str(k)) for one in columns]
        rows.append([None if value is None else round(value, 3) for value in row])
    return {
        "method": label,
        "seed": run.seed,
        "rounds": [record["t"] for record in columns],
        "clients": clients,
        "chosen": run.chosen_round,
        "rows": rows,
    }


# ---------------------------------------------------------------- fairness


def compose_fairness(reported: Reported) -> list[dict[str, Any]]:
    """How evenly clients are served, at the chosen round: numbers, and every client."""
    parts = []
    for group in reported.groups:
        values = [
            [run.seed, client["id"], round(client["accuracy"], 4)]
            for run in group.runs
            for client in run.result["clients"]
            if client.get("accuracy") is not None
        ]
        if not values:
            continue
        places = thin_places(len(values), 1000)
        numbers = {
            name: mean_of(run.result["fairness"].get(name) for run in group.runs)
            for name in ("std", "cv", "jain", "worst_decile")
        }
        shown = [values[i] for i in places]
        parts.append({"method": group.label, **numbers, "clients": shown})
    return parts


def mean_of(values: Iterable[float | None]) -> float | None:
    """The mean of numbers; None where one is missing."""
    found = list(values)
    known = [value for value in found if value is not None]
    if not known or len(known) < len(found):
        return None
    return statistics.fmean(known)


# ---------------------------------------------------------------- cost


def compose_cost(reported: Reported) -> list[dict[str, Any]]:
    """The result against what was sent and against the time of training, so far."""
    parts = []
    for group in reported.groups:
        for run in group.runs:
            points = list_cost(run, reported.measure.name)
            if points:
                about = {"method": group.label, "seed": run.seed}
                parts.append({**about, "points": points})
    return parts


def list_cost(run: ReportedRun, measure: str) -> list[list[float]]:
    """Round, megabytes, seconds and result of every evaluated round."""
    sent = 0.0
    spent = 0.0
    points = []
    for record in run.records:
        sent += (record["bytes"]["up"] + record["bytes"]["down"]) / 1e6
        spent += record["training_seconds"]
        evaluation = record.get("evaluation") or {}
        test = evaluation.get("test", {})
        value = test.get(measure)
        if value is not None:
            numbers = [round(sent, 4), round(spent, 3), round(value, 5)]
            points.append([record["t"], *numbers])
    return [points[i] for i in thin_places(len(points), 100)]


# ---------------------------------------------------------------- partition


def compose_partitions(reported: Reported) -> list[dict[str, Any]]:
    """Who has which data: every division once, with the seeds that had it."""
    found: dict[str, dict[str, Any]] = {}
    for group in reported.groups:
        for run in group.runs:
            digest = run.result["partition"]
            if digest not in found:
                part = compose_partition(run)
                if part is None:
                    continue
                found[digest] = part
            seeds = found[digest]["seeds"]
            if run.seed not in seeds:
                seeds.append(run.seed)
    return list(found.values())[:10]


def compose_partition(run: ReportedRun) -> dict[str, Any] | None:
    """Training samples of every client and class; None where sites keep that to themselves."""
    try:
        outline = read_outline(run.path / OUTLINE)
    except UserError:
        return None
    has_classes = outline.y.dtype == torch.int64 and outline.y.ndim == 1
    if not has_classes or outline.clients * outline.classes > BUBBLES:
        return None
    counts = [
        torch.bincount(outline.y[indices], minlength=outline.classes).tolist()
        for indices in outline.train
    ]
    return {
        "name": outline.name,
        "how": str(outline.settings.get("partition", "")),
        "seeds": [run.seed],
        "labels": list(outline.labels[: outline.classes]),
        "owners": list(outline.owners),
        "counts": counts,
    }


# ---------------------------------------------------------------- further views


def collect_values(reported: Reported) -> dict[str, dict[str, float | None]]:
    """By group, the means over seeds of all numbers that results have."""
    found = {}
    for group in reported.groups:
        runs = [list_values(result) for result in group.results]
        names = dict.fromkeys(name for run in runs for name in run)
        found[group.label] = {
            name: mean_of(run.get(name) for run in runs) for name in names
        }
    return found
