"""What a reader goes through to follow one round of a method, measured by running it.

    python -m tools.walk                  # FedAvg, two rounds on digits
    python -m tools.walk --method ditto

The rounds run under a profiler that notes every function of the package that is entered. A row
says how many functions of a file those are, how many lines of code they have (docstrings,
comments and blank lines left out), and how long the whole file is.
"""

from __future__ import annotations

import argparse
import ast
import inspect
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import fedtailor
from fedtailor.engine import start
from tools.density import (
    FUNCTIONS,
    PACKAGE,
    count_tokens,
    find_docstring_lines,
    last_line,
)

ROUNDS = 2


@dataclass(frozen=True)
class FileWalk:
    """What of one file a round goes through."""

    name: str
    functions: int
    code_lines: int
    file_lines: int


@contextmanager
def note_functions(entered: set[CodeType]) -> Iterator[None]:
    """Note the functions of the package that are entered meanwhile, in this thread."""

    def profile(frame: FrameType, event: str, argument: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(str(PACKAGE)):
            entered.add(code)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)


def watch_rounds(method: str) -> set[CodeType]:
    """Functions entered in the loop: clients' work, merging, evaluation, records, checkpoints."""
    entered: set[CodeType] = set()
    run_rounds = start.run_rounds

    def watched(*arguments: Any) -> None:
        with note_functions(entered):
            run_rounds(*arguments)

    start.run_rounds = watched
    try:
        with tempfile.TemporaryDirectory() as folder:
            fedtailor.run(
                method=method,
                data="digits",
                clients=4,
                rounds=ROUNDS,
                executor="sequential",
                out=Path(folder) / "run",
            )
    finally:
        start.run_rounds = run_rounds
    return entered


def measure_files(entered: set[CodeType]) -> list[FileWalk]:
    """A row for every file, those with most code first."""
    by_file: dict[str, set[int]] = {}
    for code in entered:
        by_file.setdefault(code.co_filename, set()).add(code.co_firstlineno)
    rows = [measure_file(Path(name), lines) for name, lines in by_file.items()]
    return sorted(rows, key=lambda row: -row.code_lines)


def measure_file(path: Path, starts: set[int]) -> FileWalk:
    """The functions of a file that begin on the given lines."""
    source = path.read_text(encoding="utf-8")
    tree = ast.parse(source)
    code = count_tokens(source, find_docstring_lines(tree))
    covered: set[int] = set()
    functions = 0
    for node in ast.walk(tree):
        if not isinstance(node, FUNCTIONS):
            continue
        first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
        if first in starts:
            functions += 1
            covered.update(range(first, last_line(node) + 1))
    return FileWalk(
        name=str(path.relative_to(PACKAGE)),
        functions=functions,
        code_lines=len(covered & set(code)),
        file_lines=len(source.splitlines()),
    )


def show_rows(rows: list[FileWalk]) -> str:
    """The rows, and their sum."""
    lines = [f"{'file':40}{'functions':>10}{'their code':>12}{'whole file':>12}"]
    for row in rows:
        lines.append(
            f"{row.name:40}{row.functions:>10}{row.code_lines:>12}{row.file_lines:>12}"
        )
    functions = sum(row.functions for row in rows)
    code_lines = sum(row.code_lines for row in rows)
    file_lines = sum(row.file_lines for row in rows)
    name = f"{len(rows)} files"
    lines.append(f"{name:40}{functions:>10}{code_lines:>12}{file_lines:>12}")
    return "\n".join(lines)


def main(words: list[str] | None = None) -> int:
    """Watch rounds and print the table."""
    description = inspect.getdoc(sys.modules[__name__]) or ""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--method", default="fedavg", help="which method (fedavg)")
    chosen = parser.parse_args(words)
    rows = measure_files(watch_rounds(chosen.method))
    print(show_rows(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
