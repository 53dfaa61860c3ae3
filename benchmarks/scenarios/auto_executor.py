"""How good a rule ``--executor auto`` is: what it chooses beside what was fastest."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from benchmarks.harness.job_runner import Job
from benchmarks.harness.measurements import Contender, ScenarioResults, Section
from fedtailor.engine.choose_executor import suggest_executor
from fedtailor.executors.world import World
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare

TITLE = "The rule behind `--executor auto`"
TEXT = (
    "FedAvg on a few networks and populations under every executor. For a run of 10, 100 and "
    "1,000 rounds: which is fastest, the start of worker processes included, and what "
    "`choose_executor.choose` says. It is a fixed rule of network, batch, clients and rounds, so "
    "that a run's executor does not depend on how busy the machine is. Starting the workers took "
    "{start:.1f} s."
)
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
EXECUTORS = ("sequential", "processes", "vmap")
LENGTHS = (10, 100, 1000)  # rounds of a run
HEADER = (
    "point",
    *(f"{executor}, ms a round" for executor in EXECUTORS),
    *(f"{rounds} rounds" for rounds in LENGTHS),
)
TOLERANCE = 1.1  # so many times the fastest is as good


@dataclass(frozen=True)
class Verdict:
    """How good the rule's choice is for one run."""

    cell: str  # of the table
    good: bool | None  # None: what it chose was not measured


def plan(quick: bool, folder: Path, peers: bool) -> list[Contender]:
    """Every executor in a process of its own, so that the start of its workers is seen."""
    executors = ("sequential",) if quick else EXECUTORS
    points = list(POINTS)[:1] if quick else list(POINTS)
    timed = 1 if quick else 3
    contenders = []
    for executor in executors:
        parts = tuple(plan_part(point, executor, timed) for point in points)
        contenders.append(
            Contender(executor, Job(f"auto/{executor}", "fedtailor_rounds", parts))
        )
    return contenders


def plan_part(point: str, executor: str, timed: int) -> dict[str, Any]:
    """A few rounds of one point."""
    options = choose_options(point)
    return {
        "name": f"{point}/{executor}",
        "options": {**options, "rounds": 1000, "executor": executor},
        "warm": 1,
        "timed": timed,
    }


def choose_options(point: str) -> dict[str, Any]:
    """FedTailor's options for a point."""
    return {"method": "fedavg", "partition": "iid", **POINTS[point]}


def report(results: ScenarioResults) -> Section:
    """A row for every point: seconds, and what the rule says for short and long runs."""
    rows = []
    verdicts: list[Verdict] = []
    start = measure_start(results)
    for point in find_measured(results):
        seconds = find_seconds(results, point)
        world = prepare(make_experiment(choose_options(point))).world
        judged = [judge_rule(world, seconds, start, rounds) for rounds in LENGTHS]
        verdicts += judged
        times = [show_milliseconds(seconds, executor) for executor in EXECUTORS]
        rows.append((point, *times, *(verdict.cell for verdict in judged)))
    asked = [verdict for verdict in verdicts if verdict.good is not None]
    good = sum(bool(verdict.good) for verdict in asked)
    summary = (
        f"The rule is within a tenth of the fastest in {good} of {len(asked)} cases."
    )
    notes = [summary, *results.failure_notes()]
    return Section(TITLE, TEXT.format(start=start), HEADER, rows, notes)


def find_measured(results: ScenarioResults) -> list[str]:
    """The points that were measured under all executors that were measured at all."""
    measured = []
    for point in POINTS:
        parts = [f"{point}/{name}" in results.part_names(name) for name in results.runs]
        if parts and all(parts):
            measured.append(point)
    return measured


def find_seconds(results: ScenarioResults, point: str) -> dict[str, float]:
    """Seconds a round, by executor."""
    return {
        name: results.seconds(name, f"{point}/{name}").median for name in results.runs
    }


def show_milliseconds(seconds: dict[str, float], executor: str) -> str:
    """A cell of the table; empty if the executor was not measured."""
    if executor not in seconds:
        return ""
    return f"{1000 * seconds[executor]:.0f}"


def judge_rule(
    world: World, seconds: dict[str, float], start: float, rounds: int
) -> Verdict:
    """What the rule chooses for a run of so many rounds, beside what is fastest."""
    total = {executor: rounds * value for executor, value in seconds.items()}
    if "processes" in total:
        total["processes"] += start
    fastest = min(total, key=lambda executor: total[executor])
    chosen = suggest_executor(replace(world, rounds=rounds), None).name
    if chosen not in total:
        return Verdict(f"{fastest}; says {chosen}, which was not measured", None)
    loss = total[chosen] / total[fastest]
    if loss < TOLERANCE:
        return Verdict(f"{fastest}; says {chosen}", True)
    return Verdict(f"{fastest}; says {chosen}, {loss:.1f}× slower", False)


def measure_start(results: ScenarioResults) -> float:
    """Seconds by which the first round with worker processes is longer than others."""
    delays = []
    for run in results.runs.get("processes", []):
        # the workers start in the job's first part
        first = next(iter(run.parts.values()))
        delays.append(first["first"] - statistics.median(first["seconds"]))
    return statistics.median(delays) if delays else 0.0
