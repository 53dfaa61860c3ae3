"""How good a rule ``--executor auto`` is: what it says beside what was fastest."""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.measured import Contender, Found, Section
from benchmarks.running import Job
from benchmarks.workload import settle
from fedtailor.engine.choose_executor import choose

TITLE = "The rule behind `--executor auto`"
POINTS: dict[str, dict[str, Any]] = {
    "digits, mlp, 20 clients": {"data": "digits", "model": "mlp", "clients": 20},
    "digits, mlp, 100 clients": {"data": "digits", "model": "mlp", "clients": 100},
    "digits, cnn, 20 clients": {"data": "digits", "model": "cnn", "clients": 20},
    "digits, cnn, 100 clients": {"data": "digits", "model": "cnn", "clients": 100},
    "Fashion-MNIST, mlp, 100 clients": {
        "data": "fashion_mnist",
        "model": "mlp",
        "clients": 100,
        "limit": 6000,
    },
    "Fashion-MNIST, cnn, 20 clients": {
        "data": "fashion_mnist",
        "model": "cnn",
        "clients": 20,
        "limit": 2000,
    },
}
EXECUTORS, QUICKLY = ("sequential", "processes", "vmap"), ("sequential",)
LENGTHS = (10, 100, 1000)  # rounds of a run


def plan(quick: bool, folder: Path, peers: bool) -> list[Contender]:
    parts = []
    executors = QUICKLY if quick else EXECUTORS
    for name in list(POINTS)[:1] if quick else POINTS:
        for executor in executors:
            options = {
                "method": "fedavg",
                "partition": "iid",
                **POINTS[name],
                "rounds": 1000,
                "executor": executor,
            }
            parts.append(
                {
                    "name": f"{name}/{executor}",
                    "options": options,
                    "warm": 1,
                    "timed": 1 if quick else 3,
                }
            )
    # a process each, so that starting workers shows
    jobs = {e: tuple(p for p in parts if p["name"].endswith(f"/{e}")) for e in executors}
    return [Contender(e, Job(f"auto/{e}", "ours", jobs[e])) for e in executors]


def report(found: Found) -> Section:
    rows, right, asked, start = [], 0, 0, _start(found)
    executors = [e for e in EXECUTORS if found.has(e)]
    measured = [
        n
        for n in POINTS
        if executors and all(f"{n}/{e}" in found.records[e][0]["parts"] for e in executors)
    ]
    for name in measured:
        world = settle({"method": "fedavg", "partition": "iid", **POINTS[name]}).world
        seconds = {e: found.seconds(e, f"{name}/{e}").median for e in executors}
        cells = []
        for rounds in LENGTHS:
            total = {
                e: s * rounds + (start if e == "processes" else 0.0) for e, s in seconds.items()
            }
            fastest, rule = (
                min(total, key=total.__getitem__),
                choose(replace(world, rounds=rounds), None).name,
            )
            if rule not in total:
                cells.append(f"{fastest}; says {rule}, which was not measured")
                continue
            loss = total[rule] / total[fastest]
            right, asked = right + (loss < 1.1), asked + 1
            cells.append(
                f"{fastest}; says {rule}" + (f", {loss:.1f}× slower" if loss >= 1.1 else "")
            )
        rows.append(
            (name, *(f"{1000 * seconds[e]:.0f}" if e in seconds else "" for e in EXECUTORS), *cells)
        )
    return Section(
        TITLE,
        "FedAvg on a few networks and populations under every executor. For a run of 10, 100 and 1,000 rounds: which "
        "is fastest, the start of worker processes included, and what `choice.choose` says. It is a fixed rule of "
        "network, batch, clients and rounds, so that a run's executor does not depend on how busy the machine is. "
        f"Starting the workers took {start:.1f} s.",
        ("point", *(f"{e}, ms a round" for e in EXECUTORS), *(f"{n} rounds" for n in LENGTHS)),
        rows,
        [f"The rule is within a tenth of the fastest in {right} of {asked} cases."]
        + [f"{n} was not measured: {why}" for n, why in found.failures.items()],
    )


def _start(found: Found) -> float:
    """Seconds by which the first round with worker processes is longer; a process's first part has it."""
    parts = [next(iter(r["parts"].values())) for r in found.records.get("processes", [])]
    return statistics.median([p["first"] - statistics.median(p["seconds"]) for p in parts] or [0.0])
