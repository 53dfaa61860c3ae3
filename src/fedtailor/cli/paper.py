"""The command ``fedtailor paper``: every table and figure of the five papers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedtailor.audit import papers as leakage
from fedtailor.audit.gradient import Search
from fedtailor.cli.pictures import gradcam, tsne
from fedtailor.core.errors import UserError
from fedtailor.engine.paper import Repeated, repeat_table
from fedtailor.experiment.paper_table import (
    SCALES,
    PaperTable,
    find_table,
    list_tables,
    plan_runs,
    refuse_scale,
    refuse_unscalable,
)
from fedtailor.report.figures import Figures
from fedtailor.report.paper_figures import DRAWN_FROM_DATA, draw_figure, name_cell
from fedtailor.report.paper_files import (
    print_published,
    print_repeated,
    write_table_files,
)
from fedtailor.report.progress import make_total

SMOKE_SEARCH = Search(iterations=2, restarts=1)  # one step, to show that it works

TableName = Annotated[
    str | None,
    typer.Argument(help="a table or figure; none lists them all", metavar="[ID]"),
]
Scale = Annotated[
    str, typer.Option(help=f"how much of the paper's setting: {', '.join(SCALES)}")
]
Methods = Annotated[
    str, typer.Option(help="only these rows, by commas (methods or rows' names)")
]
Columns = Annotated[str, typer.Option(help="only these columns, by commas")]
Seeds = Annotated[
    int | None, typer.Option(min=1, help="runs of every cell (the paper's number)")
]
Show = Annotated[bool, typer.Option("--show", help="only print the published numbers")]
DataDir = Annotated[
    Path | None, typer.Option(help="the folder of data sets (else $FEDTAILOR_DATA)")
]
Executor = Annotated[str | None, typer.Option(help="what runs the clients")]
Workers = Annotated[int | None, typer.Option(min=1, help="number of worker processes")]


def paper(
    name: TableName = None,
    show: Show = False,
    scale: Scale = "cpu",
    methods: Methods = "",
    columns: Columns = "",
    seeds: Seeds = None,
    out: Annotated[Path | None, typer.Option(help="folder for runs and table")] = None,
    data_dir: DataDir = None,
    executor: Executor = None,
    workers: Workers = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="no progress")] = False,
) -> None:
    """Repeat a table or a figure of the five papers, and set ours beside theirs."""
    refuse_scale(scale)
    if name is None:
        print_list(Console())
        return
    table = find_table(name)
    if show:
        print_published(Console(), table)
        return
    refuse_unscalable(table, scale)
    folder = out or Path("runs") / "papers" / f"{name.replace('/', '-')}-{scale}"
    machine = {"data_dir": data_dir, "executor": executor, "workers": workers}
    extra = {key: value for key, value in machine.items() if value is not None}
    chosen = Choice(split(methods), split(columns), seeds, extra)
    files = repeat(table, scale, chosen, folder, quiet)
    typer.echo(f"written to {folder}: {', '.join(path.name for path in files)}")


class Choice(NamedTuple):
    """What of a table is wanted, and options of the machine."""

    methods: list[str]
    columns: list[str]
    seeds: int | None
    extra: dict[str, Any]


def split(text: str) -> list[str]:
    """Names by commas."""
    return [name.strip() for name in text.split(",") if name.strip()]


def repeat(
    table: PaperTable, scale: str, chosen: Choice, folder: Path, quiet: bool
) -> list[Path]:
    """Run a table or a figure; gives the files with what was found."""
    if table.kind == "leakage":
        return repeat_leakage(table, scale, chosen, folder)
    if table.figure in DRAWN_FROM_DATA:
        make_folder(folder)
        return DRAWN_FROM_DATA[table.figure](folder, table, scale)
    if scale == "smoke" and not chosen.methods:
        chosen = chosen._replace(methods=[table.rows[0].name])
    if scale == "smoke" and not chosen.columns:
        chosen = chosen._replace(columns=[table.columns[0].name])
    runs = plan_runs(
        table,
        scale,
        methods=chosen.methods,
        columns=chosen.columns,
        seeds=chosen.seeds,
        extra=chosen.extra,
    )
    found = repeat_table(
        table,
        scale,
        runs,
        folder,
        lambda at: [Figures(at)],
        make_total(quiet),
    )
    print_repeated(Console(), found)
    files = write_table_files(folder, found)
    if table.figure in DRAWN_FROM_MODELS:
        return [*files, *draw_models(folder, found)]
    return [*files, *draw_figure(folder, found)]


def draw_models(folder: Path, found: Repeated) -> list[Path]:
    """What the kept models of every cell's first run look like."""
    draw = DRAWN_FROM_MODELS[found.table.figure]
    written = []
    for (row, column), outcomes in found.outcomes.items():
        if outcomes[0].result is None:
            continue
        stem = folder / name_cell(found.table, row, column)
        draw(folder / "runs" / outcomes[0].folder, stem)
        written += sorted(folder.glob(f"{stem.name}*"))
    return written


DRAWN_FROM_MODELS: dict[str, Callable[[Path, Path], None]] = {
    "tsne": lambda run, stem: tsne(run, out=stem),
    "gradcam": lambda run, stem: gradcam(run, out=stem),
}


def repeat_leakage(
    table: PaperTable, scale: str, chosen: Choice, folder: Path
) -> list[Path]:
    """The papers' attack on real uploads, as ``fedtailor audit --paper`` makes it."""
    search = SMOKE_SEARCH if scale == "smoke" else Search(400, 1)
    data_dir = chosen.extra.get("data_dir")
    files = leakage.repeat_table(table.id, 0, search, folder, data_dir, typer.echo)
    typer.echo(files[-1].read_text(encoding="utf-8"))
    return files


def make_folder(folder: Path) -> None:
    """A folder for files; refuses a path that cannot be one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}") from None


def print_list(console: Console) -> None:
    """All tables and figures, a line each."""
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for head in ("id", "paper", "where", "what"):
        shown.add_column(head, no_wrap=head != "what")
    for name in list_tables():
        table = find_table(name)
        shown.add_row(name, table.paper, table.where, escape(table.title))
    console.print(shown)
    console.print("fedtailor paper ID --show prints the published numbers;")
    console.print("fedtailor paper ID --scale full|cpu|smoke runs it.")
