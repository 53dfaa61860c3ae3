"""How a run is stopped without losing anything."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedtailor.engine.progress import Watcher


class Stopped(Exception):
    """The run was asked to stop, and has written a checkpoint."""


@contextmanager
def polite(watcher: Watcher) -> Iterator[list[bool]]:
    """Ctrl-C and SIGTERM let the round finish and a checkpoint be written; a second Ctrl-C stops at once."""
    stop: list[bool] = []

    def ask(number: int, _: Any) -> None:
        if stop:
            raise KeyboardInterrupt
        stop.append(True)
        watcher.say("stopping: the round is finished and saved first (again to stop at once)")

    try:
        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: signals are somebody else's
        before = {}
    try:
        yield stop
    finally:
        for s, handler in before.items():
            signal.signal(s, handler)
