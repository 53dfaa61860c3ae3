"""Between server and clients: carries calls, checks what comes back, counts bytes, loses replies on purpose.

Nothing unchecked is ever averaged in: an upload of the wrong shape, with a NaN, or absurdly far from what was sent is
left out of the round, by name.
"""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field

from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.tree import Tree
from fedtailor.engine.upload_checks import Inspector
from fedtailor.executors import Executor, Tick
from fedtailor.executors.visit import Reply
from fedtailor.executors.world import AnyMethod

LATER = 1000  # calls of setup are counted from here, apart from those of the round
FAR = (
    100.0  # an upload further from its download than this many times the cohort's median is refused
)


@dataclass
class Ledger:
    """What one round cost and whom it lost."""

    up: int = 0  # bytes
    down: int = 0
    visits: int = 0
    calls: int = 0  # one after another: a site waits for the one before it in a chain of clients
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
    stays: frozenset[str] = (
        frozenset()
    )  # names of buffers that never leave (--bn local), so none must come
    ledger: Ledger = field(default_factory=Ledger)

    def call(
        self, name: str, downs: dict[int, Tree], t: int, number: int
    ) -> dict[int, tuple[int, Tree]]:
        """Run a client function on the keys of ``downs``; gives (n, upload) of those whose upload is sound."""
        inspector = Inspector(self.method, t, self.stays)
        self.ledger.visits += len(downs)
        self.ledger.calls += 1
        self.ledger.down += sum(map(inspector.weigh, downs.values()))
        replies = self.executor.call(name, downs, t, number, self.tick)
        found = inspector.look({k: r.up for k, r in replies.items() if not r.error}, downs)
        sound: dict[int, Reply] = {}
        for k, reply in replies.items():
            why = reply.error or found[k].fault
            if not why and self.drop:
                u = float(Rng.seed(self.seed, Purpose.LOST, t, number, k).uniform(1))
                why = "its reply got lost (--drop)" if u < self.drop else ""
            if why:
                self.ledger.lost[k] = why
            else:
                sound[k] = reply
        for k, why in strays({k: found[k].distance for k in sound}).items():
            self.ledger.lost[k] = why
            del sound[k]
        self.ledger.up += sum(found[k].bytes for k in sound)
        return {k: (r.n, r.up) for k, r in sound.items()}


def strays(far: dict[int, float]) -> dict[int, str]:
    """Uploads absurdly far from what their clients were sent."""
    middle = statistics.median(far.values()) if far else 0.0
    if middle == 0 or len(far) < 3:
        return {}
    return {
        k: f"its upload is {d / middle:.0f} times further from the download than the cohort's median"
        for k, d in far.items()
        if d > FAR * middle
    }
