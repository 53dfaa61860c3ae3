"""Files of flat trees are complete or not there, and digests tell states apart."""

import hashlib
import os

import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.storage.files import (
    digest_flat,
    fingerprint,
    read_flat_file,
    write_bytes,
    write_flat_file,
)

FLAT = {"w": torch.arange(6.0).reshape(2, 3), "n": 4, "b": torch.tensor([1, 2])}


def test_a_file_comes_back_with_its_order_and_digest(tmp_path):
    path = tmp_path / "a.safetensors"
    digest = write_flat_file(path, FLAT)
    assert digest == hashlib.sha256(path.read_bytes()).hexdigest()
    back = read_flat_file(path)
    assert list(back) == list(FLAT)
    assert torch.equal(back["w"], FLAT["w"])
    assert back["n"] == 4


def test_a_damaged_file_is_refused_by_name(tmp_path):
    path = tmp_path / "a.safetensors"
    write_flat_file(path, FLAT)
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(UserError, match=r"a.safetensors is damaged"):
        read_flat_file(path)


@pytest.mark.parametrize("lasting", [True, False])
def test_a_failed_write_leaves_the_old_file_and_nothing_else(
    tmp_path, monkeypatch, lasting
):
    path = tmp_path / "a"
    write_bytes(path, b"old", lasting)

    def refuse(self, target):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("pathlib.Path.replace", refuse)
    with pytest.raises(UserError, match="a cannot be written: Input/output error"):
        write_bytes(path, b"new", lasting)
    assert os.listdir(tmp_path) == ["a"]
    assert path.read_bytes() == b"old"


def test_digests_depend_on_names_types_shapes_and_values_but_not_on_order():
    assert digest_flat(dict(reversed(FLAT.items()))) == digest_flat(FLAT)
    others = [
        FLAT | {"w": FLAT["w"] + 1},
        FLAT | {"w": FLAT["w"].reshape(3, 2)},
        FLAT | {"w": FLAT["w"].double()},
        FLAT | {"n": 5},
        {**FLAT, "more": 1},
    ]
    assert len({digest_flat(flat) for flat in (FLAT, *others)}) == 6


def test_a_private_state_may_be_given_by_its_digest():
    states = [(0, FLAT), (3, {})]
    digests = [(k, digest_flat(state)) for k, state in states]
    assert fingerprint(FLAT, states) == fingerprint(FLAT, digests)
    assert fingerprint(FLAT, states) != fingerprint(FLAT, states[:1])
