"""All that is shown and written of a comparison when its runs are over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from fedtailor.experiment.variants import folder_stem, name_of
from fedtailor.report import comparison_tables, leaderboard
from fedtailor.report.comparison_figures import draw_comparison_figures
from fedtailor.report.curves import draw_comparison
from fedtailor.report.html_report import REPORT, write_report

Results = dict[str, list[dict[str, Any]]]  # label of a variant -> results, one a seed
Diverged = leaderboard.Diverged


def print_comparison(
    console: Console, results: Results, diverged: Diverged | None = None
) -> None:
    """The leaderboard and the tables behind it, on the screen."""
    rows = leaderboard.make_rows(results)
    leaderboard.print_leaderboard(console, rows, diverged)
    if results:
        comparison_tables.print_tables(console, results)


def write_comparison(
    folder: Path, results: Results, diverged: Diverged | None = None
) -> list[Path]:
    """Figures, tables and the page that tells their story, as files."""
    rows = leaderboard.make_rows(results)
    tables = leaderboard.write_leaderboard(folder, rows, diverged)
    if not results:
        return tables
    figures = draw_comparison(folder, results)
    runs = [
        folder / f"{folder_stem(name_of(label))}-s{result['seed']}"
        for label, found in results.items()
        for result in found
    ]
    figures += draw_comparison_figures(folder, runs)
    tables += comparison_tables.write_tables(folder, results)
    page = write_report(runs, folder / REPORT)
    return [*figures, *tables, page]
