"""Real numbers as whole numbers, so that their sums are exact whoever adds them, and how.

A value x of a client of weight w becomes the integer round(w x scale). Sums of integers
do not depend on order, keys or masks: added up in clear, under encryption or behind
masks, they are the same, bit for bit. ``scale`` is a power of two, chosen from what is
known beforehand (how many clients, how large a value, how heavy a client), so that no
sum can leave -LARGEST_SUM ... LARGEST_SUM. Whatever would is refused, never wrapped
round or cut.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.core.errors import UserError

# Sums stay within it, so they are known from their remainder by any modulus that is
# larger than twice this: the largest 34-bit prime that BFV can use, 2**34, 2**64 ...
LARGEST_SUM = 2**33 - 2**20


class OutOfRange(ValueError):
    """A number that has no place in the range."""


@dataclass(frozen=True)
class FixedPoint:
    """How numbers become integers, and sums of integers become numbers.

    Attributes:
        clients: how many are added up at most.
        limit: the largest absolute value that a number may have.
        heaviest: the largest weight that a client may have; whole, as all weights.
    """

    clients: int
    limit: float = 8.0
    heaviest: int = 1

    def __post_init__(self) -> None:
        if self.clients < 1 or self.heaviest < 1 or not 0 < self.limit < math.inf:
            raise UserError(f"{self}: nothing can be added up like this")
        if self.limit * self.heaviest > self.largest:
            raise UserError(
                f"sums of {self.clients} clients with values up to {self.limit:g} and"
                f" weights up to {self.heaviest} do not fit {LARGEST_SUM:.3g}; take a"
                " smaller range"
            )

    @property
    def largest(self) -> int:
        """The largest integer that one client may send."""
        return LARGEST_SUM // self.clients

    @property
    def scale(self) -> int:
        """Integers from 0 to 1, for a client of weight 1: a power of two."""
        room = self.largest / (self.limit * self.heaviest)
        return int(2 ** math.floor(math.log2(room)))

    @property
    def step(self) -> float:
        """The distance between neighbouring numbers, for a client of weight 1."""
        return 1 / self.scale

    # ---------------------------------------------------------------- at a client
    def quantise(self, values: Tensor, weight: int = 1) -> Tensor:
        """The integers of a client's values, times its weight; ties go to even numbers.

        Raises:
            OutOfRange: a value or the weight is too large, or no number.
        """
        self.check_weight(weight)
        exact = values.detach().to("cpu", torch.float64)
        if exact.numel():
            size = float(exact.abs().max())  # NaN if any value is
            if not size <= self.limit:
                raise OutOfRange(f"{size:.4g} is beyond the range of {self.limit:g}")
        # a product of powers of two and few bits: exact for single precision
        return torch.round(exact * (weight * self.scale)).to(torch.int64)

    def check_weight(self, weight: int) -> None:
        """Refuse a weight with which a sum might overflow."""
        if weight != int(weight) or not 0 <= weight <= self.heaviest:
            raise OutOfRange(
                f"weight {weight} is no whole number from 0 to {self.heaviest}"
            )

    # ---------------------------------------------------------------- sums
    def add(self, integers: Sequence[Tensor]) -> Tensor:
        """The sum of what clients sent, in clear: what every other way must give, too."""
        self.check_count(len(integers))
        return torch.stack(list(integers)).sum(dim=0)

    def check_count(self, clients: int) -> None:
        """Refuse to add up more clients than there is room for."""
        if clients > self.clients:
            raise OutOfRange(
                f"{clients} clients are more than the {self.clients} to be added up"
            )

    def restore_sum(self, total: Tensor) -> Tensor:
        """The sum of weight times value, in double precision."""
        return total.to(torch.float64) / self.scale

    def restore_mean(self, total: Tensor, weight: int) -> Tensor:
        """The weighted mean, in double precision, from the two sums of integers."""
        return self.restore_sum(total) / weight


# ---------------------------------------------------------------- remainders
def to_remainders(integers: Tensor, modulus: int) -> Tensor:
    """Integers as 0 ... modulus - 1, in which masks and ciphertexts are computed.

    For a modulus of 2**64 the int64 numbers are their own remainders: they wrap round.
    """
    return torch.remainder(integers, modulus)


def from_remainders(remainders: Tensor, modulus: int) -> Tensor:
    """The sums, between -LARGEST_SUM and LARGEST_SUM, that leave these remainders."""
    assert modulus > 2 * LARGEST_SUM, "two sums would have the same remainder"
    return torch.where(remainders > modulus // 2, remainders - modulus, remainders)
