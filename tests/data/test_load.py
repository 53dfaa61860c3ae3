"""Names, variants, places and prepared files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.data import catalogue, data_folder, is_available, load
from fedtailor.data.catalogue import find_entry

NAMES = [e.name for e in catalogue() if e.files]


def complaint(name: str, folder: Path) -> str:
    with pytest.raises(UserError) as e:
        load(name, folder)
    assert "\n" not in str(e.value)
    return str(e.value)


def write_prepared(folder: Path, name: str, n: int = 8, **change: Any) -> None:
    entry = find_entry(name)
    rng = np.random.default_rng(0)
    x = (
        rng.integers(0, 256, (n, *entry.shape), dtype=np.uint8)
        if entry.kind == "image"
        else np.ones((n, *entry.shape))
    )
    arrays = {"x": x, "y": np.arange(n) % 2} | change
    np.savez(folder / f"{entry.stems[0]}.npz", **arrays)


def test_digits_are_always_there(tmp_path: Path) -> None:
    d = load("digits", tmp_path)
    assert d.x.shape == (1797, 1, 8, 8) and d.x.dtype == torch.uint8 and d.classes == 10
    assert d.x.min() == 0 and d.x.max() == 255 and len(d.x.unique()) == 17
    assert d.y.bincount().tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


@pytest.mark.parametrize(
    "name",
    [
        "mnist",
        "fashion_mnist",
        "cifar10",
        "tiny_imagenet",
        "emnist:letters",
        "histo:32",
        "pathmnist",
    ],
)
def test_prepared_images(name: str, tmp_path: Path) -> None:
    write_prepared(tmp_path, name, test=np.arange(8) > 5)
    d = load(name, tmp_path)
    assert d.x.shape[1:] == find_entry(name).shape and d.y.tolist() == [0, 1] * 4
    assert d.test is not None and int(d.test.sum()) == 2


def test_a_plain_name_serves_the_default_variant_only(tmp_path: Path) -> None:
    write_prepared(tmp_path, "emnist")
    (tmp_path / "emnist_digits.npz").rename(tmp_path / "emnist.npz")
    assert load("emnist:digits", tmp_path).name == "emnist"
    assert "put emnist-letters-train-images" in complaint("emnist:letters", tmp_path)


def test_official_files_win(tmp_path: Path) -> None:
    write_prepared(tmp_path, "heart", x=np.ones((8, 13), np.float32), client=np.arange(8) % 4)
    assert len(load("heart", tmp_path)) == 8
    (tmp_path / "heart").mkdir()
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        (tmp_path / "heart" / f"processed.{hospital}.data").write_text(
            "1,1,1,1,1,1,1,1,1,1,1,1,1,0\n"
        )
    assert len(load("heart", tmp_path)) == 4


@pytest.mark.parametrize("name", NAMES)
def test_missing_files_are_told_in_one_line(name: str, tmp_path: Path) -> None:
    entry = find_entry(name)
    text = complaint(name, tmp_path)
    assert (
        entry.files[0] in text
        and f"{tmp_path / name}/" in text
        and f"{entry.stems[0]}.npz into {tmp_path}/" in text
    )
    assert (f"fetch {name}'" in text) == bool(entry.downloads)
    assert not is_available(entry, tmp_path)


def test_misspelt_names(tmp_path: Path) -> None:
    assert complaint("cifar1O", tmp_path).startswith("no data set 'cifar1O'; did you mean cifar10")
    assert "no variant of cifar100 'corse'; did you mean coarse?" in complaint(
        "cifar100:corse", tmp_path
    )
    assert "no variant of mnist 'big'" in complaint("mnist:big", tmp_path)


@pytest.mark.parametrize(
    ("name", "change", "expected"),
    [
        (
            "cifar10",
            {"x": np.zeros((8, 1, 28, 28), np.uint8)},
            "a sample has shape (1, 28, 28), cifar10 has (3, 32, 32)",
        ),
        (
            "cifar10",
            {"x": np.zeros((8, 3, 32, 32))},
            "images are bytes (uint8, 0 to 255), x is float64",
        ),
        ("cifar10", {"y": np.arange(8) + 5}, "sample 5 has label 10, labels go from 0 to 9"),
        ("cifar10", {"y": np.arange(7)}, "8 samples in x but 7 labels in y"),
        ("cifar10", {"y": np.linspace(0, 1, 8)}, "labels must be one whole number a sample"),
        ("cifar10", {"test": np.arange(8)}, "test must be true or false"),
        (
            "cifar10",
            {"x": np.zeros((0, 3, 32, 32), np.uint8), "y": np.zeros(0, int)},
            "there are no samples in it",
        ),
        ("har", {}, "has no 'client'"),
        ("har", {"client": np.arange(8) * 2}, "without gaps"),
        (
            "har",
            {"client": np.arange(8), "x": np.full((8, 9, 128), np.nan)},
            "sample 0, place 0, 0 is NaN",
        ),
        (
            "heart",
            {"client": np.arange(8), "x": np.full((8, 13), np.inf)},
            "sample 0, place 0 is infinite",
        ),
        ("amazon", {"x": np.ones((8, 30_000))}, "a sample has shape (30000,), amazon has (5000,)"),
    ],
)
def test_unsound_prepared_files(
    name: str, change: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    write_prepared(tmp_path, name, **change)
    text = complaint(name, tmp_path)
    assert expected in text and f"{tmp_path}/" in text


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    for file in find_entry("mnist").files:
        (tmp_path / "mnist" / file).mkdir()
    assert "train-images-idx3-ubyte.gz cannot be read (Is a directory)" in complaint(
        "mnist", tmp_path
    )


@pytest.mark.parametrize(
    ("clients", "owners"), [(3, ("cleveland", "hungarian", "switzerland")), (6, tuple("012345"))]
)
def test_names_of_owners_fit_their_number(
    clients: int, owners: tuple[str, ...], tmp_path: Path
) -> None:
    write_prepared(tmp_path, "heart", client=np.arange(8) % clients)
    assert load("heart", tmp_path).owners == owners


def test_coarse_labels_must_be_in_the_file(tmp_path: Path) -> None:
    write_prepared(tmp_path, "cifar100")
    assert load("cifar100", tmp_path).classes == 100
    assert "cifar100.npz has no 'coarse'" in complaint("cifar100:coarse", tmp_path)


def test_where_data_are_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FEDTAILOR_DATA", raising=False)
    assert data_folder() == tmp_path / ".fedtailor" / "data"
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "there"))
    assert data_folder() == tmp_path / "there" and data_folder(tmp_path) == tmp_path
    (tmp_path / "there").mkdir()
    write_prepared(tmp_path / "there", "mnist")
    assert len(load("mnist")) == 8


def test_a_folder_in_the_way_does_not_hide_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert len(load("digits")) == 1797


def test_the_catalogue_is_complete() -> None:
    entries = {e.name: e for e in catalogue()}
    assert list(entries) == [
        *(
            "digits",
            "mnist",
            "fashion_mnist",
            "emnist",
            "cifar10",
            "cifar100",
            "tiny_imagenet",
            "ag_news",
            "amazon",
        ),
        *("har", "heart", "flickr_aes", "histo", "pathmnist"),
    ]
    for e in entries.values():
        assert e.title and e.source and e.home.startswith("http") and e.licence
        assert e.name == "digits" or e.files
        for variant in e.variants or ("",):
            at = e.at(variant)
            assert not at.labels or len(at.labels) == at.classes
            assert at.variant == variant
        for d in e.downloads:
            assert all(u.startswith("http") for u in d.urls)
            assert not d.checksum or len(d.checksum) == len("md5:") + 32
    assert [e.name for e in entries.values() if e.natural] == [
        "amazon",
        "har",
        "heart",
        "flickr_aes",
    ]


def test_one_copy_of_the_images(real_data) -> None:
    """Bytes stay bytes: 70,000 images are 55 MB, not 220."""
    d = load("fashion_mnist", real_data("fashion_mnist"))
    assert d.x.dtype == torch.uint8 and d.x.untyped_storage().nbytes() == 70_000 * 784
