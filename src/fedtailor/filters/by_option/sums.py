"""Uploads of which a server can only have sums: what is protected, and as which integers.

Encryption and masks share it. A client sends ``to_integers(...)``: its weight, and its
weight times every protected number (for fields that the method adds up itself, just the
number). The server gets the sum of such rows, and nothing else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.sealed import Block, Sealed, find_sealed
from fedtailor.core.tree import Params, Tree, leaves
from fedtailor.core.wire import encode, outlines, replace_leaves
from fedtailor.filters.by_option.changes import measure_change, measure_norm
from fedtailor.maths.fixed_point import FixedPoint, OutOfRange

HEAD_NAMES = ("head", "heads")
HEAVY = "--sum-weight"  # the option that says how many examples a client may have


class NotSummable(Exception):
    """An upload that cannot be protected as sums; says why."""


class SumTerms(NamedTuple):
    """What is protected, and by which integers."""

    option: str  # as the user gave it, for messages
    method: str
    scope: Literal["heads", "all"]
    summed: tuple[str, ...]  # fields that the method adds up
    head_fields: tuple[str, ...]
    is_equal: bool  # whether all clients have weight 1, whatever their examples
    mean: FixedPoint  # of fields that are averaged
    sum: FixedPoint  # of fields that are added up


class Slot(NamedTuple):
    """One protected tensor: where its numbers are in the row."""

    path: str
    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype
    is_mean: bool

    @property
    def numbers(self) -> int:
        """How many numbers it has."""
        return math.prod(self.shape)


# ---------------------------------------------------------------- what is protected
def is_head(path: str, head_fields: tuple[str, ...]) -> bool:
    """Whether a tensor of an upload belongs to a head, by its path."""
    field, _, rest = path.partition("/")
    name = rest.rsplit("/", 1)[-1]
    if field in (*HEAD_NAMES, *head_fields):
        return True
    return name.startswith("head.")


def choose_slots(up: Tree, terms: SumTerms) -> list[Slot]:
    """The protected tensors of an upload, in order; the weight has place 0."""
    slots: list[Slot] = []
    start = 1
    for path, value in outlines(encode(up)).items():
        if terms.scope == "heads" and not is_head(path, terms.head_fields):
            continue
        is_mean = path.partition("/")[0] not in terms.summed
        slot = Slot(path, start, tuple(value.shape), value.dtype, is_mean)
        slots.append(slot)
        start += slot.numbers
    return slots


def find_unprotectable(up: Tree, terms: SumTerms) -> str:
    """Why an upload cannot be protected; empty if it can."""
    plain = [
        path
        for path, value in encode(up).items()
        if not isinstance(value, Tensor | Sealed) and leaves(value)
    ]
    if plain and terms.scope == "all":
        return f"uploads {plain[0]}, which is no tensor"
    if not choose_slots(up, terms):
        return "uploads no head, so heads protect nothing; take 'all'"
    return ""


def row_length(slots: list[Slot]) -> int:
    """How many numbers the row of an upload has."""
    return 1 + sum(slot.numbers for slot in slots)


# ---------------------------------------------------------------- integers
def to_integers(up: Tree, n: int, slots: list[Slot], terms: SumTerms) -> Tensor:
    """The row of integers that a client with n examples contributes to the sums.

    Raises:
        OutOfRange: a number is too large; the message names it.
    """
    named: Mapping[str, Tensor] = encode(up)
    if terms.is_equal:
        n = 1
    if n > terms.mean.heaviest:
        raise OutOfRange(
            f"{n} examples are more than {HEAVY} {terms.mean.heaviest} allows"
        )
    parts = [torch.tensor([n])]
    for slot in slots:
        form = terms.mean if slot.is_mean else terms.sum
        weight = n if slot.is_mean else 1
        try:
            part = form.quantise(named[slot.path], weight)
        except OutOfRange as error:
            raise OutOfRange(f"its {slot.path}: {error} (--sum-range)") from None
        parts.append(part.reshape(-1))
    return torch.cat(parts)


def from_integers(total: Tensor, slot: Slot, terms: SumTerms) -> Tensor:
    """A tensor of the mean (or of the sum) from the summed row."""
    numbers = total[slot.start : slot.start + slot.numbers]
    if not slot.is_mean:
        value = terms.sum.restore_sum(numbers)
    else:
        weight = round(float(total[0]))
        value = terms.mean.restore_mean(numbers, max(weight, 1))
    kind = slot.dtype if slot.dtype.is_floating_point else torch.get_default_dtype()
    return value.reshape(slot.shape).to(kind)


def read_all(total: Tensor, slots: list[Slot], terms: SumTerms) -> Params:
    """All tensors of the summed row, by path."""
    return {slot.path: from_integers(total, slot, terms) for slot in slots}


def layout_of(slots: list[Slot]) -> list[tuple[Any, ...]]:
    """What two uploads must agree on to be added up."""
    return [tuple(slot) for slot in slots]


# ---------------------------------------------------------------- sealed uploads
def seal_slots(up: Tree, slots: Sequence[Slot], block: Block) -> Tree:
    """The upload with sealed leaves in the place of the protected tensors."""
    new: dict[str, Any] = {}
    for slot in slots:
        new[slot.path] = Sealed(block, *slot[1:])
    return replace_leaves(up, new)


def check_change(up: Tree, down: Tree, limit: float | None) -> None:
    """A limit that the server cannot check: it holds where the client's code is honest."""
    if limit is None:
        return
    norm = float(measure_norm(measure_change(up, down)))
    if not norm <= limit:
        raise OutOfRange(
            f"its change of norm {norm:.4g} is beyond --change-limit {limit:g}"
        )


def find_faulty_uploads(
    ups: Mapping[int, Tree],
    terms: SumTerms,
    find_bad_block: Callable[[Block, int], str],
) -> dict[int, str]:
    """Uploads that cannot be looked at, checked by what can be.

    ``find_bad_block`` says what is wrong with a block that should hold so many numbers.
    """
    faults: dict[int, str] = {}
    layouts: dict[int, tuple[Any, ...]] = {}
    for k, up in ups.items():
        if not leaves(up):
            continue
        why = _find_fault(up, terms, find_bad_block)
        if why:
            faults[k] = f"its upload {why}"
        else:
            layouts[k] = tuple(leaf.layout() for leaf in find_sealed(up))
    if layouts:
        usual, _ = Counter(layouts.values()).most_common(1)[0]
        for k, layout in layouts.items():
            if layout != usual:
                faults[k] = "its upload seals other tensors than the others'"
    accepted = [k for k in layouts if k not in faults]
    for k in accepted[terms.mean.clients :]:
        faults[k] = f"sums have room for {terms.mean.clients} clients (--sum-clients)"
    return faults


def _find_fault(
    up: Tree, terms: SumTerms, find_bad_block: Callable[[Block, int], str]
) -> str:
    """What is wrong with an upload, as far as one can tell without opening it."""
    slots = choose_slots(up, terms)
    flat = encode(up)
    blocks: set[Block] = set()
    for slot in slots:
        leaf = flat[slot.path]
        if not isinstance(leaf, Sealed):
            return f"holds {slot.path} in clear"
        if leaf.layout() != slot[1:]:
            return f"has {slot.path} in a wrong place"
        blocks.add(leaf.block)
    if len(blocks) != 1 or len(find_sealed(flat)) != len(slots):
        return "seals other tensors than it should"
    (block,) = blocks
    return find_bad_block(block, row_length(slots))
