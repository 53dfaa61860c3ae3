"""Tiny-ImageNet-200, from its folders.

``tiny_imagenet:train`` is the 100,000 training images alone, which FedCP, GPFL and PFLlib divide.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.entry import Download, Entry
from fedtailor.data.federation import Dataset
from fedtailor.data.loader import Loader
from fedtailor.data.raw import Array, Raw, join_official_parts, to_dataset
from fedtailor.data.readers.images import list_folders, stack_images
from fedtailor.data.readers.text_lines import read_lines

TRAIN = "train"

TINY_IMAGENET = Entry(
    name="tiny_imagenet",
    title="Tiny-ImageNet-200; the official validation images are the test part",
    kind="image",
    shape=(3, 64, 64),
    classes=200,
    samples=110_000,
    source="Le, Yang, CS231N, Stanford 2015",
    homepage="http://cs231n.stanford.edu",
    licence="ImageNet terms: non-commercial research",
    files=("train", "val/val_annotations.txt", "val/images"),
    optional_files=("words.txt",),
    archive_folders=("tiny-imagenet-200",),
    downloads=(
        Download(
            file="tiny-imagenet-200.zip",
            urls=("http://cs231n.stanford.edu/tiny-imagenet-200.zip",),
            checksum="md5:90528d7ca1a48142e341f4ef8d21d0de",
        ),
    ),
    variants=("all", TRAIN),
    overrides={
        TRAIN: {
            "title": "Tiny-ImageNet-200, the training images alone; no official test part",
            "samples": 100_000,
        }
    },
)


class Picture(NamedTuple):
    """An image file and the number of its class."""

    path: Path
    label: int


def parse_tiny_imagenet(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """The training folders and the annotated validation images; grey images become coloured."""
    folders = list_folders(paths["train"])
    if not folders or len(folders) > entry.classes:
        raise UserError(
            f"{paths['train']} holds {len(folders)} class folders, {entry.name} has {entry.classes}"
        )
    train = _list_training_pictures(folders)
    if not train:
        raise UserError(
            f"{paths['train']} holds no <class>/images/*.JPEG; unpack the official archive there"
        )
    classes = [folder.name for folder in folders]
    test = _read_annotations(
        paths["val/val_annotations.txt"], paths["val/images"], classes
    )
    arrays = join_official_parts(
        _read_pictures(train, entry), _read_pictures(test, entry)
    )
    return Raw(arrays, labels=_read_words(paths.get("words.txt"), classes))


def _list_training_pictures(folders: list[Path]) -> list[Picture]:
    pictures = []
    for label, folder in enumerate(folders):
        for path in sorted((folder / "images").glob("*.JPEG")):
            pictures.append(Picture(path, label))
    return pictures


def _read_annotations(path: Path, images: Path, classes: list[str]) -> list[Picture]:
    """The validation images: a line has file, class and a box that is not used, between tabs."""
    number = {name: i for i, name in enumerate(classes)}
    pictures = []
    for i, line in enumerate(read_lines(path), 1):
        cells = line.split("\t")
        if len(cells) < 2:
            raise UserError(f"{path}, line {i}: no class after the file's name")
        file, name = cells[:2]
        if name not in number:
            raise UserError(f"{path}, line {i}: class '{name}' has no training folder")
        pictures.append(Picture(images / file, number[name]))
    if not pictures:
        raise UserError(f"{path} is empty; unpack the official archive again")
    return pictures


def _read_pictures(pictures: list[Picture], entry: Entry) -> tuple[Array, Array]:
    x = stack_images([picture.path for picture in pictures], entry.shape)
    y = np.array([picture.label for picture in pictures])
    return x, y


def _read_words(path: Path | None, classes: list[str]) -> tuple[str, ...]:
    """The first word for every class, which the folders name by a code."""
    if path is None:
        return tuple(classes)
    lines = [line for line in read_lines(path) if "\t" in line]
    words = dict(line.split("\t", 1) for line in lines)
    return tuple(words.get(name, name).split(",")[0] for name in classes)


def choose_images(raw: Raw, entry: Entry) -> Dataset:
    """All images, or in the variant ``train`` those of the training part, without test marks."""
    if entry.variant != TRAIN:
        return to_dataset(raw, entry)
    arrays = dict(raw.arrays)
    test = arrays.pop("test", None)
    if test is None:
        raise UserError(
            f"{entry.full_name}: the prepared file does not say what is the test part;"
            " save 'test' with it"
        )
    chosen = {key: array[~test] for key, array in arrays.items()}
    return to_dataset(replace(raw, arrays=chosen), entry)


LOADERS = (Loader(TINY_IMAGENET, parse_tiny_imagenet, finish=choose_images),)
