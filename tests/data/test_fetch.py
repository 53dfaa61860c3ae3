"""Downloads from a real server on this machine: progress, resume, checksums, archives, no network."""

from __future__ import annotations

import hashlib
import io
import tarfile
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote

import numpy as np
import pytest

from fedtailor.core.errors import UserError
from fedtailor.data import fetch, load
from fedtailor.data.archive import unpack
from fedtailor.data.download import Unreachable, download
from fedtailor.data.labels import HOSPITALS


class Server:
    """Serves ``files`` with ranges; ``breaks`` says after how many bytes the next answers for a file end early."""

    def __init__(self) -> None:
        self.files: dict[str, bytes] = {}
        self.breaks: dict[str, list[int]] = {}
        self.asked: list[tuple[str, str | None]] = []
        self.ranges = True
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.answer(self)

            def log_message(self, *_: object) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}"

    def answer(self, h: BaseHTTPRequestHandler) -> None:
        name, asked = unquote(h.path.lstrip("/")), h.headers.get("Range")
        self.asked.append((name, asked))
        if name not in self.files:
            h.send_error(404)
            return
        content, start = self.files[name], 0
        if asked and self.ranges:
            start = int(asked.removeprefix("bytes=").rstrip("-"))
            if start >= len(content):
                h.send_error(416)
                return
            h.send_response(206)
            h.send_header("Content-Range", f"bytes {start}-{len(content) - 1}/{len(content)}")
        else:
            h.send_response(200)
        h.send_header("Content-Length", str(len(content) - start))
        h.end_headers()
        breaks = self.breaks.get(name, [])
        end = start + breaks.pop(0) if breaks else len(content)
        h.wfile.write(content[start:end])
        h.close_connection = True


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    s = Server()
    thread = threading.Thread(target=s.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield s
    s.http.shutdown()
    thread.join()
    s.http.server_close()


CONTENT = bytes(np.random.default_rng(0).integers(0, 256, 1_000_000, dtype=np.uint8))
MD5 = "md5:" + hashlib.md5(CONTENT).hexdigest()


class TestOneFile:
    def test_whole(self, server: Server, tmp_path: Path) -> None:
        server.files["a"] = CONTENT
        seen: list[tuple[str, int, int]] = []
        download(f"{server.url}/a", tmp_path / "new" / "a", MD5, lambda *p: seen.append(p))
        assert (tmp_path / "new" / "a").read_bytes() == CONTENT and not (
            tmp_path / "new" / "a.part"
        ).exists()
        assert seen[0] == ("a", 0, 1_000_000) and seen[-1] == ("a", 1_000_000, 1_000_000)
        assert [n for _, n, _ in seen] == sorted(n for _, n, _ in seen) and len(seen) > 3

    def test_a_broken_connection_is_resumed(self, server: Server, tmp_path: Path) -> None:
        server.files["a"], server.breaks["a"] = CONTENT, [300_000, 300_000]
        download(f"{server.url}/a", tmp_path / "a", MD5)
        assert (tmp_path / "a").read_bytes() == CONTENT
        assert [r for _, r in server.asked] == [None, "bytes=300000-", "bytes=600000-"]

    def test_given_up_then_taken_up_again(self, server: Server, tmp_path: Path) -> None:
        server.files["a"], server.breaks["a"] = CONTENT, [100_000] * 3
        with pytest.raises(Unreachable, match="broke off at 300000 of 1000000 bytes; run it again"):
            download(f"{server.url}/a", tmp_path / "a", MD5)
        assert not (tmp_path / "a").exists() and (tmp_path / "a.part").stat().st_size == 300_000
        seen: list[int] = []
        download(f"{server.url}/a", tmp_path / "a", MD5, lambda _, n, __: seen.append(n))
        assert (
            (tmp_path / "a").read_bytes() == CONTENT
            and seen[0] == 300_000
            and server.asked[-1][1] == "bytes=300000-"
        )

    def test_a_server_without_ranges_begins_anew(self, server: Server, tmp_path: Path) -> None:
        server.files["a"], server.ranges = CONTENT, False
        (tmp_path / "a.part").write_bytes(b"x" * 500)
        download(f"{server.url}/a", tmp_path / "a", MD5)
        assert (tmp_path / "a").read_bytes() == CONTENT

    def test_a_part_of_another_file(self, server: Server, tmp_path: Path) -> None:
        server.files["a"] = CONTENT
        (tmp_path / "a.part").write_bytes(b"x" * 500)
        with pytest.raises(UserError, match="another checksum than md5:"):
            download(f"{server.url}/a", tmp_path / "a", MD5)
        assert list(tmp_path.iterdir()) == []
        download(f"{server.url}/a", tmp_path / "a", MD5)
        assert (tmp_path / "a").read_bytes() == CONTENT

    def test_a_part_longer_than_the_file(self, server: Server, tmp_path: Path) -> None:
        server.files["a"] = CONTENT
        (tmp_path / "a.part").write_bytes(b"x" * 2_000_000)
        download(f"{server.url}/a", tmp_path / "a", MD5)
        assert (tmp_path / "a").read_bytes() == CONTENT

    def test_a_complete_part_is_not_fetched_again(self, server: Server, tmp_path: Path) -> None:
        server.files["a"] = CONTENT
        (tmp_path / "a.part").write_bytes(CONTENT)
        download(f"{server.url}/a", tmp_path / "a", MD5)
        assert (tmp_path / "a").read_bytes() == CONTENT and server.asked == []

    def test_not_found(self, server: Server, tmp_path: Path) -> None:
        with pytest.raises(Unreachable, match="answers 404"):
            download(f"{server.url}/none", tmp_path / "a")

    def test_nobody_answers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("no_proxy", "127.0.0.1")
        with pytest.raises(Unreachable, match="cannot be reached"):
            download("http://127.0.0.1:9/a", tmp_path / "a")


def zipped(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as z:
        for name, content in files.items():
            z.writestr(name, content)
    return out.getvalue()


def tarred(files: dict[str, bytes]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as t:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            t.addfile(info, io.BytesIO(content))
    return out.getvalue()


PATIENT = b"63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n"
HEART = zipped({f"processed.{h}.data": PATIENT + PATIENT[:-2] + b"1\n" for h in HOSPITALS})


class TestDataSets:
    def test_an_archive_is_fetched_and_unpacked(self, server: Server, tmp_path: Path) -> None:
        server.files["heart/heart+disease.zip"] = HEART
        found = fetch("heart", tmp_path, mirror=server.url)
        assert len(found) == 4 and sorted(p.name for p in (tmp_path / "heart").iterdir()) == sorted(
            p.name for p in found
        )
        assert len(load("heart", tmp_path)) == 8

    def test_what_is_there_is_not_fetched_again(self, server: Server, tmp_path: Path) -> None:
        server.files["heart/heart+disease.zip"] = HEART
        fetch("heart", tmp_path, mirror=server.url)
        fetch("heart", tmp_path, mirror=server.url)
        assert len(server.asked) == 1

    def test_an_archive_put_there_by_hand_is_unpacked(self, tmp_path: Path) -> None:
        (tmp_path / "heart").mkdir()
        (tmp_path / "heart" / "heart+disease.zip").write_bytes(HEART)
        assert len(fetch("heart", tmp_path)) == 4

    def test_an_archive_in_an_archive(self, server: Server, tmp_path: Path) -> None:
        from fedtailor.data.catalogue import find_entry

        inner = zipped({f"UCI HAR Dataset/{f}": b"1\n" for f in find_entry("har").files})
        server.files["har/human+activity+recognition+using+smartphones.zip"] = zipped(
            {"UCI HAR Dataset.zip": inner}
        )
        assert len(fetch("har", tmp_path, mirror=server.url)) == 22

    def test_a_tar_file(self, server: Server, tmp_path: Path) -> None:
        line = b"good:1 #label#:positive\nbad:1 #label#:negative\n"
        names = [
            f"processed_acl/{d}/{s}.review"
            for d in ("books", "dvd", "electronics", "kitchen")
            for s in ("negative", "positive")
        ]
        server.files["amazon/processed_acl.tar.gz"] = tarred(dict.fromkeys(names, line))
        fetch("amazon", tmp_path, mirror=server.url)
        assert len(load("amazon", tmp_path)) == 16

    def test_the_mirror_can_be_named_by_the_environment(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.files["heart/heart+disease.zip"] = HEART
        monkeypatch.setenv("FEDTAILOR_MIRROR", f"{server.url}/")
        assert len(fetch("heart", tmp_path)) == 4

    def test_a_wrong_archive(self, server: Server, tmp_path: Path) -> None:
        server.files["heart/heart+disease.zip"] = zipped({"other.txt": b""})
        with pytest.raises(UserError, match=r"heart does not contain processed\.cleveland\.data"):
            fetch("heart", tmp_path, mirror=server.url)

    def test_a_damaged_archive(self, server: Server, tmp_path: Path) -> None:
        server.files["heart/heart+disease.zip"] = HEART[:-50]
        with pytest.raises(UserError, match="cannot be unpacked"):
            fetch("heart", tmp_path, mirror=server.url)

    def test_a_file_with_another_checksum(self, server: Server, tmp_path: Path) -> None:
        server.files["pathmnist/pathmnist.npz"] = b"something else"
        with pytest.raises(UserError, match="another checksum"):
            fetch("pathmnist", tmp_path, mirror=server.url)
        assert list((tmp_path / "pathmnist").iterdir()) == []

    def test_real_mnist_over_a_connection_that_breaks(
        self, server: Server, real_data, tmp_path: Path
    ) -> None:
        for path in (real_data("mnist") / "mnist").iterdir():
            server.files[f"mnist/{path.name}"] = path.read_bytes()
        server.breaks["mnist/train-images-idx3-ubyte.gz"] = [3_000_000, 5_000_000]
        fetch("mnist", tmp_path, mirror=server.url)
        assert len(load("mnist", tmp_path)) == 70_000
        assert ("mnist/train-images-idx3-ubyte.gz", "bytes=8000000-") in server.asked

    def test_a_damaged_file_is_fetched_anew(
        self, server: Server, real_data, tmp_path: Path
    ) -> None:
        (tmp_path / "mnist").mkdir()
        for path in (real_data("mnist") / "mnist").iterdir():
            server.files[f"mnist/{path.name}"] = path.read_bytes()
            (tmp_path / "mnist" / path.name).write_bytes(path.read_bytes())
        broken = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
        broken.write_bytes(broken.read_bytes()[:100])
        fetch("mnist", tmp_path, mirror=server.url)
        assert [name for name, _ in server.asked] == ["mnist/t10k-labels-idx1-ubyte.gz"]
        assert len(load("mnist", tmp_path)) == 70_000


class TestWithoutNetwork:
    @pytest.fixture(autouse=True)
    def no_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody listens
        for name in ("no_proxy", "NO_PROXY", "FEDTAILOR_MIRROR"):
            monkeypatch.delenv(name, raising=False)

    @pytest.mark.parametrize("name", ["mnist", "cifar10", "heart", "ag_news"])
    def test_one_line_says_what_to_put_where(self, name: str, tmp_path: Path) -> None:
        with pytest.raises(UserError) as e:
            fetch(name, tmp_path)
        text = str(e.value)
        assert (
            "\n" not in text
            and "cannot be reached" in text
            and f"put them into {tmp_path / name}/" in text
        )
        assert not list((tmp_path / name).glob("*"))

    def test_what_cannot_be_fetched_at_all(self, tmp_path: Path) -> None:
        with pytest.raises(UserError) as e:
            fetch("flickr_aes", tmp_path)
        assert "flickr_aes has no direct download: get 40K, FLICKR-AES" in str(e.value)

    def test_digits_need_nothing(self, tmp_path: Path) -> None:
        assert fetch("digits", tmp_path) == []

    def test_unknown(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="no data set 'mnits'; did you mean mnist"):
            fetch("mnits", tmp_path)

    def test_a_folder_that_cannot_be_written_to(self, tmp_path: Path) -> None:
        (tmp_path / "mnist").write_text("a file where the folder should be")
        with pytest.raises(UserError, match="cannot be written"):
            fetch("mnist", tmp_path)


def test_an_archive_cannot_write_elsewhere(tmp_path: Path) -> None:
    path = tmp_path / "in" / "a.tar.gz"
    path.parent.mkdir()
    path.write_bytes(tarred({"good": b"1", "../outside": b"2"}))
    with pytest.raises(UserError, match="cannot be unpacked"):
        unpack(path)
    assert not (tmp_path / "outside").exists() and [p.name for p in path.parent.iterdir()] == [
        "a.tar.gz"
    ]
    path.write_bytes(tarred({str(tmp_path / "outside"): b"2"}))
    unpack(path)
    path = tmp_path / "in" / "b.zip"
    path.write_bytes(zipped({"../outside": b"2", str(tmp_path / "outside"): b"3"}))
    unpack(path)
    assert not (tmp_path / "outside").exists()
