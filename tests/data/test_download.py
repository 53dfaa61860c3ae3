"""One file from a real server on this machine: progress, resume, checksums."""

from __future__ import annotations

import hashlib
from pathlib import Path

import numpy as np
import pytest
from data_helpers import FileServer

from fedtailor.core.errors import UserError
from fedtailor.data.download import Unreachable, download_file

CONTENT = bytes(np.random.default_rng(0).integers(0, 256, 1_000_000, dtype=np.uint8))
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


class TestOneFile:
    def test_whole(self, server: FileServer, tmp_path: Path) -> None:
        server.files["a"] = CONTENT
        seen: list[tuple[str, int, int]] = []
        download_file(
            f"{server.url}/a", tmp_path / "new" / "a", MD5, lambda *p: seen.append(p)
        )
        assert (tmp_path / "new" / "a").read_bytes() == CONTENT and not (
            tmp_path / "new" / "a.part"
        ).exists()
        assert seen[0] == ("a", 0, 1_000_000) and seen[-1] == (
            "a",
            1_000_000,
            1_000_000,
        )
        assert [n for _, n, _ in seen] == sorted(n for _, n, _ in seen) and len(
            seen
        ) > 3

    def test_a_broken_connection_is_resumed(
        self, server: FileServer, tmp_path: Path
    ) -> None:
        server.files["a"], server.breaks["a"] = CONTENT, [300_000, 300_000]
        download_file(f"{server.url}/a", tmp_path / "a", MD5)
        assert (tmp_path / "a").read_bytes() == CONTENT
        assert [r for _, r in server.asked] == [None, "bytes=300000-", "bytes=600000-"]

    def test_given_up_then_taken_up_again(
        self, server: FileServer, tmp_path: Path
    ) -> None:
        server.files["a"], server.breaks["a"] = CONTENT, [100_000] * 3
        with pytest.raises(
            Unreachable, match="broke off at 300000 of 1000000 bytes; run it again"
        ):
            download_file(f"{server.url}/a", tmp_path / "a", MD5)
        assert (
            not (tmp_path / "a").exists()
            and (tmp_path / "a.part").stat().st_size == 300_000
        )
        seen: list[int] = []
        download_file(
            f"{server.url}/a", tmp_path / "a", MD5, lambda _, n, __: seen.append(n)
        )
        assert (
            (tmp_path / "a").read_bytes() == CONTENT
            and seen[0] == 300_000
            and server.asked[-1][1] == "bytes=300000-"
        )

    def test_a_server_without_ranges_begins_anew(
        self, server: FileServer, tmp_path: Path
    ) -> None:
        server.files["a"], server.ranges = CONTENT, False
        (tmp_path / "a.part").write_bytes(b"x" * 500)
        download_file(f"{server.url}/a", tmp_path / "a", MD5)
        assert (tmp_path / "a").read_bytes() == CONTENT

    def test_a_part_of_another_file(self, server: FileServer, tmp_path: Path) -> None:
        server.files["a"] = CONTENT
        (tmp_path / "a.part").write_bytes(b"x" * 500)
        with pytest.raises(UserError, match="another checksum than md5:"):
            download_file(f"{server.url}/a", tmp_path / "a", MD5)
        assert list(tmp_path.iterdir()) == []
        download_file(f"{server.url}/a", tmp_path / "a", MD5)
        assert (tmp_path / "a").read_bytes() == CONTENT

    def test_a_part_longer_than_the_file(
        self, server: FileServer, tmp_path: Path
    ) -> None:
        server.files["a"] = CONTENT
        (tmp_path / "a.part").write_bytes(b"x" * 2_000_000)
        download_file(f"{server.url}/a", tmp_path / "a", MD5)
        assert (tmp_path / "a").read_bytes() == CONTENT

    def test_a_complete_part_is_not_fetched_again(
        self, server: FileServer, tmp_path: Path
    ) -> None:
        server.files["a"] = CONTENT
        (tmp_path / "a.part").write_bytes(CONTENT)
        download_file(f"{server.url}/a", tmp_path / "a", MD5)
        assert (tmp_path / "a").read_bytes() == CONTENT and server.asked == []

    def test_not_found(self, server: FileServer, tmp_path: Path) -> None:
        with pytest.raises(Unreachable, match="answers 404"):
            download_file(f"{server.url}/none", tmp_path / "a")

    def test_nobody_answers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with pytest.raises(Unreachable, match="cannot be reached"):
            download_file("http://127.0.0.1:9/a", tmp_path / "a")
