"""The MNIST family, from small idx files and from the real ones."""

from __future__ import annotations

import gzip
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from data_helpers import refusal

from fedtailor.data import load_dataset
from fedtailor.data.catalogue import find_entry


def write_idx(path: Path, array: np.ndarray, *, packed: bool = True) -> None:
    head = struct.pack(f">HBB{array.ndim}I", 0, 8, array.ndim, *array.shape)
    content = head + array.astype(np.uint8).tobytes()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(gzip.compress(content) if packed else content)


def write_set(
    folder: Path, name: str, counts: tuple[int, int] = (12, 5), first: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    files = find_entry(name).files
    rng = np.random.default_rng(3)
    x, y = (
        rng.integers(0, 256, (sum(counts), 28, 28)),
        rng.integers(0, 10, sum(counts)) + first,
    )
    home = folder / name.partition(":")[0]
    for i, part in enumerate((slice(0, counts[0]), slice(counts[0], None))):
        write_idx(home / files[2 * i], x[part])
        write_idx(home / files[2 * i + 1], y[part])
    return x, y


@pytest.mark.parametrize("name", ["mnist", "fashion_mnist"])
def test_small_files_in_the_official_format(name: str, tmp_path: Path) -> None:
    x, y = write_set(tmp_path, name)
    d = load_dataset(name, tmp_path)
    assert d.x.dtype == torch.uint8 and d.x.shape == (17, 1, 28, 28)
    assert np.array_equal(d.x.numpy()[:, 0], x) and np.array_equal(d.y.numpy(), y)
    assert d.test is not None and d.test.tolist() == [False] * 12 + [True] * 5
    assert d.classes == 10 and len(d.labels) == 10 and d.owner is None


def test_unpacked_files_are_read_too(tmp_path: Path) -> None:
    x, _ = write_set(tmp_path, "mnist")
    for path in (tmp_path / "mnist").iterdir():
        path.with_suffix("").write_bytes(gzip.decompress(path.read_bytes()))
        path.unlink()
    assert np.array_equal(load_dataset("mnist", tmp_path).x.numpy()[:, 0], x)


@pytest.mark.parametrize(
    ("variant", "first", "classes"),
    [("digits", 0, 10), ("letters", 1, 26), ("balanced", 0, 47)],
)
def test_emnist_is_turned_upright_and_counted_from_zero(
    variant: str, first: int, classes: int, tmp_path: Path
) -> None:
    x, y = write_set(tmp_path, f"emnist:{variant}", first=first)
    d = load_dataset(f"emnist:{variant}", tmp_path)
    assert np.array_equal(d.x.numpy()[:, 0], x.swapaxes(1, 2)) and np.array_equal(
        d.y.numpy(), y - first
    )
    assert d.classes == classes == len(d.labels)


def test_emnist_in_the_folder_of_its_archive(tmp_path: Path) -> None:
    write_set(tmp_path, "emnist")
    (tmp_path / "other" / "emnist").mkdir(parents=True)
    (tmp_path / "emnist").rename(tmp_path / "other" / "emnist" / "gzip")
    assert load_dataset("emnist", tmp_path / "other").name == "emnist"


def complaint(tmp_path: Path) -> str:
    return refusal(load_dataset, "mnist", tmp_path)


def test_a_truncated_gzip_file_is_named(tmp_path: Path) -> None:
    write_set(tmp_path, "mnist")
    path = tmp_path / "mnist" / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-200])
    assert str(path) in complaint(tmp_path) and "truncated" in complaint(tmp_path)


def test_fewer_bytes_than_the_header_says(tmp_path: Path) -> None:
    write_set(tmp_path, "mnist")
    path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(gzip.decompress(path.read_bytes())[:-1]))
    assert f"{path} is truncated: 3919 bytes for 5 x 28 x 28 values" in complaint(
        tmp_path
    )


def test_labels_in_place_of_images(tmp_path: Path) -> None:
    write_set(tmp_path, "mnist")
    home = tmp_path / "mnist"
    (home / "train-images-idx3-ubyte.gz").write_bytes(
        (home / "train-labels-idx1-ubyte.gz").read_bytes()
    )
    assert "train-images-idx3-ubyte.gz holds labels, not images" in complaint(tmp_path)


def test_not_an_idx_file(tmp_path: Path) -> None:
    write_set(tmp_path, "mnist")
    (tmp_path / "mnist" / "train-labels-idx1-ubyte.gz").write_bytes(
        gzip.compress(b"<html>not found</html>")
    )
    assert "is not an idx file" in complaint(tmp_path)


def test_images_of_another_size(tmp_path: Path) -> None:
    write_set(tmp_path, "mnist")
    write_idx(tmp_path / "mnist" / "train-images-idx3-ubyte.gz", np.zeros((12, 32, 32)))
    assert "images of 32 x 32 pixels, mnist has 28 x 28" in complaint(tmp_path)


def test_images_and_labels_of_different_number(tmp_path: Path) -> None:
    write_set(tmp_path, "mnist")
    write_idx(tmp_path / "mnist" / "train-labels-idx1-ubyte.gz", np.zeros(11))
    assert "12 images but train-labels-idx1-ubyte.gz 11 labels" in complaint(tmp_path)


def test_a_label_out_of_range(tmp_path: Path) -> None:
    write_set(tmp_path, "mnist")
    write_idx(
        tmp_path / "mnist" / "train-labels-idx1-ubyte.gz", np.array([0] * 11 + [10])
    )
    assert "sample 11 has label 10, labels go from 0 to 9" in complaint(tmp_path)


def test_one_missing_file_is_named(tmp_path: Path) -> None:
    write_set(tmp_path, "mnist")
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").unlink()
    text = complaint(tmp_path)
    assert (
        f"put t10k-labels-idx1-ubyte.gz into {tmp_path / 'mnist'}/" in text
        and "fetch mnist" in text
    )


class TestReal:
    def test_mnist(self, real_data) -> None:
        d = load_dataset("mnist", real_data("mnist"))
        assert len(d) == 70_000 and int(d.test.sum()) == 10_000
        train = d.y[~d.test].bincount().tolist()
        assert train == [5923, 6742, 5958, 6131, 5842, 5421, 5918, 6265, 5851, 5949]
        assert abs(d.x[~d.test].float().mean().item() / 255 - 0.1307) < 1e-4

    def test_fashion_mnist_is_balanced(self, real_data) -> None:
        d = load_dataset("fashion_mnist", real_data("fashion_mnist"))
        assert d.y.bincount().tolist() == [7000] * 10
        assert abs(d.x[~d.test].float().mean().item() / 255 - 0.2860) < 1e-4

    def test_a_file_of_the_other_data_set_is_recognised(
        self, real_data, tmp_path: Path
    ) -> None:
        mnist, fashion = (
            real_data("mnist") / "mnist",
            real_data("fashion_mnist") / "fashion_mnist",
        )
        (tmp_path / "mnist").mkdir()
        for path in mnist.iterdir():
            source = fashion if path.name.startswith("t10k-images") else mnist
            (tmp_path / "mnist" / path.name).symlink_to(source / path.name)
        assert (
            "is 't10k-images-idx3-ubyte' of fashion_mnist, not 't10k-images-idx3-ubyte' of mnist"
            in complaint(tmp_path)
        )

    def test_one_wrong_pixel_is_recognised(self, real_data, tmp_path: Path) -> None:
        (tmp_path / "mnist").mkdir()
        for path in (real_data("mnist") / "mnist").iterdir():
            (tmp_path / "mnist" / path.name).symlink_to(path)
        path = tmp_path / "mnist" / "t10k-images-idx3-ubyte.gz"
        content = bytearray(gzip.decompress(path.read_bytes()))
        content[5000] ^= 1
        path.unlink()
        path.write_bytes(gzip.compress(bytes(content), 1))
        assert f"{path} is damaged: its MD5 is" in complaint(tmp_path)
