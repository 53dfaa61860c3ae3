"""Ciphers, key agreement and secret sharing: the only door to the packages that have them."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import UserError

try:
    from Crypto.Protocol.SecretSharing import Shamir
    from cryptography.exceptions import InvalidTag
    from cryptography.hazmat.primitives.asymmetric.x25519 import (
        X25519PrivateKey,
        X25519PublicKey,
    )
    from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
    from cryptography.hazmat.primitives.ciphers.aead import AESGCM
    from cryptography.hazmat.primitives.hashes import SHA256
    from cryptography.hazmat.primitives.kdf.hkdf import HKDF
except ImportError:
    raise UserError(
        "secure sums need an extra: pip install 'fedtailor[secure]'"
    ) from None

Numbers: TypeAlias = npt.NDArray[np.uint64]  # arithmetic wraps round at 2**64

SEED = 16  # bytes of a secret that is shared: one element of Shamir's field
KEY = 32  # bytes of public keys, and of keys of ciphers
NONCE = 12
TAG = 16
BLOCK = 16  # of AES

Share: TypeAlias = tuple[
    int, bytes
]  # its place among the shares, from 1, and its value


class Damaged(Exception):
    """Something sealed was opened by the wrong key, or changed on its way."""


# ---------------------------------------------------------------- keys
def derive(secret: bytes, purpose: str, length: int = KEY) -> bytes:
    """A key for one purpose from a secret (HKDF-SHA256)."""
    info = f"fedtailor secure sum: {purpose}".encode()
    return HKDF(SHA256(), length, salt=None, info=info).derive(secret)


def make_private_key(seed: bytes) -> X25519PrivateKey:
    """The X25519 key that a seed stands for."""
    return X25519PrivateKey.from_private_bytes(derive(seed, "private key"))


def to_public(private: X25519PrivateKey) -> bytes:
    """The public half of a key."""
    return private.public_key().public_bytes_raw()


def agree(private: X25519PrivateKey, public: bytes, purpose: str) -> bytes:
    """The key that two have in common: each from its private and the other's public key."""
    common = private.exchange(X25519PublicKey.from_public_bytes(public))
    return derive(common, purpose)


# ---------------------------------------------------------------- ciphers
def expand(key: bytes, count: int) -> Numbers:
    """So many numbers below 2**64 from a key of 32 bytes (AES-256 in counter mode)."""
    # a key makes one stream only, so its counter may begin at zero
    cipher = Cipher(algorithms.AES256(key), modes.CTR(bytes(BLOCK)))
    stream = cipher.encryptor().update(bytes(8 * count))
    return np.frombuffer(stream, dtype="<u8").astype(np.uint64)


def seal(key: bytes, text: bytes, about: str) -> bytes:
    """Text that only a holder of the key can read or change (AES-256-GCM)."""
    nonce = os.urandom(NONCE)
    return nonce + AESGCM(key).encrypt(nonce, text, about.encode())


def unseal(key: bytes, box: bytes, about: str) -> bytes:
    """What was sealed.

    Raises:
        Damaged: with another key, about something else, or changed since.
    """
    try:
        return AESGCM(key).decrypt(box[:NONCE], box[NONCE:], about.encode())
    except (InvalidTag, ValueError):
        raise Damaged(f"what was sealed ({about}) cannot be opened") from None


# ---------------------------------------------------------------- secret sharing
def split_secret(secret: bytes, threshold: int, holders: int) -> list[bytes]:
    """Shares of a secret of 16 bytes, of which ``threshold`` bring it back (Shamir)."""
    shares = Shamir.split(threshold, holders, secret, ssss=False)
    return [bytes(value) for _, value in shares]


def join_secret(shares: Sequence[Share]) -> bytes:
    """The secret, from exactly ``threshold`` shares."""
    return bytes(Shamir.combine(list(shares), ssss=False))
