"""A look at every upload before it is used: its bytes, its shapes, its numbers, its distance from what was sent."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.executors.site import AnyMethod, finite
from fedtailor.tree import Tree, leaves
from fedtailor.wire import Flat, encode, weigh


class Finding(NamedTuple):
    """What one upload is like."""

    bytes: int
    fault: str  # empty where there is none
    distance: float  # from the download, over the tensors that both have


class _Sent(NamedTuple):
    """What a download is like, found once for all clients that are sent the very same."""

    bytes: int
    expected: dict[str, dict[str, Tensor]]  # field -> name -> a tensor of the shape that must come back


class Inspector:
    """Inspects the uploads of one call."""

    def __init__(self, method: AnyMethod, t: int, stays: frozenset[str] = frozenset()) -> None:
        self._method, self._t, self._stays = method, t, stays
        self._known: dict[tuple[Any, ...], _Sent] = {}  # by tensors and values
        self._seen: dict[int, tuple[Tree, _Sent]] = {}  # by identity

    def weigh(self, down: Tree) -> int:
        """Bytes of a download."""
        return self._sent(down).bytes

    def look(self, up: Tree, down: Tree) -> Finding:
        """What an upload is like."""
        flat, sent = encode(up), self._sent(down)
        have = _tensors(flat)
        want = {
            name: x for f, part in sent.expected.items() if f in getattr(up, "_fields", ()) for name, x in part.items()
        }
        fault, distance = "", 0.0
        if have.keys() != want.keys():  # an upload may hold more than its download, and less where buffers stay at home
            mine = {n: x for n, x in have.items() if n.split("/", 1)[0] in sent.expected and not self._home(n)}
            want = {n: x for n, x in want.items() if not self._home(n)}
            odd = sorted(want.keys() ^ mine.keys())
            fault = _misfit(odd[0], want.get(odd[0]), mine.get(odd[0])) if odd else ""
        fault = fault or next(filter(None, (_misfit(n, x, have[n]) for n, x in want.items())), "")
        if not fault:
            distance = _distance([have[n] for n in want], list(want.values()))
            rest = [x for n, x in have.items() if n not in want]
            if not (math.isfinite(distance) and finite(rest)) and not finite(list(have.values())):
                fault = "its upload holds NaN or infinity"
        return Finding(weigh(flat), fault, distance)

    def _home(self, name: str) -> bool:
        return name.rsplit("/", 1)[-1] in self._stays

    def _sent(self, down: Tree) -> _Sent:
        if id(down) not in self._seen:
            key = tuple(id(x) if isinstance(x, Tensor) else x for x in leaves(down))
            if key not in self._known:
                wanted = self._method.expected(down, self._t)
                expected = {f: _tensors(encode(wanted[f], f)) for f in wanted}
                self._known[key] = _Sent(weigh(encode(down)), expected)
            self._seen[id(down)] = down, self._known[key]  # holding it keeps its id from being used again
        return self._seen[id(down)][1]


def _tensors(flat: Flat) -> dict[str, Tensor]:
    return {name: x for name, x in flat.items() if isinstance(x, Tensor)}


def _misfit(name: str, wanted: Tensor | None, given: Tensor | None) -> str:
    if wanted is not None and given is not None and wanted.shape == given.shape:
        return ""
    sent = "missing" if given is None else f"of shape {tuple(given.shape)}"
    return f"its upload's {name} is {sent}" + ("" if wanted is None else f", not {tuple(wanted.shape)}")


def _distance(have: list[Tensor], want: list[Tensor]) -> float:
    pairs = [(a, b) for a, b in zip(have, want, strict=True) if a.is_floating_point()]
    if not pairs:
        return 0.0
    gaps = torch._foreach_norm(torch._foreach_sub([a for a, _ in pairs], [b for _, b in pairs]))
    return float(torch.linalg.vector_norm(torch.stack(gaps)))
