"""A user's own files: one npz or csv file, or a folder with one file or folder for each client."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Dataset
from fedtailor.data.own.arrays import Samples, join_clients, join_samples
from fedtailor.data.own.external_sets import Pair, add_external, find_pairs
from fedtailor.data.raw import Array, check_owner
from fedtailor.data.readers.csv_table import (
    USUAL,
    Columns,
    Table,
    divide_table,
    read_columns,
    read_csv_table,
)
from fedtailor.data.readers.images import (
    is_grey,
    list_folders,
    list_images,
    stack_images,
)
from fedtailor.data.readers.npz import read_samples
from fedtailor.data.targets import are_quantities

FILES = (".npz", ".csv")
EXTERNAL = "external-"  # before the name of an external set in a folder of clients


def is_path(name: str) -> bool:
    """Whether a name is a user's own file or folder rather than a misspelt data set."""
    if name.endswith(FILES) or os.sep in name or name.startswith(("~", ".")):
        return True
    return Path(name).is_dir()


def load_own_data(
    path: Path, *, missing: str | None = None, columns: Columns = USUAL
) -> Dataset:
    """A file with all samples, or a folder with one npz file, csv file or image folder a client.

    npz: x and y, and optionally test (true for the test part), client (0..K-1, or names), labels
    (names of the classes), and ``<name>.x`` and ``<name>.y`` of external sets. csv: a header with
    ``label`` and optionally ``test``, ``client`` and ``external``; all other columns are features.
    Image folders: ``<client>/<class>/``, or ``<client>/train/<class>/`` and
    ``<client>/test/<class>/``. In a folder of clients, ``external-<name>`` is an external set.
    """
    if path.is_dir():
        return _load_folder(path, missing, columns)
    if not path.exists():
        raise UserError(f"there is no file or folder {path}")
    if path.suffix == ".npz":
        return _load_npz(path, missing)
    if path.suffix == ".csv":
        return _load_csv(path, missing, columns)
    raise UserError(f"{path} is neither an npz nor a csv file nor a folder")


def _load_csv(path: Path, missing: str | None, columns: Columns) -> Dataset:
    table = read_csv_table(path, missing=missing is not None, wanted=columns)
    sets = divide_table(table)
    owned = sets.pop("", None)
    if owned is None:
        raise UserError(f"{path}: all samples are of external sets; clients need some")
    dataset = _join_file(_table_to_samples(owned, path), owned.client, path, missing)
    dataset = replace(dataset, columns=owned.columns)
    return add_external(dataset, {name: (t.x, t.y) for name, t in sets.items()})


def _table_to_samples(table: Table, path: Path) -> Samples:
    return Samples(str(path), table.x, table.y, table.test)


def _load_npz(path: Path, missing: str | None) -> Dataset:
    arrays = read_samples(path)
    dataset = _join_file(
        _arrays_to_samples(arrays, path), arrays.get("client"), path, missing
    )
    external = find_pairs(arrays, str(path))
    if "labels" not in arrays:
        return add_external(dataset, external)
    labels = tuple(str(label) for label in arrays["labels"].reshape(-1))
    if len(labels) < dataset.classes:
        raise UserError(
            f"{path}: label {dataset.classes - 1} is out of range, "
            f"there are {len(labels)} names of classes"
        )
    named = replace(dataset, classes=len(labels), labels=labels)
    return add_external(named, external)


def _arrays_to_samples(arrays: dict[str, Array], path: Path) -> Samples:
    """The samples in an npz file; labels may be whole numbers written as floats."""
    y = arrays["y"]
    if y.dtype.kind == "f" and y.ndim == 1 and not are_quantities(y):
        y = y.astype(np.int64)
    return Samples(str(path), arrays["x"], y, arrays.get("test"))


def _join_file(
    samples: Samples, client: Array | None, path: Path, missing: str | None
) -> Dataset:
    """The data set of one file, with the owners that its column of clients names."""
    if client is None:
        return join_samples([samples], path.stem, None, (), missing=missing)
    owner, names = _number_clients(client)
    check_owner(owner, len(samples.y), str(path))
    if names is None:
        names = [str(k) for k in range(int(owner.max(initial=-1)) + 1)]
    return join_samples([samples], path.stem, owner, names, missing=missing)


def _number_clients(client: Array) -> tuple[Array, list[str] | None]:
    """The clients' numbers, from a column of numbers or of texts; and names if texts are names."""
    if client.dtype.kind != "U":
        return client, None
    if all(text.isdecimal() for text in client.reshape(-1)):
        return client.astype(np.int64), None
    names, numbers = np.unique(client, return_inverse=True)
    return numbers, [str(name) for name in names]


def _load_folder(folder: Path, missing: str | None, columns: Columns) -> Dataset:
    """One client a file or folder, in the order of their names."""
    items = sorted(
        path for path in folder.iterdir() if not path.name.startswith((".", "README"))
    )
    if not items:
        raise UserError(
            f"{folder} is empty; put one .npz or .csv file or one folder of images a client into it"
        )
    kinds = sorted({_classify_item(path) for path in items})
    kind = kinds[0]
    if len(kinds) > 1 or kind not in ("folder", *FILES):
        odd = _find_odd_item(items)
        raise UserError(
            f"{folder} holds {' and '.join(kinds)} ({odd.name}); "
            "clients are all .npz, all .csv or all folders"
        )
    samples = _read_items(items, kind, missing, columns)
    owned: dict[str, Samples] = {}
    external: dict[str, Pair] = {}
    for path, own in zip(items, samples, strict=True):
        if path.name.startswith(EXTERNAL):
            external[path.stem.removeprefix(EXTERNAL)] = (own.x, own.y)
        else:
            owned[path.stem] = own
    clients = list(owned.values())
    dataset = join_clients(clients, folder.name, list(owned), missing=missing)
    if kind == ".csv":
        dataset = replace(dataset, columns=read_columns(items[0], columns))
    return add_external(dataset, external)


def _read_items(
    items: list[Path], kind: str, missing: str | None, columns: Columns
) -> list[Samples]:
    """The samples of every client and external set."""
    if kind == ".npz":
        return [_arrays_to_samples(read_samples(path), path) for path in items]
    if kind == ".csv":
        return _read_tables(items, missing, columns)
    return _read_image_folders(items)


def _classify_item(path: Path) -> str:
    return "folder" if path.is_dir() else path.suffix


def _find_odd_item(items: list[Path]) -> Path:
    """The first item that is not like the first one."""
    for path in items:
        if path.is_dir() or path.suffix != items[0].suffix:
            return path
    return items[0]


def _read_tables(
    paths: list[Path], missing: str | None, columns: Columns
) -> list[Samples]:
    """One csv file a client, all with the same columns."""
    tables = [
        read_csv_table(path, missing=missing is not None, wanted=columns)
        for path in paths
    ]
    expected = tables[0].columns
    for path, table in zip(paths, tables, strict=True):
        if table.external is not None:
            raise UserError(
                f"{path} has a column 'external'; in a folder of clients an external set is"
                f" a file of its own, {EXTERNAL}NAME.csv"
            )
    for path, table in zip(paths, tables, strict=True):
        if table.columns != expected:
            odd = sorted(set(table.columns) ^ set(expected))
            why = f"'{odd[0]}' is in one of them only" if odd else "their order differs"
            raise UserError(f"{path} and {paths[0]} have different columns: {why}")
    return [
        _table_to_samples(table, path)
        for table, path in zip(tables, paths, strict=True)
    ]


class Picture(NamedTuple):
    """An image file of a client."""

    path: Path
    label: str
    is_test: bool


def _read_image_folders(clients: list[Path]) -> list[Samples]:
    """The images of all clients: in colour if one of them is."""
    listed = [_list_pictures(client) for client in clients]
    all_grey = all(is_grey(picture.path) for pictures in listed for picture in pictures)
    mode = "L" if all_grey else "RGB"
    shape: tuple[int, ...] | None = None
    samples = []
    for client, pictures in zip(clients, listed, strict=True):
        paths = [picture.path for picture in pictures]
        x = stack_images(paths, shape, mode=mode, upright=True)
        shape = x.shape[1:]
        y = np.array([picture.label for picture in pictures])
        test = None
        if (client / "test").is_dir() and (client / "train").is_dir():
            test = np.array([picture.is_test for picture in pictures])
        samples.append(Samples(str(client), x, y, test))
    return samples


def _list_pictures(client: Path) -> list[Picture]:
    """The images in ``<class>/``, or in ``train/<class>/`` and ``test/<class>/``."""
    folders = {folder.name for folder in list_folders(client)}
    if folders == {"train", "test"}:
        pictures = _list_classes(client / "train", False) + _list_classes(
            client / "test", True
        )
    else:
        pictures = _list_classes(client, False)
    if not pictures:
        raise UserError(
            f"{client} has no samples; pictures are looked for in {client.name}/<class>/"
        )
    return pictures


def _list_classes(folder: Path, is_test: bool) -> list[Picture]:
    pictures = []
    for class_folder in list_folders(folder):
        for path in list_images(class_folder):
            pictures.append(Picture(path, class_folder.name, is_test))
    return pictures
