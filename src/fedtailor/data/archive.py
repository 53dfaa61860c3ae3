"""Official archives, unpacked beside themselves without leaving half of them behind."""

from __future__ import annotations

import os
import shutil
import tarfile
import tempfile
import zipfile
from pathlib import Path

from fedtailor.core.errors import UserError

ENDINGS = (".zip", ".tar.gz", ".tgz")


def is_archive(path: Path) -> bool:
    """Whether a file is to be unpacked."""
    return path.name.endswith(ENDINGS)


def unpack(path: Path) -> None:
    """Unpack into the archive's own folder and remove the archive; an archive inside is unpacked too."""
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=path.parent) as temporary:
        half = Path(temporary)
        _extract(path, half)
        for inner in sorted(p for p in half.iterdir() if is_archive(p)):
            _extract(inner, half)
            inner.unlink()
        for item in sorted(half.iterdir()):
            target = path.parent / item.name
            if target.is_dir():
                shutil.rmtree(target)
            os.replace(item, target)
    path.unlink()


def _extract(path: Path, to: Path) -> None:
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as z:
                z.extractall(to)
        else:
            with tarfile.open(path) as t:
                t.extractall(
                    to, filter="data"
                )  # no absolute names, no links out of the folder, no devices
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError) as e:
        raise UserError(f"{path} cannot be unpacked ({e}); remove it and fetch it again") from None
