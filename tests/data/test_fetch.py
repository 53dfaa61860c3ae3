"""Data sets from a real server on this machine: archives, mirrors, no network."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_helpers import FileServer, refusal, tar_files, zip_files

from fedtailor.core.errors import UserError
from fedtailor.data import fetch_dataset, load_dataset
from fedtailor.data.catalogue import find_entry
from fedtailor.data.sets.heart import HOSPITALS

PATIENT = b"63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n"
HEART = zip_files(
    {f"processed.{h}.data": PATIENT + PATIENT[:-2] + b"1\n" for h in HOSPITALS}
)


class TestDataSets:
    def test_an_archive_is_fetched_and_unpacked(
        self, server: FileServer, tmp_path: Path
    ) -> None:
        server.files["heart/heart+disease.zip"] = HEART
        found = fetch_dataset("heart", tmp_path, mirror=server.url)
        assert len(found) == 4 and sorted(
            p.name for p in (tmp_path / "heart").iterdir()
        ) == sorted(p.name for p in found)
        assert len(load_dataset("heart", tmp_path)) == 8

    def test_what_is_there_is_not_fetched_again(
        self, server: FileServer, tmp_path: Path
    ) -> None:
        server.files["heart/heart+disease.zip"] = HEART
        fetch_dataset("heart", tmp_path, mirror=server.url)
        fetch_dataset("heart", tmp_path, mirror=server.url)
        assert len(server.asked) == 1

    def test_an_archive_put_there_by_hand_is_unpacked(self, tmp_path: Path) -> None:
        (tmp_path / "heart").mkdir()
        (tmp_path / "heart" / "heart+disease.zip").write_bytes(HEART)
        assert len(fetch_dataset("heart", tmp_path)) == 4

    def test_an_archive_in_an_archive(self, server: FileServer, tmp_path: Path) -> None:
        inner = zip_files(
            {f"UCI HAR Dataset/{f}": b"1\n" for f in find_entry("har").files}
        )
        server.files["har/human+activity+recognition+using+smartphones.zip"] = (
            zip_files({"UCI HAR Dataset.zip": inner})
        )
        assert len(fetch_dataset("har", tmp_path, mirror=server.url)) == 22

    def test_a_tar_file(self, server: FileServer, tmp_path: Path) -> None:
        line = b"good:1 #label#:positive\nbad:1 #label#:negative\n"
        names = [
            f"processed_acl/{d}/{s}.review"
            for d in ("books", "dvd", "electronics", "kitchen")
            for s in ("negative", "positive")
        ]
        server.files["amazon/processed_acl.tar.gz"] = tar_files(
            dict.fromkeys(names, line)
        )
        fetch_dataset("amazon", tmp_path, mirror=server.url)
        assert len(load_dataset("amazon", tmp_path)) == 16

    def test_the_mirror_can_be_named_by_the_environment(
        self, server: FileServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        server.files["heart/heart+disease.zip"] = HEART
        monkeypatch.setenv("FEDTAILOR_MIRROR", f"{server.url}/")
        assert len(fetch_dataset("heart", tmp_path)) == 4

    def test_a_wrong_archive(self, server: FileServer, tmp_path: Path) -> None:
        server.files["heart/heart+disease.zip"] = zip_files({"other.txt": b""})
        with pytest.raises(
            UserError, match=r"heart does not contain processed\.cleveland\.data"
        ):
            fetch_dataset("heart", tmp_path, mirror=server.url)

    def test_a_damaged_archive(self, server: FileServer, tmp_path: Path) -> None:
        server.files["heart/heart+disease.zip"] = HEART[:-50]
        with pytest.raises(UserError, match="cannot be unpacked"):
            fetch_dataset("heart", tmp_path, mirror=server.url)

    def test_a_file_with_another_checksum(
        self, server: FileServer, tmp_path: Path
    ) -> None:
        server.files["pathmnist/pathmnist.npz"] = b"something else"
        with pytest.raises(UserError, match="another checksum"):
            fetch_dataset("pathmnist", tmp_path, mirror=server.url)
        assert list((tmp_path / "pathmnist").iterdir()) == []

    def test_real_mnist_over_a_connection_that_breaks(
        self, server: FileServer, real_data, tmp_path: Path
    ) -> None:
        for path in (real_data("mnist") / "mnist").iterdir():
            server.files[f"mnist/{path.name}"] = path.read_bytes()
        server.breaks["mnist/train-images-idx3-ubyte.gz"] = [3_000_000, 5_000_000]
        fetch_dataset("mnist", tmp_path, mirror=server.url)
        assert len(load_dataset("mnist", tmp_path)) == 70_000
        assert ("mnist/train-images-idx3-ubyte.gz", "bytes=8000000-") in server.asked

    def test_a_damaged_file_is_fetched_anew(
        self, server: FileServer, real_data, tmp_path: Path
    ) -> None:
        (tmp_path / "mnist").mkdir()
        for path in (real_data("mnist") / "mnist").iterdir():
            server.files[f"mnist/{path.name}"] = path.read_bytes()
            (tmp_path / "mnist" / path.name).write_bytes(path.read_bytes())
        broken = tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz"
        broken.write_bytes(broken.read_bytes()[:100])
        fetch_dataset("mnist", tmp_path, mirror=server.url)
        assert [name for name, _ in server.asked] == ["mnist/t10k-labels-idx1-ubyte.gz"]
        assert len(load_dataset("mnist", tmp_path)) == 70_000


class TestWithoutNetwork:
    @pytest.fixture(autouse=True)
    def no_network(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"):
            monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody listens
        for name in ("no_proxy", "NO_PROXY", "FEDTAILOR_MIRROR"):
            monkeypatch.delenv(name, raising=False)

    @pytest.mark.parametrize("name", ["mnist", "cifar10", "heart", "ag_news"])
    def test_one_line_says_what_to_put_where(self, name: str, tmp_path: Path) -> None:
        text = refusal(fetch_dataset, name, tmp_path)
        assert (
            "cannot be reached" in text and f"put them into {tmp_path / name}/" in text
        )
        assert not list((tmp_path / name).glob("*"))

    def test_what_cannot_be_fetched_at_all(self, tmp_path: Path) -> None:
        text = refusal(fetch_dataset, "flickr_aes", tmp_path)
        assert "flickr_aes has no direct download: get 40K, FLICKR-AES" in text

    def test_digits_need_nothing(self, tmp_path: Path) -> None:
        assert fetch_dataset("digits", tmp_path) == []

    def test_unknown(self, tmp_path: Path) -> None:
        with pytest.raises(UserError, match="no data set 'mnits'; did you mean mnist"):
            fetch_dataset("mnits", tmp_path)

    def test_a_folder_that_cannot_be_written_to(self, tmp_path: Path) -> None:
        (tmp_path / "mnist").write_text("a file where the folder should be")
        with pytest.raises(UserError, match="cannot be written"):
            fetch_dataset("mnist", tmp_path)
