"""Where data lie: the data folder, and the official or prepared files in it."""

from __future__ import annotations

import os
from pathlib import Path

from fedtailor.core.errors import UserError
from fedtailor.data.entry import Entry

DEFAULT = "~/.fedtailor/data"


def data_folder(folder: Path | str | None = None) -> Path:
    """The given folder, else what FEDTAILOR_DATA says, else ~/.fedtailor/data."""
    return Path(folder or os.environ.get("FEDTAILOR_DATA") or DEFAULT).expanduser()


def find_official(entry: Entry, folder: Path) -> tuple[dict[str, Path], list[str]]:
    """The official files that are there, by their official names, and the names of those that are not.

    Every file is looked for in ``<folder>/<name>/`` and in the folders official archives unpack to; a gzipped file may
    be there unpacked as well.
    """
    home = folder / entry.name
    places = [home, *(home / inside for inside in entry.inside)]
    found: dict[str, Path] = {}
    for file in (*entry.files, *entry.optional):
        spellings = [file, file.removesuffix(".gz")]
        path = next((p / s for p in places for s in spellings if (p / s).exists()), None)
        if path is not None:
            found[file] = path
    return found, [f for f in entry.files if f not in found]


def list_sources(found: dict[str, Path]) -> list[str]:
    """Every single file behind the official names, in a fixed order; as texts, for there may be 100,000."""
    out: list[str] = []
    for _, path in sorted(found.items()):
        if path.is_dir():
            out += sorted(
                f"{at}/{file}" for at, _, files in os.walk(path, followlinks=True) for file in files
            )
        else:
            out.append(str(path))
    return out


def find_prepared(entry: Entry, folder: Path) -> Path | None:
    """The prepared npz file, in the data folder or in the data set's own."""
    paths = (p / f"{stem}.npz" for stem in entry.stems for p in (folder, folder / entry.name))
    return next((p for p in paths if p.is_file()), None)


def is_available(entry: Entry, folder: Path) -> bool:
    """Whether the data set can be loaded from the folder as it is."""
    embedded = not entry.files
    return (
        embedded or not find_official(entry, folder)[1] or find_prepared(entry, folder) is not None
    )


def not_there(entry: Entry, folder: Path, lacking: list[str]) -> UserError:
    """What to put where, in one line."""
    shown = ", ".join(lacking[:4]) + (f" and {len(lacking) - 4} more" if len(lacking) > 4 else "")
    some = "some files" if len(lacking) < len(entry.files) else "no files"
    how = (
        f"or run 'fedtailor datasets fetch {entry.name}'"
        if entry.downloads
        else f"they are at {entry.home}"
    )
    verb = "are missing" if some == "some files" else "are there"
    return UserError(
        f"{some} of {entry.spelled} {verb}: put {shown} into {folder / entry.name}/, "
        f"or {entry.stems[0]}.npz into {folder}/ (another folder: FEDTAILOR_DATA or --data-dir), {how}"
    )
