"""How fast a run got where: rounds and seconds to a target and to convergence.

The papers print rounds to convergence (FedCP's Table 3, pFedC's Table 5) without saying when a
run has converged. Here it has at the first evaluated round whose test measure is within 1 % of
the best of the whole run. A run that gets there only in its last tenth may still be rising: its
convergence is not known.
"""

from __future__ import annotations

from typing import NamedTuple

from fedtailor.evaluation.summary import History
from fedtailor.training.task import Task

TOLERANCE = 0.01  # of the best measure
LAST_PART = 0.9  # of the rounds


class Pace(NamedTuple):
    """When a run reached what."""

    target: float | None
    rounds_to_target: int | None  # None: it was never reached
    rounds_to_converge: int | None  # None: it may still be rising

    def seconds(self, of_a_round: float) -> dict[str, float | None]:
        """The same in seconds of rounds."""
        rounds = {
            "to_target": self.rounds_to_target,
            "to_converge": self.rounds_to_converge,
        }
        return {
            name: None if count is None else count * of_a_round
            for name, count in rounds.items()
        }


def measure_pace(task: Task, history: History, target: float | None) -> Pace:
    """When a run reached its target, if it has one, and converged."""
    reached = None
    if target is not None:
        reached = first_round_with(task, history, target)
    return Pace(target, reached, find_convergence(task, history))


def first_round_with(task: Task, history: History, target: float) -> int | None:
    """The first evaluated round whose test measure is as good as the target."""
    sign = 1 if task.higher_is_better else -1
    for t, evaluation in history:
        value = evaluation.test.values.get(task.primary)
        if value is not None and sign * value >= sign * target:
            return t
    return None


def find_convergence(task: Task, history: History) -> int | None:
    """The round at which a run has converged, if it has."""
    found = [evaluation.test.values.get(task.primary) for _, evaluation in history]
    values = [value for value in found if value is not None]
    if not values:
        return None
    if task.higher_is_better:
        best = max(values)
        bound = best - TOLERANCE * abs(best)
    else:
        best = min(values)
        bound = best + TOLERANCE * abs(best)
    t = first_round_with(task, history, bound)
    last = history[-1][0]
    is_late = t is not None and t > LAST_PART * last
    return None if is_late else t
