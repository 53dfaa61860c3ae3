"""Tiny-ImageNet's folders, made of real pictures of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from data_helpers import refusal
from PIL import Image

from fedtailor.data import load_dataset
from fedtailor.data.catalogue import find_entry
from fedtailor.data.partition.build import build_federation

CLASSES = ("n01443537", "n01629819", "n02124075")


def write_folders(folder: Path, size: int = 64) -> Path:
    home = folder / "tiny_imagenet" / "tiny-imagenet-200"
    rng = np.random.default_rng(1)
    for c in CLASSES:
        (home / "train" / c / "images").mkdir(parents=True)
        (home / "train" / c / f"{c}_boxes.txt").write_text(
            f"{c}_0.JPEG\t0\t0\t62\t62\n"
        )
        for i in range(4):
            pixels = rng.integers(0, 256, (size, size, 3), dtype=np.uint8)
            Image.fromarray(pixels).save(
                home / "train" / c / "images" / f"{c}_{i}.JPEG", quality=95
            )
    grey = Image.fromarray(rng.integers(0, 256, (size, size), dtype=np.uint8))
    grey.save(home / "train" / CLASSES[1] / "images" / f"{CLASSES[1]}_0.JPEG")
    (home / "val" / "images").mkdir(parents=True)
    lines = []
    for i, c in enumerate(reversed(CLASSES)):
        Image.fromarray(np.full((size, size, 3), 60 * i, np.uint8)).save(
            home / "val" / "images" / f"val_{i}.JPEG"
        )
        lines.append(f"val_{i}.JPEG\t{c}\t0\t32\t44\t62\n")
    (home / "val" / "val_annotations.txt").write_text("".join(lines))
    (home / "words.txt").write_text(
        "n01443537\tgoldfish, Carassius auratus\nn02124075\tEgyptian cat\n"
    )
    return home


def complaint(folder: Path) -> str:
    return refusal(load_dataset, "tiny_imagenet", folder)


def test_training_folders_and_annotated_validation_images(tmp_path: Path) -> None:
    write_folders(tmp_path)
    d = load_dataset("tiny_imagenet", tmp_path)
    assert d.x.shape == (15, 3, 64, 64) and d.classes == 200
    assert d.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4 + [2, 1, 0]
    assert d.test is not None and d.test.tolist() == [False] * 12 + [True] * 3
    assert d.labels == ("goldfish", "n01629819", "Egyptian cat")
    assert (d.x[4, 0] == d.x[4, 1]).all() and (
        d.x[4, 1] == d.x[4, 2]
    ).all()  # the grey picture
    assert not (d.x[0, 0] == d.x[0, 1]).all()
    assert [int(d.x[i].float().mean().round()) for i in (12, 13, 14)] == [0, 60, 120]


def test_the_papers_images_are_the_training_folders(tmp_path: Path) -> None:
    write_folders(tmp_path)
    whole = load_dataset("tiny_imagenet", tmp_path)
    papers = load_dataset("tiny_imagenet:train", tmp_path)
    assert papers.name == "tiny_imagenet:train"
    assert papers.test is None
    assert papers.y.tolist() == [0] * 4 + [1] * 4 + [2] * 4
    assert torch.equal(papers.x, whole.x[:12])
    assert papers.labels == whole.labels
    assert find_entry("tiny_imagenet").with_variant("train").samples == 100_000
    federation = build_federation(papers, partition="iid", clients=2)
    used = torch.cat([*federation.train, *federation.val, *federation.test])
    assert used.sort().values.tolist() == list(range(12))


def test_a_prepared_file_must_say_what_is_the_test_part(tmp_path: Path) -> None:
    x = np.zeros((4, 3, 64, 64), np.uint8)
    y = np.arange(4)
    np.savez(tmp_path / "tiny_imagenet.npz", x=x, y=y)
    assert "save 'test' with it" in refusal(
        load_dataset, "tiny_imagenet:train", tmp_path
    )
    np.savez(tmp_path / "tiny_imagenet.npz", x=x, y=y, test=[0, 1, 0, 1])
    assert load_dataset("tiny_imagenet:train", tmp_path).y.tolist() == [0, 2]


def test_the_same_again_from_the_cache(tmp_path: Path) -> None:
    home = write_folders(tmp_path)
    first = load_dataset("tiny_imagenet", tmp_path)
    again = load_dataset("tiny_imagenet", tmp_path)
    assert (first.x == again.x).all() and first.labels == again.labels
    (home / "train" / CLASSES[0] / "images" / f"{CLASSES[0]}_3.JPEG").unlink()
    assert len(load_dataset("tiny_imagenet", tmp_path)) == 14


def test_an_image_of_another_size(tmp_path: Path) -> None:
    home = write_folders(tmp_path)
    path = home / "train" / CLASSES[2] / "images" / f"{CLASSES[2]}_1.JPEG"
    Image.new("RGB", (64, 48)).save(path)
    assert f"{path} has 64 x 48 pixels, the others 64 x 64" in complaint(tmp_path)


def test_a_truncated_image(tmp_path: Path) -> None:
    home = write_folders(tmp_path)
    path = home / "val" / "images" / "val_1.JPEG"
    path.write_bytes(path.read_bytes()[:300])
    assert str(path) in complaint(tmp_path)


def test_an_unknown_class_in_the_annotations(tmp_path: Path) -> None:
    home = write_folders(tmp_path)
    path = home / "val" / "val_annotations.txt"
    path.write_text(path.read_text() + "val_3.JPEG\tn99999999\t0\t0\t1\t1\n")
    assert f"{path}, line 4: class 'n99999999' has no training folder" in complaint(
        tmp_path
    )


def test_real_subset(real_data) -> None:
    d = load_dataset("tiny_imagenet", real_data("tiny_imagenet"))
    assert (
        d.x.shape[1:] == (3, 64, 64) and d.classes == 200 and len(d.y.unique()) == 200
    )
    some = d.x[:3000]
    grey = ((some[:, 0] == some[:, 1]) & (some[:, 1] == some[:, 2])).flatten(1).all(1)
    assert 0.005 < grey.float().mean() < 0.04
