"""A user's own files: npz, csv and folders of clients, sound and unsound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import refusal, write_npz
from PIL import Image

from fedtailor.data import list_notices, load_dataset


def complaint(path: Path | str, **how: Any) -> str:
    return refusal(load_dataset, str(path), **how)


class TestOneNpz:
    def test_x_and_y(self, tmp_path: Path) -> None:
        d = load_dataset(str(write_npz(tmp_path / "mine.npz")))
        assert (
            d.name == "mine"
            and d.kind == "table"
            and d.x.dtype == torch.float32
            and d.x.shape == (12, 4)
        )
        assert d.classes == 3 and d.owner is None and d.test is None and d.fit is None

    def test_test_and_client_are_honoured(self, tmp_path: Path) -> None:
        test, client = np.arange(12) > 8, np.array([2, 0, 1] * 4)
        d = load_dataset(
            str(write_npz(tmp_path / "mine.npz", test=test, client=client))
        )
        assert d.test is not None and d.test.tolist() == test.tolist()
        assert (
            d.owner is not None
            and d.owner.tolist() == client.tolist()
            and d.owners == ("0", "1", "2")
        )

    def test_clients_and_labels_with_names(self, tmp_path: Path) -> None:
        client, y = np.array(["b", "a"] * 6), np.array(["cat", "dog", "ant"] * 4)
        d = load_dataset(str(write_npz(tmp_path / "mine.npz", client=client, y=y)))
        assert (
            d.owners == ("a", "b")
            and d.owner is not None
            and d.owner.tolist() == [1, 0] * 6
        )
        assert d.labels == ("ant", "cat", "dog") and d.y.tolist() == [1, 2, 0] * 4

    def test_names_of_classes_fix_their_number(self, tmp_path: Path) -> None:
        d = load_dataset(
            str(write_npz(tmp_path / "mine.npz", labels=np.array(["a", "b", "c", "d"])))
        )
        assert d.classes == 4 and d.labels == ("a", "b", "c", "d")
        text = complaint(write_npz(tmp_path / "mine.npz", labels=np.array(["a", "b"])))
        assert "label 2 is out of range, there are 2 names" in text

    @pytest.mark.parametrize(
        ("shape", "dtype", "kind", "stored"),
        [
            ((12, 3, 8, 8), np.uint8, "image", (3, 8, 8)),
            ((12, 8, 8, 3), np.uint8, "image", (3, 8, 8)),
            ((12, 8, 8), np.uint8, "image", (1, 8, 8)),
            ((12, 3, 8, 8), np.float64, "image", (3, 8, 8)),
            ((12, 2, 50), np.float32, "signal", (2, 50)),
            ((12, 7), np.int32, "table", (7,)),
        ],
    )
    def test_kinds(
        self,
        shape: tuple[int, ...],
        dtype: Any,
        kind: str,
        stored: tuple[int, ...],
        tmp_path: Path,
    ) -> None:
        d = load_dataset(str(write_npz(tmp_path / "mine.npz", x=np.ones(shape, dtype))))
        assert d.kind == kind and d.x.shape[1:] == stored
        assert d.x.dtype == (torch.uint8 if dtype is np.uint8 else torch.float32)

    def test_channels_last_are_moved_not_reshaped(self, tmp_path: Path) -> None:
        x = np.random.default_rng(0).integers(0, 256, (12, 5, 6, 3), dtype=np.uint8)
        d = load_dataset(str(write_npz(tmp_path / "mine.npz", x=x)))
        assert np.array_equal(d.x.numpy(), x.transpose(0, 3, 1, 2))

    @pytest.mark.parametrize(
        ("change", "expected"),
        [
            (
                {"client": np.array([0, 1, 3] * 4)},
                "client 2 has no samples though there are clients up to 3",
            ),
            ({"client": np.array([0, 1, -1] * 4)}, "sample 2 has client -1"),
            (
                {"client": np.array([0.5, 1, 2] * 4)},
                "client must be one whole number a sample",
            ),
            (
                {"client": np.array([0, 1, 2])},
                "client must be one whole number a sample, not int64 of shape (3,)",
            ),
            ({"y": np.array([0, 1, -1] * 4)}, "sample 2 has label -1"),
            ({"y": np.array([0, 1, 99] * 4)}, "sample 2 has label 99"),
            ({"y": np.array([0, 1, np.nan] * 4)}, "the target of sample 2 is nan"),
            ({"y": np.zeros(12, int)}, "all samples have the same label"),
            ({"y": np.array([0, 1])}, "x of shape (12, 4) does not fit 2 labels"),
            (
                {"test": np.array([0, 2] * 6)},
                "test must be true or false for each of the 12 samples",
            ),
            (
                {"x": np.full((12, 4), np.nan)},
                "sample 0, place 0 is NaN; in a table, --missing median fills gaps in",
            ),
            ({"x": np.full((12, 4), np.inf)}, "sample 0, place 0 is infinite"),
            ({"x": np.full((12, 4), 1e39)}, "sample 0, place 0 is infinite"),
            (
                {"x": np.full((12, 2, 4), np.nan)},
                "sample 0, place 0, 0 is NaN; mend or remove it",
            ),
            ({"x": np.zeros((0, 4)), "y": np.zeros(0, int)}, "has no samples"),
            ({"x": np.array(["a"] * 12)[:, None]}, "x holds <U1 values"),
            ({"x": np.zeros((12, 1, 1, 1, 1))}, "x has 5 dimensions"),
        ],
    )
    def test_unsound_arrays(
        self, change: dict[str, Any], expected: str, tmp_path: Path
    ) -> None:
        path = write_npz(tmp_path / "mine.npz", **change)
        text = complaint(path)
        assert expected in text and str(path) in text

    def test_no_such_file(self, tmp_path: Path) -> None:
        assert f"there is no file or folder {tmp_path / 'none.npz'}" in complaint(
            tmp_path / "none.npz"
        )


class TestMissing:
    def test_gaps_are_filled_per_client(self, tmp_path: Path) -> None:
        x = np.array([[1.0], [3.0], [np.nan], [10.0], [30.0], [np.nan]])
        path = write_npz(
            tmp_path / "mine.npz",
            x=x,
            y=np.arange(6) % 2,
            client=np.array([0, 0, 0, 1, 1, 1]),
        )
        d = load_dataset(str(path), missing="median")
        assert d.fit is not None
        assert d.fit(torch.arange(6))[:, 0].tolist() == [1, 3, 2, 10, 30, 20]

    def test_infinite_values_stay_refused(self, tmp_path: Path) -> None:
        path = write_npz(tmp_path / "mine.npz", x=np.full((12, 4), np.inf))
        assert "is infinite" in complaint(path, missing="median")

    def test_gaps_in_images_stay_refused(self, tmp_path: Path) -> None:
        path = write_npz(tmp_path / "mine.npz", x=np.full((12, 3, 4, 4), np.nan))
        assert "is NaN" in complaint(path, missing="median")

    def test_unknown_way(self, tmp_path: Path) -> None:
        text = complaint(write_npz(tmp_path / "mine.npz"), missing="medain")
        assert "no way to fill in missing values 'medain'; did you mean median?" in text


class TestFolders:
    def test_one_npz_a_client(self, tmp_path: Path) -> None:
        for name, n in (("siteB", 6), ("siteA", 9)):
            write_npz(tmp_path / "own" / f"{name}.npz", n)
        (tmp_path / "own" / "README.md").write_text("ours")
        d = load_dataset(str(tmp_path / "own"))
        assert (
            d.name == "own" and d.owners == ("siteA", "siteB") and d.owner is not None
        )
        assert d.owner.bincount().tolist() == [9, 6] and d.test is None

    def test_a_test_part_in_some_files(self, tmp_path: Path) -> None:
        write_npz(tmp_path / "own" / "a.npz", 6, test=np.arange(6) > 3)
        write_npz(tmp_path / "own" / "b.npz", 6)
        d = load_dataset(f"{tmp_path / 'own'}/")
        assert (
            d.test is not None
            and d.test.tolist() == [False] * 4 + [True] * 2 + [False] * 6
        )

    def test_clients_of_different_shape(self, tmp_path: Path) -> None:
        write_npz(tmp_path / "own" / "a.npz", 6)
        write_npz(tmp_path / "own" / "b.npz", 6, x=np.zeros((6, 5)))
        text = complaint(tmp_path / "own")
        assert (
            f"{tmp_path / 'own' / 'b.npz'} has table samples of shape (5,), " in text
            and "(4,)" in text
        )

    def test_a_client_without_samples(self, tmp_path: Path) -> None:
        write_npz(tmp_path / "own" / "a.npz", 6)
        write_npz(tmp_path / "own" / "b.npz", x=np.zeros((0, 4)), y=np.zeros(0, int))
        assert f"{tmp_path / 'own' / 'b.npz'} has no samples" in complaint(
            tmp_path / "own"
        )

    def test_a_client_with_one_class_is_noticed(self, tmp_path: Path) -> None:
        write_npz(tmp_path / "own" / "a.npz", 6)
        write_npz(tmp_path / "own" / "b.npz", 6, y=np.full(6, 2))
        assert list_notices(load_dataset(str(tmp_path / "own"))) == [
            "client 'b' has samples of one class only ('2')"
        ]

    def test_mixed_files(self, tmp_path: Path) -> None:
        write_npz(tmp_path / "own" / "a.npz")
        (tmp_path / "own" / "b.csv").write_text("label,a\n")
        assert "holds .csv and .npz (b.csv)" in complaint(tmp_path / "own")

    def test_files_of_an_unknown_kind(self, tmp_path: Path) -> None:
        (tmp_path / "own").mkdir()
        (tmp_path / "own" / "a.parquet").write_text("")
        assert "clients are all .npz, all .csv or all folders" in complaint(
            tmp_path / "own"
        )

    def test_an_empty_folder(self, tmp_path: Path) -> None:
        (tmp_path / "own").mkdir()
        assert f"{tmp_path / 'own'} is empty" in complaint(tmp_path / "own")


def write_pictures(
    folder: Path,
    classes: dict[str, int],
    *,
    mode: str = "RGB",
    size: tuple[int, int] = (10, 8),
) -> None:
    for label, n in classes.items():
        (folder / label).mkdir(parents=True)
        for i in range(n):
            Image.new(mode, size, 7 * i if mode == "L" else (7 * i, 50, 0)).save(
                folder / label / f"{i}.png"
            )


class TestImageFolders:
    def test_one_folder_a_client(self, tmp_path: Path) -> None:
        write_pictures(tmp_path / "own" / "ann", {"cat": 3, "dog": 2})
        write_pictures(tmp_path / "own" / "bob", {"cow": 1, "dog": 2})
        d = load_dataset(str(tmp_path / "own"))
        assert (
            d.x.shape == (8, 3, 8, 10)
            and d.x.dtype == torch.uint8
            and d.kind == "image"
        )
        assert d.labels == ("cat", "cow", "dog") and d.owners == ("ann", "bob")
        assert d.y.tolist() == [0, 0, 0, 2, 2, 1, 2, 2] and d.x[
            2, :, 0, 0
        ].tolist() == [14, 50, 0]

    def test_train_and_test_folders(self, tmp_path: Path) -> None:
        for client in ("ann", "bob"):
            write_pictures(tmp_path / "own" / client / "train", {"cat": 2, "dog": 1})
            write_pictures(tmp_path / "own" / client / "test", {"dog": 1})
        d = load_dataset(str(tmp_path / "own"))
        assert d.test is not None and d.test.tolist() == [False, False, False, True] * 2
        assert d.labels == ("cat", "dog")

    def test_grey_pictures_have_one_channel(self, tmp_path: Path) -> None:
        write_pictures(tmp_path / "own" / "ann", {"cat": 1, "dog": 1}, mode="L")
        assert load_dataset(str(tmp_path / "own")).x.shape == (2, 1, 8, 10)
        write_pictures(tmp_path / "own" / "bob", {"cat": 1})
        assert load_dataset(str(tmp_path / "own")).x.shape == (3, 3, 8, 10)

    def test_a_client_without_pictures(self, tmp_path: Path) -> None:
        write_pictures(tmp_path / "own" / "ann", {"cat": 1, "dog": 1})
        (tmp_path / "own" / "bob" / "cat").mkdir(parents=True)
        assert f"{tmp_path / 'own' / 'bob'} has no samples" in complaint(
            tmp_path / "own"
        )
