"""Unpack official archives beside themselves, without leaving half of their files behind."""

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
    """Whether a file is an archive, by its name."""
    return path.name.endswith(ENDINGS)


def unpack_archive(path: Path) -> None:
    """Unpack into the archive's folder and remove the archive; archives inside are unpacked too."""
    with tempfile.TemporaryDirectory(prefix=".unpack-", dir=path.parent) as temporary:
        folder = Path(temporary)
        _extract(path, folder)
        inner_archives = [item for item in folder.iterdir() if is_archive(item)]
        for inner in sorted(inner_archives):
            _extract(inner, folder)
            inner.unlink()
        for item in sorted(folder.iterdir()):
            _move_over(item, path.parent / item.name)
    path.unlink()


def _move_over(item: Path, target: Path) -> None:
    """Move a file or folder; what is at the target is replaced."""
    if target.is_dir():
        shutil.rmtree(target)
    os.replace(item, target)


def _extract(path: Path, folder: Path) -> None:
    try:
        if path.suffix == ".zip":
            with zipfile.ZipFile(path) as zip_file:
                zip_file.extractall(folder)
        else:
            with tarfile.open(path) as tar_file:
                # "data": no absolute names, no links out of the folder, no devices
                tar_file.extractall(folder, filter="data")
    except (zipfile.BadZipFile, tarfile.TarError, EOFError, OSError) as e:
        raise UserError(
            f"{path} cannot be unpacked ({e}); remove it and fetch it again"
        ) from None
