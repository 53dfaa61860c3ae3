"""Ways to look at the models at the end of a run: which model, on which data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from fedtailor.config import Experiment
from fedtailor.executors.site import AnyMethod, Site
from fedtailor.metrics import summary
from fedtailor.metrics.score import Score, tally
from fedtailor.rng import Purpose
from fedtailor.tree import Tree


class Looked(Protocol):
    """What of a run the views need."""

    options: Experiment
    method: AnyMethod
    site: Site
    course: Any

    def scores(self, name: str, ids: Sequence[int], t: int, down: Tree = None) -> dict[int, Score]:
        """Scores of some clients' models."""
        ...


def look(run: Looked, trained: Sequence[int]) -> dict[str, Any]:
    """The views that exist for this method and data, plus those asked for."""
    views: dict[str, Any] = {"personal": _test(run.scores("@score", trained, run.course.t))}
    asked = run.options.views.split(",")
    if "after" in asked:
        views["after"] = _test(run.scores("@after", trained, run.course.t))
    newcomers = range(len(trained), run.site.world.federation.clients)
    if run.options.new:
        views["newcomers"] = _test(run.scores("@score", newcomers, run.course.t))
    shared = run.method.shared(run.course.server)
    if shared is not None:
        views["global_ptest"] = _test(run.scores("@global", trained, run.course.t, shared))
        common = run.site.world.federation.common
        if common is not None:
            views["global_gtest"] = _whole(run.site, shared, run.course.t)
    return views


def _test(scores: dict[int, Score]) -> dict[str, Any]:
    measure = summary.measure([s.test for s in scores.values()])
    return {"accuracy": measure.accuracy, "mean": measure.mean, "loss": measure.loss, "n": measure.n}


def _whole(site: Site, w: Tree, t: int) -> dict[str, Any]:
    """The global model on the official test set, which the server owns."""
    common = site.world.federation.common
    assert common is not None
    c = site.client(0, t, Purpose.EVALUATE, t)
    measure = summary.measure([tally(lambda x: site.method.predict(c, w, x), site.part(common, len(common)))])
    return {"accuracy": measure.accuracy, "loss": measure.loss, "n": measure.n}
