"""Evaluations at the end of a run: which model, on which data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtailor.core.tree import Params, average
from fedtailor.engine.run import Run
from fedtailor.evaluation import summary
from fedtailor.evaluation.ensemble import combine
from fedtailor.evaluation.score import Score, tally_examples
from fedtailor.executors import looks
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.visit import Look
from fedtailor.training.client_data import Examples
from fedtailor.training.task import Task


def evaluate_views(run: Run, trained: Sequence[int]) -> dict[str, Any]:
    """All views that exist for this method and data, and those asked for by ``--views``."""
    task = run.world.task
    asked = run.config.views.split(",")
    views = {"personal": _sum_up(task, run.look(Look.SCORE, run.downs(trained)))}
    if "after" in asked:
        views["after"] = _sum_up(task, run.look(Look.AFTER, run.downs(trained)))
    if run.config.new_clients:
        views["newcomers"] = _evaluate_newcomers(run, len(trained))
    shared = run.method.shared(run.state.server)
    if shared is not None:
        scores = run.look(Look.GLOBAL, dict.fromkeys(trained, shared))
        views["global_ptest"] = _sum_up(task, scores)
        if run.world.federation.common is not None:
            views["global_gtest"] = _evaluate_on_official_test(
                run.runner, shared, run.state.t
            )
    if "new" in asked or "external" in asked:
        views |= _evaluate_without_owner(run, trained, asked)
    return views


def _evaluate_newcomers(run: Run, first: int) -> dict[str, Any]:
    """Clients that never trained, but are known to the method."""
    newcomers = range(first, run.world.federation.clients)
    server = run.introduce(run.state.t + 1, newcomers)
    downs = {k: run.method.send(server, k) for k in newcomers}
    return _sum_up(run.world.task, run.look(Look.SCORE, downs))


def _evaluate_without_owner(
    run: Run, trained: Sequence[int], asked: Sequence[str]
) -> dict[str, Any]:
    """All personal models together, on data whose owner is unknown, in four ways.

    On external data also the global model, where there is one (CD2-pFed's contains the last private
    copies).
    """
    predictions = run.look(Look.POOL, run.downs(trained))
    mean_model = _average_models(run, trained)
    views: dict[str, Any] = {}
    if "new" in asked:
        examples = looks.common_examples(run.runner)
        views["new"] = combine((p["new"] for p in predictions.values()), examples.y)
        views["new"]["paramavg"] = _accuracy(run, mean_model, examples)
    if "external" in asked:
        shared = run.method.shared(run.state.server)
        views["external"] = {}
        for name in run.world.federation.external:
            examples = looks.external_examples(run.runner, name)
            view = combine((p[name] for p in predictions.values()), examples.y)
            view["paramavg"] = _accuracy(run, mean_model, examples)
            view["global"] = _accuracy(run, shared, examples)
            views["external"][name] = view
    return views


def _average_models(run: Run, trained: Sequence[int]) -> Params | None:
    """The mean of all personal models' parameters, if they have the same shapes."""
    models = list(run.look(Look.PERSONAL, run.downs(trained)).values())
    shapes = {tuple((name, x.shape) for name, x in sorted(w.items())) for w in models}
    if len(shapes) != 1:
        return None
    mean: Params = average(models, [1.0] * len(models))
    return mean


def _accuracy(run: Run, w: Params | None, examples: Examples) -> float | None:
    """Accuracy of one model on data of no client, among all classes that any client has."""
    if w is None:
        return None
    return _measure_model(run.runner, w, examples, run.state.t).accuracy


def _measure_model(
    runner: ClientRunner, w: Params, examples: Examples, t: int
) -> summary.Measure:
    client = looks.pooled_client(runner, t)
    tally = tally_examples(
        client.task, lambda x: runner.method.predict(client, w, x), examples
    )
    return summary.measure(client.task, [tally])


def _sum_up(task: Task, scores: dict[int, Score]) -> dict[str, Any]:
    """Test measures over all clients."""
    measure = summary.measure(task, [score.test for score in scores.values()])
    return measure.to_json()


def _evaluate_on_official_test(
    runner: ClientRunner, w: Params, t: int
) -> dict[str, Any]:
    """The global model on the official test set, which the server owns."""
    measure = _measure_model(runner, w, looks.common_examples(runner), t)
    values = measure.to_json()
    del values["mean"]
    return values
