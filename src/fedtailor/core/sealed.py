"""Sealed values: numbers that whoever holds them cannot look at, only add up and pass on.

A client seals all that it protects of an upload in one ``Block`` (ciphertexts hold
thousands of numbers each). In the place of every tensor stands a ``Sealed`` leaf, which
says where in the block its numbers are.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import Any, NoReturn

import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.tree import Tree, leaves


class SealedValue(UserError):
    """Somebody tried to compute with what is sealed."""


@dataclass(frozen=True, eq=False)
class Block:
    """Sealed bytes: one client's numbers, or the sum of several clients' numbers.

    Attributes:
        scheme: how it is sealed (bfv, ckks, plain).
        key: id of the key that opens it.
        clients: how many clients are added up in it.
        values: how many numbers it holds.
        parts: the ciphertexts.
        checksum: of all the above, as the sealer computed it.
        seconds: that the sealer took since the last one: to seal, and to open.
    """

    scheme: str
    key: str
    clients: int
    values: int
    parts: tuple[bytes, ...]
    checksum: str
    seconds: tuple[float, float] = (0.0, 0.0)

    @property
    def nbytes(self) -> int:
        """Bytes of the ciphertexts."""
        return sum(map(len, self.parts))

    @property
    def is_whole(self) -> bool:
        """Whether the bytes are those that were sealed."""
        return self.checksum == compute_checksum(self)


def compute_checksum(block: Block) -> str:
    """A digest of all that a block says and holds."""
    about = f"{block.scheme} {block.key} {block.clients} {block.values}"
    digest = hashlib.sha256(about.encode())
    for part in block.parts:
        digest.update(f" {len(part)} ".encode())
        digest.update(part)
    return digest.hexdigest()


def make_block(
    scheme: str,
    key: str,
    clients: int,
    values: int,
    parts: tuple[bytes, ...],
    seconds: tuple[float, float] = (0.0, 0.0),
) -> Block:
    """A block with its checksum."""
    block = Block(scheme, key, clients, values, parts, "", seconds)
    checksum = compute_checksum(block)
    return Block(scheme, key, clients, values, parts, checksum, seconds)


@dataclass(frozen=True, eq=False)
class Sealed:
    """What stands in the place of a tensor whose numbers are in a block.

    Attributes:
        block: where the numbers are.
        start: the place of the first one.
        shape, dtype: of the tensor.
        is_mean: whether the tensor is the weighted mean, or the sum.
    """

    block: Block
    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_mean: bool

    @property
    def count(self) -> int:
        """How many numbers it stands for."""
        return math.prod(self.shape)

    @property
    def plain_bytes(self) -> int:
        """Bytes that the tensor itself would take."""
        return self.count * self.dtype.itemsize

    def outline(self) -> Tensor:
        """A tensor of this shape and type without values."""
        return torch.empty(self.shape, dtype=self.dtype, device="meta")

    def layout(self) -> tuple[Any, ...]:
        """All but the numbers."""
        return (self.start, self.shape, self.dtype, self.is_mean)

    # ---------------------------------------------------------------- nothing can be computed
    @classmethod
    def __torch_function__(
        cls, function: Any, kinds: Any, args: Any = (), kwargs: Any = None
    ) -> NoReturn:
        name = getattr(function, "__name__", str(function))
        raise SealedValue(f"{name} of a sealed sum")

    def __getattr__(self, name: str) -> NoReturn:
        if name.startswith("_"):
            raise AttributeError(name)
        raise SealedValue(f".{name} of a sealed sum")

    def _refuse(self, *others: Any) -> NoReturn:
        raise SealedValue("arithmetic with a sealed sum")

    __add__ = __radd__ = __sub__ = __rsub__ = __mul__ = __rmul__ = _refuse
    __truediv__ = __rtruediv__ = __matmul__ = __neg__ = __pow__ = _refuse
    __lt__ = __le__ = __gt__ = __ge__ = __getitem__ = __len__ = _refuse
    __bool__ = __float__ = __int__ = __iter__ = _refuse


def find_sealed(tree: Tree) -> list[Sealed]:
    """The leaves of a tree that are sealed, in order."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Sealed)]


def has_sealed(tree: Tree) -> bool:
    """Whether any leaf of a tree is sealed."""
    return bool(find_sealed(tree))
