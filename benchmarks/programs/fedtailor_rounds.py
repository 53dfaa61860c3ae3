"""FedTailor: runs experiments and measures when every round ended.

A part is ``{"name", "options", "population", "warm", "timed", "whole"}``. Seconds are wall-clock
time from the end of one round to the end of the next, with all that the engine does in between. A
part that is not ``whole`` is stopped after its last timed round; one that is runs one more round
and to its end, where its global model is evaluated.
"""

from __future__ import annotations

import time
from itertools import pairwise
from typing import Any

from benchmarks.populations import build_population
from benchmarks.programs.job_io import print_result, read_parts
from fedtailor.engine.choose_executor import suggest_executor
from fedtailor.engine.observer import Observer, RoundRecord
from fedtailor.engine.start import run_experiment
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import Setup, prepare
from fedtailor.experiment.run_folder import RunFolder

NEVER = 10**6  # rounds: later than any run here ends


class AllTimed(Exception):
    """All timed rounds are done."""


class RoundClock(Observer):
    """Notes when each round ended."""

    def __init__(self, last: int | None) -> None:
        self.last = last  # the round after which the run is stopped
        self.ends: list[float] = []
        self.messages: list[str] = []

    def round(self, record: RoundRecord) -> None:
        """Note the time; stop after the last timed round."""
        self.ends.append(time.perf_counter())
        if record.t == self.last:
            raise AllTimed

    def message(self, text: str) -> None:
        """Keep messages: a run that fell back from vmap must not pass for one with vmap."""
        self.messages.append(text)


def main() -> None:
    """Run all parts."""
    for part in read_parts():
        print_result(part["name"], run_part(part))


def run_part(part: dict[str, Any]) -> dict[str, Any]:
    """Run one experiment."""
    warm = part["warm"]
    last = warm + part["timed"]
    whole = part.get("whole", False)
    setup = prepare_part(part, whole)
    clock = RoundClock(None if whole else last)
    began = time.perf_counter()
    result = run_timed(setup, clock)
    timed = clock.ends[max(warm, 1) - 1 : last]
    messages = [text for text in clock.messages if "vmap" in text or "warning" in text]
    world = setup.world
    return {
        "seconds": [after - before for before, after in pairwise(timed)],
        "first": clock.ends[0] - began,
        "said": messages,
        "check": find_global_score(result),
        "rule": list(suggest_executor(world, None)),
        "parameters": sum(value.numel() for value in world.backbone.parameters()),
        "examples": sum(len(rows) for rows in world.federation.train),
        "clients": world.federation.clients,
    }


def prepare_part(part: dict[str, Any], whole: bool) -> Setup:
    """The experiment of a part; it is not evaluated or saved on the way unless the part says so."""
    options = {
        "evaluate_every": NEVER,
        "checkpoint_every": NEVER,
        "save": "none",
        **part["options"],
    }
    if whole:
        options["rounds"] = part["warm"] + part["timed"] + 1
    federation = None
    if part.get("population"):
        federation = build_population(**part["population"])
    return prepare(make_experiment(options), data=federation)


def run_timed(setup: Setup, clock: RoundClock) -> dict[str, Any] | None:
    """The result, or none if the run was stopped after its last timed round."""
    folder = RunFolder(None)
    try:
        return run_experiment(setup, folder, [clock])
    except AllTimed:
        return None
    finally:
        folder.close()


def find_global_score(result: dict[str, Any] | None) -> dict[str, float]:
    """Loss and accuracy of the final global model, where there is one."""
    if result is None:
        return {}
    views = result["views"]
    score = views.get("global_gtest") or views.get("global_ptest") or {}
    return {name: score[name] for name in ("loss", "accuracy") if name in score}


if __name__ == "__main__":
    main()
