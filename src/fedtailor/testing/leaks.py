"""Finds what a client keeps to itself in messages: as it is, in part, or times a number.

A kept tensor is looked for as a whole, by rows and by columns. Vectors are compared by direction:
it makes no difference if a message holds them times a sample count, or divided by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fedtailor.core.tree import Tree, tensors
from fedtailor.filters.tap import Traffic

# largest distance of directions that count as one: float64 rounds to 1e-16
SAME = 1e-13

Directions = dict[int, Tensor]  # by length, one in each row


@dataclass(frozen=True)
class Leak:
    """A kept tensor, or part of it, that another party has seen."""

    client: int  # whose it is
    field: str  # of Keep
    receiver: int | None  # another client; None for the server

    def __str__(self) -> str:
        way = "goes up"
        if self.receiver is not None:
            way = f"goes down to client {self.receiver}"
        return (
            f"Keep.{self.field} of client {self.client} {way}: "
            "all of it, a row or a column, perhaps times a number"
        )


def find_leak(
    states: Sequence[dict[int, Tree]],
    traffic: Sequence[Traffic],
    exempt: Sequence[str] = (),
) -> Leak | None:
    """The first field that has left its client.

    What the client was sent itself is no secret of its own.

    Args:
        states: what every client keeps after round 1, 2, ...; named tuples.
        traffic: all messages of these rounds.
        exempt: fields of the states that may be sent.
    """
    for t, state in enumerate(states, start=1):
        since = [call for call in traffic if call.t >= t]
        until = [call for call in traffic if call.t <= t]
        for k, keep in state.items():
            received = _list_directions(call.down.get(k) for call in until)
            for field, value in _list_fields(keep, exempt):
                secrets = _without(_list_directions([value]), received)
                leak = _find_in_messages(secrets, since, k, field)
                if leak is not None:
                    return leak
    return None


def _list_fields(keep: Tree, exempt: Sequence[str]) -> list[tuple[str, Tree]]:
    """The fields that never leave."""
    if not hasattr(keep, "_fields"):
        return []
    named = zip(keep._fields, keep, strict=True)
    return [(name, value) for name, value in named if name not in exempt]


def _find_in_messages(
    secrets: Directions, calls: Sequence[Traffic], k: int, field: str
) -> Leak | None:
    """Whether an upload of the client, or a download of another, holds one of its secrets."""
    uploads = _list_directions(call.up.get(k) for call in calls)
    if _share_a_direction(secrets, uploads):
        return Leak(k, field, receiver=None)
    others = sorted({j for call in calls for j in call.down if j != k})
    for j in others:
        downloads = _list_directions(call.down.get(j) for call in calls)
        if _share_a_direction(secrets, downloads):
            return Leak(k, field, receiver=j)
    return None


# ---------------------------------------------------------------- directions
def _list_directions(trees: Iterable[Tree]) -> Directions:
    """The directions of all tensors, of their rows and of their columns."""
    found: dict[int, list[Tensor]] = {}
    for tree in trees:
        for x in tensors(tree):
            if not x.is_floating_point():
                continue
            for vectors in _list_vectors(x.double()):
                directions = _find_directions(vectors)
                if len(directions):
                    found.setdefault(vectors.shape[1], []).append(directions)
    return {length: torch.cat(parts) for length, parts in found.items()}


def _list_vectors(x: Tensor) -> list[Tensor]:
    """A tensor as one vector, by rows and by columns."""
    if not x.numel():
        return []
    vectors = [x.reshape(1, -1)]
    if x.dim() > 1:
        vectors.append(x.flatten(1))
        vectors.append(x.transpose(0, 1).flatten(1))
    return vectors


def _find_directions(vectors: Tensor) -> Tensor:
    """Those vectors that tell something, with length one and a first number above 0.

    Ones, zeros, masks and single numbers tell nothing: they have no two different sizes but 0.
    """
    sizes = vectors.abs()
    largest = sizes.amax(1, keepdim=True)
    smallest = sizes.where(sizes > 0, torch.inf).amin(1, keepdim=True)
    tells = (smallest < largest * (1 - SAME)).squeeze(1)
    vectors = vectors[tells]
    positions = (vectors != 0).to(torch.int8).argmax(1, keepdim=True)
    signs = vectors.gather(1, positions).sign()
    lengths = vectors.norm(dim=1, keepdim=True)
    directions: Tensor = vectors * signs / lengths
    return directions


def _without(directions: Directions, known: Directions) -> Directions:
    """The directions that are not known, nor known ones with zeros in some places."""
    left: Directions = {}
    for length, mine in directions.items():
        others = known.get(length)
        is_known = [_is_part_of(vector, others) for vector in mine]
        left[length] = mine[~torch.tensor(is_known, dtype=torch.bool)]
    return left


def _is_part_of(vector: Tensor, known: Tensor | None) -> bool:
    """Whether a vector is one of the known ones in the places where it is not 0."""
    if known is None:
        return False
    parts = _find_directions(known * (vector != 0))
    return bool(_match(vector[None], parts).any())


def _share_a_direction(one: Directions, two: Directions) -> bool:
    return any(bool(_match(mine, two.get(n)).any()) for n, mine in one.items())


def _match(one: Tensor, two: Tensor | None) -> Tensor:
    """Which rows are the same."""
    if two is None:
        return torch.zeros(len(one), 0, dtype=torch.bool)
    gaps = torch.cdist(one, two, compute_mode="donot_use_mm_for_euclid_dist")
    return gaps < SAME
