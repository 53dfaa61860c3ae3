"""Ciphers and secret sharing against published test vectors and against themselves."""

from __future__ import annotations

import numpy as np
import pytest
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes

from fedtailor.maths.secure_sum.primitives import (
    Damaged,
    agree,
    derive,
    expand,
    join_secret,
    make_private_key,
    seal,
    split_secret,
    to_public,
    unseal,
)


def test_two_agree_on_a_key_that_others_do_not_have() -> None:
    a, b, c = (make_private_key(bytes([i]) * 16) for i in range(3))
    assert agree(a, to_public(b), "x") == agree(b, to_public(a), "x")
    assert agree(a, to_public(b), "x") != agree(a, to_public(b), "y")
    assert agree(a, to_public(b), "x") != agree(c, to_public(b), "x")


def test_masks_are_the_counter_mode_of_aes_256() -> None:
    """NIST SP 800-38A, F.5.5, has another first counter; blocks of AES-256 alone are F.1.5."""
    key = bytes.fromhex(
        "603deb1015ca71be2b73aef0857d77811f352c073b6108d72d9810a30914dff4"
    )
    blocks = b"".join(i.to_bytes(16, "big") for i in range(3))
    cipher = Cipher(algorithms.AES256(key), modes.ECB()).encryptor()
    wanted = np.frombuffer(cipher.update(blocks), "<u8")
    assert np.array_equal(expand(key, 6), wanted)
    assert np.array_equal(expand(key, 5), wanted[:5])
    first = bytes.fromhex("6bc1bee22e409f96e93d7e117393172a")
    assert cipher.update(first).hex() == "f3eed1bdb5d2a03c064b5a7e3db181f8"


def test_any_shares_above_the_threshold_bring_a_secret_back() -> None:
    secret = bytes(range(16))
    shares = split_secret(secret, 3, 5)
    assert join_secret([(1, shares[0]), (3, shares[2]), (5, shares[4])]) == secret
    assert join_secret([(2, shares[1]), (3, shares[2]), (4, shares[3])]) == secret
    assert join_secret([(2, shares[1]), (3, shares[2])]) != secret


def test_sealed_text_is_opened_by_the_key_alone_and_unchanged() -> None:
    key = derive(b"secret", "test")
    box = seal(key, b"text", "1 to 2")
    assert unseal(key, box, "1 to 2") == b"text"
    changed = box[:-1] + bytes([box[-1] ^ 1])
    for wrong_key, wrong_box, about in (
        (derive(b"other", "test"), box, "1 to 2"),
        (key, changed, "1 to 2"),
        (key, box, "1 to 3"),
        (key, b"", "1 to 2"),
    ):
        with pytest.raises(Damaged, match="cannot be opened"):
            unseal(wrong_key, wrong_box, about)
