"""Real ciphertexts: sums without opening, what a key's halves hold, bytes that are refused."""

from __future__ import annotations

import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.maths import homomorphic
from fedtailor.maths.fixed_point import LARGEST_SUM, FixedPoint
from fedtailor.maths.homomorphic import (
    BadCiphertext,
    add_parts,
    check_part,
    count_parts,
    decrypt,
    encrypt,
    load,
    make_key,
    open_context,
    parse_key,
)

tenseal = pytest.importorskip("tenseal")


@pytest.fixture(scope="module")
def key():
    return make_key("bfv")


def test_bfv_sums_are_those_of_integers(key):
    """Twenty clients with the largest numbers there can be, on several ciphertexts."""
    form = FixedPoint(20)
    generator = torch.Generator().manual_seed(1)
    high = form.largest + 1
    rows = [
        torch.randint(-high + 1, high, (5000,), generator=generator) for _ in range(20)
    ]
    rows[0][:2] = torch.tensor([LARGEST_SUM // 20, -(LARGEST_SUM // 20)])
    sent = [encrypt(key, row) for row in rows]
    assert len(sent[0]) == count_parts("bfv", 5000) == 2
    total = decrypt(key, add_parts("bfv", sent))
    assert torch.equal(total[:5000], form.add(rows))


def test_sums_at_the_edge_do_not_wrap(key):
    row = torch.tensor([LARGEST_SUM, -LARGEST_SUM])
    assert decrypt(key, encrypt(key, row))[:2].tolist() == row.tolist()


def test_ckks_sums_are_close():
    key = make_key("ckks")
    generator = torch.Generator().manual_seed(2)
    rows = [
        torch.rand(3000, generator=generator, dtype=torch.float64) * 8
        for _ in range(20)
    ]
    total = decrypt(key, add_parts("ckks", [encrypt(key, row) for row in rows]))
    assert float((total[:3000] - sum(rows)).abs().max()) < 1e-5


def test_two_encryptions_of_the_same_differ(key):
    row = torch.arange(10)
    assert encrypt(key, row) != encrypt(key, row)


def test_the_public_half_opens_nothing(key):
    public = key.public()
    context = open_context(public.context)
    assert not context.has_secret_key()
    assert not context.has_galois_keys()
    assert not context.has_relin_keys()
    assert open_context(key.context).has_secret_key()
    with pytest.raises(ValueError, match="secret"):
        decrypt(public, encrypt(key, torch.arange(10)))


def test_keys_are_files(key):
    again = parse_key(key.to_json(), "he.key")
    assert again == key
    assert parse_key(key.public().to_json(), "he.pub").id == key.id
    assert make_key("bfv").id != key.id


@pytest.mark.parametrize("text", ["", "{}", '{"scheme": "bfv"}', "[1]"])
def test_other_files_are_no_keys(text):
    with pytest.raises(UserError, match="x is no key"):
        parse_key(text, "x")


def test_a_damaged_key_is_refused(key):
    text = key.to_json().replace(key.id, "0123456789abcdef")
    with pytest.raises(UserError, match="x is damaged"):
        parse_key(text, "x")


def test_bytes_that_are_no_ciphertext_are_refused(key):
    (whole,) = encrypt(key, torch.arange(10))
    check_part("bfv", whole, 10)
    with pytest.raises(BadCiphertext):
        load("bfv", whole[:1000])
    with pytest.raises(BadCiphertext):
        check_part("bfv", b"", 10)
    with pytest.raises(BadCiphertext, match="it holds 10 numbers, not 11"):
        check_part("bfv", whole, 11)
    other = encrypt(make_key("ckks"), torch.ones(10, dtype=torch.float64))
    with pytest.raises(BadCiphertext):
        load("bfv", other[0])


def test_the_extra_is_named_where_it_is_missing(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "tenseal", None)
    with pytest.raises(UserError, match=r"pip install 'fedtailor\[he\]'"):
        homomorphic.find_tenseal()
