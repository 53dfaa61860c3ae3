"""A user's own files: one npz or csv file, or a folder with one file or folder a client."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Dataset
from fedtailor.data.own.arrays import Part, join_clients, join_parts
from fedtailor.data.raw import Array, check_owner
from fedtailor.data.readers.csv_table import read_sheet
from fedtailor.data.readers.images import is_grey, list_folders, list_pictures, stack_pictures
from fedtailor.data.readers.npz import read_samples

FILES = (".npz", ".csv")


def is_path(name: str) -> bool:
    """Whether a name is a user's own file or folder rather than a misspelt data set."""
    return (
        name.endswith(FILES) or os.sep in name or name.startswith(("~", ".")) or Path(name).is_dir()
    )


def load_own(path: Path, *, missing: str | None = None) -> Dataset:
    """A file with all samples, or a folder with one npz file, csv file or image folder a client.

    npz: x, y and optionally test (true for the test part), client (0..K-1, or names) and labels (names of the classes).
    csv: a header with ``label`` and optionally ``test`` and ``client``; all other columns are features. Image folders:
    ``<client>/<class>/``, or ``<client>/train/<class>/`` and ``<client>/test/<class>/``.
    """
    if path.is_dir():
        return _load_folder(path, missing)
    if not path.exists():
        raise UserError(f"there is no file or folder {path}")
    if path.suffix == ".npz":
        return _load_npz(path, missing)
    if path.suffix == ".csv":
        sheet = read_sheet(path, missing=missing is not None)
        return _load_file(
            Part(str(path), sheet.x, sheet.y, sheet.test), sheet.client, path, missing
        )
    raise UserError(f"{path} is neither an npz nor a csv file nor a folder")


def _load_npz(path: Path, missing: str | None) -> Dataset:
    part, found = _read_npz_part(path)
    dataset = _load_file(part, found.get("client"), path, missing)
    if "labels" not in found:
        return dataset
    labels = tuple(str(label) for label in found["labels"].reshape(-1))
    if len(labels) < dataset.classes:
        raise UserError(
            f"{path}: label {dataset.classes - 1} is out of range, there are {len(labels)} names of classes"
        )
    return replace(dataset, classes=len(labels), labels=labels)


def _read_npz_part(path: Path) -> tuple[Part, dict[str, Array]]:
    found = read_samples(path)
    y = found["y"]
    if y.dtype.kind == "f" and np.isfinite(y).all() and (y == np.rint(y)).all():
        y = y.astype(np.int64)
    return Part(str(path), found["x"], y, found.get("test")), found


def _load_file(part: Part, client: Array | None, path: Path, missing: str | None) -> Dataset:
    """The data set of one file, with the owners its column of clients names."""
    if client is None:
        return join_parts([part], path.stem, None, (), missing=missing)
    if client.dtype.kind == "U" and not all(c.isdecimal() for c in client.reshape(-1)):
        names, client = np.unique(client, return_inverse=True)
    else:
        client = client.astype(np.int64) if client.dtype.kind == "U" else client
        names = (
            np.arange(int(client.max(initial=-1)) + 1) if client.dtype.kind in "iu" else np.empty(0)
        )
    check_owner(client, len(part.y), str(path))
    return join_parts([part], path.stem, client, [str(n) for n in names], missing=missing)


def _load_folder(folder: Path, missing: str | None) -> Dataset:
    """One client a file or folder, in the order of their names."""
    items = sorted(p for p in folder.iterdir() if not p.name.startswith((".", "README")))
    kinds = sorted({"folder" if p.is_dir() else p.suffix for p in items})
    if not items:
        raise UserError(
            f"{folder} is empty; put one .npz or .csv file or one folder of images a client into it"
        )
    if len(kinds) > 1 or kinds[0] not in ("folder", *FILES):
        odd = next((p for p in items if p.is_dir() or p.suffix != items[0].suffix), items[0])
        raise UserError(
            f"{folder} holds {' and '.join(kinds)} ({odd.name}); clients are all .npz, all .csv or all folders"
        )
    readers: dict[str, Callable[[], list[Part]]] = {
        ".npz": lambda: [_read_npz_part(p)[0] for p in items],
        ".csv": lambda: _read_sheets(items, missing),
        "folder": lambda: _read_image_folders(items),
    }
    return join_clients(readers[kinds[0]](), folder.name, [p.stem for p in items], missing=missing)


def _read_sheets(paths: list[Path], missing: str | None) -> list[Part]:
    sheets = [read_sheet(p, missing=missing is not None) for p in paths]
    for path, sheet in zip(paths, sheets, strict=True):
        if sheet.columns != sheets[0].columns:
            odd = sorted(set(sheet.columns) ^ set(sheets[0].columns))
            why = f"'{odd[0]}' is in one of them only" if odd else "their order differs"
            raise UserError(f"{path} and {paths[0]} have different columns: {why}")
    return [Part(str(p), s.x, s.y, s.test) for p, s in zip(paths, sheets, strict=True)]


def _read_image_folders(clients: list[Path]) -> list[Part]:
    """Pictures of all clients; coloured if one of them is."""
    listed = [_list_samples(c) for c in clients]
    mode = "L" if all(is_grey(p) for samples in listed for p, _, _ in samples) else "RGB"
    shape: tuple[int, ...] | None = None
    parts = []
    for client, samples in zip(clients, listed, strict=True):
        x = stack_pictures([p for p, _, _ in samples], shape, mode=mode, upright=True)
        shape = x.shape[1:]
        marks = np.array([test for _, _, test in samples])
        divided = (client / "test").is_dir() and (client / "train").is_dir()
        parts.append(
            Part(
                str(client),
                x,
                np.array([label for _, label, _ in samples]),
                marks if divided else None,
            )
        )
    return parts


def _list_samples(client: Path) -> list[tuple[Path, str, bool]]:
    """Picture, class and whether it is of the test part."""
    divided = {f.name for f in list_folders(client)} == {"train", "test"}
    places = [(client / "train", False), (client / "test", True)] if divided else [(client, False)]
    found = [
        (p, c.name, test)
        for place, test in places
        for c in list_folders(place)
        for p in list_pictures(c)
    ]
    if not found:
        raise UserError(
            f"{client} has no samples; pictures are looked for in {client.name}/<class>/"
        )
    return found
