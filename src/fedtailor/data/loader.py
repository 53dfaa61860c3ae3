"""How a named data set is loaded: from its official files, else from a prepared file."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from fedtailor.data.cache import parse_once
from fedtailor.data.entry import Entry
from fedtailor.data.federation import Dataset
from fedtailor.data.locations import (
    explain_missing_files,
    find_official_files,
    find_prepared_file,
    list_sources,
)
from fedtailor.data.raw import Raw, check_raw, to_dataset
from fedtailor.data.readers.npz import read_prepared


@dataclass(frozen=True)
class Loader:
    """A data set's entry, and its three steps.

    ``parse`` reads the official files (given by their official names), ``read_prepared`` a prepared
    npz file, and ``finish`` makes the data set of the arrays that either of them gives.
    """

    entry: Entry
    parse: Callable[[Mapping[str, Path], Entry], Raw]
    read_prepared: Callable[[Path, Entry], Raw] = read_prepared
    finish: Callable[[Raw, Entry], Dataset] = to_dataset

    def load(self, variant: str, folder: Path) -> Dataset:
        """The data set in this variant, from its files in the data folder."""
        entry = self.entry.with_variant(variant)
        return self.finish(self._read_arrays(entry, folder), entry)

    def _read_arrays(self, entry: Entry, folder: Path) -> Raw:
        if not entry.files:  # embedded in a package
            return self.parse({}, entry)
        paths, lacking = find_official_files(entry, folder)
        if not lacking:
            return self._parse_official(entry, folder, paths)
        prepared = find_prepared_file(entry, folder)
        if prepared is None:
            raise explain_missing_files(entry, folder, lacking)
        raw = self.read_prepared(prepared, entry)
        return check_raw(raw, self._describe_arrays(entry), str(prepared))

    def _parse_official(
        self, entry: Entry, folder: Path, paths: dict[str, Path]
    ) -> Raw:
        def parse() -> Raw:
            raw = self.parse(paths, entry)
            return check_raw(
                raw, self._describe_arrays(entry), str(folder / entry.name)
            )

        return parse_once(folder, entry.stems[0], list_sources(paths), parse)

    def _describe_arrays(self, entry: Entry) -> Entry:
        """The entry that describes the arrays before ``finish``.

        It is the default variant's where all variants share their files and differ by ``finish``.
        """
        return entry if entry.separate_files else self.entry.with_variant("")
