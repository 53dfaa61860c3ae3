"""Random numbers as a function of (key, position): no hidden state, so the same under every executor.

Philox-4x32-10 (Salmon et al., SC'11). A key is a pair of Python integers, cheap to fold, or, under ``vmap``, a tensor
with a hidden client axis; both give the same numbers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from torch import Tensor

MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
STEPS = (0x9E3779B9, 0xBB67AE85)  # of the two key words, per round


class Purpose(IntEnum):
    """What a stream of random numbers is for: the word after the seed. Renumbering changes every result."""

    SAMPLE = 1  # which clients take part in a round
    SHARE = 2  # how many of them, where that is drawn
    LOST = 3  # whose reply gets lost
    JOIN = 4  # a client's first private state
    CALL = 5  # a client function
    EVALUATE = 6  # a personal model that trains before it predicts
    INITIAL = 7  # first parameters
    SERVER = 8  # the server's own decisions
    PARTITION = 9
    SPLIT = 10
    SUBSET = 11


def _multiply(a: Any, b: int) -> tuple[Any, Any]:
    """High and low 32 bits of a 32 x 32 bit product, without leaving 63 bits: torch has no unsigned ones."""
    low, high = a * (b & 0xFFFF), a * (b >> 16)
    total = low + ((high & 0xFFFF) << 16)
    return ((high >> 16) + (total >> 32)) & MASK, total & MASK


def _philox(c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, k0: Tensor, k1: Tensor) -> tuple[Tensor, ...]:
    """Ten rounds on int64 tensors, which may have a hidden client axis."""
    for _ in range(10):
        (h0, l0), (h1, l1) = _multiply(c0, MULTIPLIERS[0]), _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0, k1 = (k0 + STEPS[0]) & MASK, (k1 + STEPS[1]) & MASK
    return c0, c1, c2, c3


def _philox_number(c0: int, c1: int, c2: int, c3: int, k0: int, k1: int) -> tuple[int, int, int, int]:
    """The same on Python integers: folding a key is a few microseconds."""
    for _ in range(10):
        a, b = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK, (a >> 32) ^ c3 ^ k1, a & MASK
        k0, k1 = (k0 + STEPS[0]) & MASK, (k1 + STEPS[1]) & MASK
    return c0, c1, c2, c3


def _philox_array(blocks: int, k0: int, k1: int) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The same on the counters 0, 1, ..., with both halves of the state in one array: one row per block."""
    even, odd = np.zeros((2, blocks), np.uint64), np.zeros((2, blocks), np.uint64)
    even[0] = np.arange(blocks)
    mask, half, factor = np.uint64(MASK), np.uint64(32), np.array(MULTIPLIERS, np.uint64)[:, None]
    for i in range(10):
        product = even * factor
        key = np.array([[(k0 + i * STEPS[0]) & MASK], [(k1 + i * STEPS[1]) & MASK]], np.uint64)
        even, odd = (product >> half)[::-1] ^ odd ^ key, (product & mask)[::-1]
    return np.stack([even[0], odd[0], even[1], odd[1]], -1)


@dataclass(frozen=True)
class Rng:
    """One stream of random numbers."""

    key: tuple[int, int] | Tensor = (0, 0)  # two 32-bit words
    device: torch.device = field(default=torch.device("cpu"))

    @classmethod
    def seed(cls, *words: int, device: torch.device | str = "cpu") -> Rng:
        """The stream named by these words: seed, purpose, round, client ..."""
        rng = cls(device=torch.device(device))
        for word in words:
            rng = rng.fold(word)
        return rng

    def fold(self, word: int) -> Rng:
        """An independent stream for this round, client, epoch, step ..."""
        if isinstance(self.key, Tensor):
            zero = torch.zeros((), dtype=torch.int64, device=self.device)
            a, b, _, _ = _philox(zero + (word & MASK), zero, zero + 1, zero, self.key[0], self.key[1])
            return Rng(torch.stack([a, b]), self.device)
        return Rng(_philox_number(word & MASK, 0, 1, 0, *self.key)[:2], self.device)

    def bits(self, n: int) -> Tensor:
        """The first n 32-bit words of the stream."""
        if isinstance(self.key, Tensor):
            i = torch.arange(-(-n // 4), device=self.device)
            zero = torch.zeros_like(i)
            return torch.stack(_philox(i, zero, zero, zero, self.key[0], self.key[1]), -1).flatten(-2)[:n]
        words = _philox_array(-(-n // 4), *self.key).reshape(-1)[:n]
        return torch.from_numpy(words.astype(np.int64)).to(self.device)

    def uniform(self, *shape: int) -> Tensor:
        """In [0, 1), on a grid of 2^-24 whatever the dtype, so that float32 and float64 runs start alike."""
        return ((self.bits(math.prod(shape)) >> 8).to(torch.get_default_dtype()) * 2.0**-24).reshape(shape)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers (Box-Muller)."""
        u, v = self.uniform(2, math.prod(shape)).unbind(0)
        return (torch.sqrt(-2 * torch.log1p(-u)) * torch.cos(2 * math.pi * v)).reshape(shape)

    def gumbel(self, *shape: int) -> Tensor:
        """Standard Gumbel numbers."""
        return -torch.log(-torch.log(self.uniform(*shape).clamp(2.0**-24, 1 - 2.0**-24)))

    def laplace(self, *shape: int) -> Tensor:
        """Laplace numbers of scale 1."""
        u = self.uniform(*shape) - 0.5 + 2.0**-25
        return -u.sign() * torch.log1p(-2 * u.abs())

    def permutation(self, slots: int, n: int | Tensor | None = None) -> Tensor:
        """A permutation of range(n) in the first n of ``slots`` places, the same for every ``slots`` >= n."""
        bits = self.bits(slots)
        if n is not None and not (isinstance(n, int) and n == slots):
            bits = torch.where(torch.arange(slots, device=self.device) < n, bits, MASK + 1)
        return torch.argsort(bits, stable=True)

    def numpy(self) -> np.random.Generator:
        """A NumPy generator of its own, for code that runs once on the server (partitions, groupings)."""
        if isinstance(self.key, Tensor):
            raise TypeError("a NumPy generator cannot be drawn inside vmap")
        return np.random.Generator(np.random.Philox(key=self.key[0] << 32 | self.key[1]))
