"""What is shown while many runs go on."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from fedtailor.engine.observer import RoundRecord
from fedtailor.experiment.config import make_experiment
from fedtailor.report.progress import (
    Count,
    TotalBars,
    TotalLines,
    describe_seconds,
    make_total,
)


class Clock:
    """A clock that is set by hand."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def test_the_time_left_follows_from_the_runs_that_are_over() -> None:
    clock = Clock()
    count = Count(clock=clock)
    count.begin(6, 2)
    assert count.seconds_left() is None
    count.begin_run()
    clock.now = 5
    count.move(0.5)
    assert count.seconds_left() == pytest.approx(4 * 10 - 5)
    clock.now = 10
    count.end_run(failed=False)
    assert count.describe(0) == "3 of 6 runs done, 0 failed, about 30 s left"
    count.begin_run()
    clock.now = 30
    count.end_run(failed=True)
    assert count.describe(1) == "3 of 6 runs done, 1 running, 1 failed, about 30 s left"
    times = [describe_seconds(x) for x in (12.4, 600, 12_000)]
    assert times == ["12 s", "10 min", "3 h 20 min"]


def test_every_line_names_its_run(capsys: pytest.CaptureFixture[str]) -> None:
    total = TotalLines(seconds=0)
    total.begin(["a", "b", "c"], ["a"])
    for name, method in (("b", "ditto"), ("c", "fedavg")):
        (observer,) = total.watch(name)
        observer.begin(make_experiment({"method": method, "rounds": 2}), 1)
        observer.message("executor: sequential")
        observer.message("warning: take care")
        observer.round(RoundRecord(1, [0]))
        observer.round(RoundRecord(2, [0]))
        if name == "b":
            total.done(name)
        else:
            total.failed(name, "no usable reply")
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "3 runs, 1 of them finished before"
    assert (
        sum(line.startswith("[2/3] ditto on digits, seed 0: ") for line in lines) == 5
    )
    # what was told of one run is not told of the next; warnings are
    own = [
        line for line in lines if line.startswith("[3/3] fedavg on digits, seed 0: ")
    ]
    assert len(own) == 4 and "warning: take care" in own[1]
    assert lines[-2:] == ["c failed: no usable reply", "2 of 3 runs done, 1 failed"]


def test_bars_show_all_runs_and_the_present_one() -> None:
    file = io.StringIO()
    console = Console(file=file, force_terminal=True, width=100)
    total = TotalBars(console, "trials")
    total.begin(["a", "b"], [])
    (observer,) = total.watch("a")
    observer.begin(make_experiment({"method": "ditto", "rounds": 4}), 1)
    observer.round(RoundRecord(1, [0]))
    observer.message("warning: take care")
    total._progress.refresh()
    observer.end(None)
    total.failed("a", "it diverged")
    total.end()
    shown = file.getvalue()
    for text in ("all trials", "ditto on digits", "1/4", "a failed: it diverged"):
        assert text in shown, text
    assert "ditto on digits, seed 0: warning: take care" in shown


def test_quiet_shows_warnings_only(capsys: pytest.CaptureFixture[str]) -> None:
    total = make_total(quiet=True)
    total.begin(["a"], [])
    (observer,) = total.watch("a")
    observer.message("executor: sequential")
    observer.message("warning: take care")
    total.failed("a", "it diverged")
    total.end()
    seen = capsys.readouterr()
    assert seen.out == ""
    assert seen.err == "warning: take care\nwarning: a failed: it diverged\n"
