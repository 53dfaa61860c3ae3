"""Curves of a run and of a comparison."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from fedtailor.report import curves


def record(t: int, val: float | None, test: float) -> dict[str, Any]:
    """A line of the journal, as far as curves need it."""

    def measure(accuracy: float | None) -> dict[str, Any]:
        loss = None if accuracy is None else 1 - accuracy
        return {"accuracy": accuracy, "mean": accuracy, "loss": loss, "n": 10}

    fairness = {"std": 0.0, "cv": 0.0, "worst_decile": 0.0}
    evaluation = {
        "val": measure(val),
        "test": measure(test),
        "fairness": fairness,
        "clients": {},
        "notes": {},
    }
    return {"t": t, "evaluation": evaluation}


@pytest.fixture
def figures(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The figures that are drawn, which are not written."""
    drawn: list[Any] = []

    def keep(figure: Any, stem: Path) -> list[Path]:
        drawn.append(figure)
        return [stem]

    monkeypatch.setattr(curves, "save_figure", keep)
    return drawn


def test_a_run_that_was_never_evaluated_has_no_curves(tmp_path: Path) -> None:
    assert curves.draw_curves(tmp_path, [], None) == []


def test_curves_mark_the_chosen_round(tmp_path: Path, figures: list[Any]) -> None:
    records = [record(2, 0.5, 0.4), record(4, 0.8, 0.6), record(6, 0.7, 0.9)]
    assert curves.draw_curves(tmp_path, records, 4) == [tmp_path / "curves"]
    left, right = figures[0].axes
    test, val, mark = left.lines
    assert list(test.get_xdata()) == [2, 4, 6] and list(test.get_ydata()) == [
        40,
        60,
        90,
    ]
    assert left.get_ylabel() == "accuracy (%)"  # as in the tables
    assert list(val.get_ydata()) == [50, 80, 70] and set(mark.get_xdata()) == {4}
    assert left.texts[0].get_text() == "chosen: 4"
    assert len(right.lines) == 2 and right.get_ylabel() == "loss"


def test_without_validation_data_there_is_one_curve_and_no_mark(
    tmp_path: Path, figures: list[Any]
) -> None:
    curves.draw_curves(tmp_path, [record(1, None, 0.4), record(2, None, 0.6)], None)
    assert len(figures[0].axes[0].lines) == 1 and not figures[0].axes[0].texts


def test_files_are_written_and_repeatable(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        records = [record(1, 0.5, 0.4), record(2, 0.6, 0.5)]
        paths = curves.draw_curves(tmp_path / name, records, 2)
        assert [path.name for path in paths] == [
            "curves.png",
            "curves.svg",
            "curves.pdf",
        ]
        assert all(path.stat().st_size > 5_000 for path in paths)
    for ending in ("png", "svg", "pdf"):
        one = (tmp_path / f"a/curves.{ending}").read_bytes()
        assert one == (tmp_path / f"b/curves.{ending}").read_bytes()


def test_a_comparison_shows_means_over_seeds_best_method_first(
    tmp_path: Path, figures: list[Any]
) -> None:
    results: dict[str, list[dict[str, Any]]] = {}
    for method, shift in (("fedavg", 0.0), ("my/own.py", 0.3)):
        for seed in (0, 1):
            folder = tmp_path / f"{Path(method).stem}-s{seed}"
            folder.mkdir()
            lines = [record(t, None, shift + 0.1 * t + 0.1 * seed) for t in (1, 2)]
            lines += [{"t": 3}]  # not evaluated
            lines += [record(4, None, 0.9)] * (seed == 0)  # in one of the runs only
            text = "".join(json.dumps(line) + "\n" for line in lines)
            (folder / "rounds.jsonl").write_text(text)
            clients = [{"accuracy": 0.5}, {"accuracy": 0.7}, {"accuracy": None}]
            accuracy = {"best": None, "last": shift}
            run = {
                "seed": seed,
                "data": "digits",
                "accuracy": accuracy,
                "clients": clients,
            }
            results.setdefault(method, []).append(run)
    assert curves.draw_comparison(tmp_path, results) == [tmp_path / "comparison"]
    left, right = figures[0].axes
    assert [line.get_label() for line in left.lines] == ["own", "FedAvg"]
    assert list(left.lines[1].get_xdata()) == [1, 2]
    assert list(left.lines[1].get_ydata()) == pytest.approx([15, 25])
    assert len(left.collections) == 2  # a band of seeds for each
    assert [label.get_text() for label in right.get_yticklabels()] == ["own", "FedAvg"]
    assert figures[0].get_suptitle() == "2 methods on digits, 2 seeds"
