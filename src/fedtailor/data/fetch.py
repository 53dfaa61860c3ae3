"""Download data sets from their official places to the data folder."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, urlsplit

from fedtailor.core.errors import UserError
from fedtailor.data.archive import is_archive, unpack_archive
from fedtailor.data.catalogue import find_entry
from fedtailor.data.download import Progress, Unreachable, download_file, is_intact
from fedtailor.data.entry import Download, Entry
from fedtailor.data.locations import find_data_folder, find_official_files, shorten_list


@dataclass(frozen=True)
class Target:
    """The data set to download, and where its files go."""

    entry: Entry
    folder: Path  # the data folder

    @property
    def home(self) -> Path:
        """The data set's own folder."""
        return self.folder / self.entry.name


def fetch_dataset(
    name: str,
    folder: Path | str | None = None,
    progress: Progress | None = None,
    *,
    mirror: str | None = None,
) -> list[Path]:
    """Download the official files of a data set that are missing, and return where all files are.

    An interrupted download continues where it stopped. ``mirror`` (or FEDTAILOR_MIRROR) is the
    address of a server that has ``<name>/<file>`` and is asked first.
    """
    target = Target(find_entry(name), find_data_folder(folder))
    entry = target.entry
    if not entry.files:
        return []
    mirror = mirror or os.environ.get("FEDTAILOR_MIRROR")
    for item in entry.downloads:
        if _is_needed(item, target):
            _download_item(item, target, mirror, progress)
    found, lacking = find_official_files(entry, target.folder)
    if lacking:
        problem = (
            f"does not contain {lacking[0]}"
            if entry.downloads
            else "has no direct download"
        )
        raise UserError(f"{entry.name} {problem}: {_explain_by_hand(target)}")
    return list(found.values())


def _is_needed(item: Download, target: Target) -> bool:
    """Whether a file of this download is missing, or is there under its name but damaged."""
    entry = target.entry
    found, _ = find_official_files(entry, target.folder)
    # rather than an archive with official files in it
    is_official = item.file in entry.files
    contains = item.contains
    if not contains:
        contains = (item.file,) if is_official else entry.files
    if any(file not in found for file in contains):
        return True
    path = target.home / item.file
    if not is_official or found[item.file] != path or not item.checksum:
        return False
    return not is_intact(path, item.checksum)


def _download_item(
    item: Download, target: Target, mirror: str | None, progress: Progress | None
) -> None:
    path = target.home / item.file
    if not _is_complete(path, item.checksum):
        urls = item.urls
        if mirror:
            first = f"{mirror.rstrip('/')}/{target.entry.name}/{quote(item.file)}"
            urls = (first, *urls)
        _try_urls(urls, item, target, progress)
    if is_archive(path):
        unpack_archive(path)


def _is_complete(path: Path, checksum: str) -> bool:
    """Whether the file is there and, where its checksum is known, intact."""
    if not path.exists():
        return False
    return not checksum or is_intact(path, checksum)


def _try_urls(
    urls: tuple[str, ...], item: Download, target: Target, progress: Progress | None
) -> None:
    path = target.home / item.file
    failures = []
    for url in urls:
        try:
            download_file(url, path, item.checksum, progress)
            return
        except Unreachable as e:
            failures.append(str(e))
        except OSError as e:
            raise UserError(
                f"{path} cannot be written ({e.strerror}); choose another --data-dir"
            ) from None
    hosts = ", ".join(urlsplit(url).netloc for url in urls)
    raise UserError(
        f"no {item.file} from {hosts}: {failures[-1]}; by hand: {_explain_by_hand(target)}"
    )


def _explain_by_hand(target: Target) -> str:
    """What a user downloads by hand, and where to put it."""
    entry = target.entry
    archives = [item.file for item in entry.downloads if item.file not in entry.files]
    unpacking = ""
    if archives:
        unpacking = f" ({' and '.join(archives)} there is unpacked by the same command)"
    return (
        f"get {shorten_list(entry.files)} from {entry.homepage} "
        f"and put them into {target.home}/{unpacking}"
    )
