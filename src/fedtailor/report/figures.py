"""The observer that draws a run's figures when it is over."""

from __future__ import annotations

from typing import Any

from fedtailor.engine.observer import Observer
from fedtailor.experiment.run_folder import JOURNAL, Folder, journal
from fedtailor.report.curves import curves
from fedtailor.report.diagnostics import noted


class Figures(Observer):
    """Draws curves and diagnostics into the run's folder, if that is kept."""

    def __init__(self, folder: Folder) -> None:
        self._folder = folder

    def end(self, result: dict[str, Any] | None) -> None:
        """Draw what the journal holds."""
        if result is None or not self._folder.kept:
            return
        lines = journal(self._folder.path / JOURNAL)
        evaluated = [record for record in lines if record.get("evaluation")]
        curves(self._folder.path, evaluated, result["accuracy"]["best_round"])
        noted(self._folder.path, evaluated)
