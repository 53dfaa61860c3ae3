"""The observer that writes every round, and all that was said, into the run's folder."""

from __future__ import annotations

from typing import Any

from fedtailor.engine.observer import Observer, RoundRecord
from fedtailor.experiment.config import Experiment
from fedtailor.experiment.run_folder import RunFolder


class Journal(Observer):
    """A line of ``rounds.jsonl`` for every round, and one of ``log.jsonl`` for every message.

    The log also says where the run began, or went on.
    """

    def __init__(self, folder: RunFolder) -> None:
        self._folder = folder
        self._last_round = 0
        self._waiting: list[dict[str, Any]] = []  # said before there was a folder
        self._has_begun = False

    def begin(self, config: Experiment, first_round: int) -> None:
        """Note where it begins, and what was said before."""
        self._has_begun = True
        self._last_round = first_round - 1
        self._note({"started": first_round})
        for line in self._waiting:
            self._note(line)
        self._waiting.clear()

    def round(self, record: RoundRecord) -> None:
        """Append the round."""
        self._last_round = record.t
        self._folder.append_to_journal(record.to_json())

    def message(self, text: str) -> None:
        """Append what was said, with the last round that is in the journal."""
        self._note({"after_round": self._last_round, "message": text})

    def _note(self, line: dict[str, Any]) -> None:
        if self._has_begun:
            self._folder.append_to_log(line)
        else:
            self._waiting.append(line)
