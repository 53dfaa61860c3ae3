"""npz files, sound and unsound."""

from __future__ import annotations

import io
import pickle
import zipfile
from pathlib import Path

import numpy as np
from data_helpers import refusal, write_npz

from fedtailor.data.readers.npz import read_samples


def test_all_arrays_are_read(tmp_path: Path) -> None:
    arrays = read_samples(
        write_npz(tmp_path / "mine.npz", test=np.arange(12) % 2, more=np.ones(2))
    )
    assert arrays.keys() == {"x", "y", "test", "more"}
    assert (
        arrays["test"].dtype == np.bool_
        and arrays["test"].tolist() == [False, True] * 6
    )


def test_no_such_file(tmp_path: Path) -> None:
    path = tmp_path / "none.npz"
    assert refusal(read_samples, path) == f"there is no file {path}"


def test_objects_are_refused(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "mine.npz", x=np.array([[1], [1, 2]] * 6, object))
    assert f"{path}: 'x' holds Python objects" in refusal(read_samples, path)


def test_a_key_is_missing(tmp_path: Path) -> None:
    np.savez(tmp_path / "mine.npz", data=np.zeros(3))
    assert "has no 'x' (there are data)" in refusal(read_samples, tmp_path / "mine.npz")


def test_a_truncated_file(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "mine.npz")
    path.write_bytes(path.read_bytes()[:-100])
    assert str(path) in refusal(read_samples, path) and "truncated" in refusal(
        read_samples, path
    )


def test_a_damaged_file(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "mine.npz", n=500)
    content = bytearray(path.read_bytes())
    content[3000] ^= 255
    path.write_bytes(bytes(content))
    assert f"{path} is truncated or damaged at 'x'" in refusal(read_samples, path)


def test_a_pickle_named_npz(tmp_path: Path) -> None:
    path = tmp_path / "mine.npz"
    path.write_bytes(pickle.dumps({"x": 1}))
    assert f"{path} is truncated or not an npz file (pickled objects)" in refusal(
        read_samples, path
    )


def test_a_text_in_the_archive(tmp_path: Path) -> None:
    path = write_npz(tmp_path / "mine.npz")
    with zipfile.ZipFile(path, "a") as z:
        z.writestr("notes.txt", "hello")
    assert f"{path}: 'notes.txt' is not an array" in refusal(read_samples, path)


def test_a_header_that_promises_too_much(tmp_path: Path) -> None:
    member = io.BytesIO()
    np.lib.format.write_array_header_1_0(
        member, {"descr": "<f8", "fortran_order": False, "shape": (10**13,)}
    )
    with zipfile.ZipFile(tmp_path / "mine.npz", "w") as z:
        z.writestr("x.npy", member.getvalue())
    assert "'x'" in refusal(read_samples, tmp_path / "mine.npz")


def test_one_array_named_npz(tmp_path: Path) -> None:
    with (tmp_path / "mine.npz").open("wb") as f:
        np.save(f, np.zeros(3))
    assert "is a single array" in refusal(read_samples, tmp_path / "mine.npz")
