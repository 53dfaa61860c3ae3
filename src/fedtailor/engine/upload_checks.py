"""A look at every upload before it is used: its bytes, its shapes, its numbers, its distance from what was sent."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.core.tensors import finite
from fedtailor.core.tree import Tree, leaves
from fedtailor.core.wire import Flat, encode, weigh
from fedtailor.executors.world import AnyMethod

PIECE = (
    1 << 18
)  # numbers of a large tensor that are subtracted at once: they stay in a core's cache
MANY = (
    1 << 22
)  # numbers of small tensors, those of several clients together, that are subtracted at once


class Finding(NamedTuple):
    """What one upload is like."""

    bytes: int
    fault: str  # empty where there is none
    distance: (
        float  # from the download, over the tensors that both have and whose values say something
    )


class _Sent(NamedTuple):
    """What a download is like, found once for all clients that are sent the very same."""

    bytes: int
    expected: dict[
        str, dict[str, Tensor]
    ]  # field -> name -> a tensor of the shape that must come back


class Inspector:
    """Inspects the uploads of one call."""

    def __init__(self, method: AnyMethod, t: int, stays: frozenset[str] = frozenset()) -> None:
        self._method, self._t, self._stays = method, t, stays
        self._known: dict[tuple[Any, ...], _Sent] = {}  # by tensors and values
        self._seen: dict[Any, tuple[Tree, _Sent]] = {}  # by identity
        self._wanted: dict[tuple[int, type], dict[str, Tensor]] = {}

    def weigh(self, down: Tree) -> int:
        """Bytes of a download."""
        return self._sent(down).bytes

    def look(self, ups: Mapping[int, Tree], downs: Mapping[int, Tree]) -> dict[int, Finding]:
        """What every upload is like, beside what its client was sent."""
        found: dict[int, Finding] = {}
        pairs: dict[int, list[tuple[Tensor, Tensor]]] = {}
        rest: dict[int, list[Tensor]] = {}
        for k, up in ups.items():
            flat, sent = encode(up), self._sent(downs[k])
            have, want = _tensors(flat), self._want(sent, type(up))
            fault = ""
            if (
                have.keys() != want.keys()
            ):  # more than was sent may come back, and less where buffers stay at home
                mine = {
                    n: x
                    for n, x in have.items()
                    if n.split("/", 1)[0] in sent.expected and not self._home(n)
                }
                want = {n: x for n, x in want.items() if not self._home(n)}
                odd = sorted(want.keys() ^ mine.keys())
                fault = _misfit(odd[0], want.get(odd[0]), mine.get(odd[0])) if odd else ""
                rest[k] = [x for n, x in have.items() if n not in want]
            fault = fault or next(
                (_misfit(n, x, have[n]) for n, x in want.items() if x.shape != have[n].shape), ""
            )
            found[k] = Finding(weigh(flat), fault, 0.0)
            if not fault:
                pairs[k] = [(have[n], x) for n, x in want.items()]
        for k, distance in _distances(pairs).items():
            fault = ""
            if not (math.isfinite(distance) and finite(rest.get(k, []))) and not finite(ups[k]):
                fault = "its upload holds NaN or infinity"
            found[k] = Finding(found[k].bytes, fault, distance)
        return found

    def _want(self, sent: _Sent, kind: type) -> dict[str, Tensor]:
        """The tensors that an upload of this type must hold."""
        if (id(sent), kind) not in self._wanted:
            fields = getattr(kind, "_fields", ())
            expected = {
                n: x for f, part in sent.expected.items() if f in fields for n, x in part.items()
            }
            self._wanted[id(sent), kind] = expected
        return self._wanted[id(sent), kind]

    def _home(self, name: str) -> bool:
        return name.rsplit("/", 1)[-1] in self._stays

    def _sent(self, down: Tree) -> _Sent:
        fields = tuple(map(id, down)) if isinstance(down, tuple) else id(down)
        if fields not in self._seen:
            key = tuple(id(x) if isinstance(x, Tensor) else x for x in leaves(down))
            if key not in self._known:
                wanted = self._method.expected_upload(down, self._t)
                expected = {f: _tensors(encode(wanted[f], f)) for f in wanted}
                self._known[key] = _Sent(weigh(encode(down)), expected)
            self._seen[fields] = (
                down,
                self._known[key],
            )  # holding it keeps its ids from being used again
        return self._seen[fields][1]


def _tensors(flat: Flat) -> dict[str, Tensor]:
    return {name: x for name, x in flat.items() if isinstance(x, Tensor)}


def _misfit(name: str, wanted: Tensor | None, given: Tensor | None) -> str:
    if wanted is not None and given is not None and wanted.shape == given.shape:
        return ""
    sent = "missing" if given is None else f"of shape {tuple(given.shape)}"
    return f"its upload's {name} is {sent}" + (
        "" if wanted is None else f", not {tuple(wanted.shape)}"
    )


def _distances(pairs: Mapping[int, list[tuple[Tensor, Tensor]]]) -> dict[int, float]:
    """The distance between both sides of a client's pairs, for every client."""
    squares = dict.fromkeys(pairs, 0.0)
    alike: dict[int, tuple[Tensor, list[tuple[int, Tensor]]]] = {}  # by what was sent
    for k, mine in pairs.items():
        for a, b in mine:
            if not a.is_floating_point() or b.is_meta:
                continue
            if a.numel() > PIECE:
                pieces = zip(
                    torch.split(a.reshape(-1), PIECE),
                    torch.split(b.reshape(-1), PIECE),
                    strict=True,
                )
                squares[k] += sum(float((x - y).norm()) ** 2 for x, y in pieces)
            else:
                alike.setdefault(id(b), (b, []))[1].append((k, a))
    for b, given in alike.values():
        most = max(1, MANY // max(1, b.numel()))
        for i in range(0, len(given), most):
            few = given[i : i + most]
            gaps = (torch.stack([a for _, a in few]) - b).reshape(len(few), -1).norm(dim=1)
            for (k, _), gap in zip(few, gaps.tolist(), strict=True):
                squares[k] += gap * gap
    return {k: math.sqrt(x) for k, x in squares.items()}
