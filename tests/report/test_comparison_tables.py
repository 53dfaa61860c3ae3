"""Tables of a comparison, of real runs."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

import fedtailor
from fedtailor.report.comparison_tables import (
    compare_with,
    print_tables,
    write_tables,
)
from fedtailor.report.run_values import list_values
from fedtailor.testing.small_world import digits

METHODS = ["local", "fedavg", "pfedc"]


@pytest.fixture(scope="module")
def results() -> dict[str, list[dict[str, Any]]]:
    options = {"rounds": 3, "lr": 0.1, "save": "none", "executor": "sequential"}
    views = {"views": "after,global,new", "target": 0.2, "new_clients": 1}
    return {
        method: [
            fedtailor.run(method, digits(), seed=seed, **options, **views)
            for seed in (0, 1)
        ]
        for method in METHODS
    }


def read_table(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text().splitlines()))


def test_the_screen_has_80_columns(results: dict[str, Any]) -> None:
    console = Console(width=80, file=io.StringIO(), record=True)
    print_tables(console, results)
    shown = console.export_text()
    assert max(map(len, shown.splitlines())) <= 80
    flat = " ".join(shown.split())
    for name in ("GM P-Test", "LM P-Test", "New", "Jain", "in a row", "target"):
        assert name in flat, name
    assert "Points above local" in flat
    assert "…" not in shown  # nothing is cut off


def test_every_run_has_its_own_values(results: dict[str, Any], tmp_path: Path) -> None:
    runs, latex, differences, gains = write_tables(tmp_path, results)
    rows = read_table(runs)
    assert [(row["method"], row["seed"]) for row in rows] == [
        (method, str(seed)) for method in METHODS for seed in (0, 1)
    ]
    for row, run in zip(
        rows, [r for runs in results.values() for r in runs], strict=True
    ):
        assert float(row["view_after"]) == run["views"]["after"]["accuracy"]
        assert float(row["auroc"]) == run["measures"]["auroc"]
        assert float(row["cv_at_last"]) == run["fairness_at"]["last"]["cv"]
    assert rows[4]["acc_task_all"] and not rows[0]["acc_task_all"]
    assert rows[2]["view_global_ptest"] and not rows[0]["view_global_ptest"]
    assert {row["reference"] for row in read_table(differences)} >= {"local"}
    assert len(read_table(gains)) == 3 * 2 * 5
    assert r"method & seed 0 & seed 1 \\" in latex.read_text()


def test_the_gain_over_local_is_the_difference_of_accuracies(
    results: dict[str, Any], tmp_path: Path
) -> None:
    """Paired by client and weighted by test examples, it is that of the printed accuracies."""
    for comparison in compare_with(results, "local"):
        mine = results[comparison.method]
        gaps = [
            a["accuracy"]["best"] - b["accuracy"]["best"]
            for a, b in zip(mine, results["local"], strict=True)
        ]
        mean = sum(gaps) / len(gaps)
        assert comparison.difference.mean == pytest.approx(mean, abs=1e-6)
        assert 0 <= comparison.gaining <= 1


def test_all_numbers_of_a_run_have_names(results: dict[str, Any]) -> None:
    values = list_values(results["fedavg"][0])
    expected = "accuracy_best std_at_best_on_test jain_at_last macro_f1 ece auprc"
    expected += " view_new view_newcomers trainings_per_round rounds_to_target"
    expected += " seconds_training_per_round rounds_to_converge worst_decile_at_best"
    assert values.keys() >= set(expected.split())
