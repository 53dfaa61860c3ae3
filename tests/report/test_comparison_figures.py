"""Figures of a comparison: a dot for every client, a line for every run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedtailor.report import comparison_figures


def test_gains_and_costs_are_drawn(
    comparison: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: dict[str, Any] = {}

    def keep(figure: Any, stem: Path) -> list[Path]:
        drawn[stem.name] = figure
        return [stem]

    monkeypatch.setattr(comparison_figures, "save_figure", keep)
    comparison_figures.draw_comparison_figures(tmp_path, [comparison])
    alone, common = drawn["gains"].axes
    assert alone.get_xlabel() == "points better than training alone"
    assert common.get_xlabel() == "points better than one model for all"
    dots = [line for line in alone.lines if line.get_marker() == "."]
    assert [len(line.get_xdata()) for line in dots] == [8, 8]  # clients of two seeds
    sent, spent = drawn["cost"].axes
    assert len(sent.lines) == len(spent.lines) == 3 * 2
    assert sent.get_ylabel().startswith("accuracy (%)")
