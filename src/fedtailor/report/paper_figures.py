"""The papers' figures, drawn from runs: ours beside theirs, sweeps, curves, partitions."""

from __future__ import annotations

import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

from fedtailor.data.federation import Federation, features
from fedtailor.engine.paper import Cell, Outcome, Repeated
from fedtailor.experiment.config import Experiment, make_experiment
from fedtailor.experiment.paper_table import PaperTable, options_of
from fedtailor.experiment.prepare import prepare_federation
from fedtailor.experiment.run_folder import JOURNAL, read_journal
from fedtailor.report.figure import (
    COLOURS,
    DASHES,
    label_rounds,
    make_figure,
    save_figure,
    tidy_axes,
)
from fedtailor.report.partition_chart import draw_partition

PANELS_IN_A_ROW = 4
EXAMPLES = 6  # pictures of a client
FIGURES_OF_A_RUN = ("notes.png", "notes.svg", "curves.png", "curves.svg")
THEIRS = "#777777"
OURS = COLOURS[0]


def draw_figure(folder: Path, repeated: Repeated) -> list[Path]:
    """What the table's or figure's file asks for."""
    draw = DRAWN[repeated.table.figure]
    return draw(folder, repeated)


# ---------------------------------------------------------------- ours beside theirs
def draw_dots(folder: Path, repeated: Repeated) -> list[Path]:
    """A panel for every column: ours as dots with their spread, theirs as circles."""
    columns = repeated.columns
    across = min(len(columns), PANELS_IN_A_ROW)
    down = math.ceil(len(columns) / across)
    height = 0.26 * len(repeated.rows) + 1.1
    figure = make_figure(2.6 * across + 1.6, height * down + 0.5)
    panels = figure.subplots(down, across, squeeze=False, sharey=True)
    for spare in panels.flat[len(columns) :]:
        spare.set_visible(False)
    for panel, column in zip(panels.flat, columns, strict=False):
        _draw_dots_of_column(panel, repeated, column)
    panels.flat[0].invert_yaxis()
    _draw_key(panels.flat[0])
    figure.suptitle(_title(repeated), fontsize=10)
    return save_figure(figure, folder / "figure")


def _draw_dots_of_column(axes: Any, repeated: Repeated, column: int) -> None:
    table = repeated.table
    names = [table.rows[i].name for i in repeated.rows]
    for place, i in enumerate(repeated.rows):
        cell = repeated.cells.get((i, column))
        if cell is not None:
            _draw_cell(axes, place, cell)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_title(table.columns[column].name, fontsize=9)
    axes.set_xlabel(table.unit_of(table.columns[column]), fontsize=8)
    axes.tick_params(axis="x", labelsize=8)
    tidy_axes(axes)


def _draw_cell(axes: Any, place: int, cell: Cell) -> None:
    if cell.published is not None:
        axes.errorbar(
            cell.published.mean,
            place + 0.14,
            xerr=cell.published.spread,
            fmt="o",
            markersize=5,
            markerfacecolor="white",
            color=THEIRS,
            linewidth=1,
        )
    if cell.mean is not None:
        axes.errorbar(
            cell.mean,
            place - 0.14,
            xerr=cell.spread,
            fmt="o",
            markersize=5,
            color=OURS,
            linewidth=1,
        )


def _draw_key(axes: Any) -> None:
    """What dots and circles are, beside the first panel's title."""
    axes.plot([], [], "o", color=OURS, label="ours")
    axes.plot([], [], "o", color=THEIRS, markerfacecolor="white", label="paper")
    axes.legend(fontsize=7, frameon=False, loc="best")


def _title(repeated: Repeated) -> str:
    table = repeated.table
    return f"{table.paper}, {table.where}: {table.title} ({repeated.scale})"


# ---------------------------------------------------------------- sweeps
def draw_sweep(folder: Path, repeated: Repeated) -> list[Path]:
    """A line for every row over the columns; the paper's dashed. Or the other way round."""
    figure = make_figure(7.2, 4.4)
    axes = figure.subplots()
    by_column = len(repeated.columns) > 2
    lines = repeated.rows if by_column else repeated.columns
    steps = repeated.columns if by_column else repeated.rows
    for order, line in enumerate(lines):
        places = [(line, step) if by_column else (step, line) for step in steps]
        name = _name_of_line(repeated.table, line, by_column)
        cells = [repeated.cells.get(place) for place in places]
        _draw_line(axes, order, name, cells)
    axes.set_xticks(range(len(steps)), _names_of_steps(repeated, steps, by_column))
    axes.set_ylabel(repeated.table.unit)
    axes.legend(fontsize=8, frameon=False, ncol=2)
    axes.set_title(_title(repeated), fontsize=10)
    tidy_axes(axes)
    return save_figure(figure, folder / "figure")


def _name_of_line(table: PaperTable, line: int, by_column: bool) -> str:
    return table.rows[line].name if by_column else table.columns[line].name


def _names_of_steps(repeated: Repeated, steps: list[int], by_column: bool) -> list[str]:
    table = repeated.table
    return [_name_of_line(table, step, not by_column) for step in steps]


def _draw_line(axes: Any, order: int, name: str, cells: list[Cell | None]) -> None:
    colour = COLOURS[order % len(COLOURS)]
    ours = [math.nan if c is None or c.mean is None else c.mean for c in cells]
    theirs = []
    for cell in cells:
        published = None if cell is None else cell.published
        theirs.append(math.nan if published is None else published.mean)
    places = range(len(cells))
    axes.plot(places, ours, "o-", color=colour, label=name, markersize=4)
    if not all(math.isnan(x) for x in theirs):
        axes.plot(
            places, theirs, "--", color=colour, linewidth=1, label=f"{name}, paper"
        )


# ---------------------------------------------------------------- curves
def draw_curves(folder: Path, repeated: Repeated) -> list[Path]:
    """Accuracy and training loss over rounds, a pair of panels for every column."""
    columns = repeated.columns
    figure = make_figure(3.6 * len(columns) + 1.0, 5.6)
    panels = figure.subplots(2, len(columns), squeeze=False, sharex="col")
    for place, column in enumerate(columns):
        for order, row in enumerate(repeated.rows):
            outcomes = repeated.outcomes.get((row, column), [])
            label = repeated.table.rows[row].name
            _draw_run(panels[:, place], order, label, folder, list(outcomes))
        panels[0, place].set_title(repeated.table.columns[column].name, fontsize=9)
        label_rounds(panels[1, place])
    panels[0, 0].set_ylabel("test accuracy, %")
    panels[1, 0].set_ylabel("training loss")
    panels[0, 0].legend(fontsize=7, frameon=False)
    for axes in panels.flat:
        tidy_axes(axes)
    figure.suptitle(_title(repeated), fontsize=10)
    return save_figure(figure, folder / "figure")


def _draw_run(
    panels: Any, order: int, label: str, folder: Path, outcomes: list[Outcome]
) -> None:
    """The mean over seeds of a row's accuracy, before and after training, and of its loss."""
    journals = [
        read_journal(folder / "runs" / outcome.folder / JOURNAL)
        for outcome in outcomes
        if outcome.result is not None
    ]
    style = {
        "color": COLOURS[order % len(COLOURS)],
        "linestyle": DASHES[order // len(COLOURS) % len(DASHES)],
    }
    before = _mean_by_round(journals, _accuracy)
    after = _mean_by_round(journals, _accuracy_after)
    loss = _mean_by_round(journals, _training_loss)
    panels[0].plot(list(before), list(before.values()), label=label, **style)
    if after:
        style_after = {**style, "linestyle": ":"}
        name = f"{label}, after local training"
        panels[0].plot(list(after), list(after.values()), label=name, **style_after)
    panels[1].plot(list(loss), list(loss.values()), **style)


def _mean_by_round(
    journals: list[list[dict[str, Any]]],
    read: Callable[[dict[str, Any]], float | None],
) -> dict[int, float]:
    """By round, the mean over the journals that have a value there."""
    found: dict[int, list[float]] = {}
    for journal in journals:
        for record in journal:
            value = read(record)
            if value is not None:
                found.setdefault(int(record["t"]), []).append(value)
    return {t: sum(values) / len(values) for t, values in sorted(found.items())}


def _accuracy(record: dict[str, Any]) -> float | None:
    evaluation = record.get("evaluation")
    return 100 * evaluation["test"]["accuracy"] if evaluation else None


def _accuracy_after(record: dict[str, Any]) -> float | None:
    value = record.get("views", {}).get("after", {}).get("accuracy")
    return None if value is None else 100 * value


def _training_loss(record: dict[str, Any]) -> float | None:
    value = record.get("training", {}).get("loss")
    return None if value is None else float(value)


# ---------------------------------------------------------------- of single runs
def copy_diagnostics(folder: Path, repeated: Repeated) -> list[Path]:
    """The figures that each run draws of itself, under the names of row and column."""
    written = []
    for (row, column), outcomes in repeated.outcomes.items():
        stem = name_cell(repeated.table, row, column)
        for name in FIGURES_OF_A_RUN:
            source = folder / "runs" / outcomes[0].folder / name
            if source.exists():
                target = folder / f"{stem}-{name}"
                shutil.copyfile(source, target)
                written.append(target)
    return written


def name_cell(table: PaperTable, row: int, column: int) -> str:
    """A cell's name for files: ``TINY-FedCP``."""
    names = [table.columns[column].name, table.rows[row].name]
    return "-".join("".join(filter(str.isalnum, name)) for name in names)


# ---------------------------------------------------------------- data alone
def draw_partitions(folder: Path, table: PaperTable, scale: str) -> list[Path]:
    """Who has which data, for every column; nothing is trained."""
    written: list[Path] = []
    for column in range(len(table.columns)):
        config = make_data_options(table, scale, column)
        federation, _ = prepare_federation(config)
        written += draw_partition(federation, folder / f"partition-{column + 1}")
    return written


def make_data_options(table: PaperTable, scale: str, column: int) -> Experiment:
    """The experiment whose data a column shows."""
    return make_experiment(options_of(table, scale, 0, column))


def draw_examples(folder: Path, table: PaperTable, scale: str) -> list[Path]:
    """Pictures of every client, a row each."""
    written: list[Path] = []
    for column in range(len(table.columns)):
        config = make_data_options(table, scale, column)
        federation, _ = prepare_federation(config)
        figure = make_figure(EXAMPLES * 1.1, federation.clients * 1.1)
        panels = figure.subplots(federation.clients, EXAMPLES, squeeze=False)
        for k in range(federation.clients):
            _draw_pictures(panels[k], federation, k)
        written += save_figure(figure, folder / f"examples-{column + 1}")
    return written


def _draw_pictures(panels: Any, federation: Federation, k: int) -> None:
    """The first training pictures of client k."""
    chosen = federation.train[k][:EXAMPLES]
    rows = chosen if federation.row is None else federation.row[chosen]
    for axes in panels:
        axes.set_axis_off()
    for axes, x in zip(panels, features(federation.x[rows]), strict=False):
        picture = x.permute(1, 2, 0)
        low = picture.min()
        span = (picture.max() - low).clamp(min=1e-9)
        axes.imshow(((picture - low) / span).squeeze(-1), cmap="gray")
    panels[0].set_title(f"client {k}", fontsize=8, loc="left")


DRAWN_FROM_DATA: dict[str, Callable[[Path, PaperTable, str], list[Path]]] = {
    "partition": draw_partitions,
    "examples": draw_examples,
}
DRAWN: dict[str, Callable[[Path, Repeated], list[Path]]] = {
    "dots": draw_dots,
    "sweep": draw_sweep,
    "curves": draw_curves,
    "diagnostics": copy_diagnostics,
}
