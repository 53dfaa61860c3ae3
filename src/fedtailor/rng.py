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
    """High and low 32 bits of a 32 x 32 bit product, without leaving 63 bits."""
    low, high = a * (b & 0xFFFF), a * (b >> 16)
    total = low + ((high & 0xFFFF) << 16)
    return ((high >> 16) + (total >> 32)) & MASK, total & MASK


def _philox(c0: Any, c1: Any, c2: Any, c3: Any, k0: Any, k1: Any) -> tuple[Any, Any, Any, Any]:
    """Ten rounds on Python integers, NumPy arrays or tensors alike."""
    for _ in range(10):
        (h0, l0), (h1, l1) = _multiply(c0, 0xD2511F53), _multiply(c2, 0xCD9E8D57)
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0, k1 = (k0 + 0x9E3779B9) & MASK, (k1 + 0xBB67AE85) & MASK
    return c0, c1, c2, c3


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
        a, b, _, _ = _philox(word & MASK, 0, 1, 0, *self.key)
        return Rng((a, b), self.device)

    def bits(self, n: int) -> Tensor:
        """The first n 32-bit words of the stream."""
        if isinstance(self.key, Tensor):
            i = torch.arange(-(-n // 4), device=self.device)
            zero = torch.zeros_like(i)
            return torch.stack(_philox(i, zero, zero, zero, self.key[0], self.key[1]), -1).flatten(-2)[:n]
        j = np.arange(-(-n // 4), dtype=np.int64)
        nil = np.zeros_like(j)
        words = np.stack(_philox(j, nil, nil, nil, *self.key), -1).reshape(-1)[:n]
        return torch.from_numpy(words).to(self.device)

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
