"""A paper's table as files and on the screen: Markdown, CSV, LaTeX; ours beside theirs."""

from __future__ import annotations

import csv
import io
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fedtailor.engine.paper import Agreement, Cell, Repeated
from fedtailor.experiment.paper_table import LOST, PaperTable
from fedtailor.storage.files import write_bytes

SIGNS = {"equal": "=", "higher": "▲", "lower": "▼"}
SMOKE_NOTE = (
    "Two rounds on scikit-learn's digits: this shows that the command works, and says"
    " nothing of the table."
)
CPU_NOTE = "Scaled down: {words}. Differences are between two settings."
FULL_NOTE = "The paper's setting, as far as it is known."
LEGEND = (
    "ours (theirs); = equal within chance, ▲ ours higher, ▼ ours lower, by a 95 % interval"
    " of the difference (Welch's test; what a paper prints after ± is taken for the"
    " standard deviation over its runs). No sign: a deviation is unknown."
)


# ---------------------------------------------------------------- what was published
def print_published(console: Console, table: PaperTable) -> None:
    """The printed numbers, column by column where they do not fit side by side."""
    console.print(f"[bold]{escape(heading(table))}[/bold]")
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("", no_wrap=True)
    for column in table.columns:
        shown.add_column(escape(column.name), justify="right")
    for row in table.rows:
        cells = row.cells or [""] * len(table.columns)
        shown.add_row(escape(row.name), *map(escape, cells))
    console.print(shown)
    for line in describe_setting(table):
        console.print(escape(line))


def heading(table: PaperTable) -> str:
    """``FedCP, Table 2 (fedcp/t2): Main comparison``."""
    return f"{table.paper}, {table.where} ({table.id}): {table.title}"


def describe_setting(table: PaperTable) -> list[str]:
    """What the paper's setting is, what is scaled down, and what is odd."""
    full = ", ".join(f"{name}={value}" for name, value in table.full.items())
    lines = [f"full: {full}", f"cpu: {table.cpu.get('words', '')}"]
    if any(LOST in row.cells for row in table.rows):
        lines.append(f"{LOST}: cannot be read in the text of the paper")
    if table.remark:
        lines.append(table.remark)
    return lines


# ---------------------------------------------------------------- ours beside theirs
def describe_scale(repeated: Repeated) -> str:
    """What the numbers are worth at this scale."""
    if repeated.scale == "smoke":
        return SMOKE_NOTE
    if repeated.scale == "cpu":
        return CPU_NOTE.format(words=repeated.table.cpu.get("words", ""))
    return FULL_NOTE


def write_number(value: float | None, spread: float | None) -> str:
    """``97.93 ± 0.05``."""
    if value is None:
        return "–"
    text = f"{value:.2f}"
    return text if spread is None else f"{text} ± {spread:.2f}"


def write_cell(cell: Cell | None) -> str:
    """``97.10 ± 0.20 ▼ (97.93 ± 0.05)``."""
    if cell is None:
        return ""
    if cell.verdict == "failed":
        return "failed"
    ours = write_number(cell.mean, cell.spread)
    sign = SIGNS.get(cell.verdict, "")
    if cell.published is None:
        return ours
    theirs = write_number(cell.published.mean, cell.published.spread)
    return f"{ours} {sign} ({theirs})".replace("  ", " ")


def write_agreement(agreement: Agreement) -> str:
    """``0.71 (11)``: Kendall's tau and of how many methods."""
    if agreement.tau is None:
        return "–"
    return f"{agreement.tau:.2f} ({agreement.methods})"


def compose_grid(repeated: Repeated) -> tuple[list[str], list[list[str]]]:
    """Headings and rows of text."""
    table = repeated.table
    names = [table.columns[j].name for j in repeated.columns]
    lines = []
    for i in repeated.rows:
        cells = [write_cell(repeated.cells.get((i, j))) for j in repeated.columns]
        lines.append([table.rows[i].name, *cells])
    taus = [write_agreement(repeated.agreement(j)) for j in repeated.columns]
    lines.append(["order: Kendall's τ", *taus])
    return ["", *names], lines


def list_errors(repeated: Repeated) -> list[str]:
    """Why cells have no number, each reason once."""
    found: dict[str, None] = {}
    for (i, j), cell in repeated.cells.items():
        row = repeated.table.rows[i].name
        column = repeated.table.columns[j].name
        for error in cell.errors:
            found[f"{row}, {column}: {error}"] = None
    return list(found)


def compose_markdown(repeated: Repeated) -> str:
    """The table, its setting and its legend."""
    head, lines = compose_grid(repeated)
    rule = ["---", *["---:"] * (len(head) - 1)]
    grid = [head, rule, *lines]
    text = [f"# {heading(repeated.table)}", "", describe_scale(repeated), ""]
    text += ["| " + " | ".join(cells) + " |" for cells in grid]
    text += ["", LEGEND, ""]
    if repeated.table.remark:
        text += [repeated.table.remark, ""]
    errors = list_errors(repeated)
    if errors:
        text += ["Cells without a number:", ""]
        text += [f"- {error}" for error in errors]
        text.append("")
    return "\n".join(text)


CSV_HEAD = [
    "row",
    "method",
    "column",
    "measure",
    "unit",
    "ours",
    "ours_std",
    "seeds",
    "theirs",
    "theirs_std",
    "difference",
    "low",
    "high",
    "verdict",
    "error",
]


def compose_csv(repeated: Repeated) -> str:
    """A line for every cell, with numbers as they are."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(CSV_HEAD)
    for (i, j), cell in sorted(repeated.cells.items()):
        writer.writerow(_csv_line(repeated.table, i, j, cell))
    return text.getvalue()


def _csv_line(table: PaperTable, i: int, j: int, cell: Cell) -> list[object]:
    row = table.rows[i]
    column = table.columns[j]
    low, high = cell.interval() or (None, None)
    theirs = cell.published
    return [
        row.name,
        row.method,
        column.name,
        table.measure_of(column, row),
        table.unit_of(column),
        cell.mean,
        cell.spread,
        len(cell.values),
        None if theirs is None else theirs.mean,
        None if theirs is None else theirs.spread,
        cell.difference,
        low,
        high,
        cell.verdict,
        "; ".join(dict.fromkeys(cell.errors)),
    ]


def compose_latex(repeated: Repeated) -> str:
    """A ``tabular`` with booktabs' rules."""
    head, lines = compose_grid(repeated)
    columns = "l" + "r" * (len(head) - 1)
    text = [
        f"% {heading(repeated.table)}",
        f"% {describe_scale(repeated)}",
        f"\\begin{{tabular}}{{{columns}}}",
        "\\toprule",
        _latex_line(head),
        "\\midrule",
        *map(_latex_line, lines[:-1]),
        "\\midrule",
        _latex_line(lines[-1]),
        "\\bottomrule",
        "\\end{tabular}",
        "",
    ]
    return "\n".join(text)


LATEX = {
    "&": "\\&",
    "%": "\\%",
    "_": "\\_",
    "#": "\\#",
    "±": "$\\pm$",
    "▲": "$\\uparrow$",
    "▼": "$\\downarrow$",
    "τ": "$\\tau$",
    "–": "--",
}


def _latex_line(cells: list[str]) -> str:
    escaped = []
    for cell in cells:
        for plain, written in LATEX.items():
            cell = cell.replace(plain, written)
        escaped.append(cell)
    return " & ".join(escaped) + " \\\\"


def write_table_files(folder: Path, repeated: Repeated) -> list[Path]:
    """``table.md``, ``table.csv`` and ``table.tex``."""
    files = {
        folder / "table.md": compose_markdown(repeated),
        folder / "table.csv": compose_csv(repeated),
        folder / "table.tex": compose_latex(repeated),
    }
    for path, text in files.items():
        write_bytes(path, text.encode())
    return list(files)


def print_repeated(console: Console, repeated: Repeated) -> None:
    """The table on the screen."""
    console.print(f"[bold]{escape(heading(repeated.table))}[/bold]")
    console.print(escape(describe_scale(repeated)))
    head, lines = compose_grid(repeated)
    shown = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    shown.add_column("", no_wrap=True)
    for name in head[1:]:
        shown.add_column(escape(name), justify="right")
    for line in lines:
        shown.add_row(*map(escape, line))
    console.print(shown)
    console.print(LEGEND)
    for error in list_errors(repeated):
        console.print(escape(error))
