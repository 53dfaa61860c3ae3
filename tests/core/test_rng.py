"""Random numbers are a pure function of their key, the same for integers and for tensors."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core.rng import (
    Rng,
    _compute_blocks,
    _compute_blocks_on_device,
    _multiply_integers,
    _multiply_tensors,
    _philox,
    _philox_array,
    _to_array,
)

words = st.lists(st.integers(0, 2**31), min_size=1, max_size=5)


@pytest.mark.parametrize(
    ("counter", "key", "expected"),
    [  # the known answers published with Random123
        ((0, 0, 0, 0), (0, 0), (0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8)),
        (
            (0xFFFFFFFF,) * 4,
            (0xFFFFFFFF,) * 2,
            (0x408F276D, 0x41C83B0E, 0xA20BC7C6, 0x6D5451FD),
        ),
        (
            (0x243F6A88, 0x85A308D3, 0x13198A2E, 0x03707344),
            (0xA4093822, 0x299F31D0),
            (0xD16CFE09, 0x94FDCCEB, 0x5001E420, 0x24126EA1),
        ),
    ],
)
def test_philox_known_answers(counter, key, expected):
    assert _philox(counter, key, _multiply_integers) == expected
    counter = tuple(torch.tensor(word) for word in counter)
    key = tuple(torch.tensor(word) for word in key)
    drawn = _philox(counter, key, _multiply_tensors)
    assert tuple(int(word) for word in drawn) == expected


def philox_on_integers(c0, c2, key):
    return list(_philox((c0, 0, c2, 0), tuple(key), _multiply_integers))


def test_philox_on_many_counters_is_philox_on_each():
    key = (0xA4093822, 0x299F31D0)
    for c2 in (0, 1):
        blocks = _philox_array(np.arange(9, dtype=np.uint64), c2, _to_array(key))
        assert blocks.tolist() == [philox_on_integers(c0, c2, key) for c0 in range(9)]


def test_philox_on_many_keys_is_philox_on_each():
    keys = Rng.seed(3).split(range(5))
    assert keys.tolist() == [list(Rng.seed(3).fold(k).key) for k in range(5)]
    counters = range(4, 7)
    words = _compute_blocks(keys, counters, 1)
    for key, blocks in zip(keys.tolist(), words.tolist(), strict=True):
        assert blocks == [philox_on_integers(c0, 1, key) for c0 in counters]
    assert torch.equal(words, _compute_blocks_on_device(keys, counters, 1))
    grid = _compute_blocks(keys.reshape(5, 1, 2).expand(5, 2, 2), counters, 1)
    assert torch.equal(grid, words[:, None].expand(5, 2, 3, 4))


def test_numbers_may_be_drawn_inside_a_gradient_and_inside_vmap():
    def loss(w, key):
        return (w * Rng(key).fold(1).uniform(3)).sum()

    keys, w = Rng.seed(3).split(range(4)), torch.ones(4, 3)
    slopes = torch.func.vmap(torch.func.grad(loss))(w, keys)
    twice = torch.func.vmap(torch.func.vmap(torch.func.grad(loss)))(
        w[None], keys[None]
    )[0]
    for k in range(4):
        assert torch.equal(
            slopes[k], Rng.seed(3, k).fold(1).uniform(3)
        ) and torch.equal(slopes[k], twice[k])


@settings(deadline=None, max_examples=40)
@given(words, st.integers(1, 50))
def test_tensor_keys_draw_the_same_numbers(path, n):
    plain = Rng.seed(*path)
    hidden = Rng(torch.tensor(plain.key))
    assert torch.equal(plain.fold(3).bits(n), hidden.fold(3).bits(n))
    assert torch.equal(plain.permutation(n), hidden.permutation(n))
    assert torch.equal(plain.normal(n), hidden.normal(n))


@settings(deadline=None, max_examples=40)
@given(words, st.integers(1, 40), st.integers(0, 30))
def test_a_padded_permutation_begins_with_the_unpadded_one(path, n, padding):
    rng = Rng.seed(*path)
    padded = rng.permutation(n + padding, n)
    assert torch.equal(padded[:n], rng.permutation(n))
    assert sorted(padded.tolist()) == list(range(n + padding))


def test_under_vmap_every_client_draws_its_own():
    keys = torch.tensor([Rng.seed(5, k).key for k in range(4)])
    drawn = torch.func.vmap(lambda key: Rng(key).fold(2).uniform(6))(keys)
    for k in range(4):
        assert torch.equal(drawn[k], Rng.seed(5, k).fold(2).uniform(6))


def test_streams_with_other_names_are_unrelated():
    draws = torch.stack(
        [Rng.seed(a, b).uniform(2000) for a in range(4) for b in range(4)]
    )
    assert torch.corrcoef(draws).fill_diagonal_(0).abs().max() < 0.12
    assert len({Rng.seed(a, b).key for a in range(100) for b in range(100)}) == 10_000


def test_distributions():
    rng = Rng.seed(1)
    u, z, g, v = (
        rng.uniform(100_000),
        rng.normal(100_000),
        rng.gumbel(100_000),
        rng.laplace(100_000),
    )
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 5e-3
    assert abs(z.mean()) < 1e-2 and abs(z.std() - 1) < 1e-2
    assert abs(g.mean() - 0.5772) < 2e-2 and abs(g.std() - torch.pi / 6**0.5) < 2e-2
    assert abs(v.mean()) < 2e-2 and abs(v.std() - 2**0.5) < 2e-2


def test_float32_and_float64_start_alike():
    single = Rng.seed(3).uniform(100)
    torch.set_default_dtype(torch.float64)
    try:
        assert torch.equal(Rng.seed(3).uniform(100), single.double())
    finally:
        torch.set_default_dtype(torch.float32)


def test_numpy_generators_follow_from_the_key():
    assert (
        Rng.seed(1, 2).numpy().integers(0, 1000, 5).tolist()
        == Rng.seed(1, 2).numpy().integers(0, 1000, 5).tolist()
    )
    assert not np.array_equal(
        Rng.seed(1, 2).numpy().random(5), Rng.seed(2, 1).numpy().random(5)
    )
