"""S4: small models, where vectorising over clients is to pay."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.job_runner import Job
from benchmarks.harness.measurements import (
    Contender,
    Measurement,
    ScenarioResults,
    Section,
    compare_at_least,
    count_threads,
)
from benchmarks.work_file import describe_work, write_work_file
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare

TITLE = "S4: 100 clients, small models"
TEXT = (
    "FedAvg, 100 clients with equally many samples drawn at random, batches of 10, one epoch, all "
    "clients take part. The plain loop is that of the federation tax, at its best number of "
    "threads. Behind every time stands how many times faster than the plain loop it is."
)


@dataclass(frozen=True)
class Task:
    """Data and a network."""

    data: str
    model: str
    timed: int = 2  # rounds; where a round is short, more of them
    limit: int | None = None  # examples of all clients together


MLP = "digits, MLP 64-128-10"
TASKS = {
    MLP: Task("digits", "mlp", timed=20),
    "digits, CNN": Task("digits", "cnn", timed=10),
    "AG News, fastText": Task("ag_news", "fasttext", limit=4000),
    "HAR, HAR-CNN": Task("har", "har_cnn", limit=2000),
}
EXECUTORS = ("sequential", "processes", "vmap")
HEADER = ("task", "plain loop, s a round", *EXECUTORS)
THREADS = (1, 2)  # of the plain loop


@dataclass(frozen=True)
class Size:
    """How much is computed."""

    tasks: dict[str, Task]
    clients: int
    executors: tuple[str, ...]
    threads: tuple[int, ...]


FULL = Size(TASKS, 100, EXECUTORS, THREADS)
QUICK = Size({MLP: Task("digits", "mlp", timed=1)}, 10, ("sequential", "vmap"), (1,))


def plan(quick: bool, folder: Path, peers: bool) -> list[Contender]:
    """FedTailor with every executor, and a plain loop, on every task."""
    size = QUICK if quick else FULL
    ours: list[dict[str, Any]] = []
    plain: list[dict[str, Any]] = []
    for name, task in size.tasks.items():
        options = choose_options(task, size)
        work = folder / "work" / f"s4-{task.data}-{task.model}-{size.clients}.npz"
        setup = prepare(make_experiment(options))
        write_work_file(work, describe_work(setup, rounds=task.timed + 2))
        for executor in size.executors:
            part = {
                "name": f"{name}/{executor}",
                "options": {**options, "executor": executor, "workers": 2},
                "warm": 1,
                "timed": task.timed,
                "whole": True,
            }
            ours.append(part)
        for threads in size.threads:
            part = {
                "name": f"{name}/{count_threads(threads)}",
                "work": str(work),
                "warm": 1,
                "timed": task.timed,
                "threads": threads,
            }
            plain.append(part)
    plain_job = Job("S4/plain loop", "plain_rounds", tuple(plain), threads=max(THREADS))
    return [
        Contender("FedTailor", Job("S4/FedTailor", "fedtailor_rounds", tuple(ours))),
        Contender("plain loop", plain_job),
    ]


def choose_options(task: Task, size: Size) -> dict[str, Any]:
    """FedTailor's options for a task."""
    options = {
        "method": "fedavg",
        "data": task.data,
        "model": task.model,
        "clients": size.clients,
        "partition": "iid",
        "validation": 0.0,
    }
    if task.limit is not None:
        options["limit"] = task.limit
    return options


def report(results: ScenarioResults) -> Section:
    """A row for every task, and the losses that show that all have learned the same."""
    measured: list[str] = []
    if results.has("FedTailor", "plain loop"):
        parts = results.part_names("FedTailor")
        measured = [name for name in TASKS if f"{name}/vmap" in parts]
    losses = [f"{name}: {report_losses(results, name)}" for name in measured]
    ratio = None
    if MLP in measured:
        plain = results.seconds("plain loop", find_best_plain(results, MLP))
        ratio = plain / results.seconds("FedTailor", f"{MLP}/vmap")
    title = "S4: plain loop's round ÷ FedTailor's with vmap, MLP"
    return Section(
        TITLE,
        TEXT,
        HEADER,
        [report_task(results, name) for name in measured],
        [
            f"Test loss of the final models: {'; '.join(losses)}.",
            *(f"FedTailor said: {message}." for message in find_messages(results)),
            *results.failure_notes(),
        ],
        [compare_at_least(title, ratio, 5.0)],
    )


def report_task(results: ScenarioResults, name: str) -> tuple[str, ...]:
    """The plain loop's seconds, and those of every executor."""
    best = find_best_plain(results, name)
    plain = results.seconds("plain loop", best)
    threads = best.rpartition("/")[2]
    cells = [
        report_executor(results, f"{name}/{executor}", plain) for executor in EXECUTORS
    ]
    return (name, f"{plain.show()}, {threads}", *cells)


def report_executor(results: ScenarioResults, part: str, plain: Measurement) -> str:
    """Seconds, and how many times faster than the plain loop that is."""
    if part not in results.part_names("FedTailor"):
        return ""
    seconds = results.seconds("FedTailor", part)
    return f"{seconds.show()}, {(plain / seconds).median:.2f}×"


def report_losses(results: ScenarioResults, name: str) -> str:
    """Test losses of the final models of a task."""
    losses = [
        f"plain {find_loss(results, 'plain loop', find_best_plain(results, name))}"
    ]
    for executor in EXECUTORS:
        part = f"{name}/{executor}"
        if part in results.part_names("FedTailor"):
            losses.append(f"{executor} {find_loss(results, 'FedTailor', part)}")
    return ", ".join(losses)


def find_loss(results: ScenarioResults, contender: str, part: str) -> str:
    """Test loss of a part's final model."""
    loss = results.parts(contender, part)[0]["check"]["loss"]
    return f"{loss:.5f}"


def find_best_plain(results: ScenarioResults, name: str) -> str:
    """The plain loop's part with the best number of threads for a task."""
    parts = results.part_names("plain loop")
    parts = [part for part in parts if part.startswith(f"{name}/")]
    return results.fastest_part("plain loop", parts)


def find_messages(results: ScenarioResults) -> list[str]:
    """What FedTailor had to say, a fall-back from vmap for instance."""
    if not results.has("FedTailor"):
        return []
    messages: set[str] = set()
    for part in results.runs["FedTailor"][0].parts.values():
        messages.update(part["said"])
    return sorted(messages)
