"""Files of inputs: what is read from them, and what is refused in one line."""

from __future__ import annotations

import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import fedtailor
from fedtailor.data.federation import TableFill
from fedtailor.data.input_spec import InputSpec, parse_input_spec
from fedtailor.serving.inputs import read_inputs

TABLE = InputSpec("table", (3,), "float32", columns=("a", "b", "c"))
NAMELESS = InputSpec("table", (3,), "float32")
FILL = TableFill((1.0, 2.0, 3.0), (0.0, 0.0, 0.0), (1.0, 2.0, 1.0))
GAPS = InputSpec("table", (6,), "float32", columns=("a", "b", "c"), fill=FILL)
BYTES = InputSpec("image", (1, 2, 3), "uint8")
TEXTS = InputSpec("text", (4,), "int64", vocabulary=4, words=("good", "bad"))


def refuse(path: Path, spec: InputSpec, complaint: str) -> None:
    with pytest.raises(fedtailor.UserError) as error:
        read_inputs(path, spec)
    text = str(error.value)
    assert complaint in text and "\n" not in text, text


# ---------------------------------------------------------------- csv
def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_columns_are_found_by_name(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "c,id,a,label,b\n3,x7,1,ill,2\n6,x8,4,well,5\n")
    found = read_inputs(path, TABLE)
    assert found.x.tolist() == [[1, 2, 3], [4, 5, 6]]
    assert found.names == ["line 2", "line 3"]
    path = write(tmp_path / "y.csv", "p,q,r,label\n1,2,3,ill\n")
    assert read_inputs(path, NAMELESS).x.tolist() == [[1, 2, 3]]


def test_gaps_are_filled_as_in_training(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "a,b,c\n,4,?\n7,NA,9\n")
    expected = [[1, 2, 3, 1, 0, 1], [7, 1, 9, 0, 1, 0]]
    assert read_inputs(path, GAPS).x.tolist() == expected
    np.save(tmp_path / "x.npy", np.array([[np.nan, 4, np.nan], [7, np.nan, 9]]))
    assert read_inputs(tmp_path / "x.npy", GAPS).x.tolist() == expected
    np.save(tmp_path / "x.npy", np.array(expected, np.float32))
    assert read_inputs(tmp_path / "x.npy", GAPS).x.tolist() == expected


def test_fills_are_those_of_training(tmp_path: Path) -> None:
    """What a further row becomes is what it became among the training data."""
    from fedtailor.data.own.missing_values import fill_missing_values, find_fills

    rng = np.random.default_rng(0)
    table = rng.normal(3, 2, (40, 4)).astype(np.float32)
    table[rng.random(table.shape) < 0.2] = np.nan
    x = torch.from_numpy(table)
    owner = torch.arange(40) % 2
    train = [torch.arange(0, 30, 2), torch.arange(1, 30, 2)]
    for standardise in (False, True):
        whole = fill_missing_values(x, owner, standardise, torch.cat(train))
        fills = find_fills(x, owner, standardise, train)
        for k, fill in enumerate(fills):
            assert fill is not None
            further = fill.apply(x[owner == k])
            assert torch.allclose(further, whole[owner == k], atol=1e-6)
    mixed = find_fills(x, owner, True, [torch.arange(10), torch.arange(10, 20)])
    assert mixed == [None, None]
    assert parse_input_spec(GAPS.to_dict()) == GAPS


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("a,b\n1,2\n", "no column is named 'c'; the model takes a, b, c"),
        ("a,b,c\n", "no row below its header"),
        ("", "no row below its header"),
        ("a,b,c\n1,2\n", "line 2: 2 columns instead of 3"),
        ("a,b,c,a\n1,2,3,4\n", "column 'a' is there twice"),
        ("a,b,c\n1,two,3\n", "line 2, column 'b': 'two' is not a number"),
        ("a,b,c\n1,1e999,3\n", "is not a finite number"),
        ("a,b,c\n1,,3\n", "line 2, column 'b': a value is missing"),
        ("a,b,c\n1,nan,3\n", "a value is missing"),
    ],
)
def test_wrong_tables(text: str, complaint: str, tmp_path: Path) -> None:
    refuse(write(tmp_path / "x.csv", text), TABLE, complaint)


def test_tables_for_other_models(tmp_path: Path) -> None:
    path = write(tmp_path / "x.csv", "a,b\n1,2\n")
    refuse(path, BYTES, "the model takes image inputs, not tables")
    refuse(path, TEXTS, "no column is named 'text'")
    refuse(path, NAMELESS, "2 columns of features, the model takes 3")
    (tmp_path / "y.csv").write_bytes(b"a,b,c\n1,\xff,3\n")
    refuse(tmp_path / "y.csv", TABLE, "save the file as UTF-8")


# ---------------------------------------------------------------- arrays
@pytest.mark.parametrize(
    "values",
    [
        np.array([[1, 2, 3]]),
        np.array([[1, 2, 3]], ">f4"),
        np.array([[1, 2, 3]], ">i2"),
        np.array([[1, 2, 3]], np.longdouble),
        np.array([[1, 2, 3]], np.float16),
        np.array([1, 2, 3], np.float32),
        np.asfortranarray(np.array([[1, 2, 3]], np.float64)),
    ],
)
def test_numbers_of_any_kind(values: np.ndarray, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", values)
    assert read_inputs(tmp_path / "x.npy", TABLE).x.tolist() == [[1, 2, 3]]
    np.savez(tmp_path / "x.npz", x=values, y=np.zeros(1))
    assert read_inputs(tmp_path / "x.npz", TABLE).x.tolist() == [[1, 2, 3]]


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        (np.array([["a", "b", "c"]]), "numbers only"),
        (np.array([["2020-01-01"] * 3], "datetime64[D]"), "numbers only"),
        (np.array([[1, 2, 3j]]), "numbers only"),
        (np.array([(1, 2)], [("a", int), ("b", int)]), "numbers only"),
        (np.array([[1, 2, 3]], np.uint8), "the input holds bytes (uint8)"),
        (np.array([[1, np.nan, 3]]), "NaN or infinity"),
        (np.array([[1, 1e60, np.inf]]), "NaN or infinity"),
        (np.array([[1, 2]]), "shape (3,), not (2,)"),
        (np.array(1.0), "single value"),
    ],
)
def test_arrays_that_do_not_fit(
    values: np.ndarray, complaint: str, tmp_path: Path
) -> None:
    np.save(tmp_path / "x.npy", values)
    refuse(tmp_path / "x.npy", TABLE, complaint)


def test_files_that_are_not_what_they_say(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.array([[object()]]), allow_pickle=True)
    refuse(path, TABLE, "cannot be read as .npy")
    header = b"{'descr': '<f4', 'fortran_order': False, 'shape': (999999999999, 3), }"
    header += b" " * (118 - len(header) - 1) + b"\n"
    path.write_bytes(b"\x93NUMPY\x01\x00" + struct.pack("<H", 118) + header)
    refuse(path, TABLE, "cannot be read as .npy")
    path.write_bytes(b"")
    refuse(path, TABLE, "cannot be read as .npy")
    path.write_bytes(b"hello")
    refuse(path, TABLE, "cannot be read as .npy")
    pipe = tmp_path / "pipe.npy"
    os.mkfifo(pipe)
    refuse(pipe, TABLE, "neither a file nor a folder")
    refuse(tmp_path / "nowhere.npy", TABLE, "there is no file or folder")
    refuse(write(tmp_path / "x.parquet", ""), TABLE, "inputs are .csv, .npy")
    np.savez(tmp_path / "x.npz", a=np.zeros(1), b=np.zeros(1))
    refuse(tmp_path / "x.npz", TABLE, "has no 'x' (there are a, b)")


def test_bytes_and_words(tmp_path: Path) -> None:
    path = tmp_path / "x.npy"
    np.save(path, np.full((2, 1, 2, 3), 200))
    refuse(path, BYTES, "trained on bytes, and the input holds int64")
    np.save(path, np.full((2, 1, 2, 3), 200, np.uint8))
    assert read_inputs(path, BYTES).x.dtype == torch.uint8
    np.save(path, np.array([[0, 1, 2, 3]], np.uint16))
    assert read_inputs(path, TEXTS).x.tolist() == [[0, 1, 2, 3]]
    for wrong in ([[0, 1, 2, 4]], [[0, 1, 2, -1]], [[0.0, 1, 2, 3]]):
        np.save(path, np.array(wrong))
        refuse(path, TEXTS, "whole numbers from 0 to 3")


# ---------------------------------------------------------------- texts and pictures
def test_texts(tmp_path: Path) -> None:
    path = write(tmp_path / "x.txt", "Good, BAD day\n\nbad\n")
    found = read_inputs(path, TEXTS)
    assert found.x.tolist() == [[2, 1, 3, 1], [3, 0, 0, 0]]
    assert found.names == ["line 1", "line 3"]
    table = write(tmp_path / "x.csv", 'label,text\n0,"good, bad"\n')
    assert read_inputs(table, TEXTS).x.tolist() == [[2, 1, 3, 0]]
    refuse(path, TABLE, "table inputs, not texts")
    refuse(write(tmp_path / "y.txt", "\n\n"), TEXTS, "holds no texts")
    wordless = InputSpec("text", (4,), "int64", vocabulary=4)
    refuse(path, wordless, "does not say which words")


def test_pictures(tmp_path: Path) -> None:
    folder = tmp_path / "pictures"
    (folder / "b").mkdir(parents=True)
    grey = np.arange(6, dtype=np.uint8).reshape(2, 3)
    Image.fromarray(grey).save(folder / "b/2.png")
    Image.fromarray(grey + 9).save(folder / "1.png")
    (folder / "notes.md").write_text("not a picture")
    found = read_inputs(folder, BYTES)
    assert found.names == ["1.png", "b/2.png"]
    assert found.x[1, 0].tolist() == grey.tolist()
    assert read_inputs(folder / "1.png", BYTES).x.shape == (1, 1, 2, 3)
    refuse(folder, TABLE, "table inputs, not pictures")
    square = InputSpec("image", (1, 4, 4), "uint8")
    refuse(folder, square, "3 x 2 pixels, the model takes 4 x 4")
    (folder / "3.png").write_bytes(b"no picture")
    refuse(folder, BYTES, "cannot be read as a picture")
    (tmp_path / "empty").mkdir()
    refuse(tmp_path / "empty", BYTES, "holds no pictures")
