"""Data sets by name and by path."""

from __future__ import annotations

from pathlib import Path

import pytest
from data_helpers import refusal, write_prepared

from fedtailor.data import load_dataset
from fedtailor.data.catalogue import find_entry


def test_misspelt_names(tmp_path: Path) -> None:
    message = refusal(load_dataset, "cifar1O", tmp_path)
    assert message.startswith("no data set 'cifar1O'; did you mean cifar10")
    message = refusal(load_dataset, "cifar100:corse", tmp_path)
    assert "no variant of cifar100 'corse'; did you mean coarse?" in message
    assert "no variant of mnist 'big'" in refusal(load_dataset, "mnist:big", tmp_path)


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "mnist").mkdir()
    for file in find_entry("mnist").files:
        (tmp_path / "mnist" / file).mkdir()
    message = refusal(load_dataset, "mnist", tmp_path)
    assert "train-images-idx3-ubyte.gz cannot be read (Is a directory)" in message


def test_the_data_folder_of_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FEDTAILOR_DATA", str(tmp_path))
    write_prepared(tmp_path, "mnist")
    assert len(load_dataset("mnist")) == 8


def test_a_folder_in_the_way_does_not_hide_a_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    assert len(load_dataset("digits")) == 1797
