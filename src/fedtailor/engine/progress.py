"""What a person sees while a run goes on: a bar in a terminal, plain lines elsewhere, nothing when quiet."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)


class Watcher(Protocol):
    """Is told how a run goes."""

    def begin(self, title: str, rounds: int, done: int) -> None:
        """A run starts, ``done`` of its rounds being there already."""
        ...

    def tick(self) -> None:
        """A client is done."""
        ...

    def round(self, t: int, accuracy: float | None) -> None:
        """A round is done; test accuracy of the personal models, where it was evaluated."""
        ...

    def say(self, text: str) -> None:
        """Something the user should know."""
        ...

    def end(self) -> None:
        """The run is over."""
        ...


class Silent:
    """Says only what must be known."""

    def begin(self, title: str, rounds: int, done: int) -> None:
        """Nothing."""

    def tick(self) -> None:
        """Nothing."""

    def round(self, t: int, accuracy: float | None) -> None:
        """Nothing."""

    def say(self, text: str) -> None:
        """Warnings, on the error stream."""
        if text.startswith(("warning", "stopping")):
            print(text, file=sys.stderr, flush=True)

    def end(self) -> None:
        """Nothing."""


class Lines:
    """One line every few seconds, for logs."""

    def __init__(self, seconds: float = 5.0) -> None:
        self._seconds, self._last, self._title, self._rounds = seconds, 0.0, "", 0
        self._began, self._from = 0.0, 0

    def begin(self, title: str, rounds: int, done: int) -> None:
        """Name the run."""
        self._title, self._rounds, self._from, self._began, self._last = (
            title,
            rounds,
            done,
            time.monotonic(),
            0.0,
        )
        print(
            f"{title}: {rounds} rounds" + (f", going on after round {done}" if done else ""),
            flush=True,
        )

    def tick(self) -> None:
        """Nothing."""

    def round(self, t: int, accuracy: float | None) -> None:
        """Now and then, and at the end."""
        now = time.monotonic()
        if now - self._last < self._seconds and t < self._rounds:
            return
        self._last = now
        left = (now - self._began) / max(t - self._from, 1) * (self._rounds - t)
        seen = "" if accuracy is None else f"  accuracy {accuracy:.4f}"
        print(f"{self._title}: round {t}/{self._rounds}{seen}  {left:.0f} s left", flush=True)

    def say(self, text: str) -> None:
        """As a line."""
        print(text, flush=True)

    def end(self) -> None:
        """Nothing."""


class Bar:
    """A live bar with round, accuracy and remaining time."""

    def __init__(self, console: Console) -> None:
        name, seen, left = (
            TextColumn(t) for t in ("{task.description}", "{task.fields[seen]}", "left")
        )
        columns = (
            name,
            BarColumn(),
            MofNCompleteColumn(),
            seen,
            TimeElapsedColumn(),
            left,
            TimeRemainingColumn(),
        )
        self._progress = Progress(*columns, console=console, transient=True)
        self._task = self._progress.add_task("", visible=False, seen="")

    def begin(self, title: str, rounds: int, done: int) -> None:
        """Show the bar."""
        self._progress.reset(
            self._task, description=title, total=rounds, completed=done, visible=True, seen=""
        )
        self._progress.start()

    def tick(self) -> None:
        """The bar redraws by itself."""

    def round(self, t: int, accuracy: float | None) -> None:
        """Move the bar."""
        if accuracy is not None:
            self._progress.update(self._task, seen=f"accuracy {accuracy:.4f}")
        self._progress.update(self._task, completed=t)

    def say(self, text: str) -> None:
        """Above the bar."""
        self._progress.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def end(self) -> None:
        """Take the bar away."""
        self._progress.stop()


def watcher(quiet: bool) -> Watcher:
    """What fits the output."""
    if quiet:
        return Silent()
    console = Console()
    return Bar(console) if console.is_terminal else Lines()


@contextmanager
def downloads() -> Iterator[Callable[[str, int, int], None]]:
    """A bar per file; gives the function that is told (file, bytes so far, bytes in all)."""
    bar = Progress(
        TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    )
    tasks: dict[str, TaskID] = {}

    def report(file: str, done: int, whole: int) -> None:
        if file not in tasks:
            tasks[file] = bar.add_task(file, total=whole or None)
        bar.update(tasks[file], completed=done, total=whole or None)

    with bar:
        yield report
