"""Named data sets from official and from prepared files, sound and unsound."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import refusal, write_prepared

from fedtailor.data import is_available, list_datasets, load_dataset
from fedtailor.data.catalogue import find_entry

NAMES = [e.name for e in list_datasets() if e.files]


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
    d = load_dataset(name, tmp_path)
    assert d.x.shape[1:] == find_entry(name).shape and d.y.tolist() == [0, 1] * 4
    assert d.test is not None and int(d.test.sum()) == 2


def test_a_plain_name_serves_the_default_variant_only(tmp_path: Path) -> None:
    write_prepared(tmp_path, "emnist")
    (tmp_path / "emnist_digits.npz").rename(tmp_path / "emnist.npz")
    assert load_dataset("emnist:digits", tmp_path).name == "emnist"
    assert "put emnist-letters-train-images" in refusal(
        load_dataset, "emnist:letters", tmp_path
    )


def test_official_files_win(tmp_path: Path) -> None:
    write_prepared(
        tmp_path, "heart", x=np.ones((8, 13), np.float32), client=np.arange(8) % 4
    )
    assert len(load_dataset("heart", tmp_path)) == 8
    (tmp_path / "heart").mkdir()
    for hospital in ("cleveland", "hungarian", "switzerland", "va"):
        (tmp_path / "heart" / f"processed.{hospital}.data").write_text(
            "1,1,1,1,1,1,1,1,1,1,1,1,1,0\n"
        )
    assert len(load_dataset("heart", tmp_path)) == 4


@pytest.mark.parametrize("name", NAMES)
def test_missing_files_are_told_in_one_line(name: str, tmp_path: Path) -> None:
    entry = find_entry(name)
    text = refusal(load_dataset, name, tmp_path)
    assert (
        entry.files[0] in text
        and f"{tmp_path / name}/" in text
        and f"{entry.stems[0]}.npz into {tmp_path}/" in text
    )
    assert (f"fetch {name}'" in text) == bool(entry.downloads)
    assert not is_available(entry, tmp_path)


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
        (
            "cifar10",
            {"y": np.arange(8) + 5},
            "sample 5 has label 10, labels go from 0 to 9",
        ),
        ("cifar10", {"y": np.arange(7)}, "8 samples in x but 7 labels in y"),
        (
            "cifar10",
            {"y": np.linspace(0, 1, 8)},
            "labels must be one whole number a sample",
        ),
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
        (
            "amazon",
            {"x": np.ones((8, 30_000))},
            "a sample has shape (30000,), amazon has (5000,)",
        ),
    ],
)
def test_unsound_prepared_files(
    name: str, change: dict[str, Any], expected: str, tmp_path: Path
) -> None:
    write_prepared(tmp_path, name, **change)
    text = refusal(load_dataset, name, tmp_path)
    assert expected in text and f"{tmp_path}/" in text


@pytest.mark.parametrize(
    ("clients", "owners"),
    [(3, ("cleveland", "hungarian", "switzerland")), (6, tuple("012345"))],
)
def test_names_of_owners_fit_their_number(
    clients: int, owners: tuple[str, ...], tmp_path: Path
) -> None:
    write_prepared(tmp_path, "heart", client=np.arange(8) % clients)
    assert load_dataset("heart", tmp_path).owners == owners


def test_one_copy_of_the_images(real_data) -> None:
    """Bytes stay bytes: 70,000 images are 55 MB, not 220."""
    d = load_dataset("fashion_mnist", real_data("fashion_mnist"))
    assert d.x.dtype == torch.uint8 and d.x.untyped_storage().nbytes() == 70_000 * 784
