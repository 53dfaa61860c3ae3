"""Files of inputs: csv, npy, npz, texts and pictures, as what a model takes."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data.input_spec import BYTES, InputSpec
from fedtailor.data.raw import Array
from fedtailor.data.readers.csv_table import MISSING, USUAL
from fedtailor.data.readers.images import ENDINGS, read_image
from fedtailor.data.readers.npz import read_npz
from fedtailor.data.readers.text_lines import read_csv_rows, read_lines
from fedtailor.data.sets.ag_news import FIRST, PAD, UNKNOWN, tokenize

TEXT = "text"  # the column of texts in a csv file
IMAGE_DIMENSIONS = 3


class Inputs(NamedTuple):
    """Inputs as a model takes them, and what each is called."""

    x: Tensor
    names: list[str]


def read_inputs(path: Path, spec: InputSpec) -> Inputs:
    """The inputs in a file, or the pictures in a folder.

    Raises:
        UserError: what is there does not fit the model; one line says what and where.
    """
    if path.is_dir():
        return _read_folder(path, spec)
    if not path.exists():
        raise UserError(f"there is no file or folder {path}")
    if not path.is_file():  # a pipe would never end
        raise UserError(f"{path} is neither a file nor a folder")
    ending = path.suffix.lower()
    if ending in ENDINGS:
        return _read_pictures([path], spec)
    if ending not in READERS:
        raise UserError(
            f"{path}: inputs are .csv, .npy, .npz, .txt, pictures or a folder of them"
        )
    return READERS[ending](path, spec)


# ---------------------------------------------------------------- arrays
def _read_npy(path: Path, spec: InputSpec) -> Inputs:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # mapped: a header may claim more than the file holds
            mapped = np.load(path, mmap_mode="r", allow_pickle=False)
        array = np.array(mapped)
    except (OSError, ValueError, EOFError, MemoryError, SyntaxError) as error:
        raise UserError(f"{path} cannot be read as .npy: {error}") from None
    return _name_rows(path, spec, array)


def _read_npz(path: Path, spec: InputSpec) -> Inputs:
    arrays = read_npz(path)
    if "x" not in arrays and len(arrays) != 1:
        there = ", ".join(arrays) or "no arrays"
        raise UserError(f"{path} has no 'x' (there are {there})")
    array = arrays["x"] if "x" in arrays else next(iter(arrays.values()))
    return _name_rows(path, spec, array)


def _name_rows(path: Path, spec: InputSpec, array: Array) -> Inputs:
    if isinstance(array, np.ndarray) and array.ndim == 0:
        raise UserError(f"{path} holds a single value, not inputs")
    try:
        x = spec.check(fill_gaps(array, spec))
    except UserError as error:
        raise UserError(f"{path}: {error}") from None
    return Inputs(x, [str(i) for i in range(len(x))])


def fill_gaps(array: Array, spec: InputSpec) -> Array:
    """A raw table as the model takes it, where it fills in gaps."""
    fill = spec.fill
    is_raw = fill is not None and array.ndim and array.shape[-1] == len(fill.medians)
    if fill is None or not is_raw or array.dtype.kind not in "biuf":
        return array
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32)
    if np.isinf(numbers).any():
        raise UserError("the input holds infinity")
    table = torch.from_numpy(np.atleast_2d(numbers))
    return fill.apply(table).numpy()


# ---------------------------------------------------------------- tables and texts
def _read_csv(path: Path, spec: InputSpec) -> Inputs:
    rows = list(read_csv_rows(path))
    if len(rows) < 2:
        raise UserError(f"{path} has no row below its header")
    header = [cell.strip() for cell in rows[0][1]]
    for where, cells in rows[1:]:
        if len(cells) != len(header):
            raise UserError(f"{where}: {len(cells)} columns instead of {len(header)}")
    if spec.kind == "text":
        return _read_text_column(path, header, rows[1:], spec)
    if spec.kind != "table":
        raise UserError(f"{path}: the model takes {spec.kind} inputs, not tables")
    indices = find_columns(header, spec, str(path))
    table = np.empty((len(rows) - 1, len(indices)), np.float32)
    for r, (where, cells) in enumerate(rows[1:]):
        for j, index in enumerate(indices):
            place = f"{where}, column '{header[index]}'"
            table[r, j] = read_cell(cells[index], place, spec)
    x = spec.check(fill_gaps(table, spec))
    return Inputs(x, [where.rpartition(", ")[2] for where, _ in rows[1:]])


def find_columns(header: Sequence[str], spec: InputSpec, where: str) -> list[int]:
    """Where the model's columns are in a table; further columns are not looked at."""
    if len(set(header)) != len(header):
        twice = max(header, key=list(header).count)
        raise UserError(f"{where}: column '{twice}' is there twice")
    if spec.columns:
        missing = [name for name in spec.columns if name not in header]
        if missing:
            raise UserError(
                f"{where}: no column is named '{missing[0]}'; the model takes"
                f" {', '.join(spec.columns)}"
            )
        return [list(header).index(name) for name in spec.columns]
    features = USUAL.are_features(list(header))
    found = [i for i, name in enumerate(header) if name in features]
    wanted = len(spec.fill.medians) if spec.fill else spec.shape[0]
    if len(found) != wanted:
        raise UserError(
            f"{where}: {len(found)} columns of features, the model takes {wanted}"
        )
    return found


def read_cell(cell: str, where: str, spec: InputSpec) -> float:
    """A number, or NaN for a gap where the model was trained with gaps."""
    if cell.strip().lower() in MISSING:
        if spec.fill is None:
            raise UserError(
                f"{where}: a value is missing, and this model has no medians of one"
                " client to fill it with"
            )
        return math.nan
    try:
        value = float(cell)
    except ValueError:
        raise UserError(f"{where}: '{cell[:40]}' is not a number") from None
    if not math.isfinite(value):
        raise UserError(f"{where}: '{cell[:40]}' is not a finite number")
    return value


def _read_text_column(
    path: Path, header: list[str], rows: list[tuple[str, list[str]]], spec: InputSpec
) -> Inputs:
    if TEXT not in header:
        raise UserError(f"{path}, line 1: no column is named '{TEXT}'")
    index = header.index(TEXT)
    texts = [cells[index] for _, cells in rows]
    return Inputs(
        encode_texts(texts, spec), [where.rpartition(", ")[2] for where, _ in rows]
    )


def _read_text_lines(path: Path, spec: InputSpec) -> Inputs:
    """One text a line; empty lines are left out."""
    lines = enumerate(read_lines(path), 1)
    texts = {f"line {number}": line for number, line in lines if line.strip()}
    if not texts:
        raise UserError(f"{path} holds no texts")
    return Inputs(encode_texts(list(texts.values()), spec), list(texts))


def encode_texts(texts: Sequence[str], spec: InputSpec) -> Tensor:
    """Texts as the numbers of the model's words, cut or filled up to its length."""
    if spec.kind != "text":
        raise UserError(f"the model takes {spec.kind} inputs, not texts")
    if not spec.words:
        raise UserError(
            "the run does not say which words its numbers are; give numbers of words"
        )
    number = {word: i for i, word in enumerate(spec.words, FIRST)}
    length = spec.shape[0]
    x = torch.full((len(texts), length), PAD, dtype=torch.int64)
    for row, text in zip(x, texts, strict=True):
        tokens = tokenize(text)[:length]
        numbers = [number.get(token, UNKNOWN) for token in tokens]
        row[: len(numbers)] = torch.tensor(numbers, dtype=torch.int64)
    return x


# ---------------------------------------------------------------- pictures
def _read_folder(folder: Path, spec: InputSpec) -> Inputs:
    """All pictures below a folder, by path; other files are not looked at."""
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    pictures = [path for path in files if path.suffix.lower() in ENDINGS]
    if not pictures:
        raise UserError(f"{folder} holds no pictures")
    found = _read_pictures(pictures, spec)
    return Inputs(found.x, [str(path.relative_to(folder)) for path in pictures])


def _read_pictures(paths: list[Path], spec: InputSpec) -> Inputs:
    if len(spec.shape) != IMAGE_DIMENSIONS or spec.dtype != BYTES:
        raise UserError(f"{paths[0]}: the model takes {spec.kind} inputs, not pictures")
    channels, height, width = spec.shape
    x = np.empty((len(paths), *spec.shape), np.uint8)
    for i, path in enumerate(paths):
        picture = read_image(path, mode="L" if channels == 1 else "RGB", upright=True)
        if picture.shape != spec.shape:
            _, rows, columns = picture.shape
            raise UserError(
                f"{path} has {columns} x {rows} pixels, the model takes"
                f" {width} x {height}"
            )
        x[i] = picture
    return Inputs(torch.from_numpy(x), [path.name for path in paths])


READERS: dict[str, Callable[[Path, InputSpec], Inputs]] = {
    ".npy": _read_npy,
    ".npz": _read_npz,
    ".csv": _read_csv,
    ".txt": _read_text_lines,
}
