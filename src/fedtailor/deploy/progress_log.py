"""A run's news as lines in a log, and back: the server tells, ``fedtailor federate`` shows."""

from __future__ import annotations

import json
from typing import Any

from fedtailor.engine.progress import Watcher

MARK = "@fedtailor "


class Relay:
    """A watcher that writes lines."""

    def tell(self, what: str, *values: Any) -> None:
        """One line of news."""
        print(MARK + json.dumps([what, *values]), flush=True)

    def begin(self, title: str, rounds: int, done: int) -> None:
        """A run starts."""
        self.tell("begin", title, rounds, done)

    def tick(self) -> None:
        """Nothing: a client is no news."""

    def round(self, t: int, accuracy: float | None) -> None:
        """A round is done."""
        self.tell("round", t, accuracy)

    def say(self, text: str) -> None:
        """Something the user should know."""
        self.tell("say", text)

    def end(self) -> None:
        """The run is over."""
        self.tell("end")


class Listener:
    """Takes a log in pieces and passes the news in it on."""

    def __init__(self, watcher: Watcher) -> None:
        self._watcher, self._rest = watcher, ""
        self.outcome: tuple[str, Any] | None = None  # result, error or stopped
        self.other: list[str] = []  # the last lines that are no news

    def take(self, text: str) -> None:
        """Some more of the log."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if line.startswith(MARK):
                self._pass(*json.loads(line[len(MARK) :]))
            elif line.strip():
                self.other = [*self.other[-19:], line]

    def _pass(self, what: str, *values: Any) -> None:
        if what in ("result", "error", "stopped"):
            self.outcome = what, values[0]
        elif what in ("begin", "round", "say", "end"):
            getattr(self._watcher, what)(*values)
