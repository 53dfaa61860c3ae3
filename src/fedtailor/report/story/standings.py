"""The leaderboard with its intervals, the paired differences, and further views of the models."""

from __future__ import annotations

import statistics
from typing import Any

from fedtailor.evaluation.paired import ClientResult, compare_paired
from fedtailor.report.comparison_tables import VIEWS
from fedtailor.report.headline import quoted
from fedtailor.report.measures import deciding_measure, describe_measure
from fedtailor.report.run_values import list_client_results
from fedtailor.report.story.clients import collect_values, mean_of
from fedtailor.report.story.gains import (
    compose_group,
    find_references,
    measure_gains,
)
from fedtailor.report.story.reported_runs import (
    Group,
    Reported,
    chosen_result,
    mean_result,
)


def compose_leaderboard(reported: Reported) -> list[dict[str, Any]]:
    """A row for every group, the best first."""
    gains = {
        method: {gain.label: gain for gain in measure_gains(reported, reference)}
        for method, reference in find_references(reported).items()
    }
    rows = []
    for group in reported.groups:
        row = compose_row(group)
        for method, found in gains.items():
            gain = found.get(group.label)
            row[f"over_{method}"] = None if gain is None else compose_group(gain)
        rows.append(row)
    for row in rows:
        for name in ("over_local", "over_fedavg"):
            if row.get(name):
                del row[name]["clients"]
    return rows


def compose_row(group: Group) -> dict[str, Any]:
    """One group's numbers at the chosen round."""
    results = group.results
    values = [value for value in map(chosen_result, results) if value is not None]
    low, high = find_interval(group)
    traffic = [
        (one["bytes"]["up"] + one["bytes"]["down"]) / one["rounds"] for one in results
    ]
    further = results[0].get("measures", {})
    return {
        "method": group.label,
        "seeds": len(results),
        "value": mean_result(group) if values else None,
        "std": statistics.stdev(values) if len(values) > 1 else None,
        "low": low,
        "high": high,
        "worst": mean_of(one["fairness"].get("worst_decile") for one in results),
        "on_test": mean_of(quoted(one)["best_on_test"] for one in results),
        "last": mean_of(quoted(one)["last"] for one in results),
        "bytes": statistics.fmean(traffic),
        "seconds": mean_of(one["seconds"]["training_per_round"] for one in results),
        "measures": {
            name: mean_of(one.get("measures", {}).get(name) for one in results)
            for name in further
        },
    }


def find_interval(group: Group) -> tuple[float | None, float | None]:
    """A 95 % interval of the result itself, over seeds and clients: its distance from zero."""
    mine = list_client_results(group.results)
    zero = {
        seed: {k: ClientResult(0.0, one.n) for k, one in clients.items()}
        for seed, clients in mine.items()
    }
    difference = compare_paired(mine, zero)
    if difference is None or not difference.error:
        return None, None
    measure = deciding_measure(group.results[0])
    # results are paired so that more is better
    told = difference._replace(mean=measure.sign * difference.mean)
    low, high = told.interval()
    if measure.unit == "%":
        return max(low, 0.0), min(high, 1.0)
    return low, high


def compose_differences(reported: Reported) -> list[dict[str, Any]]:
    """Every method against the best one, paired."""
    if len(reported.groups) < 2:
        return []
    found = [compose_group(g) for g in measure_gains(reported, reported.groups[0])]
    for one in found:
        del one["clients"]
    return found


def compose_measures(reported: Reported) -> dict[str, Any]:
    """How every measure of these runs is named and shown."""
    names = dict.fromkeys(
        name
        for group in reported.groups
        for result in group.results
        for name in result.get("measures", {})
    )
    described = {name: describe_measure(name) for name in names}
    described["loss"] = describe_measure("loss", "", higher_is_better=False)
    described[reported.measure.name] = reported.measure
    return {
        name: {**measure._asdict(), "axis": measure.axis, "points": measure.points}
        for name, measure in described.items()
    }


def compose_views(reported: Reported) -> dict[str, Any] | None:
    """The papers' columns: which model, on which data; None where there is one only."""
    values = collect_values(reported)
    columns = {**VIEWS, "view_global_ptest": VIEWS["view_global_ptest"]}
    for of_group in values.values():
        for name in of_group:
            if name.startswith("view_external_"):
                columns[name] = f"external: {name.removeprefix('view_external_')}"
    shown = {
        name: title
        for name, title in columns.items()
        if any(of_group.get(name) is not None for of_group in values.values())
    }
    if len(shown) < 2:
        return None
    rows = [
        {"method": label, "values": [of_group.get(name) for name in shown]}
        for label, of_group in values.items()
    ]
    return {
        "columns": [EXPLAINED.get(name, title) for name, title in shown.items()],
        "rows": rows,
    }


EXPLAINED = {
    "view_global_gtest": "global model, official test set",
    "view_global_ptest": "global model, clients' test data",
    "view_personal": "personal models, own test data",
    "view_after": "personal models, right after training",
    "view_new": "all personal models together, owner unknown",
    "view_newcomers": "clients that joined after training",
    "view_personal_gtest": "personal models, official test set",
}
