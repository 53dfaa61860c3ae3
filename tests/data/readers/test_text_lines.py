"""Lines and csv rows, and where they cannot be read."""

from __future__ import annotations

from pathlib import Path

from data_helpers import refusal

from fedtailor.data.readers.text_lines import read_csv_rows, read_lines


def test_rows_know_their_place(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text('\ufeffa, b\n\n"one\ntwo", 2\n', encoding="utf-8")
    assert list(read_csv_rows(path)) == [
        (f"{path}, line 1", ["a", "b"]),
        (f"{path}, line 4", ["one\ntwo", "2"]),
    ]


def test_lines(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("one\ntwo\n")
    assert read_lines(tmp_path / "a.txt") == ["one", "two"]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n\xff\n")
    expected = f"{path}, line 3: byte 0xff is no text in UTF-8; save the file as UTF-8"
    assert refusal(read_lines, path) == expected
    assert refusal(lambda: list(read_csv_rows(path))) == expected


def test_a_cell_that_is_too_long(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("a\n" + "x" * 200_000 + "\n")
    message = refusal(lambda: list(read_csv_rows(path)))
    assert str(path) in message and "field larger than field limit" in message
