"""What the loop remembers from round to round, and what a checkpoint holds of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtailor.core.tree import Tree
from fedtailor.engine.observer import RoundRecord
from fedtailor.evaluation.summary import Evaluation


@dataclass(frozen=True)
class PendingEvaluation:
    """A round that is over but for its evaluation."""

    record: RoundRecord
    clients: list[int]  # to evaluate


@dataclass
class RunState:
    """All that changes while a run goes on, but for the clients' private states."""

    t: int = 0  # rounds that are over
    server: Tree = None
    history: list[tuple[int, Evaluation]] = field(default_factory=list)
    seen: list[int] = field(default_factory=list)  # clients that ``setup`` has asked
    silent: int = 0  # rounds in a row without a usable reply
    bytes_up: int = 0
    bytes_down: int = 0
    calls: int = 0  # exchanges one after another
    trainings: int = 0  # those of them in which clients trained
    seconds: float = 0.0  # of rounds
    # of rounds without evaluation, but for the first after a start, which loads and warms up
    warm_seconds: float = 0.0
    warm_rounds: int = 0
    total_seconds: float = 0.0  # with evaluation and saving
    # what ``--views`` asked for last: round, clients, values
    views: tuple[int, list[int], dict[str, Any]] = (0, [], {})
    # the round before which this process started
    started: int = 0
    # its scores come with the next round's visits
    pending: PendingEvaluation | None = None
    privacy: dict[str, float] = field(default_factory=dict)  # spent so far

    def to_json(self) -> dict[str, Any]:
        """As a checkpoint holds it, beside the round, the server and the journal."""
        owed = None
        if self.pending is not None:
            owed = {**self.pending.record.to_json(), "evaluated": self.pending.clients}
        return {
            "seen": self.seen,
            "silent": self.silent,
            "up": self.bytes_up,
            "down": self.bytes_down,
            "calls": self.calls,
            "trainings": self.trainings,
            "seconds": self.seconds,
            "warm_seconds": self.warm_seconds,
            "warm_rounds": self.warm_rounds,
            "total": self.total_seconds,
            "owed": owed,
            "privacy": self.privacy,
        }

    @classmethod
    def from_json(
        cls,
        t: int,
        server: Tree,
        history: Sequence[tuple[int, Evaluation]],
        saved: dict[str, Any],
    ) -> RunState:
        """From a checkpoint."""
        owed = saved["owed"]
        pending = None
        views: tuple[int, list[int], dict[str, Any]] = (0, [], {})
        if owed is not None:
            pending = PendingEvaluation(RoundRecord.from_json(owed), owed["evaluated"])
            views = (pending.record.t, pending.clients, pending.record.views)
        return cls(
            t=t,
            server=server,
            history=list(history),
            seen=saved["seen"],
            silent=saved["silent"],
            bytes_up=saved["up"],
            bytes_down=saved["down"],
            calls=saved["calls"],
            trainings=saved["trainings"],
            seconds=saved["seconds"],
            warm_seconds=saved["warm_seconds"],
            warm_rounds=saved["warm_rounds"],
            total_seconds=saved["total"],
            views=views,
            started=t,
            pending=pending,
            privacy=saved.get("privacy", {}),
        )
