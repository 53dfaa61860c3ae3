"""The observer that writes every round into the run's journal."""

from __future__ import annotations

from fedtailor.engine.observer import Observer, RoundRecord
from fedtailor.experiment.run_folder import RunFolder


class Journal(Observer):
    """One line of ``rounds.jsonl`` for every round."""

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder

    def round(self, record: RoundRecord) -> None:
        """Append the round."""
        self._folder.append_to_journal(record.to_json())
