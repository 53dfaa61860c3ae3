"""A run's progress as lines of a log: the server writes them, ``fedtailor federate`` reads them."""

from __future__ import annotations

import json
from typing import Any

from fedtailor.engine.observer import Observer, RoundRecord
from fedtailor.experiment.config import Experiment, make_experiment

MARK = "@fedtailor "  # begins every line that is an event
OUTCOMES = ("result", "error", "stopped")
LAST = 20  # other lines that are remembered


class LogWriter(Observer):
    """Writes every event as a line to stdout."""

    def write_event(self, event: str, *values: Any) -> None:
        """Write one line."""
        print(MARK + json.dumps([event, *values]), flush=True)

    def begin(self, config: Experiment, first_round: int) -> None:
        """A run begins."""
        self.write_event("begin", config.model_dump(mode="json"), first_round)

    def round(self, record: RoundRecord) -> None:
        """A round is over."""
        self.write_event("round", record.to_json())

    def message(self, text: str) -> None:
        """Something the user should know."""
        self.write_event("message", text)

    def end(self, result: dict[str, Any] | None) -> None:
        """The run is over; its outcome has a line of its own."""
        self.write_event("end")


class LogReader:
    """Reads a log that comes in chunks, and passes its events to an observer."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._incomplete = ""  # a line whose end has not come yet
        # (result, error or stopped; its value)
        self.outcome: tuple[str, Any] | None = None
        self.other_lines: list[str] = []  # the last lines that are no events

    def read_chunk(self, text: str) -> None:
        """Read some more of the log."""
        *lines, self._incomplete = (self._incomplete + text).split("\n")
        for line in lines:
            if line.startswith(MARK):
                event, *values = json.loads(line.removeprefix(MARK))
                self._pass_on(event, values)
            elif line.strip():
                self.other_lines.append(line)
                self.other_lines = self.other_lines[-LAST:]

    def _pass_on(self, event: str, values: list[Any]) -> None:
        if event in OUTCOMES:
            self.outcome = (event, values[0])
        elif event == "begin":
            config, first_round = values
            self._observer.begin(make_experiment(config), first_round)
        elif event == "round":
            self._observer.round(RoundRecord.from_json(values[0]))
        elif event == "message":
            self._observer.message(values[0])
        elif event == "end":
            self._observer.end(None)
