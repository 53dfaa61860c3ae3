"""The observer that draws a run's figures when it is over."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from fedtailor.engine.observer import Observer
from fedtailor.experiment.run_folder import JOURNAL, RunFolder, read_journal
from fedtailor.experiment.variants import name_of
from fedtailor.report.curves import draw_curves
from fedtailor.report.diagnostics import draw_diagnostics
from fedtailor.report.headline import quoted
from fedtailor.report.story.curves import list_events
from fedtailor.report.story.reported_runs import ReportedRun, title_of_method


class Figures(Observer):
    """Draws curves and diagnostics into the run's folder, if that is kept."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def end(self, result: dict[str, Any] | None) -> None:
        """Draw what the journal holds, also of a run that failed."""
        journal = self._folder.path / JOURNAL
        if not self._folder.kept or not journal.exists():
            return
        path = self._folder.path
        records = read_journal(journal)
        if result is None:
            self._draw_failed(records)
            return
        run = ReportedRun(path, self._folder.read_config(), result, records, [])
        chosen = quoted(result)["best_round"]
        draw_curves(path, run.evaluated, chosen, result, list_events(run))
        name = title_of_method(name_of(str(result["method"])))
        title = f"{name} on {result['data']}, seed {result['seed']}"
        draw_diagnostics(path, run.evaluated, title)

    def _draw_failed(self, records: list[dict[str, Any]]) -> None:
        """The curves of a run that has no result, if it got that far."""
        evaluated = [record for record in records if record.get("evaluation")]
        with suppress(OSError):  # what ended the run is told, and nothing else
            draw_curves(self._folder.path, evaluated, None)
