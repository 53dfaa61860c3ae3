"""One encoding for everything that is sent or saved."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.tree import Params
from fedtailor.core.wire import decode, encode, size
from fedtailor.storage.files import dump_flat, parse_flat


class Inner(NamedTuple):
    w: Params
    rate: float


class Everything(NamedTuple):
    w: Params
    by_client: dict[int, Params]
    filters: list[Params]
    groups: list[list[int]]
    nested: Inner
    maybe: Params | None
    number: int
    word: str
    scores: dict[int, float]
    nothing: None
    one: Tensor
    pair: tuple[Tensor, Tensor]
    names: tuple[str, ...]


def example() -> Everything:
    w = {
        "base.0.weight": torch.randn(2, 3),
        "base.0.bias": torch.randn(2),
        "head/odd.name": torch.ones(1),
    }
    return Everything(
        w,
        {7: w, 3: {"x": torch.zeros(0)}},
        [w, {}, w],
        [[], [1, 2], [3]],
        Inner(w, 0.5),
        None,
        4,
        "phase",
        {2: 0.25},
        None,
        torch.arange(3),
        (torch.ones(2), torch.tensor(True)),
        ("a", "b"),
    )


def same(a, b):
    if isinstance(a, Tensor):
        return isinstance(b, Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, dict):
        return list(a) == list(b) and all(same(a[k], b[k]) for k in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


def test_there_and_back():
    tree = example()
    assert same(decode(Everything, encode(tree)), tree)


def test_there_and_back_through_a_file():
    tree = example()
    assert same(decode(Everything, parse_flat(dump_flat(encode(tree)), "it")), tree)


def test_tensors_that_share_memory_are_saved_apart():
    x = torch.arange(6.0)
    back = parse_flat(
        dump_flat({"a": x, "b": x, "c": x[:3], "d": x.view(2, 3).T}), "it"
    )
    assert (
        torch.equal(back["b"], x)
        and torch.equal(back["c"], x[:3])
        and torch.equal(back["d"], x.view(2, 3).T)
    )


def test_a_damaged_file_is_named():
    data = dump_flat(encode(example()))
    for broken in (data[: len(data) // 2], b"", b"\xff" * 100):
        with pytest.raises(UserError, match="client 3 is damaged"):
            parse_flat(broken, "client 3")


def test_size_counts_bytes():
    assert (
        size(
            Inner({"a": torch.zeros(10), "b": torch.zeros(2, dtype=torch.float64)}, 0.5)
        )
        == 40 + 16 + 8
    )
