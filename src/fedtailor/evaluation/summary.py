"""Scores of many clients summed up; the best round by validation data alone."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from fedtailor.evaluation.score import Score
from fedtailor.training.task import NOTHING, AnyTally, Decided, Task


@dataclass(frozen=True)
class Measure:
    """One part of the data (validation or test) over all evaluated clients."""

    # the task's measures over all examples; empty where there are none
    values: dict[str, float]
    mean: float | None  # mean of the clients' primary measures
    n: int  # examples

    @property
    def accuracy(self) -> float | None:
        """Correct predictions by examples, where the task has them."""
        return self.values.get("accuracy")

    @property
    def loss(self) -> float | None:
        """Mean loss."""
        return self.values.get("loss")

    def to_json(self) -> dict[str, Any]:
        """As the journal holds it."""
        known = {"accuracy": None, "loss": None}
        return {**known, **self.values, "mean": self.mean, "n": self.n}

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Measure:
        """From the journal."""
        values = {
            name: value
            for name, value in record.items()
            if name not in ("mean", "n") and value is not None
        }
        return cls(values, record["mean"], record["n"])


@dataclass(frozen=True)
class Fairness:
    """How evenly clients are served, over those that have test examples."""

    std: float | None = None  # standard deviation of the clients' primary measures
    # std / the measure over all examples, as GPFL's Table 3 has it (8.42 / 93.76 = 8.98 %)
    cv: float | None = None
    cv_of_clients: float | None = None  # std / mean of the clients' measures
    jain: float | None = None  # (sum x)^2 / (n sum x^2): 1 where all clients are equal
    worst_decile: float | None = None  # mean of the worst tenth (at least one client)


@dataclass(frozen=True)
class Evaluation:
    """All clients' scores in one round."""

    val: Measure
    test: Measure
    fairness: Fairness
    # primary measure on test data
    clients: dict[int, float | None] = field(default_factory=dict)
    # name -> client -> value
    diagnostics: dict[str, dict[int, Any]] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """As the journal holds it."""
        return {
            "val": self.val.to_json(),
            "test": self.test.to_json(),
            "fairness": asdict(self.fairness),
            "clients": self.clients,
            "notes": self.diagnostics,
        }

    @classmethod
    def from_json(cls, record: dict[str, Any]) -> Evaluation:
        """From the journal."""
        return cls(
            Measure.from_json(record["val"]),
            Measure.from_json(record["test"]),
            Fairness(**record["fairness"]),
            {int(k): value for k, value in record["clients"].items()},
            {
                name: {int(k): value for k, value in by_client.items()}
                for name, by_client in record["notes"].items()
            },
        )


History = Sequence[tuple[int, Evaluation]]  # (round, evaluation), in order


def summarise(task: Task, scores: Mapping[int, Score]) -> Evaluation:
    """Sum up the scores of many clients."""
    primary = {k: task.primary_measure(score.test) for k, score in scores.items()}
    known = [value for value in primary.values() if value is not None]
    validation = [score.val for score in scores.values()]
    decided = task.decide(validation)
    test = measure(task, [score.test for score in scores.values()], decided)
    return Evaluation(
        val=measure(task, validation, decided),
        test=test,
        fairness=measure_fairness(task, known, test.values.get(task.primary)),
        clients=primary,
        diagnostics=collect_diagnostics(scores),
    )


def measure(
    task: Task, tallies: Sequence[AnyTally], decided: Decided = NOTHING
) -> Measure:
    """The task's measures over the tallies of many clients.

    ``decided``: what validation data decided for them.
    """
    n = 0
    known: list[float] = []
    for tally in tallies:
        n += int(tally.n.sum())
        value = task.primary_measure(tally)
        if value is not None:
            known.append(value)
    mean = statistics.fmean(known) if known else None
    # most tasks decide nothing, and a task of one's own need not know of it
    values = task.measures(tallies, decided) if decided else task.measures(tallies)
    return Measure(values, mean, n)


def measure_fairness(
    task: Task, values: Sequence[float], overall: float | None
) -> Fairness:
    """The spread of the clients' primary measures.

    Args:
        task: says whether more is better.
        values: the clients' measures.
        overall: the measure over all clients' examples, which papers report.
    """
    if not values:
        return Fairness()
    std = statistics.pstdev(values)
    mean = statistics.fmean(values)
    squares = sum(value * value for value in values)
    ranked = sorted(values, reverse=not task.higher_is_better)
    count = max(1, len(values) // 10)
    worst = ranked[:count]
    return Fairness(
        std=std,
        cv=std / overall if overall else None,
        cv_of_clients=std / mean if mean else None,
        jain=sum(values) ** 2 / (len(values) * squares) if squares else None,
        worst_decile=statistics.fmean(worst),
    )


def collect_diagnostics(scores: Mapping[int, Score]) -> dict[str, dict[int, Any]]:
    """Diagnostics by name and client, as plain numbers."""
    names = sorted({name for score in scores.values() for name in score.diagnostics})
    return {
        name: {
            k: score.diagnostics[name].tolist()
            for k, score in scores.items()
            if name in score.diagnostics
        }
        for name in names
    }


def choose_round(task: Task, history: History) -> int | None:
    """The round to report: best by validation data, the earliest of ties. Test data has no say."""
    sign = 1 if task.is_more_better(task.chosen_by) else -1
    best = None
    best_value = float("-inf")
    for t, evaluation in history:
        value = evaluation.val.values.get(task.chosen_by)
        if value is not None and sign * value > best_value:
            best = t
            best_value = sign * value
    return best


def best_round_on_test(
    task: Task, history: History, by_round: Sequence[float | None]
) -> int | None:
    """The round at which a measure on test data is best, the earliest of ties."""
    sign = 1 if task.higher_is_better else -1
    known = {
        t: sign * value
        for (t, _), value in zip(history, by_round, strict=True)
        if value is not None
    }
    return max(known, key=lambda t: known[t]) if known else None


def quoted_rounds(task: Task, history: History) -> dict[str, int]:
    """By name, the rounds at which results are quoted: best, last, best_on_test."""
    accuracies = [evaluation.test.values.get(task.primary) for _, evaluation in history]
    rounds = {
        "best": choose_round(task, history),
        "last": history[-1][0] if history else None,
        "best_on_test": best_round_on_test(task, history, accuracies),
    }
    return {name: t for name, t in rounds.items() if t is not None}


def report_measure(
    task: Task, history: History, by_round: Sequence[float | None]
) -> dict[str, Any]:
    """The ways a run's result is told, for one measure on test data.

    ``best_on_test`` is what papers print; it looks at the test data.
    """
    seen = [value for value in by_round if value is not None]
    best = choose_round(task, history)
    chosen = dict(zip((t for t, _ in history), by_round, strict=True))
    top = max if task.higher_is_better else min
    return {
        "best": None if best is None else chosen[best],
        "last": seen[-1] if seen else None,
        "mean_last_10": statistics.fmean(seen[-10:]) if seen else None,
        "best_on_test": top(seen) if seen else None,
        "best_round": best,
        "best_on_test_round": best_round_on_test(task, history, by_round),
    }
