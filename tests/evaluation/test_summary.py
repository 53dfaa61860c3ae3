"""Scores of many clients: measures, fairness, and the best round by validation data alone."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from fedtailor.evaluation.score import Score
from fedtailor.evaluation.summary import (
    Evaluation,
    Fairness,
    Measure,
    choose_round,
    measure,
    quoted_rounds,
    report_measure,
    summarise,
)
from fedtailor.training.task import Classification, Tally

TASK = Classification(1)


@dataclass(frozen=True)
class Error(Classification):
    """A task whose deciding measure is an error: lower is better."""

    primary: str = "error"
    higher_is_better: bool = False

    def measures(self, tallies: Sequence[Tally]) -> dict[str, float]:
        found = super().measures(tallies)
        return {**found, "error": 1 - found["accuracy"]} if found else {}


def make_tally(correct: float, n: int) -> Tally:
    empty = TASK.empty_tally(torch.device("cpu"))
    return empty._replace(
        n=torch.tensor([float(n)]),
        correct=torch.tensor([float(correct)]),
        loss=torch.tensor(2.0 * n),
        predicted=torch.tensor([float(n)]),
        confidence=torch.full((3, 15), n / 15),
    )


def make_score(
    val: float, test: float, n: int = 10, diagnostics: dict | None = None
) -> Score:
    """A client with n examples in each part, of which so many are predicted correctly."""
    return Score(make_tally(val, n), make_tally(test, n), diagnostics or {})


def make_history(task: Classification, rounds: Sequence[tuple[int, int, int]]):
    """One client, and another one without examples, in rounds given as (t, val, test)."""
    history = []
    for t, val, test in rounds:
        scores = {0: make_score(val, test), 1: make_score(val, 0, n=0)}
        history.append((t, summarise(task, scores)))
    return history


def report_accuracy(task: Classification, history) -> dict:
    by_round = [evaluation.test.values.get(task.primary) for _, evaluation in history]
    return report_measure(task, history, by_round)


# ---------------------------------------------------------------- the round to report
def test_the_round_is_chosen_by_validation_data_alone():
    history = make_history(TASK, [(1, 5, 9), (2, 8, 6), (3, 8, 7), (4, 6, 8)])
    # the earliest of ties; others are better on test
    assert choose_round(TASK, history) == 2
    told = report_accuracy(TASK, history)
    assert told["best_round"] == 2
    assert told["best"] == 0.6
    assert told["last"] == 0.8
    assert told["best_on_test"] == 0.9
    assert told["mean_last_10"] == pytest.approx(0.75)
    assert told["best_on_test_round"] == 1
    assert quoted_rounds(TASK, history) == {"best": 2, "last": 4, "best_on_test": 1}


def test_where_lower_is_better_the_lowest_is_chosen():
    task = Error(1)
    history = make_history(task, [(1, 5, 9), (2, 8, 6), (3, 8, 7), (4, 6, 8)])
    assert choose_round(task, history) == 2
    told = report_accuracy(task, history)
    assert told["best"] == pytest.approx(0.4)
    assert told["best_on_test"] == pytest.approx(0.1)
    assert told["last"] == pytest.approx(0.2)


def test_rounds_without_validation_data_are_not_chosen():
    nothing = summarise(TASK, {0: make_score(0, 0, n=0)})
    assert choose_round(TASK, [(1, nothing)]) is None
    assert choose_round(TASK, []) is None
    some = make_history(TASK, [(2, 1, 1)])
    assert choose_round(TASK, [(1, nothing), *some]) == 2
    told = report_accuracy(TASK, [(1, nothing)])
    assert told == dict.fromkeys(told)


def test_the_mean_of_the_last_ten():
    history = make_history(TASK, [(t, 1, t % 10) for t in range(1, 16)])
    told = report_accuracy(TASK, history)
    assert told["mean_last_10"] == pytest.approx(
        np.mean([t % 10 / 10 for t in range(6, 16)])
    )


# ---------------------------------------------------------------- measures
def test_measures_are_over_all_examples_and_over_clients():
    scores = {0: make_score(1, 10), 1: make_score(1, 5), 2: make_score(1, 20, n=30)}
    evaluation = summarise(TASK, scores)
    assert evaluation.test.accuracy == pytest.approx(35 / 50)
    assert evaluation.test.mean == pytest.approx((1 + 0.5 + 2 / 3) / 3)
    assert evaluation.test.loss == pytest.approx(2.0)
    assert evaluation.test.n == 50
    assert evaluation.val.accuracy == pytest.approx(3 / 50)
    assert evaluation.clients == pytest.approx({0: 1.0, 1: 0.5, 2: 2 / 3})


def test_clients_without_examples_do_not_count():
    evaluation = summarise(TASK, {0: make_score(1, 10), 1: make_score(0, 0, n=0)})
    assert evaluation.clients == {0: 1.0, 1: None}
    assert evaluation.test.mean == 1.0
    assert measure(TASK, []) == Measure({}, None, 0)


def test_further_measures_of_a_task_are_kept():
    evaluation = summarise(Error(1), {0: make_score(1, 9)})
    found = evaluation.test.values
    assert found["accuracy"] == pytest.approx(0.9)
    assert found["loss"] == pytest.approx(2.0)
    assert found["error"] == pytest.approx(0.1)
    assert evaluation.test.to_json()["error"] == pytest.approx(0.1)


def test_diagnostics_by_name_and_client():
    first = {"train/x": torch.tensor(0.5), "test/bins": torch.tensor([0.25, 0.75])}
    scores = {3: make_score(1, 1, diagnostics=first), 4: make_score(1, 1)}
    assert summarise(TASK, scores).diagnostics == {
        "test/bins": {3: [0.25, 0.75]},
        "train/x": {3: 0.5},
    }


# ---------------------------------------------------------------- fairness
def test_fairness_is_the_spread_of_the_clients():
    scores = {0: make_score(1, 10), 1: make_score(1, 5), 2: make_score(1, 20, n=30)}
    evaluation = summarise(TASK, scores)
    spread = np.std([1, 0.5, 2 / 3])
    assert evaluation.fairness.std == pytest.approx(spread)
    mean = evaluation.test.mean
    assert evaluation.fairness.cv_of_clients == pytest.approx(spread / mean)
    # GPFL's Table 3 divides by the accuracy over all examples
    assert evaluation.fairness.cv == pytest.approx(spread / (35 / 50))
    shares = np.array([1, 0.5, 2 / 3])
    jain = shares.sum() ** 2 / (3 * (shares**2).sum())
    assert evaluation.fairness.jain == pytest.approx(jain)
    assert evaluation.fairness.worst_decile == 0.5


def test_the_worst_tenth_of_many_clients():
    scores = {k: make_score(1, k % 10) for k in range(20)}
    assert summarise(TASK, scores).fairness.worst_decile == 0.0
    # the largest errors
    assert summarise(Error(1), scores).fairness.worst_decile == 1.0


def test_without_test_examples_there_is_no_fairness():
    fairness = summarise(TASK, {0: make_score(0, 0, n=0)}).fairness
    assert fairness == Fairness()


def test_no_accuracy_at_all_has_no_relative_spread():
    fairness = summarise(TASK, {0: make_score(0, 0), 1: make_score(0, 0)}).fairness
    assert fairness.std == 0
    assert fairness.cv is None


# ---------------------------------------------------------------- the journal
def test_an_evaluation_comes_back_from_the_journal():
    diagnostics = {"test/x": torch.tensor(0.5)}
    scores = {0: make_score(1, 9, diagnostics=diagnostics), 7: make_score(0, 0, n=0)}
    for task in (TASK, Error(1)):
        evaluation = summarise(task, scores)
        line = json.dumps(evaluation.to_json())
        assert Evaluation.from_json(json.loads(line)) == evaluation
