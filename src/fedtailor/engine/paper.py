"""Running a paper's table: what is not there yet, cell by cell, and ours beside theirs."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.errors import UserError
from fedtailor.engine.compare import PlannedRun, run_or_read
from fedtailor.engine.observer import ManyRuns, Observer
from fedtailor.engine.stopping import Stopped
from fedtailor.evaluation.paired import LEVEL
from fedtailor.experiment.paper_table import (
    PaperRun,
    PaperTable,
    Published,
    read_measure,
)
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.experiment.variants import Variant

Place = tuple[int, int]  # row and column of a cell


class Outcome(NamedTuple):
    """What became of a run: a result and its folder, or why there is none."""

    folder: str
    seed: int
    result: dict[str, Any] | None
    error: str = ""


@dataclass(frozen=True)
class Cell:
    """Ours beside theirs."""

    values: tuple[float, ...]  # one a seed, in the table's unit
    published: Published | None
    errors: tuple[str, ...]
    published_seeds: int

    @property
    def mean(self) -> float | None:
        """Ours, over seeds."""
        return statistics.fmean(self.values) if self.values else None

    @property
    def spread(self) -> float | None:
        """The standard deviation over seeds; None with fewer than two."""
        return statistics.stdev(self.values) if len(self.values) > 1 else None

    @property
    def difference(self) -> float | None:
        """Ours minus theirs."""
        if self.mean is None or self.published is None:
            return None
        return self.mean - self.published.mean

    def interval(self) -> tuple[float, float] | None:
        """An interval of 95 % for the difference, by Welch's test from means and deviations.

        What a paper prints after ± is taken for the standard deviation over its runs. None
        where a deviation is unknown on either side.
        """
        if self.difference is None or self.spread is None:
            return None
        if self.published is None or self.published.spread is None:
            return None
        ours = self.spread**2 / len(self.values)
        theirs = self.published.spread**2 / self.published_seeds
        error = math.sqrt(ours + theirs)
        if error == 0:
            return self.difference, self.difference
        freedom = _degrees_of_freedom(
            ours, len(self.values), theirs, self.published_seeds
        )
        from scipy import stats  # takes a second to import

        reach = float(stats.t.ppf(1 - LEVEL / 2, freedom)) * error
        return self.difference - reach, self.difference + reach

    @property
    def verdict(self) -> str:
        """What the interval says: equal within chance, higher, lower; or why it says nothing."""
        if not self.values:
            return "failed" if self.errors else "not run"
        if self.published is None:
            return "not printed"
        interval = self.interval()
        if interval is None:
            return "no interval"
        low, high = interval
        if low > 0:
            return "higher"
        return "lower" if high < 0 else "equal"


def _degrees_of_freedom(a: float, n: int, b: float, m: int) -> float:
    """Welch and Satterthwaite's, from two variances of means."""
    weight = 0.0
    if n > 1:
        weight += a**2 / (n - 1)
    if m > 1:
        weight += b**2 / (m - 1)
    return (a + b) ** 2 / weight if weight else 1.0


class Agreement(NamedTuple):
    """How far our order of methods in a column is the paper's."""

    tau: (
        float | None
    )  # Kendall's, 1 for the same order; None with fewer than two methods
    p: float | None
    methods: int


@dataclass(frozen=True)
class Repeated:
    """A table, repeated."""

    table: PaperTable
    scale: str
    cells: Mapping[Place, Cell]
    outcomes: Mapping[Place, Sequence[Outcome]]

    @property
    def rows(self) -> list[int]:
        """Rows of which something was run."""
        return sorted({row for row, _ in self.cells})

    @property
    def columns(self) -> list[int]:
        """Columns of which something was run."""
        return sorted({column for _, column in self.cells})

    def agreement(self, column: int) -> Agreement:
        """The order of methods in a column, ours beside theirs."""
        ours: list[float] = []
        theirs: list[float] = []
        for row in self.rows:
            cell = self.cells.get((row, column))
            if cell is None or cell.published is None or cell.mean is None:
                continue
            if self.table.rows[row].ranked:
                ours.append(cell.mean)
                theirs.append(cell.published.mean)
        if len(ours) < 2 or len(set(ours)) < 2 or len(set(theirs)) < 2:
            return Agreement(None, None, len(ours))
        from scipy import stats

        found = stats.kendalltau(ours, theirs)
        return Agreement(float(found.statistic), float(found.pvalue), len(ours))


def repeat_table(
    table: PaperTable,
    scale: str,
    runs: Sequence[PaperRun],
    out: Path,
    observers: Callable[[RunFolder], Sequence[Observer]] = lambda folder: (),
    progress: ManyRuns | None = None,
) -> Repeated:
    """Run what is not there yet, and set every cell beside the published one.

    A run that cannot be made is a cell that says why; the others go on.
    """
    watching = progress or ManyRuns()
    watching.begin([run.folder for run in runs], [])
    outcomes: dict[Place, list[Outcome]] = {}
    try:
        for run in runs:
            outcome = run_cell(run, out / "runs", observers, watching)
            for place in run.cells:
                outcomes.setdefault(place, []).append(outcome)
    finally:
        watching.end()
    cells = {place: make_cell(table, place, found) for place, found in outcomes.items()}
    return Repeated(table, scale, cells, outcomes)


def run_cell(
    run: PaperRun,
    out: Path,
    observers: Callable[[RunFolder], Sequence[Observer]],
    progress: ManyRuns,
) -> Outcome:
    """One run, which is begun, continued, or there already."""
    variant = Variant(label=run.config.method, method=run.config.method)
    planned = PlannedRun(run.folder, run.config, variant)
    seed = run.config.seed
    try:
        result = run_or_read(planned, out, observers, progress, {})
    except Stopped:
        raise
    except UserError as error:
        progress.failed(run.folder, str(error))
        return Outcome(run.folder, seed, None, str(error))
    return Outcome(run.folder, seed, result)


def make_cell(table: PaperTable, place: Place, outcomes: Sequence[Outcome]) -> Cell:
    """A cell from the results of its runs."""
    row, column = place
    measure = table.measure_of(table.columns[column], table.rows[row])
    factor = 100 if table.unit_of(table.columns[column]) == "%" else 1
    values: list[float] = []
    errors: list[str] = []
    for outcome in outcomes:
        if outcome.result is None:
            errors.append(outcome.error)
            continue
        value = read_measure(outcome.result, measure)
        if value is None:
            errors.append(f"the run has no {measure}")
        else:
            values.append(factor * value)
    return Cell(
        values=tuple(values),
        published=table.published(row, column),
        errors=tuple(errors),
        published_seeds=table.seeds("full"),
    )
