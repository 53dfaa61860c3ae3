"""Checksums of official files, to detect a damaged file or the file of another data set."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

from fedtailor.core.errors import UserError
from fedtailor.data.entry import Entry


def check_contents(
    content: bytes,
    file: str,
    path: Path,
    entry: Entry,
    family: Iterable[Entry],
    *,
    complete: bool,
) -> None:
    """Refuse contents that are another official file's, or that are damaged.

    Args:
        content: what is in the file (unpacked, if the file is gzipped).
        file: the official name, as in ``entry.md5``.
        path: where the file is, for the message.
        entry: the data set that the file should belong to.
        family: all data sets whose files have the same format.
        complete: whether there are as many samples as in the official file. A file with fewer is
            taken for a chosen part of it, and has no known checksum.
    """
    md5 = hashlib.md5(content, usedforsecurity=False).hexdigest()
    for other in family:
        for other_file, other_md5 in other.md5.items():
            same_file = (other.name, other_file) == (entry.name, file)
            if md5 == other_md5 and not same_file:
                raise UserError(
                    f"{path} is '{other_file}' of {other.name}, not '{file}' of {entry.name}; "
                    "put the right file there"
                )
    official = entry.md5.get(file, md5)
    if complete and md5 != official:
        raise UserError(
            f"{path} is damaged: its MD5 is {md5}, the official one {official}; "
            f"remove it and run 'fedtailor datasets fetch {entry.name}'"
        )
