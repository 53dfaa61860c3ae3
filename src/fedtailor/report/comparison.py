"""All that is shown and written of a comparison when its runs are over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rich.console import Console

from fedtailor.report import comparison_tables, leaderboard
from fedtailor.report.curves import draw_comparison

Results = dict[str, list[dict[str, Any]]]  # label of a variant -> results, one a seed


def print_comparison(console: Console, results: Results) -> None:
    """The leaderboard and the tables behind it, on the screen."""
    leaderboard.print_leaderboard(console, leaderboard.make_rows(results))
    comparison_tables.print_tables(console, results)


def write_comparison(folder: Path, results: Results) -> list[Path]:
    """Figures and tables as files."""
    figures = draw_comparison(folder, results)
    tables = leaderboard.write_leaderboard(folder, leaderboard.make_rows(results))
    tables += comparison_tables.write_tables(folder, results)
    return [*figures, *tables]
