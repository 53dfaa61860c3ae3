"""A run's progress as lines of a log: the server writes them, ``fedtailor federate`` reads them."""

from __future__ import annotations

import json
from typing import Any

from fedtailor.engine.progress import Watcher

MARK = "@fedtailor "  # begins every line that is an event
OUTCOMES = ("result", "error", "stopped")
LAST = 20  # other lines that are remembered


class LogWriter:
    """A watcher that writes every event as a line to stdout."""

    def write_event(self, event: str, *values: Any) -> None:
        """Write one line."""
        print(MARK + json.dumps([event, *values]), flush=True)

    def begin(self, title: str, rounds: int, done: int) -> None:
        """A run starts."""
        self.write_event("begin", title, rounds, done)

    def tick(self) -> None:
        """Nothing is written for a single client."""

    def round(self, t: int, accuracy: float | None) -> None:
        """A round is done."""
        self.write_event("round", t, accuracy)

    def say(self, text: str) -> None:
        """Something the user should know."""
        self.write_event("say", text)

    def end(self) -> None:
        """The run is over."""
        self.write_event("end")


class LogReader:
    """Reads a log that comes in chunks, and passes its events to a watcher."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher = watcher
        self._incomplete = ""  # a line whose end has not come yet
        self.outcome: tuple[str, Any] | None = None  # (result, error or stopped; its value)
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
            self._watcher.begin(*values)
        elif event == "round":
            self._watcher.round(*values)
        elif event == "say":
            self._watcher.say(*values)
        elif event == "end":
            self._watcher.end()
