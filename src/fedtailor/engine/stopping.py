"""How a run is stopped without losing anything."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from fedtailor.engine.observer import Observer


class Stopped(Exception):
    """The run was asked to stop, and has written a checkpoint."""


@contextmanager
def stop_politely(observer: Observer) -> Iterator[list[bool]]:
    """On Ctrl-C or SIGTERM finish the round and write a checkpoint; a second one stops at once.

    Gives a list that is empty until the run is asked to stop.
    """
    stop: list[bool] = []

    def ask(number: int, _: Any) -> None:
        if stop:
            raise KeyboardInterrupt
        stop.append(True)
        observer.message(
            "stopping: the round is finished and saved first (again to stop at once)"
        )

    try:
        before = {s: signal.signal(s, ask) for s in (signal.SIGINT, signal.SIGTERM)}
    except ValueError:  # not in the main thread: signals are not ours to handle
        before = {}
    try:
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
