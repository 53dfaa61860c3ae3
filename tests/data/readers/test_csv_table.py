"""csv files of a user: one table with all clients, or one a client."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from data_helpers import refusal

from fedtailor.data import load_dataset

GOOD = "age,label,bmi\n30,0,21.5\n40,1,30\n50,0,25\n"


def complaint(path: Path, **how: Any) -> str:
    return refusal(load_dataset, str(path), **how)


def test_one_table(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(GOOD)
    d = load_dataset(str(tmp_path / "mine.csv"))
    assert (
        d.x.tolist() == [[30, 21.5], [40, 30], [50, 25]]
        and d.y.tolist() == [0, 1, 0]
        and d.owner is None
    )


def test_columns_test_and_client(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text(
        "client,a,test,label\nsiteB,1,0,yes\nsiteA,2,true,no\nsiteB,3,False,no\n"
    )
    d = load_dataset(str(tmp_path / "mine.csv"))
    assert (
        d.owners == ("siteA", "siteB")
        and d.owner is not None
        and d.owner.tolist() == [1, 0, 1]
    )
    assert d.test is not None and d.test.tolist() == [False, True, False]
    assert (
        d.labels == ("no", "yes")
        and d.y.tolist() == [1, 0, 0]
        and d.x.tolist() == [[1], [2], [3]]
    )


def test_numbered_clients_with_a_gap(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("client,a,label\n0,1,0\n2,1,1\n0,1,0\n")
    assert "client 1 has no samples though there are clients up to 2" in complaint(
        tmp_path / "mine.csv"
    )


def test_one_table_a_client(tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    for name in ("siteB", "siteA"):
        (tmp_path / "own" / f"{name}.csv").write_text(GOOD)
    d = load_dataset(str(tmp_path / "own"))
    assert d.x.shape == (6, 2) and d.owners == ("siteA", "siteB")


def test_a_byte_order_mark_and_blank_lines_do_no_harm(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("\ufefflabel,a\n0,1\n\n1,2\n", encoding="utf-8")
    assert load_dataset(str(tmp_path / "mine.csv")).x.tolist() == [[1], [2]]


@pytest.mark.parametrize("gap", ["", "?", "NaN", "NA", "null"])
def test_gaps(gap: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(GOOD.replace("21.5", gap))
    assert (
        f"{path}, line 2, column 'bmi': a value is missing; --missing median"
        in complaint(path)
    )
    d = load_dataset(str(path), missing="median")
    assert d.fit is not None
    assert d.fit(torch.arange(3)).tolist() == [
        [30, 27.5, 0, 1],
        [40, 30, 0, 0],
        [50, 25, 0, 0],
    ]


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (GOOD + "60,1\n", "line 5: 2 columns instead of 3"),
        (GOOD.replace("40", "forty"), "line 3, column 'age': 'forty' is not a number"),
        (
            GOOD.replace("40", "inf"),
            "line 3, column 'age': 'inf' is not a finite number",
        ),
        (
            GOOD.replace("40", "1e60"),
            "line 3, column 'age': '1e60' is not a finite number",
        ),
        (
            GOOD.replace("label", "target"),
            "line 1: no column is named 'label' (there are age, target, bmi)",
        ),
        (GOOD.replace("bmi", "age"), "line 1: column 'age' is there twice"),
        ("label\n0\n1\n", "line 1: there is no column of features"),
        (GOOD.replace("40,1", "40,"), "line 3: the label is missing"),
        (GOOD.replace("40,1", "40,-1"), "sample 1 has label -1"),
        ("label,a,test\n0,1,2\n", "line 2: '2' in column 'test' is neither 0 nor 1"),
        ("age,label,bmi\n", "has no samples"),
        ("", "line 1: no column is named 'label' (there are none)"),
    ],
)
def test_bad_tables(content: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(content)
    text = complaint(path)
    assert expected in text and str(path) in text


def test_not_a_text_file(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_bytes(b"label,a\n\xff\xfe\x00,1\n")
    path = tmp_path / "mine.csv"
    assert f"{path}, line 2: byte 0xff is no text in UTF-8" in complaint(path)


@pytest.mark.parametrize(
    ("header", "why"),
    [
        ("age,label,size", "'bmi' is in one of them only"),
        ("bmi,label,age", "their order differs"),
    ],
)
def test_clients_with_different_columns(header: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "own").mkdir()
    (tmp_path / "own" / "a.csv").write_text(GOOD)
    (tmp_path / "own" / "b.csv").write_text(GOOD.replace("age,label,bmi", header))
    assert (
        f"b.csv and {tmp_path / 'own' / 'a.csv'} have different columns: {why}"
        in complaint(tmp_path / "own")
    )
