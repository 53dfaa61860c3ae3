"""Between server and clients: carries calls, checks what comes back, counts bytes, loses replies on purpose.

Nothing unchecked is ever averaged in: an upload of the wrong shape, with a NaN, or absurdly far from what was sent is
left out of the round, by name.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedtailor.executors import Executor, Tick
from fedtailor.executors.site import AnyMethod, Reply, finite
from fedtailor.rng import Purpose, Rng
from fedtailor.tree import Tree
from fedtailor.wire import encode, size

FAR = 100.0  # an upload further from its download than this many times the cohort's median is refused


@dataclass
class Ledger:
    """What one round cost and whom it lost."""

    up: int = 0  # bytes
    down: int = 0
    visits: int = 0
    lost: dict[int, str] = field(default_factory=dict)  # client -> why


@dataclass
class Exchange:
    """Carries calls to clients through an executor."""

    method: AnyMethod
    executor: Executor
    seed: int
    rounds: int
    drop: float = 0.0  # probability that a reply gets lost after training
    tick: Tick = lambda: None
    stays: frozenset[str] = frozenset()  # names of buffers that never leave (--bn local), so none must come
    ledger: Ledger = field(default_factory=Ledger)

    def call(self, name: str, downs: dict[int, Tree], t: int, number: int) -> dict[int, tuple[int, Tree]]:
        """Run a client function on the keys of ``downs``; gives (n, upload) of those whose upload is sound."""
        self.ledger.visits += len(downs)
        self.ledger.down += _sum_sizes(list(downs.values()))
        replies = self.executor.call(name, downs, t, number, self.tick)
        sound: dict[int, Reply] = {}
        for k, reply in replies.items():
            why = reply.error or self._fault(reply.up, downs[k], t)
            if not why and self.drop:
                u = float(Rng.seed(self.seed, Purpose.LOST, t, number, k).uniform(1))
                why = "its reply got lost (--drop)" if u < self.drop else ""
            if why:
                self.ledger.lost[k] = why
            else:
                sound[k] = reply
        for k, why in self._strays(sound, downs, t).items():
            self.ledger.lost[k] = why
            del sound[k]
        self.ledger.up += _sum_sizes([r.up for r in sound.values()])
        return {k: (r.n, r.up) for k, r in sound.items()}

    def _fault(self, up: Tree, down: Tree, t: int) -> str:
        """What is wrong with the shape or the numbers of an upload."""
        if not finite(up):
            return "its upload holds NaN or infinity"
        for name, wanted, given in self._pairs(up, down, t):
            if wanted is None or given is None or wanted.shape != given.shape:
                sent = "missing" if given is None else f"of shape {tuple(given.shape)}"
                return f"its upload's {name} is {sent}" + ("" if wanted is None else f", not {tuple(wanted.shape)}")
        return ""

    def _strays(self, replies: dict[int, Reply], downs: dict[int, Tree], t: int) -> dict[int, str]:
        """Uploads absurdly far from what their clients were sent."""
        far: dict[int, float] = {}
        for k, reply in replies.items():
            gaps = [(g - w).square().sum() for _, w, g in self._pairs(reply.up, downs[k], t)
                    if w is not None and g is not None and g.is_floating_point()]  # fmt: skip
            far[k] = float(torch.stack(gaps).sum().sqrt()) if gaps else 0.0
        middle = statistics.median(far.values()) if far else 0.0
        if middle == 0 or len(far) < 3:
            return {}
        return {
            k: f"its upload is {d / middle:.0f} times further from the download than the cohort's median"
            for k, d in far.items()
            if d > FAR * middle
        }

    def _pairs(self, up: Tree, down: Tree, t: int) -> list[tuple[str, Tensor | None, Tensor | None]]:
        """Tensors of an upload beside those whose shapes they must have."""
        out: list[tuple[str, Tensor | None, Tensor | None]] = []
        for name, wanted in self.method.expected(down, t).items():
            if name not in getattr(up, "_fields", ()):
                continue
            want = {k: v for k, v in encode(wanted, name).items() if isinstance(v, Tensor)}
            have = {k: v for k, v in encode(getattr(up, name), name).items() if isinstance(v, Tensor)}
            names = [k for k in want.keys() | have.keys() if k.rsplit("/", 1)[-1] not in self.stays]
            out += [(k, want.get(k), have.get(k)) for k in sorted(names)]
        return out


def _sum_sizes(trees: list[Any]) -> int:
    """Bytes of many messages; one sent to everybody is measured once."""
    known: dict[tuple[int, ...], int] = {}

    def measure(tree: Any) -> int:
        key = tuple(id(v) for v in encode(tree).values() if isinstance(v, Tensor))
        if key not in known or not key:
            known[key] = size(tree)
        return known[key]

    return sum(map(measure, trees))
