"""What a person sees while many runs go on: how many are done, and how the present one does."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
)

from fedtailor.engine.observer import ManyRuns, Observer, RoundRecord
from fedtailor.experiment.config import Experiment
from fedtailor.report.console import Lines, Silent, accuracy_of, title_of


class Count:
    """How many runs there are, how many are done, and how long the others may take."""

    def __init__(
        self, noun: str = "runs", clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.noun = noun
        self._clock = clock
        self._began = clock()
        self._took: list[float] = []  # seconds of the runs that ended since the start
        self._share = 0.0  # of the present run
        self._told: set[str] = set()
        self.total = 0
        self.done = 0
        self.failed = 0

    def begin(self, total: int, finished: int) -> None:
        """So many runs are wanted, and so many are there."""
        self.total = total
        self.done = finished

    def begin_run(self) -> None:
        """A run begins."""
        self._began = self._clock()
        self._share = 0.0

    def move(self, share: float) -> None:
        """So much of the present run is done."""
        self._share = share

    def end_run(self, failed: bool) -> None:
        """A run ended."""
        self._took.append(self._clock() - self._began)
        self._began = self._clock()
        self._share = 0.0
        if failed:
            self.failed += 1
        else:
            self.done += 1

    def is_news(self, text: str) -> bool:
        """Whether a message was not shown yet; warnings are shown every time."""
        if text.startswith(("warning", "stopping")):
            return True
        is_known = text in self._told
        self._told.add(text)
        return not is_known

    @property
    def waiting(self) -> int:
        """Runs that have not ended."""
        return max(self.total - self.done - self.failed, 0)

    def seconds_left(self) -> float | None:
        """As the runs so far took; None before anything is known."""
        spent = self._clock() - self._began
        if self._took:
            usual = sum(self._took) / len(self._took)
        elif self._share > 0:
            usual = spent / self._share
        else:
            return None
        present = min(spent, usual) if self._share > 0 else 0.0
        return max(usual * self.waiting - present, 0.0)

    def describe(self, running: int) -> str:
        """``3 of 12 runs done, 1 running, 0 failed, about 4 min left``."""
        parts = [f"{self.done} of {self.total} {self.noun} done"]
        if running:
            parts.append(f"{running} running")
        parts.append(f"{self.failed} failed")
        left = self.seconds_left()
        if left is not None and self.waiting:
            parts.append(f"about {describe_seconds(left)} left")
        return ", ".join(parts)


def describe_seconds(seconds: float) -> str:
    """``40 s``, ``12 min``, ``3 h 20 min``."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min"


# ---------------------------------------------------------------- plain lines
class TotalLines(ManyRuns):
    """Lines for logs, each with the number and the name of its run."""

    def __init__(self, noun: str = "runs", seconds: float = 5.0) -> None:
        self._seconds = seconds
        self._count = Count(noun)

    def begin(self, names: Sequence[str], finished: Sequence[str]) -> None:
        """Say how many runs there are."""
        self._count.begin(len(names), len(finished))
        there = f", {len(finished)} of them finished before" if finished else ""
        print(f"{len(names)} {self._count.noun}{there}", flush=True)

    def watch(self, name: str) -> Sequence[Observer]:
        """The lines of one run."""
        self._count.begin_run()
        number = self._count.done + self._count.failed + 1
        return [NumberedLines(self._seconds, number, self._count)]

    def done(self, name: str) -> None:
        """How far the whole is."""
        self._count.end_run(failed=False)
        print(self._count.describe(0), flush=True)

    def failed(self, name: str, why: str) -> None:
        """Which run failed, and how far the whole is."""
        self._count.end_run(failed=True)
        print(f"{name} failed: {why}", flush=True)
        print(self._count.describe(0), flush=True)

    def message(self, text: str) -> None:
        """As a line."""
        print(text, flush=True)


class NumberedLines(Lines):
    """The lines of one run of many."""

    def __init__(self, seconds: float, number: int, count: Count) -> None:
        super().__init__(seconds)
        self._number = number
        self._count = count

    def name_run(self, config: Experiment) -> str:
        """With its number: ``[3/12] fedcp on digits, seed 0``."""
        return f"[{self._number}/{self._count.total}] {title_of(config)}"

    def round(self, record: RoundRecord) -> None:
        """Count, and write a line now and then."""
        self._count.move(record.t / self._rounds)
        super().round(record)

    def message(self, text: str) -> None:
        """As a line that names the run."""
        if self._count.is_news(text):
            print(f"{self._title}: {text}", flush=True)


# ---------------------------------------------------------------- bars
class TotalBars(ManyRuns):
    """Two live bars: all runs, and the present one."""

    def __init__(self, console: Console, noun: str = "runs") -> None:
        self._count = Count(noun)
        self._progress = Progress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=20),
            MofNCompleteColumn(),
            TextColumn("{task.fields[seen]}"),
            TimeElapsedColumn(),
            console=console,
            transient=True,
        )
        self._whole = self._progress.add_task(f"all {noun}", seen="")
        self._present = self._progress.add_task("", visible=False, seen="")

    def begin(self, names: Sequence[str], finished: Sequence[str]) -> None:
        """Show the bars."""
        self._count.begin(len(names), len(finished))
        self._show_whole()
        self._progress.start()

    def watch(self, name: str) -> Sequence[Observer]:
        """The bar of one run."""
        self._count.begin_run()
        return [BarOfOne(self._progress, self._present, self._count, self._show_whole)]

    def done(self, name: str) -> None:
        """Move the bar of all runs."""
        self._count.end_run(failed=False)
        self._show_whole()

    def failed(self, name: str, why: str) -> None:
        """Say so, and move the bar of all runs."""
        self._count.end_run(failed=True)
        self.message(f"{name} failed: {why}")
        self._show_whole()

    def message(self, text: str) -> None:
        """Above the bars."""
        show_above(self._progress, text)

    def end(self) -> None:
        """Remove the bars."""
        self._progress.stop()

    def _show_whole(self) -> None:
        count = self._count
        left = count.seconds_left()
        seen = f"{count.failed} failed"
        if left is not None:
            seen += f", {describe_seconds(left)} left"
        self._progress.update(
            self._whole,
            total=count.total,
            completed=count.done + count.failed,
            seen=seen,
        )


class BarOfOne(Observer):
    """The bar of the present run."""

    def __init__(
        self,
        progress: Progress,
        task: TaskID,
        count: Count,
        show_whole: Callable[[], None],
    ) -> None:
        self._progress = progress
        self._task = task
        self._count = count
        self._show_whole = show_whole
        self._title = ""

    def begin(self, config: Experiment, first_round: int) -> None:
        """Show the bar."""
        self._title = title_of(config)
        self._progress.reset(
            self._task,
            description=self._title,
            total=config.rounds,
            completed=first_round - 1,
            visible=True,
            seen="",
        )

    def round(self, record: RoundRecord) -> None:
        """Move the bar."""
        accuracy = accuracy_of(record)
        if accuracy is not None:
            self._progress.update(self._task, seen=f"accuracy {accuracy:.4f}")
        self._progress.update(self._task, completed=record.t)
        (task,) = [one for one in self._progress.tasks if one.id == self._task]
        self._count.move(record.t / (task.total or 1))
        self._show_whole()

    def message(self, text: str) -> None:
        """Above the bars, with the run's name."""
        if self._count.is_news(text):
            show_above(self._progress, f"{self._title}: {text}")

    def end(self, result: dict[str, Any] | None) -> None:
        """Hide the bar."""
        self._progress.update(self._task, visible=False)


def show_above(progress: Progress, text: str) -> None:
    """A line above live bars."""
    progress.console.print(text, highlight=False, markup=False, soft_wrap=True)


# ---------------------------------------------------------------- nothing
class TotalSilence(ManyRuns):
    """Shows only what must be known."""

    def __init__(self) -> None:
        self._silent = Silent()

    def watch(self, name: str) -> Sequence[Observer]:
        """Warnings of the run."""
        return [self._silent]

    def failed(self, name: str, why: str) -> None:
        """As a warning."""
        self._silent.message(f"warning: {name} failed: {why}")

    def message(self, text: str) -> None:
        """Warnings."""
        self._silent.message(text)


def make_total(quiet: bool, noun: str = "runs") -> ManyRuns:
    """What fits the output; ``noun`` is what is counted."""
    if quiet:
        return TotalSilence()
    console = Console()
    return TotalBars(console, noun) if console.is_terminal else TotalLines(noun)
