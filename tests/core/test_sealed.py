"""Sealed leaves: they travel whole, count their bytes once, and nobody computes with them."""

from __future__ import annotations

import copy
import pickle
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.sealed import Sealed, SealedValue, find_sealed, make_block
from fedtailor.core.tree import Params, average, tmap
from fedtailor.core.wire import decode, encode, flat_size, open_size, replace_leaves
from fedtailor.deploy.messages import read_message, write_message
from fedtailor.executors.shared_memory import Arena, Reader
from fedtailor.storage.files import dump_flat, parse_flat


class Mixed(NamedTuple):
    """A message with something of every kind."""

    w: Params
    sums: tuple[Tensor, ...]
    n: int


BLOCK = make_block("bfv", "someone", 1, 10, (b"first part", b"second"))


def leaf(start: int = 1, shape: tuple[int, ...] = (2, 3)) -> Sealed:
    return Sealed(BLOCK, start, shape, torch.float32, True)


MIXED = Mixed({"base": torch.ones(2), "head.weight": leaf()}, (leaf(7, (3,)),), 5)


def check_same(found: Mixed) -> None:
    assert torch.equal(found.w["base"], torch.ones(2))
    assert found.n == 5
    sealed = find_sealed(found)
    assert [x.layout() for x in sealed] == [x.layout() for x in find_sealed(MIXED)]
    assert sealed[0].block is sealed[1].block
    assert sealed[0].block.parts == BLOCK.parts
    assert sealed[0].block.is_whole


def test_a_file_holds_every_block_once():
    flat = encode(MIXED)
    data = dump_flat(flat)
    assert data.count(b"first part") == 1
    check_same(decode(Mixed, parse_flat(data, "it")))


def test_a_message_between_server_and_site():
    data = write_message({}, [MIXED, MIXED])
    assert data.count(b"first part") == 1
    message = read_message(data)
    check_same(message.decode_tree(0, Mixed))
    check_same(message.decode_tree(1, Mixed))


def test_worker_processes_and_copies(tmp_path):
    message = Arena(tmp_path / "arena").write(encode(MIXED))
    flat = Reader().read(pickle.loads(pickle.dumps(message)), copy=True)
    check_same(decode(Mixed, flat))
    check_same(copy.deepcopy(MIXED))


def test_bytes_are_counted_once_and_in_clear():
    clear = 4 * 2 + 8
    assert flat_size(encode(MIXED)) == clear + len(b"first partsecond")
    assert open_size(MIXED) == clear + 4 * 6 + 4 * 3


def test_leaves_can_be_replaced_by_path():
    opened = replace_leaves(MIXED, {"w/head.weight": torch.zeros(2, 3), "sums/0": 1})
    assert not find_sealed(opened)
    assert torch.equal(opened.w["head.weight"], torch.zeros(2, 3))
    assert opened.sums == (1,)
    assert opened.n == 5


@pytest.mark.parametrize(
    "compute",
    [
        lambda x: x + 1,
        lambda x: 2 * x,
        lambda x: x[0],
        lambda x: x.detach(),
        lambda x: torch.zeros_like(x),
        lambda x: torch.stack([x, x]),
        lambda x: torch.ones(2, 3) + x,
        lambda x: average([x, x], [1, 1]),
        lambda x: bool(x),
        lambda x: tmap(torch.sqrt, {"w": x}),
    ],
)
def test_nobody_computes_with_it(compute):
    with pytest.raises(SealedValue, match="a sealed sum"):
        compute(leaf())


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b'"start": 1', b'"start": 9'),
        (b'"lengths": [10, 6]', b'"lengths": [10, 7]'),
        (b'"dtype": "float32"', b'"dtype": "manual_seed"'),
        (b'"shape": [2, 3]', b'"shape": [-2, 3]'),
        (b'"checksum"', b'"chicksum"'),
    ],
)
def test_damaged_descriptions_are_refused_in_one_line(old, new):
    data = dump_flat(encode(MIXED))
    header = int.from_bytes(data[:8], "little")
    damaged = data.replace(old.replace(b'"', b'\\"'), new.replace(b'"', b'\\"'))
    assert damaged != data
    grown = (header + len(damaged) - len(data)).to_bytes(8, "little")
    with pytest.raises(UserError, match="it is damaged"):
        parse_flat(grown + damaged[8:], "it")


def test_a_changed_byte_shows_in_the_checksum():
    changed = (b"first pert", BLOCK.parts[1])
    block = copy.copy(BLOCK)
    object.__setattr__(block, "parts", changed)
    assert BLOCK.is_whole
    assert not block.is_whole
