"""A client's part in one secure sum."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from fedtailor.maths.secure_sum.primitives import (
    KEY,
    SEED,
    Damaged,
    Numbers,
    agree,
    derive,
    expand,
    make_private_key,
    seal,
    split_secret,
    to_public,
    unseal,
)

CHANNEL = "channel"  # for shares that travel from one client to another
PAIR = "pair mask"
OWN = "own mask"
COMMITMENT = 32


class Unsafe(Exception):
    """A question that a client does not answer, because too much would be known."""


class Secrets(NamedTuple):
    """Three seeds of 16 bytes, drawn for one sum and never used again."""

    channel: bytes  # of the key by which shares are sealed
    pair: bytes  # of the key from which masks with neighbours follow
    own: bytes  # of the mask of one's own


class Circle(NamedTuple):
    """What a client is told of its neighbours."""

    keys: dict[int, bytes]  # public keys, as they were advertised
    threshold: int  # shares that bring a secret back

    def holders(self, k: int) -> list[int]:
        """Who holds shares of client k: its neighbours and itself, in order."""
        return sorted([*self.keys, k])


class Shared(NamedTuple):
    """What a client sends in the second phase."""

    boxes: dict[int, bytes]  # by receiver: sealed shares of both seeds
    # a digest of the seed of its own mask, to check what shares bring back
    commitment: bytes


class Revealed(NamedTuple):
    """Shares of others' seeds: of each other client one kind only."""

    own: dict[int, bytes]  # of clients whose numbers arrived
    pair: dict[int, bytes]  # of clients who vanished


class Member:
    """One client in one sum.

    It remembers what it was told and what it gave away, for as long as it lives: whoever asks
    twice must ask the same.
    """

    def __init__(self, k: int, secrets: Secrets) -> None:
        self.k = k
        self._secrets = secrets
        self._channel = make_private_key(secrets.channel)
        self._pair = make_private_key(secrets.pair)
        self._circle: Circle | None = None
        self._masked = b""  # digest of what was sent under the masks
        self._revealed_own: set[int] = set()
        self._revealed_pair: set[int] = set()

    # ---------------------------------------------------------------- the phases
    def advertise(self) -> bytes:
        """Two public keys: for sealing, and for masks."""
        return to_public(self._channel) + to_public(self._pair)

    def share(self, circle: Circle) -> Shared:
        """Shares of both seeds, sealed for every holder."""
        self._join(circle)
        holders = circle.holders(self.k)
        own = split_secret(self._secrets.own, circle.threshold, len(holders))
        pair = split_secret(self._secrets.pair, circle.threshold, len(holders))
        boxes: dict[int, bytes] = {}
        for place, holder in enumerate(holders):
            text = own[place] + pair[place]
            key = self._channel_key(circle, holder)
            boxes[holder] = seal(key, text, f"{self.k} to {holder}")
        return Shared(boxes, commit(self._secrets.own))

    def mask(
        self, numbers: Numbers, circle: Circle, sharing: Collection[int]
    ) -> Numbers:
        """The numbers under all masks; ``sharing``: those who sent their shares."""
        self._join(circle)
        present = [j for j in circle.keys if j in sharing]
        self._check_count(len(present) + 1, circle)
        text = numbers.tobytes() + repr(sorted(present)).encode()
        digest = hashlib.sha256(text).digest()
        if self._masked not in (b"", digest):
            raise Unsafe("a mask hides one upload only, and this is another")
        self._masked = digest
        masked = numbers + expand(derive(self._secrets.own, OWN), len(numbers))
        for peer in present:
            key = agree(self._pair, circle.keys[peer][KEY:], PAIR)
            masked = add_pair_mask(masked, self.k, peer, key)
        return masked

    def reveal(
        self,
        circle: Circle,
        boxes: Mapping[int, bytes],
        arrived: Collection[int],
        vanished: Collection[int],
    ) -> Revealed:
        """Shares that take the masks off the sum, but off no single upload."""
        self._join(circle)
        self._check_reveal(circle, set(arrived), set(vanished))
        own: dict[int, bytes] = {}
        pair: dict[int, bytes] = {}
        for peer in sorted({*arrived, *vanished}):
            if peer not in boxes:
                raise Unsafe(f"the shares of client {peer} did not come along")
            key = self._channel_key(circle, peer)
            text = unseal(key, boxes[peer], f"{peer} to {self.k}")
            if len(text) != 2 * SEED:
                raise Damaged(f"client {peer} sent shares of another length")
            if peer in vanished:
                pair[peer] = text[SEED:]
            else:
                own[peer] = text[:SEED]
        self._revealed_own |= own.keys()
        self._revealed_pair |= pair.keys()
        return Revealed(own, pair)

    # ---------------------------------------------------------------- what is refused
    def _join(self, circle: Circle) -> None:
        """Remember the neighbours; others, or a low threshold, are refused."""
        holders = len(circle.keys) + 1
        if self.k in circle.keys or any(
            len(x) != 2 * KEY for x in circle.keys.values()
        ):
            raise Unsafe("the neighbours' keys are no keys")
        if len(set(circle.keys.values())) < len(circle.keys):
            raise Unsafe("two neighbours have the same key")
        if not holders / 2 < circle.threshold <= holders or circle.threshold < 2:
            raise Unsafe(
                f"{circle.threshold} of {holders} shares are to bring secrets back;"
                " more than half must be needed"
            )
        if self._circle not in (None, circle):
            raise Unsafe("the neighbours are others than before")
        self._circle = circle

    def _check_count(self, present: int, circle: Circle) -> None:
        if present < circle.threshold:
            raise Unsafe(f"{present} are left, and {circle.threshold} are needed")

    def _check_reveal(
        self, circle: Circle, arrived: set[int], vanished: set[int]
    ) -> None:
        """Refuse whatever would show a single upload."""
        both = arrived & vanished
        both |= (arrived & self._revealed_pair) | (vanished & self._revealed_own)
        if both:
            raise Unsafe(
                f"both kinds of shares are asked for client {min(both)}, which would"
                " show its upload"
            )
        named = arrived | vanished
        if self.k in vanished or not named <= {*circle.keys, self.k}:
            raise Unsafe("shares are asked for that this client does not hold")
        self._check_count(len(arrived), circle)

    def _channel_key(self, circle: Circle, peer: int) -> bytes:
        """The key of this client and another one (or itself) for sealed shares."""
        if peer == self.k:
            return derive(self._secrets.channel, CHANNEL)
        return agree(self._channel, circle.keys[peer][:KEY], CHANNEL)


# ---------------------------------------------------------------- what both sides compute
def commit(seed: bytes) -> bytes:
    """A digest by which a seed is known again."""
    return hashlib.sha256(b"fedtailor secure sum" + seed).digest()


def add_pair_mask(numbers: Numbers, k: int, peer: int, key: bytes) -> Numbers:
    """Client k's numbers under the mask with a peer: one of the two adds, one subtracts."""
    mask = expand(key, len(numbers))
    if k < peer:
        return np.add(numbers, mask)
    return np.subtract(numbers, mask)
