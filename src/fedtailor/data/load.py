"""Data sets by name: from their official files, else from a prepared file, to a ``Dataset``."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.cache import remember
from fedtailor.data.catalogue import ENTRIES, find_entry
from fedtailor.data.entry import Entry
from fedtailor.data.federation import Dataset
from fedtailor.data.locations import (
    data_folder,
    find_official,
    find_prepared,
    list_sources,
    not_there,
)
from fedtailor.data.own.files import is_path, load_own
from fedtailor.data.own.missing_values import check_way
from fedtailor.data.raw import Raw, check_raw, to_dataset
from fedtailor.data.readers.npz import read_prepared
from fedtailor.data.sets.ag_news import pad_texts, parse_news
from fedtailor.data.sets.amazon import choose_features, parse_reviews, read_amazon
from fedtailor.data.sets.cifar import choose_labels, parse_cifar10, parse_cifar100
from fedtailor.data.sets.digits import read_digits
from fedtailor.data.sets.flickr_aes import parse_flickr_aes
from fedtailor.data.sets.har import lay_out, parse_har, read_har
from fedtailor.data.sets.heart import parse_heart, read_heart, with_indicators
from fedtailor.data.sets.histo import parse_histo, parse_pathmnist, read_pathmnist
from fedtailor.data.sets.mnist import parse_emnist, parse_idx
from fedtailor.data.sets.tiny_imagenet import parse_tiny_imagenet


class Loader(NamedTuple):
    """The three steps of a data set: official files to arrays, a prepared file to arrays, arrays to the data set."""

    parse: Callable[[Mapping[str, Path], Entry], Raw]
    read: Callable[[Path, Entry], Raw] = read_prepared
    finish: Callable[[Raw, Entry], Dataset] = to_dataset


LOADERS: dict[str, Loader] = {
    "mnist": Loader(parse_idx),
    "fashion_mnist": Loader(parse_idx),
    "emnist": Loader(parse_emnist),
    "cifar10": Loader(parse_cifar10),
    "cifar100": Loader(parse_cifar100, finish=choose_labels),
    "tiny_imagenet": Loader(parse_tiny_imagenet),
    "ag_news": Loader(parse_news, finish=pad_texts),
    "amazon": Loader(parse_reviews, read_amazon, choose_features),
    "har": Loader(parse_har, read_har, lay_out),
    "heart": Loader(parse_heart, read_heart, with_indicators),
    "flickr_aes": Loader(parse_flickr_aes),
    "histo": Loader(parse_histo),
    "pathmnist": Loader(parse_pathmnist, read_pathmnist),
}


def load(name: str, folder: Path | str | None = None, *, missing: str | None = None) -> Dataset:
    """The data set of this name (``NAME`` or ``NAME:VARIANT``), or the user's own at this path.

    The files are looked for in ``folder``, else in FEDTAILOR_DATA, else in ~/.fedtailor/data: the official files in
    ``<name>/`` win over a prepared ``<name>.npz``. What is parsed is cached there. ``missing="median"`` allows gaps in
    the user's own tables; see ``gaps``.
    """
    check_way(missing)
    try:
        return _load(name, folder, missing)
    except OSError as e:  # no permission, a disk that fails
        raise UserError(f"{e.filename or name} cannot be read ({e.strerror or e})") from None


def _load(name: str, folder: Path | str | None, missing: str | None) -> Dataset:
    if name.partition(":")[0] not in ENTRIES and is_path(name):
        return load_own(Path(name).expanduser(), missing=missing)
    entry = find_entry(name)
    if entry.name == "digits":
        return _load_digits(entry)
    loader, place = LOADERS[entry.name], data_folder(folder)
    return loader.finish(_read(loader, entry, place), entry)


def _read(loader: Loader, entry: Entry, place: Path) -> Raw:
    gaps = entry.name == "heart"
    found, lacking = find_official(entry, place)
    if not lacking:
        home = str(place / entry.name)
        return remember(
            place,
            entry.stems[0],
            list_sources(found),
            lambda: check_raw(loader.parse(found, entry), _as_parsed(entry), home, missing=gaps),
        )
    prepared = find_prepared(entry, place)
    if prepared is None:
        raise not_there(entry, place, lacking)
    return check_raw(loader.read(prepared, entry), _as_parsed(entry), str(prepared), missing=gaps)


def _as_parsed(entry: Entry) -> Entry:
    """What the files hold: variants that only look at them in another way come later."""
    return entry if entry.apart else ENTRIES[entry.name].at("")


def _load_digits(entry: Entry) -> Dataset:
    """Sixteen levels of grey, spread over a byte."""
    x, y = read_digits()
    return to_dataset(
        Raw({"x": np.rint(x * (255 / 16)).astype(np.uint8).reshape(-1, *entry.shape), "y": y}),
        entry,
    )
