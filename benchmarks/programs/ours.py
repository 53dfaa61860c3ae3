"""FedTailor: runs experiments and tells when every round ended.

A part is ``{"name", "options", "population", "warm", "timed"}``. Seconds are wall-clock time from the end of one round
to the end of the next, with all that the engine does in between. A part with ``"whole": false`` is stopped after its
last timed round; another runs one more round and to its end, where its global model is judged.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

from benchmarks.populations import populate
from benchmarks.programs.talk import listen, tell
from fedtailor.engine.choose_executor import choose
from fedtailor.engine.loop import run_experiment
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare
from fedtailor.experiment.run_folder import RunFolder


class Enough(Exception):
    """All timed rounds are done."""


class Stamps:
    """A watcher that notes when each round ended."""

    def __init__(self, last: int | None) -> None:
        self.last, self.said, self.at = last, list[str](), list[float]()

    def begin(self, title: str, rounds: int, done: int) -> None:
        """Nothing."""

    def tick(self) -> None:
        """Nothing."""

    def round(self, t: int, accuracy: float | None) -> None:
        """Note the time; stop after the last timed round."""
        self.at.append(time.perf_counter())
        if t == self.last:
            raise Enough

    def say(self, text: str) -> None:
        """Remember it: a fall-back must not pass for the real thing."""
        self.said.append(text)

    def end(self) -> None:
        """Nothing."""


def main() -> None:
    for part in listen()["parts"]:
        tell(part["name"], run(part))


def run(part: dict[str, Any]) -> dict[str, Any]:
    warm, timed, whole = part["warm"], part["timed"], part.get("whole", False)
    options = {
        "evaluate_every": 10**6,
        "checkpoint_every": 10**6,
        "save": "none",
        **part["options"],
    }
    if whole:
        options["rounds"] = warm + timed + 1
    federation = populate(**part["population"]) if part.get("population") else None
    setup = prepare(make_experiment(options), data=federation)
    stamps, folder, result = Stamps(None if whole else warm + timed), RunFolder(None), None
    began = time.perf_counter()
    try:
        result = run_experiment(setup, folder, stamps)
    except Enough:
        pass
    finally:
        folder.close()
    seconds = [b - a for a, b in pairwise(stamps.at[max(warm, 1) - 1 : warm + timed])]
    views = result["views"] if result else {}
    judged = views.get("global_gtest") or views.get("global_ptest") or {}
    rule, said = (
        choose(setup.world, None),
        [s for s in stamps.said if "vmap" in s or "warning" in s],
    )
    return {
        "seconds": seconds,
        "first": stamps.at[0] - began,
        "said": said,
        "check": {k: judged[k] for k in ("loss", "accuracy") if k in judged},
        "rule": list(rule),
        "parameters": sum(p.numel() for p in setup.world.backbone.parameters()),
        "examples": sum(len(i) for i in setup.world.federation.train),
        "clients": setup.world.federation.clients,
    }


if __name__ == "__main__":
    main()
