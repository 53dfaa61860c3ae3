"""Random numbers as a function of (key, position): no hidden state, so the same under every executor.

Philox-4x32-10 (Salmon et al., SC'11). A key is a pair of Python integers, cheap to fold, or, under ``vmap``, a tensor
with a hidden client axis; both give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
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
    FILTER = 12  # a filter on what a client sends


def _multiply(a: Any, b: int) -> tuple[Any, Any]:
    """High and low 32 bits of a 32 x 32 bit product, without leaving 63 bits: torch has no unsigned ones."""
    low, high = a * (b & 0xFFFF), a * (b >> 16)
    total = low + ((high & 0xFFFF) << 16)
    return ((high >> 16) + (total >> 32)) & MASK, total & MASK


def _philox(
    c0: Tensor, c1: Tensor, c2: Tensor, c3: Tensor, k0: Tensor, k1: Tensor
) -> tuple[Tensor, ...]:
    """Ten rounds on int64 tensors, which may have a hidden client axis."""
    for _ in range(10):
        (h0, l0), (h1, l1) = _multiply(c0, MULTIPLIERS[0]), _multiply(c2, MULTIPLIERS[1])
        c0, c1, c2, c3 = h1 ^ c1 ^ k0, l1, h0 ^ c3 ^ k1, l0
        k0, k1 = (k0 + STEPS[0]) & MASK, (k1 + STEPS[1]) & MASK
    return c0, c1, c2, c3


def _philox_number(
    c0: int, c1: int, c2: int, c3: int, k0: int, k1: int
) -> tuple[int, int, int, int]:
    """The same on Python integers: folding a key is a few microseconds."""
    for _ in range(10):
        a, b = c0 * MULTIPLIERS[0], c2 * MULTIPLIERS[1]
        c0, c1, c2, c3 = (b >> 32) ^ c1 ^ k0, b & MASK, (a >> 32) ^ c3 ^ k1, a & MASK
        k0, k1 = (k0 + STEPS[0]) & MASK, (k1 + STEPS[1]) & MASK
    return c0, c1, c2, c3


def _philox_array(c0: Any, c2: int, k0: Any, k1: Any) -> np.ndarray[Any, np.dtype[np.uint64]]:
    """The same on arrays, with both halves of the state in one: the four words of every counter are the last axis."""
    key = np.array([k0, k1], np.uint64)
    shape = np.broadcast_shapes(np.shape(c0), key.shape[1:])
    key = key.reshape(2, *(1,) * (len(shape) - key.ndim + 1), *key.shape[1:])
    even, odd = np.zeros((2, *shape), np.uint64), np.zeros((2, *shape), np.uint64)
    even[0], even[1] = c0, c2
    mask, half = np.uint64(MASK), np.uint64(32)
    factor, step = (
        np.array(w, np.uint64).reshape(2, *(1,) * len(shape)) for w in (MULTIPLIERS, STEPS)
    )
    for _ in range(10):
        product = even * factor
        even, odd = (product >> half)[::-1] ^ odd ^ key, (product & mask)[::-1]
        key = (key + step) & mask
    return np.stack([even[0], odd[0], even[1], odd[1]], -1)


def _blocks(key: Tensor, first: int, count: int, c2: int) -> Tensor:
    """Four words for each of ``count`` counters under every key: (..., 2) gives (..., count, 4)."""
    if key.device.type != "cpu":
        return _blocks_on_device(key, first, count, c2)
    counters, words = np.arange(first, first + count, dtype=np.uint64), key.numpy()[..., None, :]
    return torch.from_numpy(
        _philox_array(counters, c2, words[..., 0], words[..., 1]).astype(np.int64)
    )


def _blocks_on_device(key: Tensor, first: int, count: int, c2: int) -> Tensor:
    """The same, where the key is."""
    c0 = torch.arange(first, first + count, device=key.device)
    zero = torch.zeros_like(c0)
    shape = (*key.shape[:-1], count)
    state = _philox(c0, zero, zero + c2, zero, key[..., None, 0], key[..., None, 1])
    return torch.stack([word.expand(shape) for word in state], -1)


class _Blocks(torch.autograd.Function):
    """``_blocks`` as one operation that knows about hidden client axes: op by op it would be hundreds for vmap."""

    @staticmethod
    def forward(key: Tensor, first: int, count: int, c2: int) -> Tensor:
        return _blocks(key, first, count, c2)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, ...]:
        return None, None, None, None  # integers have no gradient

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int, ...], key: Tensor, first: int, count: int, c2: int
    ) -> tuple[Tensor, int]:
        return _draw(key.movedim(in_dims[0], 0), first, count, c2), 0


def _draw(key: Tensor, first: int, count: int, c2: int) -> Tensor:
    words: Tensor = _Blocks.apply(key, first, count, c2)  # type: ignore[no-untyped-call]
    return words


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
            return Rng(_draw(self.key, word & MASK, 1, 1)[0, :2], self.device)
        return Rng(_philox_number(word & MASK, 0, 1, 0, *self.key)[:2], self.device)

    def split(self, words: Sequence[int]) -> Tensor:
        """The keys of ``fold(word)`` for every word, to be given a client each under vmap."""
        if isinstance(self.key, Tensor):
            raise TypeError("a stream inside vmap cannot be split")
        keys = _philox_array(np.array(words, np.uint64), 1, *self.key)[:, :2]
        return torch.from_numpy(keys.astype(np.int64)).to(self.device)

    def bits(self, n: int) -> Tensor:
        """The first n 32-bit words of the stream."""
        if isinstance(self.key, Tensor):
            return _draw(self.key, 0, -(-n // 4), 0).flatten(-2)[:n]
        words = _philox_array(np.arange(-(-n // 4), dtype=np.uint64), 0, *self.key).reshape(-1)[:n]
        return torch.from_numpy(words.astype(np.int64)).to(self.device)

    def uniform(self, *shape: int) -> Tensor:
        """In [0, 1), on a grid of 2^-24 whatever the dtype, so that float32 and float64 runs start alike."""
        return (
            (self.bits(math.prod(shape)) >> 8).to(torch.get_default_dtype()) * 2.0**-24
        ).reshape(shape)

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
