"""Tables on a screen of 80 columns: a row for every method, and what the columns mean below."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.markup import escape
from rich.table import Table
from rich.text import Text

LABEL_WIDTH = 20  # characters of a variant's label in a line


def make_table(title: str, columns: Sequence[str], notes: Sequence[str] = ()) -> Table:
    """An empty table whose first column are the labels of variants.

    Args:
        title: above it.
        columns: headings of the other columns.
        notes: what needs an explanation, below it.
    """
    table = Table(
        title="\n" + escape(title),
        caption=escape("\n".join(notes)) if notes else None,
        caption_justify="left",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=(0, 1, 0, 0),
    )
    table.add_column("method", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right")
    return table


def fold_label(label: str, width: int = LABEL_WIDTH) -> Text:
    """A label in lines of at most this width, broken after commas where that is possible."""
    pieces = label.replace("[", "[\n", 1).split("\n")
    pieces = [piece for part in pieces for piece in _split_after_commas(part)]
    lines = [""]
    for piece in pieces:
        if lines[-1] and len(lines[-1]) + len(piece) > width:
            lines.append(" ")
        lines[-1] += piece
    return Text("\n".join(_cut(line, width) for line in lines))


def _split_after_commas(text: str) -> list[str]:
    """``a,b`` as ``a,`` and ``b``."""
    *first, last = text.split(",")
    return [*(f"{piece}," for piece in first), last]


def _cut(line: str, width: int) -> str:
    """A line that is too long, in several."""
    starts = range(0, max(len(line), 1), width)
    return "\n".join(line[start : start + width] for start in starts)
