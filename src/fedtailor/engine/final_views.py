"""Further evaluations, after a round and at the end: which model, on which data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fedtailor.core.sealed import has_sealed
from fedtailor.core.tree import Params, average
from fedtailor.engine.run import Run
from fedtailor.evaluation import summary
from fedtailor.evaluation.ensemble import combine
from fedtailor.evaluation.score import Score, find_wrong_tally, tally_examples
from fedtailor.executors import looks
from fedtailor.executors.scoring import Part, predict_in_pieces
from fedtailor.executors.visit import Look
from fedtailor.training.client_data import Examples
from fedtailor.training.task import Task


def evaluate_views(run: Run, trained: Sequence[int]) -> dict[str, Any]:
    """At the end of a run: all views that exist for this method and data, or are asked for."""
    scores = run.look(Look.SCORE, run.downs(trained))
    views = {"personal": _sum_up(run.world.task, scores)}
    t, clients, found = run.state.views
    if t != run.state.t or clients != trained:
        found = measure_views(run, trained)
    views |= found
    if "global_ptest" not in views:
        views |= _evaluate_global_model(run, trained)
    if run.config.new_clients:
        views["newcomers"] = _evaluate_newcomers(run, len(trained))
    return views


def measure_views(run: Run, clients: Sequence[int]) -> dict[str, Any]:
    """The views that ``--views`` asks for, of the round that has just ended."""
    views: dict[str, Any] = {}
    if run.is_asked("after"):
        views |= _sum_up_after(run)
    if run.is_asked("global"):
        views |= _evaluate_global_model(run, clients)
    asked = [name for name in ("new", "external") if run.is_asked(name)]
    if asked:
        views |= _evaluate_without_owner(run, clients, asked)
    run.state.views = (run.state.t, list(clients), views)
    return views


def _sum_up_after(run: Run) -> dict[str, Any]:
    """The models right after training, scored in the round's own visits.

    Of the clients that trained in this round; empty where the method has no such moment.
    """
    task = run.world.task
    scores = run.exchange.traffic.after
    usable = {
        k: score for k, score in scores.items() if not find_wrong_tally(task, score)
    }
    return {"after": _sum_up(task, usable)} if usable else {}


def _evaluate_global_model(run: Run, clients: Sequence[int]) -> dict[str, Any]:
    """The global model, if there is one, on the clients' test data and the official test set."""
    shared = run.method.shared(run.state.server)
    if shared is None:
        return {}
    scores = run.look(Look.GLOBAL, dict.fromkeys(clients, shared))
    views = {"global_ptest": _sum_up(run.world.task, scores)}
    # the server's own test data are no use for a model that it cannot read
    if run.world.federation.common is not None and not has_sealed(shared):
        views["global_gtest"] = _evaluate_on_official_test(run, shared)
    return views


def _evaluate_newcomers(run: Run, first: int) -> dict[str, Any]:
    """Clients that never trained, but are known to the method, after some epochs of training."""
    newcomers = range(first, run.world.federation.clients)
    server = run.introduce(run.state.t + 1, newcomers)
    downs = {k: run.method.send(server, k) for k in newcomers}
    scores = run.look(Look.NEWCOMER, downs)
    epochs = run.config.newcomer_epochs
    if not epochs:
        run.observer.message(
            "new clients are scored with what they are given: they have trained nothing"
            " (newcomer_epochs=0)"
        )
    return {**_sum_up(run.world.task, scores), "epochs": epochs}


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
        view = _combine(predictions, "new", examples)
        view["paramavg"] = _accuracy(run, mean_model, examples)
        views["new"] = view
        if run.world.federation.common is not None:
            # the local models on the official test set, one by one
            views["personal_gtest"] = {"accuracy": view.get("single"), "n": view["n"]}
    if "external" in asked:
        shared = run.method.shared(run.state.server)
        views["external"] = {}
        for name in run.world.federation.external:
            examples = looks.external_examples(run.runner, name)
            view = _combine(predictions, name, examples)
            view["paramavg"] = _accuracy(run, mean_model, examples)
            readable = None if has_sealed(shared) else shared
            view["global"] = _accuracy(run, readable, examples)
            views["external"][name] = view
    return views


def _combine(
    predictions: Mapping[int, Params], name: str, examples: Examples
) -> dict[str, Any]:
    """Accuracies of all clients' predictions together, on one set of examples."""
    logs = [by_client[name] for by_client in predictions.values()]
    return combine(logs, examples.y)


def _average_models(run: Run, trained: Sequence[int]) -> Params | None:
    """The mean of all personal models' parameters, if they have the same shapes."""
    found = run.look(Look.PERSONAL, run.downs(trained))
    models = list(found.values())
    shapes = [{name: x.shape for name, x in w.items()} for w in models]
    if not models or any(shape != shapes[0] for shape in shapes):
        return None
    mean: Params = average(models, [1.0] * len(models))
    return mean


def _accuracy(run: Run, w: Params | None, examples: Examples) -> float | None:
    """Accuracy of one model on data of no client, among all classes that any client has."""
    if w is None:
        return None
    return _measure_model(run, w, examples).accuracy


def _measure_model(run: Run, w: Params, examples: Examples) -> summary.Measure:
    """One model on data of no client."""
    client = looks.pooled_client(run.runner, run.state.t)
    predict = predict_in_pieces(run.method, client, w, Part.POOL)
    tally = tally_examples(client.task, predict, examples)
    return summary.measure(client.task, [tally])


def _sum_up(task: Task, scores: dict[int, Score]) -> dict[str, Any]:
    """Test measures over all clients."""
    tallies = [score.test for score in scores.values()]
    measure = summary.measure(task, tallies)
    return measure.to_json()


def _evaluate_on_official_test(run: Run, w: Params) -> dict[str, Any]:
    """The global model on the official test set, which the server owns."""
    examples = looks.common_examples(run.runner)
    measure = _measure_model(run, w, examples)
    values = measure.to_json()
    del values["mean"]
    return values
