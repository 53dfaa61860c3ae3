"""Parsed once, kept with a checksum, never used when half-written."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from fedtailor.data.cache import parse_once
from fedtailor.data.raw import Raw


class Parser:
    """Counts how often it is asked."""

    def __init__(self) -> None:
        self.times = 0

    def __call__(self) -> Raw:
        self.times += 1
        arrays = {
            "x": np.arange(2000, dtype=np.uint8).reshape(10, 200),
            "y": np.arange(10),
            "test": np.arange(10) > 7,
            "f": np.linspace(0, 1, 7, dtype=np.float32),
        }
        return Raw(arrays, ("a", "b"), ("ann",))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_text("content")
    return path


def only(folder: Path) -> Path:
    (path,) = (folder / ".fedtailor").iterdir()
    return path


def same(a: Raw, b: Raw) -> bool:
    return (
        a.labels == b.labels
        and a.owners == b.owners
        and a.arrays.keys() == b.arrays.keys()
        and all(
            a.arrays[k].dtype == b.arrays[k].dtype
            and np.array_equal(a.arrays[k], b.arrays[k])
            for k in a.arrays
        )
    )


def test_parsed_once(tmp_path: Path, source: Path) -> None:
    parse = Parser()
    first, again = (parse_once(tmp_path, "set", [source], parse) for _ in range(2))
    assert parse.times == 1 and same(first, again)


def test_a_changed_source_is_parsed_again_and_the_old_cache_removed(
    tmp_path: Path, source: Path
) -> None:
    parse = Parser()
    parse_once(tmp_path, "set", [source], parse)
    old = only(tmp_path)
    os.utime(source, ns=(1, 1))
    parse_once(tmp_path, "set", [source], parse)
    assert parse.times == 2 and only(tmp_path) != old


def test_a_further_source_is_noticed(tmp_path: Path, source: Path) -> None:
    parse = Parser()
    parse_once(tmp_path, "set", [source], parse)
    (tmp_path / "more").write_text("")
    parse_once(tmp_path, "set", [source, tmp_path / "more"], parse)
    assert parse.times == 2


@pytest.mark.parametrize("harm", ["truncated", "one bit", "empty", "rubbish"])
def test_a_damaged_cache_is_not_used_but_replaced(
    harm: str, tmp_path: Path, source: Path
) -> None:
    parse = Parser()
    first = parse_once(tmp_path, "set", [source], parse)
    path = only(tmp_path)
    content = bytearray(path.read_bytes())
    if harm == "one bit":
        content[-500] ^= 1
    path.write_bytes(
        {"truncated": content[:-300], "empty": b"", "rubbish": b"{}" * 50}.get(
            harm, bytes(content)
        )
    )
    assert (
        same(parse_once(tmp_path, "set", [source], parse), first) and parse.times == 2
    )
    parse_once(tmp_path, "set", [source], parse)
    assert parse.times == 2


def test_a_cache_left_half_written_is_not_used(tmp_path: Path, source: Path) -> None:
    parse = Parser()
    parse_once(tmp_path, "set", [source], parse)
    path = only(tmp_path)
    path.rename(path.with_name(f".{path.stem}.1.half"))
    parse_once(tmp_path, "set", [source], parse)
    assert parse.times == 2


def test_an_interrupted_parser_leaves_nothing(tmp_path: Path, source: Path) -> None:
    def stop() -> Raw:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        parse_once(tmp_path, "set", [source], stop)
    assert not (tmp_path / ".fedtailor").exists()


def test_a_folder_that_cannot_be_written_to(tmp_path: Path, source: Path) -> None:
    (tmp_path / ".fedtailor").write_text("a file where the folder should be")
    parse = Parser()
    assert same(
        parse_once(tmp_path, "set", [source], parse),
        parse_once(tmp_path, "set", [source], parse),
    )
    assert parse.times == 2


@pytest.mark.skipif(os.geteuid() == 0, reason="root can write everywhere")
def test_a_read_only_folder(tmp_path: Path, source: Path) -> None:
    tmp_path.chmod(0o500)
    parse = Parser()
    parse_once(tmp_path, "set", [source], parse)
    parse_once(tmp_path, "set", [source], parse)
    assert parse.times == 2
