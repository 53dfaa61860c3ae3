"""Contents of official files, told apart by their checksums."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path

from data_helpers import refusal

from fedtailor.data.catalogue import find_entry
from fedtailor.data.checksums import check_contents

PATH = Path("some/where/train")
OURS = replace(
    find_entry("mnist"),
    name="ours",
    md5={
        "train": hashlib.md5(b"our train").hexdigest(),
        "test": hashlib.md5(b"our test").hexdigest(),
    },
)
THEIRS = replace(
    OURS, name="theirs", md5={"train": hashlib.md5(b"their train").hexdigest()}
)
FAMILY = (OURS, THEIRS)


def test_the_official_contents_pass() -> None:
    check_contents(b"our train", "train", PATH, OURS, FAMILY, complete=True)


def test_a_chosen_part_passes() -> None:
    check_contents(b"half of our train", "train", PATH, OURS, FAMILY, complete=False)


def test_damaged_contents_are_refused() -> None:
    message = refusal(
        check_contents, b"oops", "train", PATH, OURS, FAMILY, complete=True
    )
    assert message.startswith(f"{PATH} is damaged: its MD5 is")
    assert message.endswith("remove it and run 'fedtailor datasets fetch ours'")


def test_another_files_contents_are_refused() -> None:
    for content, whose in (
        (b"their train", "'train' of theirs"),
        (b"our test", "'test' of ours"),
    ):
        message = refusal(
            check_contents, content, "train", PATH, OURS, FAMILY, complete=False
        )
        assert (
            message
            == f"{PATH} is {whose}, not 'train' of ours; put the right file there"
        )
