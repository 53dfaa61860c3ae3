"""One file from the web: with progress, resumed where it stopped, checked, and only then under its name."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from email.message import Message
from http.client import HTTPException
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from fedtailor.core.errors import UserError

Progress = Callable[
    [str, int, int], None
]  # file, bytes there, bytes in all (0 if the server does not say)
BLOCK = 1 << 18
TIMEOUT = 30.0  # seconds without a byte
ATTEMPTS = 3  # connections that break before it is given up


class Unreachable(Exception):
    """A place that cannot be reached or does not have the file."""


def download(url: str, path: Path, checksum: str = "", progress: Progress | None = None) -> Path:
    """Fetch ``url`` to ``path``; what has come is kept in ``<path>.part`` and resumed the next time."""
    part = path.with_name(path.name + ".part")
    path.parent.mkdir(parents=True, exist_ok=True)
    if (
        checksum and part.exists() and is_intact(part, checksum)
    ):  # it was stopped just before its end
        os.replace(part, path)
        return path
    for _ in range(ATTEMPTS):
        there, total = _continue(url, part, lambda *n: progress and progress(path.name, *n))
        if there >= total:
            break
    else:
        raise Unreachable(
            f"{url} broke off at {there} of {total} bytes; run it again to go on from there"
        )
    if checksum and not is_intact(part, checksum):
        part.unlink()
        raise UserError(
            f"{url} gave a file with another checksum than {checksum}; it was removed, try again later"
        )
    os.replace(part, path)
    return path


def is_intact(path: Path, checksum: str) -> bool:
    """Whether a file has this checksum (``md5:...`` or ``sha256:...``)."""
    algorithm, _, expected = checksum.partition(":")
    with path.open("rb") as f:
        return hashlib.file_digest(f, algorithm).hexdigest() == expected


def _continue(url: str, part: Path, report: Callable[[int, int], object]) -> tuple[int, int]:
    """Fetch what is not in ``part`` yet; how many bytes are there now, and how many there are in all."""
    have = part.stat().st_size if part.exists() else 0
    ask = {"User-Agent": "fedtailor"} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        reply = urlopen(Request(url, headers=ask), timeout=TIMEOUT)
    except HTTPError as e:
        e.close()
        if e.code == 416 and have:  # there is nothing after what has come: it is not of this file
            part.unlink()
            return 0, 1
        raise Unreachable(f"{url} answers {e.code} {e.reason}") from None
    except (HTTPException, OSError) as e:
        raise Unreachable(f"{url} cannot be reached ({getattr(e, 'reason', e)})") from None
    with reply, part.open("r+b" if have else "wb") as f:
        start = _first_byte(reply.headers) if reply.status == 206 else 0
        length = reply.headers.get("Content-Length")
        total = start + int(length) if length else 0
        f.seek(min(start, have))
        f.truncate()
        report(f.tell(), total)
        while True:
            try:
                block = reply.read(BLOCK)
            except (HTTPException, OSError):
                return f.tell(), max(total, f.tell() + 1)
            if not block:
                return f.tell(), total
            f.write(block)
            report(f.tell(), total)


def _first_byte(headers: Message) -> int:
    """Where a partial answer begins: ``Content-Range: bytes 100-199/200``."""
    return int(headers.get("Content-Range", "bytes 0-").split()[1].split("-")[0])
