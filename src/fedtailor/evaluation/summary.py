"""What the scores of many clients amount to: the papers' measures, and a round chosen by validation data alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from torch import Tensor

from fedtailor.evaluation.score import Score, Tally


@dataclass(frozen=True)
class Measure:
    """One part (validation or test) over all evaluated clients."""

    accuracy: float | None  # sum of correct / sum of examples
    mean: float | None  # mean of the clients' accuracies
    loss: float | None
    n: int


@dataclass(frozen=True)
class Fairness:
    """How evenly clients are served, over those that have test examples."""

    std: float | None  # standard deviation of the clients' accuracies
    cv: float | None  # std / mean
    worst_decile: float | None  # mean accuracy of the worst tenth (at least one client)


@dataclass(frozen=True)
class Evaluation:
    """All clients' scores in one round."""

    val: Measure
    test: Measure
    fairness: Fairness
    clients: dict[int, float | None] = field(default_factory=dict)  # test accuracy
    notes: dict[str, dict[int, Any]] = field(default_factory=dict)  # diagnostics by client

    def record(self) -> dict[str, Any]:
        """As JSON holds it."""
        return asdict(self)

    @classmethod
    def read(cls, record: dict[str, Any]) -> Evaluation:
        """From ``record``."""
        return cls(
            Measure(**record["val"]),
            Measure(**record["test"]),
            Fairness(**record["fairness"]),
            {int(k): v for k, v in record["clients"].items()},
            {name: {int(k): v for k, v in by.items()} for name, by in record["notes"].items()},
        )


def evaluate(scores: Mapping[int, Score]) -> Evaluation:
    """Sum up the scores of many clients."""
    accuracies = {k: _accuracy(s.test) for k, s in scores.items()}
    names = sorted({name for s in scores.values() for name in s.notes})
    notes = {
        name: {k: _number(s.notes[name]) for k, s in scores.items() if name in s.notes}
        for name in names
    }
    return Evaluation(
        measure([s.val for s in scores.values()]),
        measure([s.test for s in scores.values()]),
        fairness([a for a in accuracies.values() if a is not None]),
        accuracies,
        notes,
    )


def measure(tallies: Sequence[Tally]) -> Measure:
    """One part over many clients."""
    n = sum(int(t.n.sum()) for t in tallies)
    own = [a for a in map(_accuracy, tallies) if a is not None]
    if not n:
        return Measure(None, None, None, 0)
    correct, loss = (
        sum(float(t.correct.sum()) for t in tallies),
        sum(float(t.loss) for t in tallies),
    )
    return Measure(correct / n, statistics.fmean(own), loss / n, n)


def fairness(accuracies: Sequence[float]) -> Fairness:
    """Spread of the clients' accuracies."""
    if not accuracies:
        return Fairness(None, None, None)
    std, mean = statistics.pstdev(accuracies), statistics.fmean(accuracies)
    worst = sorted(accuracies)[: max(1, len(accuracies) // 10)]
    return Fairness(std, std / mean if mean else None, statistics.fmean(worst))


def choose(history: Sequence[tuple[int, Evaluation]]) -> int | None:
    """The round to report: the highest weighted validation accuracy, the earliest of ties. Test data has no say."""
    known = [(t, e.val.accuracy) for t, e in history if e.val.accuracy is not None]
    return max(known, key=lambda item: (item[1], -item[0]))[0] if known else None


def accuracies(history: Sequence[tuple[int, Evaluation]], kind: str = "accuracy") -> dict[str, Any]:
    """The ways a run's accuracy is told; ``best_on_test`` is what papers print, and looks at the test data."""
    by_round = {t: getattr(e.test, kind) for t, e in history}
    seen = [a for a in by_round.values() if a is not None]
    best = choose(history)
    return {
        "best": None if best is None else by_round[best],
        "last": seen[-1] if seen else None,
        "mean_last_10": statistics.fmean(seen[-10:]) if seen else None,
        "best_on_test": max(seen) if seen else None,
        "best_round": best,
    }


def _accuracy(tally: Tally) -> float | None:
    n = float(tally.n.sum())
    return float(tally.correct.sum()) / n if n else None


def _number(x: Tensor) -> Any:
    return x.tolist()
