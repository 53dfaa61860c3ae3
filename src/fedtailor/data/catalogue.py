"""The catalogue: all named data sets, found in the files of ``sets/``; nothing to register."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Iterable

from fedtailor.core.errors import unknown
from fedtailor.data import sets
from fedtailor.data.entry import Entry
from fedtailor.data.loader import Loader


def list_datasets() -> list[Entry]:
    """The entry of every named data set, in its default variant."""
    return [loader.entry.with_variant("") for loader in list_loaders().values()]


def find_entry(name: str) -> Entry:
    """The entry of ``NAME`` or ``NAME:VARIANT``."""
    base, _, variant = name.partition(":")
    loader = find_loader(base)
    if loader is None:
        raise unknown("data set", base, list_loaders())
    return loader.entry.with_variant(variant)


def find_loader(name: str) -> Loader | None:
    """The loader of a data set (its name without a variant), or None if there is no such name.

    A file of that name is looked at first, which spares importing all the others.
    """
    files = _list_files()
    if name in files:
        loaders = _collect_loaders([name])
        if name in loaders:
            return loaders[name]
    return _collect_loaders(files).get(name)


def list_loaders() -> dict[str, Loader]:
    """All loaders, by the names of their data sets, in alphabetical order."""
    loaders = _collect_loaders(_list_files())
    return dict(sorted(loaders.items()))


def _list_files() -> list[str]:
    """The names of the files in ``sets/``, without ending; ``_``-files hold no data sets."""
    names = [module.name for module in pkgutil.iter_modules(sets.__path__)]
    return [name for name in names if not name.startswith("_")]


def _collect_loaders(files: Iterable[str]) -> dict[str, Loader]:
    loaders: dict[str, Loader] = {}
    for file in files:
        module = importlib.import_module(f"{sets.__name__}.{file}")
        for loader in module.LOADERS:
            loaders[loader.entry.name] = loader
    return loaders
