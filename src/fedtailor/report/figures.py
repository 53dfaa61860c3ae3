"""The observer that draws a run's figures when it is over."""

from __future__ import annotations

from typing import Any

from fedtailor.engine.observer import Observer
from fedtailor.experiment.run_folder import JOURNAL, RunFolder, read_journal
from fedtailor.report.curves import draw_curves
from fedtailor.report.diagnostics import draw_diagnostics


class Figures(Observer):
    """Draws curves and diagnostics into the run's folder, if that is kept."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def end(self, result: dict[str, Any] | None) -> None:
        """Draw what the journal holds, also of a run that failed."""
        journal = self._folder.path / JOURNAL
        if not self._folder.kept or not journal.exists():
            return
        evaluated = [
            record for record in read_journal(journal) if record.get("evaluation")
        ]
        if result is None and not evaluated:
            return
        best = None if result is None else result["accuracy"]["best_round"]
        draw_curves(self._folder.path, evaluated, best)
        draw_diagnostics(self._folder.path, evaluated)
