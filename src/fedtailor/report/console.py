"""What a person sees while a run goes on: a bar, plain lines, or nothing."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

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

from fedtailor.engine.observer import Observer, RoundRecord
from fedtailor.experiment.config import Experiment


def title_of(config: Experiment) -> str:
    """What a run is called on the screen."""
    return f"{config.title} on {config.data}, seed {config.seed}"


def accuracy_of(record: RoundRecord) -> float | None:
    """Test accuracy of the personal models, if the round was evaluated."""
    if record.evaluation is None:
        return None
    return record.evaluation.test.accuracy


class Silent(Observer):
    """Shows only what must be known."""

    def message(self, text: str) -> None:
        """Warnings, on the error stream."""
        if text.startswith(("warning", "stopping")):
            print(text, file=sys.stderr, flush=True)


class Lines(Observer):
    """One line every few seconds, for logs."""

    def __init__(self, seconds: float = 5.0) -> None:
        self._seconds = seconds
        self._title = ""
        self._rounds = 0
        self._first_round = 1
        self._began = 0.0
        self._last = 0.0  # when the last line was printed

    def begin(self, config: Experiment, first_round: int) -> None:
        """Name the run."""
        self._title = self.name_run(config)
        self._rounds = config.rounds
        self._first_round = first_round
        self._began = time.monotonic()
        self._last = 0.0
        done = first_round - 1
        going_on = f", going on after round {done}" if done else ""
        print(f"{self._title}: {self._rounds} rounds{going_on}", flush=True)

    def name_run(self, config: Experiment) -> str:
        """How lines name the run."""
        return title_of(config)

    def round(self, record: RoundRecord) -> None:
        """A line now and then, and at the end."""
        now = time.monotonic()
        if now - self._last < self._seconds and record.t < self._rounds:
            return
        self._last = now
        done = max(record.t - self._first_round + 1, 1)
        left = (now - self._began) / done * (self._rounds - record.t)
        accuracy = accuracy_of(record)
        seen = "" if accuracy is None else f"  accuracy {accuracy:.4f}"
        progress = f"round {record.t}/{self._rounds}"
        print(f"{self._title}: {progress}{seen}  {left:.0f} s left", flush=True)

    def message(self, text: str) -> None:
        """As a line."""
        print(text, flush=True)


class Bar(Observer):
    """A live bar with round, accuracy and remaining time."""

    def __init__(self, console: Console) -> None:
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[seen]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
            console=console,
            transient=True,
        )
        self._task = self._progress.add_task("", visible=False, seen="")

    def begin(self, config: Experiment, first_round: int) -> None:
        """Show the bar."""
        self._progress.reset(
            self._task,
            description=title_of(config),
            total=config.rounds,
            completed=first_round - 1,
            visible=True,
            seen="",
        )
        self._progress.start()

    def round(self, record: RoundRecord) -> None:
        """Move the bar."""
        accuracy = accuracy_of(record)
        if accuracy is not None:
            self._progress.update(self._task, seen=f"accuracy {accuracy:.4f}")
        self._progress.update(self._task, completed=record.t)

    def message(self, text: str) -> None:
        """Above the bar."""
        self._progress.console.print(
            text, highlight=False, markup=False, soft_wrap=True
        )

    def end(self, result: dict[str, Any] | None) -> None:
        """Remove the bar."""
        self._progress.stop()


def make_console(quiet: bool) -> Observer:
    """The observer that fits the output."""
    if quiet:
        return Silent()
    console = Console()
    return Bar(console) if console.is_terminal else Lines()


@contextmanager
def show_downloads() -> Iterator[Callable[[str, int, int], None]]:
    """A bar per file; gives the function to call with (file, bytes so far, bytes in all)."""
    bar = Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
    )
    tasks: dict[str, TaskID] = {}

    def report(file: str, done: int, whole: int) -> None:
        if file not in tasks:
            tasks[file] = bar.add_task(file, total=whole or None)
        bar.update(tasks[file], completed=done, total=whole or None)

    with bar:
        yield report
