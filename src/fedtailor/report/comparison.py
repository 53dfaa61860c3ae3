"""All that is shown and written of a comparison when its runs are over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from fedtailor.report import comparison_tables, leaderboard
from fedtailor.report.curves import draw_comparison

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
    """Figures and tables as files."""
    rows = leaderboard.make_rows(results)
    tables = leaderboard.write_leaderboard(folder, rows, diverged)
    if not results:
        return tables
    figures = draw_comparison(folder, results)
    tables += comparison_tables.write_tables(folder, results)
    return [*figures, *tables]
