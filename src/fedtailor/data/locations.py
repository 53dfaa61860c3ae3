"""Where data are: the data folder, and the official or prepared files in it."""

from __future__ import annotations

import os
from pathlib import Path

from fedtailor.core.errors import UserError
from fedtailor.data.entry import Entry

DEFAULT_FOLDER = "~/.fedtailor/data"
SHOWN_FILES = 4  # names that a message lists before it says how many more there are


def find_data_folder(folder: Path | str | None = None) -> Path:
    """The given folder, else the one in FEDTAILOR_DATA, else ~/.fedtailor/data."""
    chosen = folder or os.environ.get("FEDTAILOR_DATA") or DEFAULT_FOLDER
    return Path(chosen).expanduser()


def find_official_files(
    entry: Entry, folder: Path
) -> tuple[dict[str, Path], list[str]]:
    """The official files that are there, by their official names, and the names of missing ones.

    Every file is looked for in ``<folder>/<name>/`` and in the folders that official archives
    unpack to. Instead of a gzipped file, the unpacked one may be there.
    """
    home = folder / entry.name
    places = [home, *(home / name for name in entry.archive_folders)]
    found: dict[str, Path] = {}
    for file in (*entry.files, *entry.optional_files):
        path = _find_file(file, places)
        if path is not None:
            found[file] = path
    lacking = [file for file in entry.files if file not in found]
    return found, lacking


def _find_file(file: str, places: list[Path]) -> Path | None:
    """The first place that has the file, packed or unpacked."""
    for place in places:
        for spelling in (file, file.removesuffix(".gz")):
            path = place / spelling
            if path.exists():
                return path
    return None


def list_sources(found: dict[str, Path]) -> list[str]:
    """Every single file behind the official names, in a fixed order.

    They are strings rather than paths because there may be 100,000 of them.
    """
    sources: list[str] = []
    for _, path in sorted(found.items()):
        if path.is_dir():
            sources += sorted(_walk_files(path))
        else:
            sources.append(str(path))
    return sources


def _walk_files(folder: Path) -> list[str]:
    paths: list[str] = []
    for place, _, files in os.walk(folder, followlinks=True):
        paths += [f"{place}/{file}" for file in files]
    return paths


def find_prepared_file(entry: Entry, folder: Path) -> Path | None:
    """The prepared npz file, in the data folder or in the data set's own folder."""
    for stem in entry.stems:
        for place in (folder, folder / entry.name):
            path = place / f"{stem}.npz"
            if path.is_file():
                return path
    return None


def is_available(entry: Entry, folder: Path) -> bool:
    """Whether the data set can be loaded from the folder as it is."""
    _, lacking = find_official_files(entry, folder)
    return not lacking or find_prepared_file(entry, folder) is not None


def explain_missing_files(entry: Entry, folder: Path, lacking: list[str]) -> UserError:
    """An error that says, in one line, which files to put where."""
    if len(lacking) < len(entry.files):
        problem = f"some files of {entry.full_name} are missing"
    else:
        problem = f"no files of {entry.full_name} are there"
    source = f"they are at {entry.homepage}"
    if entry.downloads:
        source = f"or run 'fedtailor datasets fetch {entry.name}'"
    return UserError(
        f"{problem}: put {shorten_list(lacking)} into {folder / entry.name}/, "
        f"or {entry.stems[0]}.npz into {folder}/ "
        f"(another folder: FEDTAILOR_DATA or --data-dir), {source}"
    )


def shorten_list(files: list[str] | tuple[str, ...]) -> str:
    """The first names, and how many more there are."""
    shown = ", ".join(files[:SHOWN_FILES])
    more = len(files) - SHOWN_FILES
    return f"{shown} and {more} more" if more > 0 else shown
