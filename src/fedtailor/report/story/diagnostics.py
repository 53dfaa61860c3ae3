"""What methods note about themselves: numbers over rounds, distributions, and groups of clients."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from fedtailor.report.diagnostics import (
    FLOOR,
    Series,
    collect_series,
    drop_twins,
)
from fedtailor.report.story.curves import POINTS, thin_places
from fedtailor.report.story.diagnostic_words import find_words
from fedtailor.report.story.reported_runs import Group, Reported, ReportedRun

PARTS = {"test": "test examples", "train": "training examples"}
ROWS = 100  # clients of a distribution


def compose_diagnostics(reported: Reported) -> list[dict[str, Any]]:
    """Everything that any method noted; of its first seed, and said so."""
    return [
        part
        for group in reported.groups
        for part in [*list_diagnostics(group), *list_groups(group)]
    ]


def list_diagnostics(group: Group) -> list[dict[str, Any]]:
    """A method's diagnostics, each with its words."""
    run = group.runs[0]
    series = collect_series(run.evaluated)
    names = dict.fromkeys(name.partition("/")[2] for name in series)
    parts = []
    shown = [name for name in names if not name.endswith(FLOOR)]
    for name in drop_twins(series, shown):
        words = find_words(name)
        about = {"method": group.label, "seed": run.seed, "name": name}
        about |= {"title": words.title, "sentence": words.sentence, "unit": words.unit}
        parts.append({**about, **compose_part(series, name, run)})
    return parts


def compose_part(
    series: Mapping[str, Series], name: str, run: ReportedRun
) -> dict[str, Any]:
    """Curves with the spread of clients, or a distribution at the chosen round."""
    test = series.get(f"test/{name}", {})
    if is_distribution(test):
        return {"kind": "distribution", **compose_distribution(test, run)}
    curves = []
    for part, label in PARTS.items():
        found = series.get(f"{part}/{name}")
        if found:
            curves.append({"label": label, "points": list_band(found)})
    floor = series.get(f"test/{name}{FLOOR}")
    if floor:
        points = [point[:2] for point in list_band(floor)]
        curves.append({"label": "having learnt nothing", "points": points})
    return {"kind": "curves", "series": curves}


def is_distribution(series: Series) -> bool:
    """Whether a client's value is several numbers: shares of equal bins between 0 and 1."""
    return any(
        isinstance(value, list)
        for by_client in series.values()
        for value in by_client.values()
    )


def list_band(series: Series) -> list[list[float]]:
    """By round the mean over clients, and the limits without the lowest and highest tenth."""
    rounds = sorted(series)
    points = []
    for i in thin_places(len(rounds), POINTS):
        values = list(series[rounds[i]].values())
        if values:
            numbers = [np.mean(values), *np.quantile(values, [0.1, 0.9])]
            points.append([rounds[i], *(round(float(x), 5) for x in numbers)])
    return points


def compose_distribution(series: Series, run: ReportedRun) -> dict[str, Any]:
    """A row for every client."""
    t = run.chosen_round if run.chosen_round in series else max(series)
    clients = sorted(series[t], key=int)[:ROWS]
    rows = [[round(share, 4) for share in series[t][k]] for k in clients]
    return {"round": t, "clients": [int(k) for k in clients], "rows": rows}


def list_groups(group: Group) -> list[dict[str, Any]]:
    """The groups of clients that a method formed."""
    run = group.runs[0]
    parts = []
    for name, members in run.result.get("groups", {}).items():
        sentence = (
            f"The {len(members)} groups of clients at the end of the run, as the server"
            " formed them."
        )
        about = {"method": group.label, "seed": run.seed, "name": name, "unit": ""}
        words = {"title": name[0].upper() + name[1:], "sentence": sentence}
        parts.append({**about, **words, "kind": "groups", "groups": members})
    return parts
