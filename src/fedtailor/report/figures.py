"""The observer that draws a run's figures when it is over."""

from __future__ import annotations

from typing import Any

from fedtailor.engine.observer import Observer
from fedtailor.experiment.run_folder import JOURNAL, RunFolder, read_journal
from fedtailor.report.curves import draw_curves
from fedtailor.report.diagnostics import draw_diagnostics
from fedtailor.report.headline import measure_of, quoted


class Figures(Observer):
    """Draws curves and diagnostics into the run's folder, if that is kept."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def end(self, result: dict[str, Any] | None) -> None:
        """Draw what the journal holds."""
        if result is None or not self._folder.kept:
            return
        lines = read_journal(self._folder.path / JOURNAL)
        evaluated = [record for record in lines if record.get("evaluation")]
        best = quoted(result)["best_round"]
        draw_curves(self._folder.path, evaluated, best, measure_of(result))
        draw_diagnostics(self._folder.path, evaluated)
