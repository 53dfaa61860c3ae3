"""What can be watched of a run: its begin, its rounds, its messages, its end.

The console, the journal, the log of a deployed run and the figures are observers; a
tracker is one more file with one more observer.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtailor.evaluation.summary import Evaluation
from fedtailor.experiment.config import Experiment


@dataclass(frozen=True)
class RoundRecord:
    """What happened in one round."""

    t: int
    clients: list[int]  # that took part
    # client -> why its reply was not used
    lost: dict[int, str] = field(default_factory=dict)
    visits: int = 0
    calls: int = 0  # exchanges one after another
    bytes_up: int = 0
    bytes_down: int = 0
    trainings: int = 0  # calls one after another in which clients trained
    seconds: float = 0.0
    # epsilon and delta spent so far, where clients are promised privacy
    privacy: dict[str, float] = field(default_factory=dict)
    # without an evaluation that came along with the round's visits (an estimate then)
    training_seconds: float = 0.0
    # mean loss over the optimiser steps of all clients: "loss", and by training
    training: dict[str, float | None] = field(default_factory=dict)
    # further models or data: "after", "global_ptest", "global_gtest", "new", "external"
    views: dict[str, Any] = field(default_factory=dict)
    evaluation: Evaluation | None = None  # None where the round was not evaluated

    def to_json(self) -> dict[str, Any]:
        """As the journal holds it."""
        record: dict[str, Any] = {
            "t": self.t,
            "clients": self.clients,
            "lost": {str(k): why for k, why in self.lost.items()},
            "visits": self.visits,
            "calls": self.calls,
            "bytes": {"up": self.bytes_up, "down": self.bytes_down},
            "trainings": self.trainings,
            "seconds": self.seconds,
            "training_seconds": self.training_seconds,
            "training": self.training,
            "views": self.views,
        }
        if self.privacy:
            record["privacy"] = self.privacy
        if self.evaluation is not None:
            record["evaluation"] = self.evaluation.to_json()
        return record

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> RoundRecord:
        """From the journal."""
        evaluation = record.get("evaluation")
        return cls(
            t=record["t"],
            clients=record["clients"],
            lost={int(k): why for k, why in record["lost"].items()},
            visits=record["visits"],
            calls=record["calls"],
            bytes_up=record["bytes"]["up"],
            bytes_down=record["bytes"]["down"],
            trainings=record["trainings"],
            seconds=record["seconds"],
            privacy=record.get("privacy", {}),
            training_seconds=record["training_seconds"],
            training=record["training"],
            views=record["views"],
            evaluation=None if evaluation is None else Evaluation.from_json(evaluation),
        )


class Observer:
    """Base class: ignores everything. Override what you want to know.

    Example:
        class PrintAccuracy(Observer):
            def round(self, record):
                if record.evaluation:
                    print(record.t, record.evaluation.test.accuracy)
    """

    def begin(self, config: Experiment, first_round: int) -> None:
        """A run begins, or continues after ``first_round - 1`` rounds."""

    def client_done(self) -> None:
        """A client has finished its part of a round."""

    def round(self, record: RoundRecord) -> None:
        """A round is over and, if it was to be evaluated, evaluated."""

    def message(self, text: str) -> None:
        """Something the user should know; warnings begin with "warning"."""

    def end(self, result: dict[str, Any] | None) -> None:
        """The run is over; None where it was stopped or failed."""


class Observers(Observer):
    """Several observers as one."""

    def __init__(self, observers: Iterable[Observer]) -> None:
        self._observers = list(observers)

    def begin(self, config: Experiment, first_round: int) -> None:
        """Pass on."""
        for observer in self._observers:
            observer.begin(config, first_round)

    def client_done(self) -> None:
        """Pass on."""
        for observer in self._observers:
            observer.client_done()

    def round(self, record: RoundRecord) -> None:
        """Pass on."""
        for observer in self._observers:
            observer.round(record)

    def message(self, text: str) -> None:
        """Pass on."""
        for observer in self._observers:
            observer.message(text)

    def end(self, result: dict[str, Any] | None) -> None:
        """Pass on."""
        for observer in self._observers:
            observer.end(result)


class ManyRuns:
    """Base class of what follows many runs, one after another: comparisons and searches.

    It ignores everything; override what you want to know.
    """

    def begin(self, names: Sequence[str], finished: Sequence[str]) -> None:
        """Runs of these names are to be done; some are finished already."""

    def watch(self, name: str) -> Sequence[Observer]:
        """A run begins or goes on; gives the observers that follow it."""
        return ()

    def done(self, name: str) -> None:
        """A run is over and has a result."""

    def failed(self, name: str, why: str) -> None:
        """A run ended without one."""

    def message(self, text: str) -> None:
        """Something the user should know; warnings begin with "warning"."""

    def end(self) -> None:
        """No run follows."""
