"""The leaderboard of a comparison, and the summary of one run."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from fedtailor.storage.files import write_bytes

COLUMNS = (
    "method",
    "accuracy %",
    "mean of clients %",
    "std over clients",
    "worst tenth %",
    "MB per round",
    "s per round",
)


def rows(results: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """One row a method, the most accurate first; ± is the standard deviation over seeds."""
    out = []
    for method, runs in results.items():
        chosen = "best" if runs[0]["accuracy"]["best"] is not None else "last"
        out.append(
            {
                "method": Path(method).stem,
                "seeds": len(runs),
                "accuracy": _spread([r["accuracy"][chosen] for r in runs]),
                "mean": _spread([r["accuracy_mean_of_clients"][chosen] for r in runs]),
                "std": _spread([r["fairness"]["std"] for r in runs]),
                "worst": _spread([r["fairness"]["worst_decile"] for r in runs]),
                "on_test": _spread([r["accuracy"]["best_on_test"] for r in runs]),
                "bytes": statistics.fmean(
                    (r["bytes"]["up"] + r["bytes"]["down"]) / r["rounds"] for r in runs
                ),
                "seconds": statistics.fmean(r["seconds"]["per_round"] for r in runs),
            }
        )
    return sorted(out, key=lambda row: -row["accuracy"][0])


def rank(console: Console, results: dict[str, list[dict[str, Any]]], out: Path) -> None:
    """Print the leaderboard and write it as Markdown and CSV."""
    cells = [_cells(row) for row in rows(results)]
    table = Table(
        title="Personal models on their clients' test data, at the round chosen by validation data"
    )
    for i, name in enumerate(COLUMNS):
        table.add_column(
            name, justify="right" if i else "left", style="bold" if i == 1 else "", no_wrap=i < 2
        )
    for line in cells:
        table.add_row(*line)
    console.print(table)
    markdown = ["| " + " | ".join(COLUMNS) + " |", "|---" + "|---:" * (len(COLUMNS) - 1) + "|"]
    markdown += ["| " + " | ".join(row) + " |" for row in cells]
    write_bytes(out / "leaderboard.md", ("\n".join(markdown) + "\n").encode())
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(
        [
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
        ]
    )
    for row in rows(results):
        writer.writerow(
            [
                row["method"],
                row["seeds"],
                *row["accuracy"],
                row["mean"][0],
                row["std"][0],
                row["worst"][0],
                row["on_test"][0],
                round(row["bytes"]),
                row["seconds"],
            ]
        )
    write_bytes(out / "leaderboard.csv", text.getvalue().encode())


def tell(console: Console, result: dict[str, Any], path: Path) -> None:
    """One run in a few lines."""
    a, f = result["accuracy"], result["fairness"]
    best = (
        f"{a['best']:.4f} at round {a['best_round']}, chosen by validation data"
        if a["best"] is not None
        else "none"
    )
    table = Table(show_header=False, box=None, pad_edge=False)
    table.add_row(
        "accuracy",
        best if a["best"] is not None else f"{a['last']:.4f} (last round; no validation data)",
    )
    table.add_row(
        "", f"last {a['last']:.4f}, best on test {a['best_on_test']:.4f} (what papers print)"
    )
    table.add_row("fairness", f"std {f['std']:.4f}, worst tenth {f['worst_decile']:.4f}")
    views = {k: v for k, v in result["views"].items() if k not in ("personal", "external")}
    views |= {
        f"external: {name}": view for name, view in result["views"].get("external", {}).items()
    }
    for name, view in views.items():
        if view["accuracy"] is not None:
            table.add_row(name, f"{view['accuracy']:.4f}")
    for name, value in _notes(result).items():
        table.add_row(name, value)
    up, down = (result["bytes"][d] / result["rounds"] / 1e6 for d in ("up", "down"))
    turns = result["calls"] / result["rounds"]  # Fed3+2p's chains of clients, FedMA's layers
    after = f", in {turns:.1f} exchanges one after another" if turns > 1.5 else ""
    table.add_row("traffic", f"{up:.2f} MB up, {down:.2f} MB down per round{after}")
    table.add_row(
        "time",
        f"{result['seconds']['total']:.1f} s, {result['seconds']['per_round']:.3f} s per round",
    )
    table.add_row("folder", str(path))
    console.print(table, soft_wrap=True)


def _notes(result: dict[str, Any]) -> dict[str, str]:
    """The method's own measures on test data, where they are single numbers; beside it what NAME_floor says of NAME."""
    sizes = {str(c["id"]): c["n_test"] for c in result["clients"]}
    means: dict[str, float] = {}
    for name, by in result["notes"].items():
        known = {str(k): v for k, v in by.items() if isinstance(v, int | float)}
        many = sum(sizes[k] for k in known)
        if name.startswith("test/") and many:
            means[name.removeprefix("test/")] = sum(v * sizes[k] for k, v in known.items()) / many
    told = {name: f"{value:.4f}" for name, value in means.items()}
    floors = {name: told.pop(name) for name in means if name.endswith("_floor")}
    return {
        name: value
        + (
            f" (having learnt nothing: {floors[name + '_floor']})"
            if f"{name}_floor" in floors
            else ""
        )
        for name, value in told.items()
    }


def _spread(values: Sequence[float | None]) -> tuple[float, float]:
    known = [v for v in values if v is not None]
    if not known:
        return float("nan"), 0.0
    return statistics.fmean(known), statistics.stdev(known) if len(known) > 1 else 0.0


def _cells(row: dict[str, Any]) -> list[str]:
    def percent(pair: tuple[float, float]) -> str:
        return (
            f"{100 * pair[0]:.2f} ± {100 * pair[1]:.2f}"
            if row["seeds"] > 1
            else f"{100 * pair[0]:.2f}"
        )

    return [
        row["method"],
        percent(row["accuracy"]),
        percent(row["mean"]),
        f"{row['std'][0]:.3f}",
        f"{100 * row['worst'][0]:.1f}",
        f"{row['bytes'] / 1e6:.2f}",
        f"{row['seconds']:.3f}",
    ]
