"""Tables of a comparison beside the leaderboard.

What the papers' tables show (global and local models on both kinds of test data, new and external
data, the models right after training), fairness, cost, and which differences are more than chance.
The screen has 80 columns and shows the most telling numbers; the files hold all of them.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from fedtailor.evaluation.paired import (
    Difference,
    compare_paired,
    correct_for_many,
    pair_clients,
)
from fedtailor.experiment.variants import name_of
from fedtailor.report.run_values import (
    Result,
    is_task_accuracy,
    list_client_results,
    list_values,
)
from fedtailor.report.screen_table import fold_label, make_table
from fedtailor.storage.files import write_bytes

Results = dict[str, list[Result]]  # method -> results, one a seed

# in the order of importance: the screen has room for the first ones
VIEWS = {
    "view_global_gtest": "GM G-Test",
    "view_global_ptest": "GM P-Test",
    "view_personal": "LM P-Test",
    "view_after": "after training",
    "view_new": "New",
    "view_newcomers": "new clients",
    "view_personal_gtest": "LM G-Test",
}
VIEW_NOTES = {
    "view_global_gtest": "GM G-Test (global_gtest): the global model on the official test set",
    "view_global_ptest": "GM P-Test (global_ptest): the global model on clients' own test data",
    "view_personal": "LM P-Test: every personal model on its client's own test data",
    "view_after": "after training: LM P-Test right after local training",
    "view_new": "New: all personal models together on data whose owner is unknown",
    "view_personal_gtest": "LM G-Test: personal models one by one on the official test set",
}
ROOM = 5  # columns on the screen beside the method
LOCAL = "local"


class Comparison(NamedTuple):
    """How much better a method is than another one."""

    method: str
    reference: str
    difference: Difference
    corrected: float  # p, by Holm
    gaining: float  # share of the clients that are better off with the method


# ---------------------------------------------------------------- differences


def compare_with(results: Results, reference: str) -> list[Comparison]:
    """Every other method against one of them, paired over seeds and clients."""
    theirs = list_client_results(results[reference])
    found: list[tuple[str, Difference, float]] = []
    for method, runs in results.items():
        mine = list_client_results(runs)
        difference = compare_paired(mine, theirs)
        if method == reference or difference is None:
            continue
        gains = [
            gap.value
            for seed in mine.keys() & theirs.keys()
            for gap in pair_clients(mine[seed], theirs[seed])
        ]
        better = sum(gain > 0 for gain in gains)
        found.append((method, difference, better / len(gains)))
    corrected = correct_for_many([difference.p for _, difference, _ in found])
    return [
        Comparison(name_of(method), name_of(reference), difference, p, gaining)
        for (method, difference, gaining), p in zip(found, corrected, strict=True)
    ]


def choose_references(results: Results) -> list[str]:
    """The most accurate method, and ``local`` where it takes part."""
    best = max(results, key=lambda method: _mean_accuracy(results[method]))
    others = [method for method in results if name_of(method) == LOCAL]
    return list(dict.fromkeys([best, *others]))


def _mean_accuracy(runs: Sequence[Result]) -> float:
    return statistics.fmean(_chosen_accuracy(run) for run in runs)


def _chosen_accuracy(run: Result) -> float:
    accuracy = run["accuracy"]
    chosen = accuracy["last"] if accuracy["best"] is None else accuracy["best"]
    return float(chosen)


# ---------------------------------------------------------------- on the screen


def print_tables(console: Console, results: Results) -> None:
    """The tables that this comparison has something to show in."""
    values = {
        name_of(method): _mean_values([list_values(run) for run in runs])
        for method, runs in results.items()
    }
    _print_views(console, values)
    _print_fairness(console, values)
    _print_costs(console, values)
    if len(results) > 1:
        for reference in choose_references(results):
            _print_differences(console, compare_with(results, reference))


def _mean_values(
    runs: Sequence[dict[str, float | None]],
) -> dict[str, float | None]:
    """Means over seeds; None where a seed has no value."""
    means: dict[str, float | None] = {}
    for name in runs[0]:
        known = [run[name] for run in runs if run.get(name) is not None]
        numbers = [float(value) for value in known if value is not None]
        is_whole = len(numbers) == len(runs)
        means[name] = statistics.fmean(numbers) if is_whole else None
    return means


def _print_views(console: Console, values: dict[str, dict[str, float | None]]) -> None:
    """Columns of the papers' tables, as far as there is something in them."""
    columns = dict(VIEWS)
    for of_method in values.values():
        for name in of_method:
            if name.startswith("view_external_"):
                columns[name] = "External"
            elif is_task_accuracy(name):
                columns[name] = name.removeprefix("acc_")
    shown = [
        name
        for name in columns
        if any(of_method.get(name) is not None for of_method in values.values())
    ]
    if len(shown) < 2:  # the leaderboard shows the personal models
        return
    table = make_table(
        "GM global model, LM personal models, at the last round, in %",
        [columns[name] for name in shown[:ROOM]],
        [text for name, text in VIEW_NOTES.items() if name in shown[:ROOM]],
    )
    for method, of_method in values.items():
        table.add_row(
            fold_label(method),
            *(_percent(of_method.get(name)) for name in shown[:ROOM]),
        )
    console.print(table)


def _print_fairness(
    console: Console, values: dict[str, dict[str, float | None]]
) -> None:
    """Spread over clients at the rounds that accuracies are quoted at, as GPFL's Table 3."""
    table = make_table(
        "Spread over clients in %: std and, in brackets, std / accuracy",
        ["chosen round", "best on test", "last", "Jain"],
        ["std: over clients' accuracies; Jain's index is 1 where all are equal"],
    )
    for method, of_method in values.items():
        spreads = []
        for when in ("best", "best_on_test", "last"):
            std = _percent(of_method.get(f"std_at_{when}"))
            cv = _percent(of_method.get(f"cv_at_{when}"))
            spreads.append(f"{std} [{cv}]" if std else "")
        jain = of_method.get("jain_at_best") or of_method.get("jain_at_last")
        table.add_row(fold_label(method), *spreads, _number(jain, 3))
    console.print(table)


def _print_costs(console: Console, values: dict[str, dict[str, float | None]]) -> None:
    """What equal rounds cost, and how many are needed."""
    has_target = any(of_method.get("target") for of_method in values.values())
    columns = ["s per round", "trainings in a row", "rounds to converge"]
    if has_target:
        columns += ["rounds to target", "s to target"]
    notes = ["trainings in a row: those of a round that wait for one another"]
    table = make_table("Cost, without start-up and evaluation", columns, notes)
    for method, of_method in values.items():
        cells = [
            _number(of_method.get("seconds_training_per_round"), 3),
            _number(of_method.get("trainings_per_round"), 1),
            _number(of_method.get("rounds_to_converge"), 0),
        ]
        if has_target:
            cells.append(_number(of_method.get("rounds_to_target"), 0))
            cells.append(_number(of_method.get("seconds_to_target"), 1))
        table.add_row(fold_label(method), *cells)
    console.print(table)


def _print_differences(console: Console, found: Sequence[Comparison]) -> None:
    """How far the others are from one method."""
    if not found:
        return
    reference = found[0].reference
    table = make_table(
        f"Points above {reference}, paired over seeds and clients (p by Holm)",
        ["difference", "95 % interval", "p", "clients better off"],
        [
            "p: how likely so large a difference is by chance, corrected for their"
            " number"
        ],
    )
    for comparison in sorted(found, key=lambda one: -one.difference.mean):
        low, high = comparison.difference.interval()
        table.add_row(
            fold_label(comparison.method),
            f"{100 * comparison.difference.mean:+.2f}",
            f"{100 * low:+.2f} to {100 * high:+.2f}",
            f"{comparison.corrected:.3f}",
            f"{100 * comparison.gaining:.0f} %",
        )
    console.print(table)


def _percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.2f}"


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


# ---------------------------------------------------------------- files


def write_tables(folder: Path, results: Results) -> list[Path]:
    """All numbers: of every run, every difference, and every client's gain over ``local``."""
    files = {
        "runs.csv": _write_runs(results),
        "differences.csv": _write_differences(results),
    }
    gains = _write_gains(results)
    if gains:
        files["gains.csv"] = gains
    paths = []
    for name, text in files.items():
        write_bytes(folder / name, text.encode())
        paths.append(folder / name)
    return paths


def _write_runs(results: Results) -> str:
    """A row for every method and seed."""
    rows: list[dict[str, Any]] = []
    for method, runs in results.items():
        for run in runs:
            row = {"method": name_of(method), "seed": run.get("seed", 0)}
            rows.append({**row, **list_values(run)})
    return _write_csv(rows)


def _write_differences(results: Results) -> str:
    """A row for every method and reference."""
    rows: list[dict[str, Any]] = []
    for reference in choose_references(results):
        for comparison in compare_with(results, reference):
            difference = comparison.difference
            low, high = difference.interval()
            row = {
                "method": comparison.method,
                "reference": comparison.reference,
                "difference": difference.mean,
                "low": low,
                "high": high,
                "p": difference.p,
                "p_holm": comparison.corrected,
                "seeds": difference.seeds,
                "clients_better_off": comparison.gaining,
            }
            rows.append(row)
    return _write_csv(rows)


def _write_gains(results: Results) -> str:
    """A row for every client of every run: by how much it is better off than alone."""
    alone = [runs for method, runs in results.items() if name_of(method) == LOCAL]
    if not alone:
        return ""
    theirs = list_client_results(alone[0])
    rows: list[dict[str, Any]] = []
    for method, runs in results.items():
        for seed, clients in list_client_results(runs).items():
            for k in sorted(clients.keys() & theirs.get(seed, {}).keys()):
                gain = clients[k].value - theirs[seed][k].value
                row = {"method": name_of(method), "seed": seed, "client": k}
                row |= {"n_test": clients[k].n, "gain": gain}
                rows.append(row)
    return _write_csv(rows)


def _write_csv(rows: Sequence[dict[str, Any]]) -> str:
    """Rows with all columns that any of them has."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    text = io.StringIO()
    writer = csv.DictWriter(text, columns, restval="")
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue()
