"""What a run leaves behind in ``result.json``."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from fedtailor.engine.run_state import RunState
from fedtailor.evaluation import summary
from fedtailor.evaluation.pace import Pace, measure_pace
from fedtailor.executors.world import World
from fedtailor.experiment.config import Experiment


def compose_result(
    config: Experiment, world: World, state: RunState, **more: Any
) -> dict[str, Any]:
    """The result of a finished run: measures of the models validation data chose, and what they
    cost.

    Args:
        more: further entries, which only the loop knows.
    """
    task = world.task
    history = state.history
    best = summary.choose_round(task, history)
    chosen = dict(history)[best if best is not None else history[-1][0]]
    accuracies = [evaluation.test.values.get(task.primary) for _, evaluation in history]
    means = [evaluation.test.mean for _, evaluation in history]
    pace = measure_pace(task, history, config.target)
    return {
        "name": config.title,
        "method": config.method,
        "data": config.data,
        "model": config.model,
        "seed": config.seed,
        "rounds": state.t,
        "accuracy": summary.report_measure(task, history, accuracies),
        "accuracy_mean_of_clients": summary.report_measure(task, history, means),
        "measures": chosen.test.values,
        "fairness": asdict(chosen.fairness),
        "fairness_at": _fairness_at(world, history),
        "clients": _list_clients(world, chosen),
        "notes": chosen.diagnostics,
        "bytes": {"up": state.bytes_up, "down": state.bytes_down},
        "calls": state.calls,
        "trainings": state.trainings,
        "seconds": _report_seconds(state, pace),
        "pace": pace._asdict(),
        "partition": world.federation.hash,
        **more,
    }


def _report_seconds(state: RunState, pace: Pace) -> dict[str, float | None]:
    """What the run took, and a round of it."""
    seconds = seconds_of_a_round(state)
    return {
        "total": state.total_seconds,
        "per_round": state.seconds / state.t,
        "training_per_round": seconds,
        **pace.seconds(seconds),
    }


def seconds_of_a_round(state: RunState) -> float:
    """Without start-up and evaluation: the first round of every start of the run is left out.

    A run of one round has no other.
    """
    if not state.warm_rounds:
        return state.seconds / state.t
    return state.warm_seconds / state.warm_rounds


def _fairness_at(world: World, history: summary.History) -> dict[str, Any]:
    """The fairness of every round at which an accuracy is quoted."""
    evaluations = dict(history)
    return {
        name: {"round": t, **asdict(evaluations[t].fairness)}
        for name, t in summary.quoted_rounds(world.task, history).items()
    }


def _list_clients(world: World, evaluation: summary.Evaluation) -> list[dict[str, Any]]:
    """Every evaluated client's size and accuracy."""
    federation = world.federation
    return [
        {
            "id": k,
            "n_train": len(federation.train[k]),
            "n_test": len(federation.test[k]),
            "accuracy": accuracy,
        }
        for k, accuracy in evaluation.clients.items()
    ]
