"""Text and csv files; an error names the line that cannot be read."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from fedtailor.core.errors import UserError


def read_csv_rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Every row of a csv file with its place (``file, line 3``); blank lines are left out."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, skipinitialspace=True)
        while True:
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as e:
                raise UserError(f"{path}, line {reader.line_num + 1}: {e}") from None
            except UnicodeDecodeError:
                raise _explain_encoding(path) from None
            if cells:
                yield f"{path}, line {reader.line_num}", cells


def read_lines(path: Path) -> list[str]:
    """The lines of a text file."""
    try:
        return path.read_text("utf-8").splitlines()
    except UnicodeDecodeError:
        raise _explain_encoding(path) from None


def _explain_encoding(path: Path) -> UserError:
    """An error that names the first line that is not UTF-8."""
    content = path.read_bytes()
    try:
        content.decode("utf-8")
    except UnicodeDecodeError as e:
        line = content.count(b"\n", 0, e.start) + 1
        byte = content[e.start]
        return UserError(
            f"{path}, line {line}: byte 0x{byte:02x} is no text in UTF-8; save the file as UTF-8"
        )
    return UserError(f"{path} has changed while it was read; try again")
