"""Rounds to a target and to convergence, by hand."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from fedtailor.evaluation.pace import measure_pace
from fedtailor.evaluation.summary import Evaluation, Fairness, Measure
from fedtailor.training.task import Classification

TASK = Classification(2)
NOTHING = Measure({}, None, 0)


def history_of(values: Sequence[float | None]) -> list[tuple[int, Evaluation]]:
    """Evaluations after rounds 2, 4, 6, ..."""
    history = []
    for i, value in enumerate(values):
        measured = {} if value is None else {"accuracy": value}
        test = Measure(measured, value, 10)
        history.append((2 * i + 2, Evaluation(NOTHING, test, Fairness())))
    return history


def test_target_and_convergence() -> None:
    history = history_of([0.3, 0.7, 0.895, 0.90, 0.89, 0.9, 0.9, 0.9, 0.9, 0.9])
    pace = measure_pace(TASK, history, 0.7)
    assert pace.rounds_to_target == 4
    assert pace.rounds_to_converge == 6  # 0.895 is within 1 % of 0.9
    assert pace.seconds(0.5) == {"to_target": 2.0, "to_converge": 3.0}


def test_what_is_not_reached_is_not_told() -> None:
    rising = history_of([i / 20 for i in range(20)])
    pace = measure_pace(TASK, rising, 0.99)
    assert pace.rounds_to_target is None
    assert pace.rounds_to_converge is None
    assert measure_pace(TASK, rising, None).target is None
    assert measure_pace(TASK, history_of([None]), 0.1).rounds_to_converge is None


def test_where_lower_is_better() -> None:
    task = Classification(2, higher_is_better=False)
    history = history_of([0.9, 0.5, 0.2, 0.201, 0.2, 0.2])
    pace = measure_pace(task, history, 0.5)
    assert pace.rounds_to_target == 4
    assert pace.rounds_to_converge == 6
    assert pace.seconds(1.0)["to_converge"] == pytest.approx(6)
