"""Tissue pictures: NCT-CRC folders and MedMNIST's file."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from data_helpers import refusal
from PIL import Image

import fedtailor
from fedtailor.data import load_dataset
from fedtailor.data.sets.histo import TISSUES


def write_folder(folder: Path, each: int = 2, size: int = 224) -> None:
    for i, tissue in enumerate(TISSUES):
        (folder / tissue).mkdir(parents=True)
        for j in range(each):
            picture = Image.new("RGB", (size, size), (20 * i + j, 100, 200))
            picture.save(folder / tissue / f"{tissue}-{j:03}.tif")


def write_medmnist(path: Path, **change: np.ndarray) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(5)
    arrays: dict[str, np.ndarray] = {}
    for part, n in (("train", 20), ("val", 6), ("test", 9)):
        arrays[f"{part}_images"] = rng.integers(0, 256, (n, 28, 28, 3), dtype=np.uint8)
        arrays[f"{part}_labels"] = rng.integers(0, 9, (n, 1), dtype=np.uint8)
    arrays |= change
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(path, **arrays)
    return arrays


def complaint(name: str, folder: Path) -> str:
    return refusal(load_dataset, name, folder)


@pytest.mark.parametrize(
    ("name", "size"), [("histo", 64), ("histo:32", 32), ("histo:224", 224)]
)
def test_histo_with_its_external_set(name: str, size: int, tmp_path: Path) -> None:
    write_folder(tmp_path / "histo" / "NCT-CRC-HE-100K")
    write_folder(tmp_path / "histo" / "CRC-VAL-HE-7K", each=1)
    d = load_dataset(name, tmp_path)
    assert d.x.shape == (18, 3, size, size) and d.y.tolist() == [
        i for i in range(9) for _ in range(2)
    ]
    x, y = d.external["crc_val"]
    assert x.shape == (9, 3, size, size) and y.tolist() == list(range(9))
    assert (
        d.x[7, :, 0, 0].tolist() == [61, 100, 200]
        and d.labels[8] == "colorectal adenocarcinoma epithelium"
    )


def test_centres_are_clients_with_an_external_set(tmp_path: Path) -> None:
    """CD2-pFed's HISTO-FED, as far as its data are public."""
    write_folder(tmp_path / "histo" / "NCT-CRC-HE-100K", each=4)
    write_folder(tmp_path / "histo" / "CRC-VAL-HE-7K", each=2)
    d = load_dataset("histo:centres", tmp_path)
    assert d.owner is not None and d.owners[:2] == ("NCT", "CRC-VAL")
    # of 36 patches of NCT in the paper's proportions, 7,180 to 7,000 to 4,000
    assert torch.bincount(d.owner).tolist() == [14, 18, 13]
    x, y = d.external["outside"]
    assert x.shape == (7, 3, 64, 64) and len(y) == 7
    first, third = (d.x[d.owner == k].double().mean((0, 2, 3)) for k in (0, 2))
    assert (first - third)[1:].abs().max() > 2  # green and blue are the same in all
    assert (x.double().mean((0, 2, 3)) - third)[1:].abs().max() > 2
    assert torch.equal(load_dataset("histo:centres", tmp_path).x, d.x)


def test_centres_run_with_the_papers_protocol(tmp_path: Path) -> None:
    write_folder(tmp_path / "histo" / "NCT-CRC-HE-100K", each=4)
    write_folder(tmp_path / "histo" / "CRC-VAL-HE-7K", each=2)
    result = fedtailor.run(
        "cd2pfed",
        "histo:centres",
        "mlp",
        protocol="cd2",
        data_dir=tmp_path,
        rounds=1,
        epochs=1,
        views="external",
    )
    assert len(result["clients"]) == 3
    assert "external" in result["views"]


def test_centres_need_the_second_centre(tmp_path: Path) -> None:
    write_folder(tmp_path / "histo" / "NCT-CRC-HE-100K", each=1)
    assert "histo:centres needs CRC-VAL-HE-7K" in complaint("histo:centres", tmp_path)


def test_histo_without_an_external_set(tmp_path: Path) -> None:
    write_folder(tmp_path / "histo" / "NCT-CRC-HE-100K", each=1)
    assert load_dataset("histo", tmp_path).external == {}


def test_histo_lacks_a_class(tmp_path: Path) -> None:
    folder = tmp_path / "histo" / "NCT-CRC-HE-100K"
    write_folder(folder, each=1)
    (folder / "MUS").rename(folder / "MUSCLE")
    assert f"{folder} has no folder 'MUS'" in complaint("histo", tmp_path)


@pytest.mark.parametrize("place", ["pathmnist/pathmnist.npz", "pathmnist.npz"])
def test_pathmnist_joins_validation_to_training(place: str, tmp_path: Path) -> None:
    arrays = write_medmnist(tmp_path / place)
    d = load_dataset("pathmnist", tmp_path)
    assert (
        d.x.shape == (35, 3, 28, 28)
        and d.test is not None
        and d.test.tolist() == [False] * 26 + [True] * 9
    )
    whole = np.concatenate([arrays[f"{p}_images"] for p in ("train", "val", "test")])
    assert np.array_equal(d.x.numpy().transpose(0, 2, 3, 1), whole)
    assert d.y.tolist() == [
        n for p in ("train", "val", "test") for n in arrays[f"{p}_labels"][:, 0]
    ]


def test_a_file_of_another_medmnist_set(tmp_path: Path) -> None:
    path = tmp_path / "pathmnist" / "pathmnist.npz"
    write_medmnist(path, train_images=np.zeros((20, 28, 28), np.uint8))
    assert f"{path}: 'train_images' is uint8 of shape (20, 28, 28)" in complaint(
        "pathmnist", tmp_path
    )


def test_more_classes_than_pathmnist_has(tmp_path: Path) -> None:
    write_medmnist(tmp_path / "pathmnist.npz", val_labels=np.full((6, 1), 10, np.uint8))
    assert "sample 20 has label 10, labels go from 0 to 8" in complaint(
        "pathmnist", tmp_path
    )
