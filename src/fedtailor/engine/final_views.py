"""Ways to look at the models at the end of a run: which model, on which data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from fedtailor.core.tree import Params, Tree, average
from fedtailor.evaluation import summary
from fedtailor.evaluation.ensemble import combine
from fedtailor.evaluation.score import Score, tally
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.world import AnyMethod
from fedtailor.experiment.config import Experiment
from fedtailor.training.client_data import Examples


class Looked(Protocol):
    """What of a run the views need."""

    options: Experiment
    method: AnyMethod
    site: ClientRunner
    course: Any

    def introduce(self, t: int, unseen: Sequence[int]) -> Tree:
        """The server's state once the method has asked some clients what it must know."""
        ...

    def scores(self, name: str, ids: Sequence[int], t: int, down: Tree = None) -> dict[int, Score]:
        """Scores of some clients' models."""
        ...

    def replies(self, name: str, downs: dict[int, Tree], t: int) -> dict[int, Any]:
        """What clients answer; those that fail are named and left out."""
        ...


def look(run: Looked, trained: Sequence[int]) -> dict[str, Any]:
    """The views that exist for this method and data, plus those asked for."""
    views: dict[str, Any] = {"personal": _test(run.scores("@score", trained, run.course.t))}
    asked = run.options.views.split(",")
    if "after" in asked:
        views["after"] = _test(run.scores("@after", trained, run.course.t))
    if run.options.new_clients:
        newcomers = range(len(trained), run.site.world.federation.clients)
        server = run.introduce(
            run.course.t + 1, newcomers
        )  # known to the method, but never trained
        downs = {k: run.method.send(server, k) for k in newcomers}
        views["newcomers"] = _test(run.replies("@score", downs, run.course.t))
    shared = run.method.shared(run.course.server)
    if shared is not None:
        views["global_ptest"] = _test(run.scores("@global", trained, run.course.t, shared))
        if run.site.world.federation.common is not None:
            views["global_gtest"] = _whole(run.site, shared, run.course.t)
    if "new" in asked or "external" in asked:
        views |= _unowned(run, trained, asked)
    return views


def _unowned(run: Looked, trained: Sequence[int], asked: Sequence[str]) -> dict[str, Any]:
    """All personal models together, on data whose owner is unknown, in four ways.

    On external data also the global model, where there is one (CD2-pFed's has the last private copies in it).
    """
    t, server = run.course.t, run.course.server
    logs = run.replies("@pool", {k: run.method.send(server, k) for k in trained}, t)
    views: dict[str, Any] = {}
    w, shared = _parameter_mean(run, trained), run.method.shared(server)
    if "new" in asked:
        part = run.site.common()
        views["new"] = combine((r["new"] for r in logs.values()), part.y)
        views["new"]["paramavg"] = _accuracy(run.site, w, part, t)
    if "external" in asked:
        parts = {name: run.site.outside(name) for name in run.site.world.federation.external}
        views["external"] = {
            name: combine((r[name] for r in logs.values()), part.y)
            | {
                "paramavg": _accuracy(run.site, w, part, t),
                "global": _accuracy(run.site, shared, part, t),
            }
            for name, part in parts.items()
        }
    return views


def _parameter_mean(run: Looked, trained: Sequence[int]) -> Params | None:
    """The mean of all personal models' parameters, where they have the same shapes."""
    downs = {k: run.method.send(run.course.server, k) for k in trained}
    models = list(run.replies("@personal", downs, run.course.t).values())
    if len({tuple((k, v.shape) for k, v in sorted(w.items())) for w in models}) != 1:
        return None
    mean: Params = average(models, [1.0] * len(models))
    return mean


def _accuracy(site: ClientRunner, w: Params | None, part: Examples, t: int) -> float | None:
    """Of one model on data of no client, which is asked about all classes that anybody has."""
    if w is None:
        return None
    c = site.everybody(t)
    return summary.measure([tally(lambda x: site.method.predict(c, w, x), part)]).accuracy


def _test(scores: dict[int, Score]) -> dict[str, Any]:
    measure = summary.measure([s.test for s in scores.values()])
    return {
        "accuracy": measure.accuracy,
        "mean": measure.mean,
        "loss": measure.loss,
        "n": measure.n,
    }


def _whole(site: ClientRunner, w: Tree, t: int) -> dict[str, Any]:
    """The global model on the official test set, which the server owns."""
    c = site.everybody(t)
    measure = summary.measure([tally(lambda x: site.method.predict(c, w, x), site.common())])
    return {"accuracy": measure.accuracy, "loss": measure.loss, "n": measure.n}
