"""The papers' tables and figures: their settings and published numbers, and the runs they need.

Each is a TOML file in ``experiments/papers/<paper>/<table>.toml``: the paper's setting
(``full``), what is scaled down where a machine is small (``cpu``, in words and options),
columns, rows, and every published number. ``smoke`` is the same for all: digits in a few
rounds, which shows that the command works and says nothing of the table.
"""

from __future__ import annotations

import json
import math
import re
import statistics
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from fedtailor.core.errors import UserError, unknown
from fedtailor.experiment.config import Experiment, make_experiment

INSTALLED = Path(__file__).parent / "papers"
IN_THE_REPOSITORY = Path(__file__).parents[3] / "experiments" / "papers"

SCALES = ("full", "cpu", "smoke")
PAPERS = {  # folders, and what the papers are called
    "fedcp": "FedCP",
    "cd2": "CD2-pFed",
    "fed3p2p": "Fed3+2p",
    "gpfl": "GPFL",
    "pfedc": "pFedC",
}
LOST = "lost"  # a cell that cannot be read in the text of the paper
NUMBER = re.compile(r"^(\d+(?:\.\d+)?)(?: ± (\d+(?:\.\d+)?))?$")

# Two rounds on scikit-learn's digits, which are there without a download.
SMOKE: dict[str, Any] = {
    "data": "digits",
    "partition": "dirichlet:0.5",
    "clients": 6,
    "limit": 400,
    "rounds": 2,
    "evaluate_every": 1,
    "epochs": 1,
    "batch": 10,
}
KEPT_IN_SMOKE = ("views", "participation")


class Published(NamedTuple):
    """A printed number, and what stands after its ±."""

    mean: float
    spread: float | None


@dataclass(frozen=True)
class Column:
    """A column: a setting, and what is measured there."""

    name: str
    options: dict[str, Any]
    measure: str = ""  # the table's unless given
    unit: str = ""
    better: str = ""


@dataclass(frozen=True)
class Row:
    """A row: a method with its constants, and its published cells."""

    name: str
    method: str
    set: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    cells: list[str] = field(default_factory=list)  # none where a figure prints none
    measure: str = ""  # where a row is measured by something else
    ranked: bool = True  # whether it takes part in the order of methods
    # whose score a paper calls the local model's: the personal model's, or right after training
    local_model: str = "personal"


@dataclass(frozen=True)
class PaperTable:
    """A table or a figure of a paper."""

    id: str
    title: str
    paper: str
    where: str
    full: dict[str, Any]
    cpu: dict[str, Any]
    columns: list[Column]
    rows: list[Row]
    kind: str = "table"  # table, figure, leakage
    figure: str = "dots"  # how it is drawn
    measure: str = "accuracy.best_on_test"
    unit: str = "%"
    better: str = "higher"
    remark: str = ""

    def measure_of(self, column: Column, row: Row) -> str:
        """Where in a result a cell's number stands."""
        measure = row.measure or column.measure or self.measure
        if measure != "local_model":
            return measure
        view = "after" if row.local_model == "after" else "personal"
        return f"views.{view}.accuracy"

    def unit_of(self, column: Column) -> str:
        """The unit of a column's numbers."""
        return column.unit or self.unit

    def is_higher_better(self, column: Column) -> bool:
        """Whether more is better in a column."""
        return (column.better or self.better) == "higher"

    def published(self, row: int, column: int) -> Published | None:
        """The printed number of a cell; None where there is none."""
        cells = self.rows[row].cells
        return read_cell(cells[column]) if cells else None

    def seeds(self, scale: str) -> int:
        """Runs of every cell."""
        if scale == "smoke":
            return 1
        chosen = {**self.full, **(self.cpu if scale == "cpu" else {})}
        return int(chosen.get("seeds", 1))


class PaperRun(NamedTuple):
    """A run that some cells need."""

    folder: str
    config: Experiment
    cells: tuple[tuple[int, int], ...]  # row and column


# ---------------------------------------------------------------- reading
def papers_folder() -> Path:
    """Where the files are: in the package, or in the repository."""
    return INSTALLED if INSTALLED.is_dir() else IN_THE_REPOSITORY


def list_tables() -> list[str]:
    """The ids of all tables and figures, in the order of the papers."""
    found = []
    for paper in PAPERS:
        stems = [path.stem for path in (papers_folder() / paper).glob("*.toml")]
        found += [f"{paper}/{stem}" for stem in sorted(stems, key=_order)]
    return found


def _order(stem: str) -> tuple[str, int]:
    """Tables before figures and appendices, each by number."""
    letter = stem[0]
    return ("" if letter == "t" else letter, int(stem[1:]))


def find_table(name: str) -> PaperTable:
    """A table by its id, such as ``fedcp/t2``."""
    names = list_tables()
    if name not in names:
        raise unknown("table", name, names)
    path = papers_folder() / f"{name}.toml"
    return read_table(name, path.read_text(encoding="utf-8"))


def read_table(name: str, text: str) -> PaperTable:
    """A table from the text of its file."""
    values = tomllib.loads(text)
    columns = [Column(**column) for column in values.pop("columns")]
    rows = [Row(**row) for row in values.pop("rows")]
    return PaperTable(id=name, columns=columns, rows=rows, **values)


def read_cell(text: str) -> Published | None:
    """``97.93 ± 0.05``, ``7.30``; None for a cell that is empty, lost or no number."""
    found = NUMBER.match(text)
    if found is None:
        return None
    mean, spread = found.groups()
    return Published(float(mean), None if spread is None else float(spread))


# ---------------------------------------------------------------- runs
def plan_runs(
    table: PaperTable,
    scale: str,
    *,
    methods: Sequence[str] = (),
    columns: Sequence[str] = (),
    seeds: int | None = None,
    extra: Mapping[str, Any] | None = None,
) -> list[PaperRun]:
    """The runs that a table needs; cells that differ only in what is measured share theirs.

    Args:
        table: the table.
        scale: full, cpu or smoke.
        methods: only rows of these methods or names.
        columns: only columns of these names.
        seeds: runs of every cell; the table's unless given.
        extra: options of the machine, such as ``data_dir``, ``executor`` and ``workers``.
    """
    rows = choose_rows(table, methods)
    chosen = choose_columns(table, columns)
    count = seeds or table.seeds(scale)
    by_key: dict[str, tuple[str, dict[str, Any], list[tuple[int, int]]]] = {}
    for j in chosen:
        for i in rows:
            options = options_of(table, scale, i, j)
            key = json.dumps(options, sort_keys=True)
            name = f"{_slug(table.columns[j].name)}/{_slug(table.rows[i].name)}"
            _, _, cells = by_key.setdefault(key, (name, options, []))
            cells.append((i, j))
    runs = []
    for name, options, cells in by_key.values():
        for seed in range(count):
            config = make_experiment({**options, **(extra or {}), "seed": seed})
            runs.append(PaperRun(f"{name}-s{seed}", config, tuple(cells)))
    return runs


def options_of(table: PaperTable, scale: str, row: int, column: int) -> dict[str, Any]:
    """The options of a cell's runs, but for the seed."""
    of_row = table.rows[row].options
    of_column = table.columns[column].options
    if scale == "smoke":
        options = _smoke_options({**table.full, **of_column}, of_row)
    else:
        smaller = table.cpu if scale == "cpu" else {}
        options = {**table.full, **of_column, **smaller, **of_row}
    for name in ("seeds", "words"):
        options.pop(name, None)
    hyper = table.rows[row].set
    if scale == "smoke":
        hyper = _shorten_phases(hyper)
    return {**options, "method": table.rows[row].method, "set": hyper}


def _smoke_options(
    wanted: Mapping[str, Any], of_row: Mapping[str, Any]
) -> dict[str, Any]:
    kept = {name: wanted[name] for name in KEPT_IN_SMOKE if name in wanted}
    if wanted.get("model") == "linear" or of_row.get("model") == "linear":
        kept["model"] = "linear"
    return {**SMOKE, **kept}


def _shorten_phases(hyper: Mapping[str, Any]) -> dict[str, Any]:
    """Two rounds have no place for a first phase of a hundred."""
    return {name: value for name, value in hyper.items() if name != "phase1"}


def choose_rows(table: PaperTable, methods: Sequence[str]) -> list[int]:
    """The rows of the given methods; all where none are given."""
    names = {row.method for row in table.rows} | {row.name for row in table.rows}
    for name in methods:
        if name not in names:
            raise unknown(f"method of {table.id}", name, sorted(names))
    return [
        i
        for i, row in enumerate(table.rows)
        if not methods or row.method in methods or row.name in methods
    ]


def choose_columns(table: PaperTable, columns: Sequence[str]) -> list[int]:
    """The columns of the given names; all where none are given."""
    names = [column.name for column in table.columns]
    for name in columns:
        if name not in names:
            raise unknown(f"column of {table.id}", name, names)
    return [j for j, name in enumerate(names) if not columns or name in columns]


def _slug(text: str) -> str:
    """A name for a folder."""
    return re.sub(r"[^A-Za-z0-9.+*]+", "-", text).strip("-").replace("*", "-star")


# ---------------------------------------------------------------- results
def read_measure(result: Mapping[str, Any], measure: str) -> float | None:
    """A number of a result by its place, ``views.new.accuracy``; None where it is not there."""
    if measure in SPECIAL:
        return SPECIAL[measure](result)
    value: Any = result
    for step in measure.split("."):
        try:
            value = value[int(step)] if isinstance(value, list) else value[step]
        except (KeyError, IndexError, TypeError, ValueError):
            return None
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and math.isfinite(value) else None


def _minutes(result: Mapping[str, Any], name: str) -> float | None:
    seconds = read_measure(result, f"seconds.{name}")
    return None if seconds is None else seconds / 60


def _task_accuracy(result: Mapping[str, Any]) -> float | None:
    """The mean over clients of the accuracy over all tasks, as the method's diagnostics tell it."""
    by_client = result.get("notes", {}).get("test/acc_task_all", {})
    values = [value for value in by_client.values() if value is not None]
    return statistics.fmean(values) if values else None


SPECIAL = {
    "minutes_to_converge": lambda result: _minutes(result, "to_converge"),
    "minutes_per_round": lambda result: _minutes(result, "training_per_round"),
    "task_accuracy": _task_accuracy,
}


def refuse_scale(scale: str) -> None:
    """One line for a scale that is none."""
    if scale not in SCALES:
        raise unknown("scale", scale, SCALES)


def refuse_unscalable(table: PaperTable, scale: str) -> None:
    """Some data cannot be cut down, and must be there."""
    if scale == "cpu" and "must be at hand" in str(table.cpu.get("words", "")):
        raise UserError(
            f"{table.id} has no cpu scale: {table.cpu['words']};"
            " take --scale full with the data, or --scale smoke"
        )
