"""Download one file: with progress, resumed where it stopped, checked, and only then renamed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from email.message import Message
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import BinaryIO
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from fedtailor.core.errors import UserError

# Called with the file's name, the bytes there, and all bytes (0 if the server does not tell).
Progress = Callable[[str, int, int], None]
Report = Callable[[int, int], None]  # the same for a file that is known

BLOCK = 1 << 18
TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 3  # connections that break before the download fails


class Unreachable(Exception):
    """A server that cannot be reached or does not have the file."""


def download_file(
    url: str, path: Path, checksum: str = "", progress: Progress | None = None
) -> Path:
    """Download ``url`` to ``path``.

    Until all bytes have come they are in ``<path>.part``, and the next call continues from there.
    """
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    stopped_before_renaming = checksum and part.exists() and is_intact(part, checksum)
    if not stopped_before_renaming:
        _download_part(url, part, _report_for(path.name, progress))
        _check_part(url, part, checksum)
    os.replace(part, path)
    return path


def is_intact(path: Path, checksum: str) -> bool:
    """Whether a file has this checksum (``md5:...`` or ``sha256:...``)."""
    algorithm, _, expected = checksum.partition(":")
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest() == expected


def _report_for(name: str, progress: Progress | None) -> Report:
    def report(received: int, total: int) -> None:
        if progress is not None:
            progress(name, received, total)

    return report


def _download_part(url: str, part: Path, report: Report) -> None:
    """Download all that is not in ``part`` yet, over several connections if they break."""
    for _ in range(ATTEMPTS):
        received, total = _continue_download(url, part, report)
        if received >= total:
            return
    raise Unreachable(
        f"{url} broke off at {received} of {total} bytes; run it again to go on from there"
    )


def _check_part(url: str, part: Path, checksum: str) -> None:
    if checksum and not is_intact(part, checksum):
        part.unlink()
        raise UserError(
            f"{url} gave a file with another checksum than {checksum}; "
            "it was removed, try again later"
        )


def _continue_download(url: str, part: Path, report: Report) -> tuple[int, int]:
    """Download over one connection; the bytes in ``part`` now, and the bytes there are in all."""
    have = part.stat().st_size if part.exists() else 0
    headers = {"User-Agent": "fedtailor"}
    if have:
        headers["Range"] = f"bytes={have}-"
    try:
        reply = urlopen(Request(url, headers=headers), timeout=TIMEOUT)
    except HTTPError as e:
        e.close()
        # no bytes after these: they are of another file, begin anew
        if e.code == 416 and have:
            part.unlink()
            return 0, 1
        raise Unreachable(f"{url} answers {e.code} {e.reason}") from None
    except (HTTPException, OSError) as e:
        raise Unreachable(
            f"{url} cannot be reached ({getattr(e, 'reason', e)})"
        ) from None
    with reply, part.open("r+b" if have else "wb") as file:
        return _write_reply(reply, file, have, report)


def _write_reply(
    reply: HTTPResponse, file: BinaryIO, have: int, report: Report
) -> tuple[int, int]:
    """Append the reply to the ``have`` bytes of the file; the bytes there, and all bytes."""
    start = _read_first_byte(reply.headers) if reply.status == 206 else 0
    length = reply.headers.get("Content-Length")
    total = start + int(length) if length else 0
    file.seek(min(start, have))
    file.truncate()
    report(file.tell(), total)
    while True:
        try:
            block = reply.read(BLOCK)
        except (HTTPException, OSError):
            received = file.tell()
            return received, max(total, received + 1)
        if not block:
            return file.tell(), total
        file.write(block)
        report(file.tell(), total)


def _read_first_byte(headers: Message) -> int:
    """Where a partial reply begins: 100 in ``Content-Range: bytes 100-199/200``."""
    content_range = headers.get("Content-Range", "bytes 0-")
    first_and_last = content_range.split()[1]
    return int(first_and_last.split("-")[0])
