"""Where data are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_helpers import write_prepared

from fedtailor.data import find_data_folder, is_available
from fedtailor.data.catalogue import find_entry
from fedtailor.data.locations import find_official_files, list_sources, shorten_list


def test_the_data_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("FEDTAILOR_DATA", raising=False)
    assert find_data_folder() == tmp_path / ".fedtailor" / "data"
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path / "there"))
    assert find_data_folder() == tmp_path / "there"
    assert find_data_folder(tmp_path) == tmp_path


def test_what_is_available(tmp_path: Path) -> None:
    assert is_available(find_entry("digits"), tmp_path)  # embedded
    assert not is_available(find_entry("mnist"), tmp_path)
    write_prepared(tmp_path, "mnist")
    assert is_available(find_entry("mnist"), tmp_path)


def test_official_files_may_be_unpacked_and_in_the_folders_of_archives(
    tmp_path: Path,
) -> None:
    entry = find_entry("emnist:letters")
    packed, unpacked, *lacking = entry.files
    home = tmp_path / "emnist"
    (home / "gzip").mkdir(parents=True)
    (home / "gzip" / packed).touch()
    (home / unpacked.removesuffix(".gz")).touch()
    found, missing = find_official_files(entry, tmp_path)
    assert found == {
        packed: home / "gzip" / packed,
        unpacked: home / unpacked.removesuffix(".gz"),
    }
    assert missing == lacking


def test_sources_are_single_files_in_a_fixed_order(tmp_path: Path) -> None:
    for file in ("b/2", "b/1/x", "b/1/a", "a"):
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    sources = list_sources({"z": tmp_path / "a", "folder": tmp_path / "b"})
    assert [source.removeprefix(f"{tmp_path}/") for source in sources] == [
        "b/1/a",
        "b/1/x",
        "b/2",
        "a",
    ]


def test_long_lists_of_files_are_shortened() -> None:
    assert shorten_list(["a", "b", "c", "d"]) == "a, b, c, d"
    assert shorten_list(["a", "b", "c", "d", "e", "f"]) == "a, b, c, d and 2 more"
