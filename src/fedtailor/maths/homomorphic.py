"""Ciphertexts that can be added up without being opened: BFV and CKKS, by TenSEAL.

Only additions are needed, so a context has one data prime and neither Galois nor
relinearisation keys. BFV adds integers exactly. CKKS adds real numbers, with an error
of about 1e-7. ``plain`` seals nothing: the same sums in clear, to compare with.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.maths.fixed_point import LARGEST_SUM

SCHEMES = ("bfv", "ckks", "plain")
DEGREE = 4096  # N: 109 bits of primes in all give 128 bits of security
PRIMES = (54, 55)  # bits; the last one is for key switching and in no ciphertext
CKKS_SCALE = 2.0**40
MODULUS = 17179754497  # the largest 34-bit prime that leaves 1 when divided by 2 N
assert MODULUS > 2 * LARGEST_SUM
assert MODULUS % (2 * DEGREE) == 1

# numbers in one ciphertext
SLOTS = {"bfv": DEGREE, "ckks": DEGREE // 2, "plain": DEGREE}


class BadCiphertext(ValueError):
    """Bytes that are no ciphertext of this kind."""


class Key(NamedTuple):
    """A key of a run: with ``secret`` the clients', without it all that others may know."""

    scheme: str
    id: str
    context: bytes  # TenSEAL's; empty for plain
    is_secret: bool

    def public(self) -> Key:
        """The key without its secret part."""
        if not self.context or not self.is_secret:
            return self._replace(is_secret=False)
        context = open_context(self.context)
        return Key(self.scheme, self.id, serialize(context, False), False)

    def to_json(self) -> str:
        """The text of a key's file."""
        return json.dumps(
            {
                "scheme": self.scheme,
                "id": self.id,
                "secret": self.is_secret,
                "context": base64.b64encode(self.context).decode(),
            }
        )


def parse_key(text: str, where: str) -> Key:
    """A key from its file's text; ``where`` names the file if it is none."""
    try:
        values = json.loads(text)
        context = base64.b64decode(values["context"], validate=True)
        key = Key(
            str(values["scheme"]), str(values["id"]), context, bool(values["secret"])
        )
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{where} is no key that 'fedtailor keys' makes") from None
    if key.scheme not in SCHEMES:
        raise UserError(f"{where}: a key for '{key.scheme}', which is not known here")
    if key.is_secret and key.id != name_key(key.context):
        raise UserError(f"{where} is damaged: make new keys with 'fedtailor keys'")
    return key


def name_key(context: bytes) -> str:
    """The id of a key: a digest that tells nothing of it."""
    return hashlib.sha256(context).hexdigest()[:16]


def make_key(scheme: str) -> Key:
    """A new secret key."""
    if scheme == "plain":
        return Key("plain", "plain", b"", True)
    context = serialize(make_context(scheme), True)
    return Key(scheme, name_key(context), context, True)


# ---------------------------------------------------------------- TenSEAL
def find_tenseal() -> Any:
    """The library, or one line that says how to get it."""
    try:
        import tenseal
    except ImportError:
        raise UserError(
            "encryption needs an extra: pip install 'fedtailor[he]'"
        ) from None
    return tenseal


def make_context(scheme: str) -> Any:
    """Parameters with a new pair of keys."""
    library = find_tenseal()
    if scheme == "bfv":
        return library.context(
            library.SCHEME_TYPE.BFV,
            poly_modulus_degree=DEGREE,
            plain_modulus=MODULUS,
            coeff_mod_bit_sizes=list(PRIMES),
        )
    context = library.context(
        library.SCHEME_TYPE.CKKS,
        poly_modulus_degree=DEGREE,
        coeff_mod_bit_sizes=list(PRIMES),
    )
    context.global_scale = CKKS_SCALE
    return context


def serialize(context: Any, secret: bool) -> bytes:
    """A context's bytes, without keys that additions do not need."""
    data: bytes = context.serialize(
        save_public_key=True,
        save_secret_key=secret,
        save_galois_keys=False,
        save_relin_keys=False,
    )
    return data


@lru_cache(maxsize=8)
def open_context(data: bytes) -> Any:
    """A context from its bytes."""
    return find_tenseal().context_from(data)


@lru_cache(maxsize=2)
def adding_context(scheme: str) -> Any:
    """Parameters to add with: additions need nobody's key, so the keys are thrown away."""
    context = make_context(scheme)
    return open_context(serialize(context, False))


# ---------------------------------------------------------------- seal, add, open
def count_parts(scheme: str, values: int) -> int:
    """How many ciphertexts so many numbers take."""
    return -(-values // SLOTS[scheme])


def encrypt(key: Key, values: Tensor) -> tuple[bytes, ...]:
    """Ciphertexts of a row of numbers: integers for BFV, real numbers for CKKS."""
    chunks = torch.split(values, SLOTS[key.scheme])
    if key.scheme == "plain":
        return tuple(chunk.numpy().tobytes() for chunk in chunks)
    library = find_tenseal()
    context = open_context(key.context)
    make = library.bfv_vector if key.scheme == "bfv" else library.ckks_vector
    return tuple(make(context, chunk.tolist()).serialize() for chunk in chunks)


def add_parts(scheme: str, senders: Sequence[tuple[bytes, ...]]) -> tuple[bytes, ...]:
    """The ciphertexts of the sum; nothing is opened."""
    sums: list[bytes] = []
    for same in zip(*senders, strict=True):
        first, *others = [load(scheme, data) for data in same]
        for other in others:
            first = first + other
        sums.append(first.numpy().tobytes() if scheme == "plain" else first.serialize())
    return tuple(sums)


def decrypt(key: Key, parts: Sequence[bytes]) -> Tensor:
    """The numbers in ciphertexts."""
    if key.scheme == "plain":
        return torch.cat([load("plain", data) for data in parts])
    numbers: list[float] = []
    context = open_context(key.context)
    for data in parts:
        numbers.extend(load(key.scheme, data, context).decrypt())
    kind = torch.int64 if key.scheme == "bfv" else torch.float64
    return torch.tensor(numbers, dtype=kind)


def load(scheme: str, data: bytes, context: Any = None) -> Any:
    """A ciphertext from its bytes.

    Raises:
        BadCiphertext: they are none, or of other parameters.
    """
    if scheme == "plain":
        if len(data) % 8:
            raise BadCiphertext("these are no whole numbers")
        return torch.frombuffer(bytearray(data), dtype=torch.int64)
    library = find_tenseal()
    if context is None:
        context = adding_context(scheme)
    restore = library.bfv_vector_from if scheme == "bfv" else library.ckks_vector_from
    try:
        return restore(context, data)
    except (ValueError, RuntimeError, TypeError) as error:
        raise BadCiphertext(" ".join(str(error).split())) from None


def check_part(scheme: str, data: bytes, values: int) -> None:
    """Refuse bytes that are no ciphertext of so many numbers."""
    found = load(scheme, data)
    size = len(found) if scheme == "plain" else found.size()
    if size != values:
        raise BadCiphertext(f"it holds {size} numbers, not {values}")
