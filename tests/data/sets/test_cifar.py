"""CIFAR pickles as Python 2 wrote them, honest and malicious."""

from __future__ import annotations

import pickle
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import refusal, write_prepared

from fedtailor.data import load_dataset


def old_pickle(value: Any) -> bytes:
    """Protocol 2 with Python 2's byte strings, as in the official archives."""
    return b"\x80\x02" + _dump(value) + b"."


def _dump(v: Any) -> bytes:
    if v is None:
        return b"N"
    if isinstance(v, bool):
        return b"\x88" if v else b"\x89"
    if isinstance(v, int):
        return b"J" + struct.pack("<i", v)
    if isinstance(v, bytes):
        return b"T" + struct.pack("<i", len(v)) + v
    if isinstance(v, tuple):
        return b"(" + b"".join(map(_dump, v)) + b"t"
    if isinstance(v, list):
        return b"](" + b"".join(map(_dump, v)) + b"e"
    if isinstance(v, dict):
        return b"}(" + b"".join(_dump(k) + _dump(w) for k, w in v.items()) + b"u"
    assert isinstance(v, np.ndarray) and v.dtype == np.uint8
    kind = (
        b"cnumpy\ndtype\n"
        + _dump((b"u1", 0, 1))
        + b"R"
        + _dump((3, b"|", None, None, None, -1, -1, 0))
        + b"b"
    )
    state = (
        b"("
        + _dump(1)
        + _dump(v.shape)
        + kind
        + _dump(False)
        + _dump(v.tobytes())
        + b"t"
    )
    return (
        b"cnumpy.core.multiarray\n_reconstruct\n(cnumpy\nndarray\n"
        + _dump((0,))
        + _dump(b"b")
        + b"tR"
        + state
        + b"b"
    )


def write_cifar10(folder: Path, x: np.ndarray, y: np.ndarray) -> Path:
    """Seven images a file."""
    home = folder / "cifar10" / "cifar-10-batches-py"
    home.mkdir(parents=True)
    for i, file in enumerate([*(f"data_batch_{b}" for b in range(1, 6)), "test_batch"]):
        at = slice(7 * i, 7 * i + 7)
        batch = {
            b"batch_label": file.encode(),
            b"labels": [int(n) for n in y[at]],
            b"data": x[at].reshape(-1, 3072),
        }
        (home / file).write_bytes(old_pickle(batch | {b"filenames": [b"a.png"] * 7}))
    return home


def write_cifar100(
    folder: Path, x: np.ndarray, fine: np.ndarray, coarse: np.ndarray
) -> None:
    home = folder / "cifar100" / "cifar-100-python"
    home.mkdir(parents=True)
    for file, at in (("train", slice(0, 30)), ("test", slice(30, None))):
        labels = {
            b"fine_labels": [int(n) for n in fine[at]],
            b"coarse_labels": [int(n) for n in coarse[at]],
        }
        (home / file).write_bytes(
            old_pickle({b"data": x[at].reshape(-1, 3072)} | labels)
        )


@pytest.fixture
def pictures() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.integers(0, 256, (42, 3, 32, 32), dtype=np.uint8), rng.integers(
        0, 10, 42
    )


def complaint(name: str, folder: Path) -> str:
    return refusal(load_dataset, name, folder)


def test_cifar10_from_official_pickles(
    pictures: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    x, y = pictures
    write_cifar10(tmp_path, x, y)
    d = load_dataset("cifar10", tmp_path)
    assert (
        d.x.dtype == torch.uint8
        and np.array_equal(d.x.numpy(), x)
        and np.array_equal(d.y.numpy(), y)
    )
    assert d.test is not None and d.test.tolist() == [False] * 35 + [True] * 7
    assert d.labels[3] == "cat"


def test_pickles_written_by_python_3(
    pictures: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    x, y = pictures
    home = write_cifar10(tmp_path, x, y)
    batch = {b"data": x[:7].reshape(-1, 3072), b"labels": [int(n) for n in y[:7]]}
    (home / "data_batch_1").write_bytes(pickle.dumps(batch, protocol=2))
    assert np.array_equal(load_dataset("cifar10", tmp_path).x.numpy(), x)


def test_cifar100_has_fine_and_coarse_labels(real_data, tmp_path: Path) -> None:
    real = np.load(real_data("cifar100") / "cifar100.npz")
    x, fine, coarse = real["x"][:40], real["y"][:40], real["coarse"][:40]
    write_cifar100(tmp_path, x, fine, coarse)
    for name, y, classes in (("cifar100", fine, 100), ("cifar100:coarse", coarse, 20)):
        d = load_dataset(name, tmp_path)
        assert np.array_equal(d.x.numpy(), x) and np.array_equal(d.y.numpy(), y)
        assert d.classes == classes == len(d.labels) and d.name == name


class Evil:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        import os

        return os.system, (f"touch {self.path}",)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_malicious_pickle_is_refused_and_not_run(
    protocol: int, pictures: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    home = write_cifar10(tmp_path, *pictures)
    trace = tmp_path / "trace"
    (home / "data_batch_3").write_bytes(
        pickle.dumps({b"data": Evil(trace)}, protocol=protocol)
    )
    text = complaint("cifar10", tmp_path)
    assert (
        str(home / "data_batch_3") in text
        and "may be malicious" in text
        and ".system" in text
    )
    assert not trace.exists()


@pytest.mark.parametrize(
    "ask",
    [
        b"cbuiltins\neval\n",
        b"cnumpy\nload\n",
        b"c_codecs\ndecode\n",
        b"cnumpy.core\ntest\n",
    ],
)
def test_no_other_callable_is_given(
    ask: bytes, pictures: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    home = write_cifar10(tmp_path, *pictures)
    (home / "data_batch_1").write_bytes(b"\x80\x02" + ask + b"(X\x01\x00\x00\x001tR.")
    assert "nothing of it was run" in complaint("cifar10", tmp_path)


def test_other_codecs_are_refused(
    pictures: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    home = write_cifar10(tmp_path, *pictures)
    (home / "data_batch_1").write_bytes(
        b"\x80\x02c_codecs\nencode\n(X\x01\x00\x00\x00aX\x03\x00\x00\x00zlbtR."
    )
    assert "codec 'zlb'" in complaint("cifar10", tmp_path)


def test_truncated(pictures: tuple[np.ndarray, np.ndarray], tmp_path: Path) -> None:
    home = write_cifar10(tmp_path, *pictures)
    (home / "test_batch").write_bytes((home / "test_batch").read_bytes()[:5000])
    text = complaint("cifar10", tmp_path)
    assert str(home / "test_batch") in text and "truncated" in text


def test_a_batch_of_another_data_set(
    pictures: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    home = write_cifar10(tmp_path, *pictures)
    (home / "data_batch_2").write_bytes(
        old_pickle({b"data": np.zeros((2, 3072), np.uint8), b"fine_labels": [1, 2]})
    )
    assert "data_batch_2 has no 'labels'" in complaint("cifar10", tmp_path)


def test_pictures_of_another_size(
    pictures: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    home = write_cifar10(tmp_path, *pictures)
    (home / "data_batch_2").write_bytes(
        old_pickle({b"data": np.zeros((2, 784), np.uint8), b"labels": [1, 2]})
    )
    assert "'data' is uint8 of shape (2, 784)" in complaint("cifar10", tmp_path)


def test_as_many_images_as_the_official_batch_but_others(
    pictures: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    home = write_cifar10(tmp_path, *pictures)
    fake = {b"data": np.zeros((10_000, 3072), np.uint8), b"labels": [0] * 10_000}
    (home / "data_batch_4").write_bytes(old_pickle(fake))
    assert f"{home / 'data_batch_4'} is damaged: its MD5 is" in complaint(
        "cifar10", tmp_path
    )


def test_coarse_labels_must_be_in_a_prepared_file(tmp_path: Path) -> None:
    write_prepared(tmp_path, "cifar100")
    assert load_dataset("cifar100", tmp_path).classes == 100
    assert "cifar100.npz has no 'coarse'" in complaint("cifar100:coarse", tmp_path)


class TestReal:
    def test_cifar10(self, real_data) -> None:
        d = load_dataset("cifar10", real_data("cifar10"))
        assert d.x.shape[1:] == (3, 32, 32) and d.y.unique().tolist() == list(range(10))
        mean = (d.x[~d.test].double().mean((0, 2, 3)) / 255).tolist()
        assert all(
            abs(a - b) < 0.01
            for a, b in zip(mean, (0.4914, 0.4822, 0.4465), strict=True)
        )

    def test_coarse_labels_of_cifar100_follow_from_the_fine_ones(
        self, real_data
    ) -> None:
        fine, coarse = (
            load_dataset(f"cifar100:{v}", real_data("cifar100"))
            for v in ("fine", "coarse")
        )
        pairs = torch.stack([fine.y, coarse.y], 1).unique(dim=0)
        assert len(pairs) == 100 and pairs[:, 1].bincount().tolist() == [5] * 20
        named = {fine.labels[a]: coarse.labels[b] for a, b in pairs.tolist()}
        assert (
            named["shark"] == "fish"
            and named["oak_tree"] == "trees"
            and named["tank"] == "vehicles_2"
        )
