"""Archives: unpacked whole or not at all, and never outside of their folder."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_helpers import tar_files, zip_files

from fedtailor.core.errors import UserError
from fedtailor.data.archive import unpack_archive


def test_an_archive_cannot_write_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "in" / "a.tar.gz"
    path.parent.mkdir()
    path.write_bytes(tar_files({"good": b"1", "../outside": b"2"}))
    with pytest.raises(UserError, match="cannot be unpacked"):
        unpack_archive(path)
    assert not (tmp_path / "outside").exists() and [
        p.name for p in path.parent.iterdir()
    ] == ["a.tar.gz"]
    path.write_bytes(tar_files({str(tmp_path / "outside"): b"2"}))
    unpack_archive(path)
    path = tmp_path / "in" / "b.zip"
    path.write_bytes(zip_files({"../outside": b"2", str(tmp_path / "outside"): b"3"}))
    unpack_archive(path)
    assert not (tmp_path / "outside").exists()
