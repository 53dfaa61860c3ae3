"""Tiny-ImageNet-200 from its folders."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.entry import Entry
from fedtailor.data.raw import Raw, join_parts
from fedtailor.data.readers.images import list_folders, stack_pictures
from fedtailor.data.readers.text_lines import read_lines


def parse_tiny_imagenet(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """The training folders and the annotated validation images; grey pictures become coloured ones."""
    folders = list_folders(paths["train"])
    number = {f.name: i for i, f in enumerate(folders)}
    if not folders or len(folders) > entry.classes:
        raise UserError(
            f"{paths['train']} holds {len(folders)} class folders, {entry.name} has {entry.classes}"
        )
    train = [(p, i) for i, f in enumerate(folders) for p in sorted((f / "images").glob("*.JPEG"))]
    if not train:
        raise UserError(
            f"{paths['train']} holds no <class>/images/*.JPEG; unpack the official archive there"
        )
    test = _read_annotations(paths["val/val_annotations.txt"], paths["val/images"], number)
    parts = [
        (stack_pictures([p for p, _ in part], entry.shape), np.array([i for _, i in part]))
        for part in (train, test)
    ]
    return Raw(join_parts(parts[0], parts[1]), _read_words(paths.get("words.txt"), list(number)))


def _read_annotations(
    path: Path, images: Path, number: Mapping[str, int]
) -> list[tuple[Path, int]]:
    """Validation pictures and their classes: file, class and a box that is not used, between tabs."""
    found = []
    for i, line in enumerate(read_lines(path), 1):
        cells = line.split("\t")
        if len(cells) < 2 or cells[1] not in number:
            why = (
                f"class '{cells[1]}' has no training folder"
                if len(cells) > 1
                else "no class after the file's name"
            )
            raise UserError(f"{path}, line {i}: {why}")
        found.append((images / cells[0], number[cells[1]]))
    if not found:
        raise UserError(f"{path} is empty; unpack the official archive again")
    return found


def _read_words(path: Path | None, classes: list[str]) -> tuple[str, ...]:
    if path is None:
        return tuple(classes)
    words = dict(line.split("\t", 1) for line in read_lines(path) if "\t" in line)
    return tuple(words.get(c, c).split(",")[0] for c in classes)
