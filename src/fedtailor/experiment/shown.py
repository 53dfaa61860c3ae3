"""How results look in a notebook and in a terminal: plain tables."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

LEFT = '<td style="text-align:left">'
RIGHT = "<td>"


def html_table(
    rows: Iterable[Sequence[str]],
    columns: Sequence[str] = (),
    caption: str = "",
    notes: Sequence[str] = (),
) -> str:
    """A table whose first column is text and whose others are numbers, or text beside names."""
    parts = ["<table>"]
    if caption:
        parts.append(f"<caption>{escape(caption)}</caption>")
    if columns:
        heads = "".join(f"<th>{escape(name)}</th>" for name in columns)
        parts.append(f"<thead><tr>{heads}</tr></thead>")
    parts.append("<tbody>")
    for row in rows:
        parts.append(f"<tr>{_write_cells(row, bool(columns))}</tr>")
    parts.append("</tbody></table>")
    parts += [f"<div><small>{escape(note)}</small></div>" for note in notes]
    return "".join(parts)


def _write_cells(row: Sequence[str], has_numbers: bool) -> str:
    cells = []
    for i, text in enumerate(row):
        begin = RIGHT if has_numbers and i else LEFT
        cells.append(f"{begin}{escape(text)}</td>")
    return "".join(cells)


def describe_rows(kind: str, rows: Iterable[Sequence[str]]) -> str:
    """Names and texts for a terminal, one pair a line."""
    lines = [f"  {name:12} {text}" for name, text in rows]
    return "\n".join([f"{kind}:", *lines])
