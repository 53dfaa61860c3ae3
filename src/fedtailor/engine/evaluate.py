"""The evaluation of personal models after a round, taken in now or a round later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fedtailor.core.rng import Purpose, Rng
from fedtailor.engine.run import Run, can_hold_models
from fedtailor.evaluation import summary
from fedtailor.experiment.config import Experiment


def choose_clients_to_evaluate(
    config: Experiment, available: Sequence[int], cohort: Sequence[int]
) -> list[int]:
    """Ids of the clients whose personal models are evaluated after a round."""
    if config.evaluate_clients == "cohort":
        return list(cohort)
    if config.evaluate_clients == "all":
        return list(available)
    rng = Rng.seed(config.seed, Purpose.EVALUATE)
    chosen = rng.permutation(len(available))[: int(config.evaluate_clients)].tolist()
    return sorted(available[i] for i in chosen)


def request_evaluation(run: Run, stop: list[bool]) -> None:
    """Request the pending evaluation; where that is cheaper, with the next round's visits."""
    pending = run.state.pending
    assert pending is not None
    with_models = run.models_to_keep() == "best"
    is_last = run.state.t >= run.config.rounds or bool(stop)
    late = run.executor.late_evaluation and not is_last
    if with_models and not can_hold_models(run.world, pending.clients):
        late = False
    run.note_shared(pending.record.t)
    downs = run.downs(pending.clients)
    run.exchange.request_evaluation(
        downs, pending.record.t, late=late, with_models=with_models
    )
    if not late:
        finish_evaluation(run)


def finish_evaluation(run: Run) -> None:
    """Take in the pending evaluation, and keep the models if its round is the best so far."""
    state = run.state
    pending = state.pending
    if pending is None:
        return
    state.pending = None
    t = pending.record.t
    scores, models = run.exchange.finish_evaluation()
    evaluation = summary.summarise(run.world.task, run.usable(scores, t))
    state.history.append((t, evaluation))
    best = summary.choose_round(run.world.task, state.history)
    run.executor.inform(best=best)
    if best == t and run.models_to_keep() == "best":
        run.keep_models(t, "best", models)
    run.observer.round(replace(pending.record, evaluation=evaluation))
