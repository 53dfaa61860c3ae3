"""The leaderboard of a comparison, and the summary of one run."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedtailor.experiment.variants import name_of
from fedtailor.report.diagnostics import FLOOR
from fedtailor.report.run_values import mean_diagnostics
from fedtailor.report.screen_table import fold_label, make_table
from fedtailor.storage.files import write_bytes

Result = dict[str, Any]  # what result.json holds

TITLE = "Personal models on test data, at the round that validation data chose"
PLUS_MINUS = "±: standard deviation over seeds"
CLIENTS = "client mean, std: mean and standard deviation of the clients' accuracies"
WORST_TENTH = (
    "worst tenth: mean accuracy of the tenth of the clients that is served worst"
)
COLUMNS = (
    "method",
    "accuracy %",
    "mean of clients %",
    "std over clients",
    "worst tenth %",
    "MB per round",
    "s per round",
)
# what the further evaluations in a run's summary are
VIEW_MEANINGS = {
    "global_ptest": "the global model on clients' own test data",
    "global_gtest": "the global model on the official test set",
    "personal_gtest": "personal models one by one on the official test set",
    "after": "right after local training",
    "new": "all personal models together, on data whose owner is unknown",
}
# on the screen, beside the method
SHORT_COLUMNS = (
    "accuracy %",
    "client mean %",
    "std",
    "worst tenth",
    "MB a round",
    "s a round",
)
CSV_COLUMNS = (
    "method",
    "seeds",
    "accuracy",
    "accuracy_std",
    "mean_of_clients",
    "client_std",
    "worst_decile",
    "best_on_test",
    "bytes_per_round",
    "seconds_per_round",
)


class Spread(NamedTuple):
    """Mean and standard deviation over seeds."""

    mean: float
    std: float


class Row(NamedTuple):
    """A method in a comparison."""

    method: str
    seeds: int
    accuracy: Spread  # at the chosen round, over all test samples
    client_mean: Spread  # the mean of the clients' accuracies there
    client_std: Spread  # the standard deviation of the clients' accuracies there
    worst_decile: Spread  # the mean of the worst tenth of the clients there
    measures: dict[str, Spread]  # what else the task measures there
    on_test: Spread  # accuracy at the best round on test data
    bytes_per_round: float
    seconds_per_round: float


# ---------------------------------------------------------------- a comparison


def make_rows(results: dict[str, list[Result]]) -> list[Row]:
    """A row for every method, the most accurate first."""
    rows = [_make_row(name_of(method), runs) for method, runs in results.items()]
    return sorted(rows, key=lambda row: -row.accuracy.mean)


def _make_row(method: str, runs: Sequence[Result]) -> Row:
    has_best = runs[0]["accuracy"]["best"] is not None
    chosen = "best" if has_best else "last"
    traffic = [
        (run["bytes"]["up"] + run["bytes"]["down"]) / run["rounds"] for run in runs
    ]
    return Row(
        method=method,
        seeds=len(runs),
        accuracy=_spread([run["accuracy"][chosen] for run in runs]),
        client_mean=_spread([run["accuracy_mean_of_clients"][chosen] for run in runs]),
        client_std=_spread([run["fairness"]["std"] for run in runs]),
        worst_decile=_spread([run["fairness"]["worst_decile"] for run in runs]),
        measures=_further_measures(runs),
        on_test=_spread([run["accuracy"]["best_on_test"] for run in runs]),
        bytes_per_round=statistics.fmean(traffic),
        seconds_per_round=statistics.fmean(run["seconds"]["per_round"] for run in runs),
    )


def _further_measures(runs: Sequence[Result]) -> dict[str, Spread]:
    """The task's measures that have no column of their own."""
    names = [
        name for name in runs[0].get("measures", {}) if name not in ("accuracy", "loss")
    ]
    return {
        name: _spread([run["measures"].get(name) for run in runs]) for name in names
    }


def name_columns(rows: Sequence[Row]) -> list[str]:
    """Headings of the table, with the further measures behind the accuracies."""
    columns = list(COLUMNS)
    further = rows[0].measures if rows else {}
    columns[5:5] = [f"{name} %" for name in further]
    return columns


def _spread(values: Sequence[float | None]) -> Spread:
    known = [value for value in values if value is not None]
    if not known:
        return Spread(float("nan"), 0.0)
    std = statistics.stdev(known) if len(known) > 1 else 0.0
    return Spread(statistics.fmean(known), std)


def print_leaderboard(console: Console, rows: Sequence[Row]) -> None:
    """The rows as a table on the screen."""
    table = make_table(TITLE, SHORT_COLUMNS, explain(rows))
    for column in table.columns[1:3]:  # with a spread
        column.no_wrap = True
    for row in rows:
        # 80 columns have no room for further measures: they are in the files
        _, *cells = list_cells(row._replace(measures={}))
        table.add_row(fold_label(row.method), *cells)
    console.print(table)


def explain(rows: Sequence[Row]) -> list[str]:
    """What is not plain from the headings."""
    notes = [CLIENTS, WORST_TENTH]
    if any(row.seeds > 1 for row in rows):
        notes.insert(0, PLUS_MINUS)
    return notes


def write_leaderboard(folder: Path, rows: Sequence[Row]) -> list[Path]:
    """Write the rows as Markdown and CSV."""
    markdown = folder / "leaderboard.md"
    table = folder / "leaderboard.csv"
    write_bytes(markdown, _to_markdown(rows).encode())
    write_bytes(table, _to_csv(rows).encode())
    return [markdown, table]


def _to_markdown(rows: Sequence[Row]) -> str:
    columns = name_columns(rows)
    lines = [
        "| " + " | ".join(columns) + " |",
        "|---" + "|---:" * (len(columns) - 1) + "|",
    ]
    for row in rows:
        lines.append("| " + " | ".join(list_cells(row)) + " |")
    return "\n".join(lines) + "\n"


def _to_csv(rows: Sequence[Row]) -> str:
    text = io.StringIO()
    writer = csv.writer(text)
    further = list(rows[0].measures) if rows else []
    writer.writerow([*CSV_COLUMNS, *further])
    for row in rows:
        values = [
            row.method,
            row.seeds,
            row.accuracy.mean,
            row.accuracy.std,
            row.client_mean.mean,
            row.client_std.mean,
            row.worst_decile.mean,
            row.on_test.mean,
            round(row.bytes_per_round),
            row.seconds_per_round,
            *(row.measures[name].mean for name in further),
        ]
        writer.writerow(values)
    return text.getvalue()


def list_cells(row: Row) -> list[str]:
    """The texts of the columns."""
    return [
        row.method,
        _percent(row.accuracy, row.seeds),
        _percent(row.client_mean, row.seeds),
        f"{row.client_std.mean:.3f}",
        f"{100 * row.worst_decile.mean:.1f}",
        *(_percent(value, row.seeds) for value in row.measures.values()),
        f"{row.bytes_per_round / 1e6:.2f}",
        f"{row.seconds_per_round:.3f}",
    ]


def _percent(value: Spread, seeds: int) -> str:
    mean = f"{100 * value.mean:.2f}"
    return f"{mean} ± {100 * value.std:.2f}" if seeds > 1 else mean


# ---------------------------------------------------------------- one run


def print_summary(console: Console, result: Result, folder: Path) -> None:
    """One run in a few lines."""
    console.print(make_summary(summarise(result, folder)), soft_wrap=True)


def make_summary(rows: Sequence[tuple[str, str]]) -> Table:
    """Names and texts side by side."""
    table = Table(show_header=False, box=None, pad_edge=False)
    for name, text in rows:
        table.add_row(escape(name), escape(text))
    return table


def summarise(result: Result, folder: Path | None) -> list[tuple[str, str]]:
    """One run in a few lines, each a name and a text."""
    accuracy = result["accuracy"]
    fairness = result["fairness"]
    seconds = result["seconds"]
    last = f"last {accuracy['last']:.4f}"
    on_test = f"best on test {accuracy['best_on_test']:.4f} (what papers print)"
    std = f"std over clients {fairness['std']:.4f}"
    worst = f"worst tenth of the clients {fairness['worst_decile']:.4f}"
    rows = [
        ("accuracy", _describe_accuracy(accuracy)),
        ("", f"{last}, {on_test}"),
        ("fairness", f"{std}, {worst}"),
    ]
    for name, value in _view_accuracies(result["views"]).items():
        meaning = VIEW_MEANINGS.get(name)
        rows.append((name, f"{value:.4f}, {meaning}" if meaning else f"{value:.4f}"))
    rows += _describe_diagnostics(result).items()
    rows += _describe_measures(result).items()
    rows.append(("traffic", _describe_traffic(result)))
    rows += _describe_encryption(result).items()
    total = f"{seconds['total']:.1f} s"
    rows.append(("time", f"{total}, {seconds['per_round']:.3f} s per round"))
    if result.get("pace"):
        rows.append(("pace", _describe_pace(result["pace"], result["rounds"])))
    if folder is not None:
        rows.append(("folder", str(folder)))
    return rows


def _describe_encryption(result: Result) -> dict[str, str]:
    """What encrypted sums cost, in two lines."""
    found = result.get("encryption")
    if not found:
        return {}
    sent = found["bytes"]
    clear = found["bytes_in_clear"]
    seconds = found["seconds"]
    sizes = [
        f"{way} {sent[way] / 1e6:.1f} MB ({clear[way] / 1e6:.1f} MB in clear)"
        for way in ("up", "down")
    ]
    times = [f"{what} {value:.2f} s" for what, value in seconds.items()]
    return {
        "encrypted": f"{found['scope']} by {found['scheme']}: {', '.join(sizes)}",
        "": ", ".join(times),
    }


def _describe_measures(result: Result) -> dict[str, str]:
    """What else the task measures at the chosen round, in one line."""
    found = result.get("measures", {})
    texts = [
        f"{name} {value:.4f}" for name, value in found.items() if name != "accuracy"
    ]
    return {"measures": ", ".join(texts)} if texts else {}


def _describe_pace(pace: dict[str, Any], rounds: int) -> str:
    """Rounds to convergence and to the target."""
    converged = pace["rounds_to_converge"]
    text = f"within 1 % of its best from round {converged} on"
    if converged is None:
        text = "may still be rising"
    if pace["target"] is None:
        return text
    reached = pace["rounds_to_target"]
    when = f"at round {reached}" if reached else f"not in {rounds} rounds"
    return f"{text}; target {pace['target']:g} {when}"


def _describe_accuracy(accuracy: dict[str, Any]) -> str:
    best = accuracy["best"]
    if best is None:
        return f"{accuracy['last']:.4f} (last round; no validation data)"
    return f"{best:.4f} at round {accuracy['best_round']}, chosen by validation data"


def _view_accuracies(views: dict[str, Any]) -> dict[str, float]:
    """By name, the accuracies of further evaluations; external data sets one by one."""
    shown = {
        name: view
        for name, view in views.items()
        if name not in ("personal", "external")
    }
    newcomers = shown.pop("newcomers", None)
    if newcomers is not None:
        epochs = newcomers.get("epochs", 0)
        told = f"after {epochs} epochs" if epochs else "not trained"
        shown[f"newcomers, {told}"] = newcomers
    for name, view in views.get("external", {}).items():
        shown[f"external: {name}"] = view
    accuracies = {name: view["accuracy"] for name, view in shown.items()}
    return {name: value for name, value in accuracies.items() if value is not None}


def _describe_traffic(result: Result) -> str:
    rounds = result["rounds"]
    up = result["bytes"]["up"] / rounds / 1e6
    down = result["bytes"]["down"] / rounds / 1e6
    text = f"{up:.2f} MB up, {down:.2f} MB down per round"
    exchanges = result["calls"] / rounds  # Fed3+2p's chains of clients, FedMA's layers
    if exchanges > 1.5:
        text += f", in {exchanges:.1f} exchanges one after another"
    return text


def _describe_diagnostics(result: Result) -> dict[str, str]:
    """The method's diagnostics on test data, where they are single numbers."""
    means = mean_diagnostics(result)
    texts = {}
    for name, value in means.items():
        if name.endswith(FLOOR):
            continue
        texts[name] = f"{value:.4f}"
        floor = means.get(name + FLOOR)
        if floor is not None:
            texts[name] += f" (having learnt nothing: {floor:.4f})"
    return texts
