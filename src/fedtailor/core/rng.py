"""Random numbers as a function of (key, position).

There is no hidden state, so they are the same under every executor.

Philox-4x32-10 (Salmon et al., SC'11) turns a counter of four 32-bit words and a key of two into
four random words. A key is a pair of Python integers, cheap to fold, or, under ``vmap``, a tensor
with a hidden client axis; both give the same numbers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, TypeAlias, TypeVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

ROUNDS = 10
MASK = 0xFFFFFFFF
MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
KEY_STEPS = (0x9E3779B9, 0xBB67AE85)  # added to the two key words after every round

# distance between uniform numbers: what float32 can tell apart in [0, 1)
GRID = 2.0**-24

# The third word of a counter keeps the numbers of a stream apart from the keys of its substreams.
NUMBERS = 0
SUBSTREAMS = 1

Word = TypeVar("Word", int, Tensor)
Pair: TypeAlias = tuple[Word, Word]
Block: TypeAlias = tuple[Word, Word, Word, Word]
Words: TypeAlias = npt.NDArray[np.uint64]


class Purpose(IntEnum):
    """What a stream of random numbers is for: the word after the seed.

    Renumbering changes every result.
    """

    SAMPLE = 1  # which clients take part in a round
    SHARE = 2  # how many clients take part, where that is drawn
    LOST = 3  # which replies get lost
    JOIN = 4  # a client's first private state
    CALL = 5  # a client function
    EVALUATE = 6  # a personal model that trains before it predicts
    INITIAL = 7  # first parameters
    SERVER = 8  # the server's own decisions
    PARTITION = 9
    SPLIT = 10
    SUBSET = 11
    FILTER = 12  # a filter on what a client sends
    ATTACK = 31  # which clients attack, and what they poison
    NOISE = 32  # the server's noise for differential privacy
    NEIGHBOURS = 33  # who masks with whom in a secure sum


# ---------------------------------------------------------------- Philox on integers and tensors
def _multiply_integers(a: int, b: int) -> Pair[int]:
    """High and low 32 bits of a 32 x 32 bit product."""
    product = a * b
    return product >> 32, product & MASK


def _multiply_tensors(a: Tensor, b: int) -> Pair[Tensor]:
    """The same on int64 tensors: torch has no unsigned product, so no number may exceed 63 bits."""
    lower_half = b & 0xFFFF
    upper_half = b >> 16
    low = a * lower_half
    middle = a * upper_half  # counts from bit 16 on
    low = low + ((middle & 0xFFFF) << 16)
    carry = low >> 32
    high = (middle >> 16) + carry
    return high & MASK, low & MASK


def _philox(
    counter: Block[Word],
    key: Pair[Word],
    multiply: Callable[[Word, int], Pair[Word]],
) -> Block[Word]:
    """Four random words for one counter, or for tensors of counters and keys."""
    c0, c1, c2, c3 = counter
    k0, k1 = key
    for _ in range(ROUNDS):
        high0, low0 = multiply(c0, MULTIPLIERS[0])
        high1, low1 = multiply(c2, MULTIPLIERS[1])
        c0 = high1 ^ c1 ^ k0
        c1 = low1
        c2 = high0 ^ c3 ^ k1
        c3 = low0
        k0 = (k0 + KEY_STEPS[0]) & MASK
        k1 = (k1 + KEY_STEPS[1]) & MASK
    return c0, c1, c2, c3


# ---------------------------------------------------------------- Philox on arrays
def _philox_array(c0: Words, c2: int, key: Words) -> Words:
    """The same for n first words of counters under keys (2, ..., 1): blocks (..., n, 4).

    Two words of the state are one array, which halves the number of NumPy calls.
    """
    mask = np.uint64(MASK)
    half = np.uint64(32)
    shape = np.broadcast(c0, key).shape
    even = np.zeros(shape, np.uint64)  # words 0 and 2
    odd = np.zeros(shape, np.uint64)  # words 1 and 3
    even[0] = c0
    even[1] = c2
    factors = _align(MULTIPLIERS, even)
    steps = _align(KEY_STEPS, even)
    for _ in range(ROUNDS):
        products = even * factors
        even = (products >> half)[::-1] ^ odd ^ key
        odd = (products & mask)[::-1]
        key = (key + steps) & mask
    w0, w2 = even
    w1, w3 = odd
    return np.stack([w0, w1, w2, w3], -1)


def _align(pair: Pair[int], state: Words) -> Words:
    """Two words along the first axis of a state."""
    words = np.array(pair, np.uint64)
    others = [1] * (state.ndim - 1)
    return words.reshape(2, *others)


# ---------------------------------------------------------------- blocks of four words
def _compute_blocks(key: Tensor, counters: range, c2: int) -> Tensor:
    """Four words for each of n counters under every key: (..., 2) to (..., n, 4)."""
    if key.device.type != "cpu":
        return _compute_blocks_on_device(key, counters, c2)
    c0 = np.arange(counters.start, counters.stop, dtype=np.uint64)
    words_first = key.movedim(-1, 0)
    columns = words_first.unsqueeze(-1)
    keys = np.ascontiguousarray(columns.numpy(), np.uint64)
    blocks = _philox_array(c0, c2, keys)
    return _to_tensor(blocks)


def _compute_blocks_on_device(key: Tensor, counters: range, c2: int) -> Tensor:
    """The same with torch, on the device of the key."""
    k0, k1 = key.unsqueeze(-2).unbind(-1)
    c0 = torch.arange(
        counters.start,
        counters.stop,
        device=key.device,
    )
    zero = torch.zeros_like(c0)
    counter = (c0, zero, zero + c2, zero)
    words = _philox(counter, (k0, k1), _multiply_tensors)
    many_keys = key.shape[:-1]
    shape = (*many_keys, len(counters))
    expanded = [word.expand(shape) for word in words]
    return torch.stack(expanded, -1)


def _to_array(key: Pair[int]) -> Words:
    """A key as (2, 1)."""
    return np.array(key, np.uint64)[:, None]


def _to_tensor(words: Words) -> Tensor:
    return torch.from_numpy(words.astype(np.int64))


class _Blocks(torch.autograd.Function):
    """``_compute_blocks`` as one operation: under vmap its single steps would be hundreds."""

    @staticmethod
    def forward(key: Tensor, counters: range, c2: int) -> Tensor:
        return _compute_blocks(key, counters, c2)

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[None, None, None]:
        return None, None, None  # integers have no gradient

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int, None, None],
        key: Tensor,
        counters: range,
        c2: int,
    ) -> tuple[Tensor, int]:
        key = key.movedim(in_dims[0], 0)
        return _draw_blocks(key, counters, c2), 0


def _draw_blocks(key: Tensor, counters: range, c2: int) -> Tensor:
    """``_compute_blocks`` for keys that may have a hidden client axis."""
    draw: Callable[..., Tensor] = _Blocks.apply
    return draw(key, counters, c2)


# ---------------------------------------------------------------- streams
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
        word &= MASK
        if isinstance(self.key, Tensor):
            counters = range(word, word + 1)
            blocks = _draw_blocks(self.key, counters, SUBSTREAMS)
            return Rng(blocks[0, :2], self.device)
        # on integers: an array of one counter would take 30 us instead of 3
        counter = (word, 0, SUBSTREAMS, 0)
        block = _philox(counter, self.key, _multiply_integers)
        return Rng(block[:2], self.device)

    def split(self, words: Sequence[int]) -> Tensor:
        """The keys of ``fold(word)`` for every word, one for each client under vmap."""
        if isinstance(self.key, Tensor):
            raise TypeError("a stream inside vmap cannot be split")
        c0 = np.array(words, np.uint64)
        key = _to_array(self.key)
        blocks = _philox_array(c0, SUBSTREAMS, key)
        keys = blocks[:, :2]
        return _to_tensor(keys).to(self.device)

    def bits(self, n: int) -> Tensor:
        """The first n 32-bit words of the stream."""
        count = -(-n // 4)  # of blocks, rounded up
        if isinstance(self.key, Tensor):
            blocks = _draw_blocks(self.key, range(count), NUMBERS)
            return blocks.flatten(-2)[:n]
        c0 = np.arange(count, dtype=np.uint64)
        key = _to_array(self.key)
        words = _philox_array(c0, NUMBERS, key)
        words = words.reshape(-1)
        return _to_tensor(words[:n]).to(self.device)

    def uniform(self, *shape: int) -> Tensor:
        """Numbers in [0, 1).

        They lie on the same grid whatever the dtype, so that float32 and float64 runs start alike.
        """
        words = self.bits(math.prod(shape))
        upper = words >> 8
        steps = upper.to(torch.get_default_dtype())
        numbers = steps * GRID
        return numbers.reshape(shape)

    def normal(self, *shape: int) -> Tensor:
        """Standard normal numbers (Box-Muller)."""
        count = math.prod(shape)
        u, v = self.uniform(2, count).unbind(0)
        radius = torch.sqrt(-2 * torch.log1p(-u))
        angle = 2 * math.pi * v
        numbers = radius * torch.cos(angle)
        return numbers.reshape(shape)

    def gumbel(self, *shape: int) -> Tensor:
        """Standard Gumbel numbers."""
        u = self.uniform(*shape).clamp(GRID, 1 - GRID)
        return -torch.log(-torch.log(u))

    def laplace(self, *shape: int) -> Tensor:
        """Laplace numbers of scale 1."""
        u = self.uniform(*shape) - 0.5 + GRID / 2
        size = torch.log1p(-2 * u.abs())
        return -u.sign() * size

    def permutation(self, slots: int, n: int | Tensor | None = None) -> Tensor:
        """A permutation of range(n) in the first n of ``slots`` places (n: ``slots``).

        It is the same for every ``slots`` >= n.
        """
        bits = self.bits(slots)
        if isinstance(n, int) and n == slots:
            n = None
        if n is not None:
            places = torch.arange(slots, device=self.device)
            bits = torch.where(places < n, bits, MASK + 1)
        return torch.argsort(bits, stable=True)

    def numpy(self) -> np.random.Generator:
        """A NumPy generator, for code that runs once on the server (partitions, groupings)."""
        if isinstance(self.key, Tensor):
            raise TypeError("a NumPy generator cannot be drawn inside vmap")
        high, low = self.key
        key = high << 32 | low
        bits = np.random.Philox(key=key)
        return np.random.Generator(bits)
