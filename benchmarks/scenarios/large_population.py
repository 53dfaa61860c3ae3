"""S3: what a population twenty times larger costs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.harness.job_runner import Job
from benchmarks.harness.measurements import (
    Contender,
    ScenarioResults,
    Section,
    Target,
    compare_at_most,
)

TITLE = "S3: 500 and 10,000 clients, cohort 25"
TEXT = (
    "Both populations index the same 60,000 Fashion-MNIST images, 120 a client (90 to train, 30 "
    "to test on), so that the larger one overlaps. A round trains and then evaluates a cohort of "
    "25. Ditto keeps a private model per client. Peak RSS is the sum over all processes, sampled "
    "five times a second from start to the last timed round; pages that several processes map "
    "(the images) count in each. What a run does at its very end, where all clients are evaluated "
    "once, is not in these numbers."
)
HEADER = (
    "method",
    "network",
    "s a round, 500",
    "s a round, 10,000",
    "ratio",
    "MB, 500",
    "MB, 10,000",
    "ratio",
)


@dataclass(frozen=True)
class Size:
    """How much is computed."""

    methods: tuple[str, ...]
    models: tuple[str, ...]
    data: str
    clients: dict[str, int]  # of the two populations
    cohort: int
    train: int  # examples of every client
    test: int
    timed: int  # rounds
    executor: str


FULL = Size(
    methods=("fedavg", "ditto"),
    models=("lenet_mgda", "mlp"),
    data="fashion_mnist",
    clients={"few": 500, "many": 10_000},
    cohort=25,
    train=90,
    test=30,
    timed=3,
    executor="processes",
)
QUICK = Size(
    methods=("ditto",),
    models=("mlp",),
    data="digits",
    clients={"few": 20, "many": 60},
    cohort=4,
    train=9,
    test=3,
    timed=1,
    executor="sequential",
)


def plan(quick: bool, folder: Path, peers: bool) -> list[Contender]:
    """FedTailor with few and with many clients, for some methods and networks."""
    size = QUICK if quick else FULL
    contenders = []
    for method in size.methods:
        for model in size.models:
            for population in size.clients:
                name = f"{method}, {model}, {population}"
                part = plan_part(size, method, model, size.clients[population])
                contenders.append(
                    Contender(name, Job(f"S3/{name}", "fedtailor_rounds", (part,)))
                )
    return contenders


def plan_part(size: Size, method: str, model: str, clients: int) -> dict[str, Any]:
    """One run of FedTailor."""
    options = {
        "method": method,
        "model": model,
        "participation": str(size.cohort / clients),
        "evaluate_every": 1,
        "evaluate_clients": "cohort",
        "rounds": 1000,
        "executor": size.executor,
        "workers": 2,
    }
    population = {
        "name": size.data,
        "clients": clients,
        "train": size.train,
        "test": size.test,
    }
    return {
        "name": "ours",
        "options": options,
        "population": population,
        "warm": 2,
        "timed": size.timed,
    }


def report(results: ScenarioResults) -> Section:
    """A row for every method and network."""
    rows: list[tuple[str, ...]] = []
    targets: list[Target] = []
    for method in FULL.methods:
        for model in FULL.models:
            few = f"{method}, {model}, few"
            many = f"{method}, {model}, many"
            if not results.has(few, many):
                continue
            rows.append((method, model, *report_pair(results, few, many)))
            targets += compare_pair(results, few, many, f"S3: {method}, {model}")
    return Section(TITLE, TEXT, HEADER, rows, results.failure_notes(), targets)


def report_pair(results: ScenarioResults, few: str, many: str) -> tuple[str, ...]:
    """Seconds and memory with few and with many clients."""
    seconds = results.seconds(many) / results.seconds(few)
    memory = results.memory(many) / results.memory(few)
    return (
        results.seconds(few).show(),
        results.seconds(many).show(),
        seconds.show(),
        f"{results.memory(few).median:,.0f}",
        f"{results.memory(many).median:,.0f}",
        memory.show(),
    )


def compare_pair(
    results: ScenarioResults, few: str, many: str, title: str
) -> list[Target]:
    """That many clients cost hardly more than few."""
    seconds = results.seconds(many) / results.seconds(few)
    memory = results.memory(many) / results.memory(few)
    return [
        compare_at_most(f"{title}: seconds, 10,000 clients ÷ 500", seconds, 1.2),
        compare_at_most(f"{title}: peak RSS, 10,000 clients ÷ 500", memory, 1.5),
    ]
