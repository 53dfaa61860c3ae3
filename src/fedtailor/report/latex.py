"""Tables for papers: LaTeX with booktabs."""

from __future__ import annotations

from collections.abc import Sequence

ESCAPED = {
    "\\": r"\textbackslash{}",
    "&": r"\&",
    "%": r"\%",
    "$": r"\$",
    "#": r"\#",
    "_": r"\_",
    "{": r"\{",
    "}": r"\}",
    "~": r"\textasciitilde{}",
    "^": r"\textasciicircum{}",
    "±": r"$\pm$",
}


def compose_latex(
    columns: Sequence[str], rows: Sequence[Sequence[str]], caption: str
) -> str:
    """A table with a caption; the first column is text, the others are numbers."""
    lines = [
        "% needs \\usepackage{booktabs}",
        r"\begin{table}",
        r"  \centering",
        rf"  \caption{{{escape_latex(caption)}}}",
        rf"  \begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
        r"    \toprule",
        f"    {_compose_row(columns)}",
        r"    \midrule",
    ]
    lines += [f"    {_compose_row(row)}" for row in rows]
    lines += [r"    \bottomrule", r"  \end{tabular}", r"\end{table}"]
    return "\n".join(lines) + "\n"


def _compose_row(cells: Sequence[str]) -> str:
    return " & ".join(map(escape_latex, cells)) + r" \\"


def escape_latex(text: str) -> str:
    """Text that LaTeX prints as it is."""
    return "".join(ESCAPED.get(letter, letter) for letter in text)
