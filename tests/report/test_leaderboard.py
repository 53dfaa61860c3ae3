"""The leaderboard of a comparison, and the summary of a run."""

from __future__ import annotations

import csv
import io
import math
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from fedtailor.report.leaderboard import (
    CSV_COLUMNS,
    make_rows,
    print_leaderboard,
    print_summary,
    write_leaderboard,
)


def result(best: float | None, last: float = 0.5, **more: Any) -> dict[str, Any]:
    """What a run's result.json holds, as far as tables need it."""
    accuracy = {"best": best, "last": last, "best_on_test": 0.95, "best_round": 3}
    return {
        "rounds": 4,
        "accuracy": accuracy,
        "accuracy_mean_of_clients": accuracy,
        "fairness": {"std": 0.1, "worst_decile": 0.2},
        "bytes": {"up": 4_000_000, "down": 8_000_000},
        "calls": 4,
        "seconds": {"total": 2.0, "per_round": 0.5},
        "views": {},
        "notes": {},
        "clients": [{"id": 0, "n_test": 10}, {"id": 1, "n_test": 30}],
    } | more


def summarise(found: dict[str, Any]) -> dict[str, str]:
    """The lines of a summary, by their first word."""
    console = Console(width=200, file=io.StringIO(), record=True)
    print_summary(console, found, Path("runs/a"))
    lines = [line.split(maxsplit=1) for line in console.export_text().splitlines()]
    return {line[0]: line[1].strip() for line in lines}


def test_the_most_accurate_is_first_and_seeds_give_a_spread() -> None:
    rows = make_rows(
        {"fedavg": [result(0.6), result(0.7)], "my/own.py": [result(0.8)] * 2}
    )
    assert [row.method for row in rows] == ["own", "fedavg"]
    assert rows[1].accuracy.mean == pytest.approx(0.65)
    assert rows[1].accuracy.std == pytest.approx(math.sqrt(0.005))
    assert rows[0].accuracy.std == 0 and rows[0].seeds == 2
    assert rows[0].bytes_per_round == 3_000_000 and rows[0].seconds_per_round == 0.5


def test_without_validation_data_the_last_round_counts() -> None:
    (row,) = make_rows({"fedavg": [result(None, last=0.4)]})
    assert row.accuracy == (0.4, 0.0)
    assert (
        summarise(result(None, 0.4))["accuracy"]
        == "0.4000 (last round; no validation data)"
    )


def test_a_measure_that_no_run_has_is_not_a_number() -> None:
    fairness = {"std": None, "worst_decile": None}
    (row,) = make_rows({"fedavg": [result(0.5, fairness=fairness)]})
    assert math.isnan(row.client_std.mean)


def test_screen_markdown_and_csv_say_the_same(tmp_path: Path) -> None:
    rows = make_rows({"fedavg": [result(0.6), result(0.7)], "ditto": [result(0.8)]})
    console = Console(width=200, file=io.StringIO(), record=True)
    print_leaderboard(console, rows)
    screen = console.export_text()
    assert "65.00 ± 7.07" in screen and "80.00 " in screen and "80.00 ±" not in screen
    markdown, table = write_leaderboard(tmp_path, rows)
    assert (markdown.name, table.name) == ("leaderboard.md", "leaderboard.csv")
    lines = markdown.read_text().splitlines()
    assert (
        lines[0].startswith("| method | accuracy % |") and lines[1].count("---:") == 6
    )
    assert lines[2] == "| ditto | 80.00 | 80.00 | 0.100 | 20.0 | 3.00 | 0.500 |"
    read = list(csv.DictReader(table.read_text().splitlines()))
    assert tuple(read[0]) == CSV_COLUMNS
    assert float(read[1]["accuracy"]) == pytest.approx(0.65)
    assert read[1]["bytes_per_round"] == "3000000"


def test_a_summary_has_views_diagnostics_and_traffic() -> None:
    views = {
        "personal": {"accuracy": 0.1},
        "after": {"accuracy": 0.25},
        "newcomers": {"accuracy": None},
        "external": {"elsewhere": {"accuracy": 0.75}},
    }
    notes = {
        "test/PIR": {"0": 0.0, "1": 1.0},
        "test/PIR_floor": {"0": 0.5, "1": 0.5},
        "train/PIR": {"0": 0.9, "1": 0.9},
        "test/s": {"0": [0.5, 0.5], "1": [1.0, 0.0]},
    }
    told = summarise(result(0.6, views=views, notes=notes, calls=12))
    assert told["accuracy"] == "0.6000 at round 3, chosen by validation data"
    assert (
        told["after"].startswith("0.2500, right")
        and "newcomers" not in told
        and "personal" not in told
    )
    assert told["external:"].split() == ["elsewhere", "0.7500"]
    # 30 of 40 test samples
    assert told["PIR"] == "0.7500 (having learnt nothing: 0.5000)"
    assert "s" not in told and "train/PIR" not in told and "PIR_floor" not in told
    assert told["traffic"].startswith(
        "1.00 MB up, 2.00 MB down per round, in 3.0 exchanges"
    )
    assert "exchanges" not in summarise(result(0.6))["traffic"]


def test_a_further_measure_of_the_task_is_a_further_column(tmp_path: Path) -> None:
    measures = {"accuracy": 0.5, "loss": 1.0, "macro_f1": 0.25}
    rows = make_rows({"fedavg": [result(0.5, measures=measures)]})
    markdown, table = write_leaderboard(tmp_path, rows)
    assert "| macro_f1 % |" in markdown.read_text()
    assert "| 25.00 |" in markdown.read_text()
    header, values = table.read_text().splitlines()
    assert header.endswith(",macro_f1") and values.endswith(",0.25")
