"""Data sets from their official places to the data folder."""

from __future__ import annotations

import os
from pathlib import Path
from urllib.parse import quote, urlsplit

from fedtailor.core.errors import UserError
from fedtailor.data.archive import is_archive, unpack
from fedtailor.data.catalogue import find_entry
from fedtailor.data.download import Progress, Unreachable, download, is_intact
from fedtailor.data.entry import Download, Entry
from fedtailor.data.locations import data_folder, find_official


def fetch(
    name: str,
    folder: Path | str | None = None,
    progress: Progress | None = None,
    *,
    mirror: str | None = None,
) -> list[Path]:
    """Download the official files of a data set that are not there yet; where they are now.

    An interrupted download goes on where it stopped. ``mirror`` (or FEDTAILOR_MIRROR) names a place that has
    ``<name>/<file>`` and is asked first.
    """
    entry, place = find_entry(name), data_folder(folder)
    if not entry.files:
        return []
    mirror = mirror or os.environ.get("FEDTAILOR_MIRROR")
    for item in entry.downloads:
        if _is_needed(item, entry, place):
            _get(item, entry, place, mirror, progress)
    found, lacking = find_official(entry, place)
    if lacking:
        what = "has no direct download" if not entry.downloads else f"does not contain {lacking[0]}"
        raise UserError(f"{entry.name} {what}: {_by_hand(entry, place)}")
    return list(found.values())


def _is_needed(item: Download, entry: Entry, place: Path) -> bool:
    """Whether something this download gives is not there, or is there under its name but damaged."""
    found, _ = find_official(entry, place)
    direct = item.file in entry.files
    gives = item.gives or ((item.file,) if direct else entry.files)
    if any(file not in found for file in gives):
        return True
    path = place / entry.name / item.file
    return (
        direct
        and found[item.file] == path
        and bool(item.checksum)
        and not is_intact(path, item.checksum)
    )


def _get(
    item: Download, entry: Entry, place: Path, mirror: str | None, progress: Progress | None
) -> None:
    path = place / entry.name / item.file
    if not (path.exists() and (not item.checksum or is_intact(path, item.checksum))):
        own = (f"{mirror.rstrip('/')}/{entry.name}/{quote(item.file)}",) if mirror else ()
        _try_all((*own, *item.urls), path, item, entry, place, progress)
    if is_archive(path):
        unpack(path)


def _try_all(
    urls: tuple[str, ...],
    path: Path,
    item: Download,
    entry: Entry,
    place: Path,
    progress: Progress | None,
) -> None:
    failures = []
    for url in urls:
        try:
            download(url, path, item.checksum, progress)
            return
        except Unreachable as e:
            failures.append(str(e))
        except OSError as e:
            raise UserError(
                f"{path} cannot be written ({e.strerror}); choose another --data-dir"
            ) from None
    hosts = ", ".join(urlsplit(u).netloc for u in urls)
    raise UserError(
        f"no {item.file} from {hosts}: {failures[-1]}; by hand: {_by_hand(entry, place)}"
    )


def _by_hand(entry: Entry, place: Path) -> str:
    shown = ", ".join(entry.files[:4]) + (
        f" and {len(entry.files) - 4} more" if len(entry.files) > 4 else ""
    )
    archives = [d.file for d in entry.downloads if d.file not in entry.files]
    packed = (
        f" ({' and '.join(archives)} there is unpacked by the same command)" if archives else ""
    )
    return f"get {shown} from {entry.home} and put them into {place / entry.name}/{packed}"
