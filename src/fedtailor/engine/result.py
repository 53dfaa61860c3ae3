"""What a run leaves behind in ``result.json``."""

from __future__ import annotations

from typing import Any

from fedtailor.data.federation import Federation
from fedtailor.engine.run_state import Course
from fedtailor.evaluation import summary
from fedtailor.experiment.config import Experiment


def compose(o: Experiment, f: Federation, c: Course, **more: Any) -> dict[str, Any]:
    """The result of a course that is over: accuracies of the models validation data chose, and what they cost.

    ``more``: what only the run knows, by the names under which it is written.
    """
    best = summary.choose(c.history)
    at = dict(c.history)[best if best is not None else c.history[-1][0]]
    return {
        "method": o.method,
        "data": o.data,
        "model": o.model,
        "seed": o.seed,
        "rounds": c.t,
        "accuracy": summary.accuracies(c.history),
        "accuracy_mean_of_clients": summary.accuracies(c.history, "mean"),
        "fairness": at.record()["fairness"],
        "clients": [
            {"id": k, "n_train": len(f.train[k]), "n_test": len(f.test[k]), "accuracy": a}
            for k, a in at.clients.items()
        ],
        "notes": at.notes,
        "bytes": {"up": c.up, "down": c.down},
        "calls": c.calls,
        "seconds": {"total": c.total, "per_round": c.seconds / c.t},
        "partition": f.hash,
        **more,
    }
