"""S1: pfl-research's own benchmark, beside pfl-research and Flower."""

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
    Target,
    Variant,
    compare_at_least,
)
from benchmarks.populations import build_population
from benchmarks.work_file import describe_work, write_work_file
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare

TITLE = "S1: 1,000 users, cohort 50, the 1,626,442-parameter CNN"
TEXT = (
    "FedAvg on CIFAR-10 as in pfl-research's benchmark: every user has 50 images, a round visits "
    "50 users, one epoch of SGD (learning rate 0.1) in batches of 10, all users weigh the same. "
    "No contender has dropout, none evaluates in a timed round, and all read the same file: same "
    "first values, users, batches. That they learn the same is seen in the loss on held-out "
    "images after the first round; what rounding adds to it later is magnified by training, so "
    "that the final losses agree to three digits only. Where fewer than 50,000 training images "
    "are at hand, users share images. FedTailor runs two workers; Flower two ray actors of one "
    "core each, its message-based FedAvg strategy and the client of its PyTorch quickstart, data "
    "loaded once per actor; pfl its SimulatedBackend and FederatedAveraging, with the processes "
    "and threads that were fastest. All have the same network, layer by layer; images lie "
    "channels last in FedTailor (its engine does that) and as PyTorch has them by itself in the "
    "others, all of which flush denormals, as FedTailor does."
)
HEADER = (
    "contender",
    "seconds a round",
    "× FedTailor",
    "peak RSS, MB",
    "test loss after 1 round",
    "at the end",
    "accuracy, %",
)
TRIAL_ROUNDS = 2  # timed rounds of a variant's trial


@dataclass(frozen=True)
class Size:
    """How much is computed."""

    data: str
    clients: int
    examples: int  # of every client
    participation: str  # share of the clients in a round
    lr: float
    timed: int  # rounds


FULL = Size("cifar10", clients=1000, examples=50, participation="0.05", lr=0.1, timed=4)
QUICK = Size("digits", clients=20, examples=10, participation="0.2", lr=0.05, timed=1)


def plan(quick: bool, folder: Path, peers: bool) -> list[Contender]:
    """FedTailor, and pfl-research and Flower where peers are wanted."""
    size = QUICK if quick else FULL
    population: dict[str, Any] = {
        "name": size.data,
        "clients": size.clients,
        "train": size.examples,
        "test": 0,
    }
    options = {
        "method": "fedavg",
        "model": "pflcnn",
        "participation": size.participation,
        "lr": size.lr,
        "evaluate_clients": "1",
        "executor": "sequential" if quick else "processes",
        "workers": 2,
    }
    work = folder / "work" / f"s1-{size.data}.npz"
    setup = prepare(make_experiment(options), data=build_population(**population))
    write_work_file(work, describe_work(setup, rounds=size.timed + 2))
    ours = {
        "name": "ours",
        "population": population,
        "options": options,
        "warm": 1,
        "timed": size.timed,
        "whole": True,
    }
    # one round alone: rounding has had no time to grow
    early = {**ours, "name": "early", "warm": 0, "timed": 0}
    fedtailor = Contender(
        "FedTailor", Job("S1/FedTailor", "fedtailor_rounds", (ours, early))
    )
    if not peers:
        return [fedtailor]
    rounds = {"work": str(work), "warm": 1, "timed": size.timed}
    return [fedtailor, plan_pfl(rounds), plan_flower(rounds)]


def plan_pfl(rounds: dict[str, Any]) -> Contender:
    """pfl-research, with as many processes and threads as are fastest on this machine."""
    python = ("python",)
    torchrun = ("torchrun", "--standalone", "--nproc-per-node", "2")
    variants = (
        plan_pfl_variant("1 process, 1 thread", python, 1, rounds),
        plan_pfl_variant("1 process, 2 threads", python, 2, rounds),
        plan_pfl_variant("2 processes of torchrun, 1 thread each", torchrun, 1, rounds),
    )
    return Contender("pfl", None, variants)


def plan_pfl_variant(
    name: str, launcher: tuple[str, ...], threads: int, rounds: dict[str, Any]
) -> Variant:
    """One way to run pfl-research."""
    part = {"name": "pfl", **rounds, "threads": threads}
    short = {**part, "timed": TRIAL_ROUNDS}
    trial = Job(f"S1/pfl, {name} (trial)", "pfl_rounds", (short,), launcher, threads)
    job = Job(f"S1/pfl, {name}", "pfl_rounds", (part,), launcher, threads)
    return Variant(name, trial, job)


def plan_flower(rounds: dict[str, Any]) -> Contender:
    """Flower's simulation."""
    part = {"name": "flower", **rounds, "actors": 2}
    return Contender("Flower", Job("S1/Flower", "flower_rounds", (part,), ("python",)))


def report(results: ScenarioResults) -> Section:
    """A row for every contender."""
    ours = results.seconds("FedTailor") if results.has("FedTailor") else None
    return Section(
        TITLE,
        TEXT,
        HEADER,
        [report_contender(results, name, ours) for name in results.runs],
        [*report_trials(results), *results.failure_notes()],
        [
            compare_with_peer(results, ours, "pfl", 2.0),
            compare_with_peer(results, ours, "Flower", 10.0),
        ],
    )


def report_contender(
    results: ScenarioResults, name: str, ours: Measurement | None
) -> tuple[str, ...]:
    """Seconds, memory, and what was learned."""
    seconds = results.seconds(name)
    part = results.parts(name)[0]
    early = part.get("early") or results.parts(name, "early")[0]["check"]
    final = part["check"]
    label = name
    if name in results.chosen:
        label = f"{name}, {results.chosen[name]}"
    return (
        label,
        seconds.show(),
        (seconds / ours).show() if ours else "",
        f"{results.memory(name).median:,.0f}",
        f"{early['loss']:.6f}",
        f"{final['loss']:.4f}",
        f"{100 * final['accuracy']:.2f}",
    )


def compare_with_peer(
    results: ScenarioResults, ours: Measurement | None, name: str, limit: float
) -> Target:
    """How many times longer a peer's round takes."""
    ratio = None
    if ours and results.has(name):
        ratio = results.seconds(name) / ours
    return compare_at_least(f"S1: {name}'s round ÷ FedTailor's", ratio, limit)


def report_trials(results: ScenarioResults) -> list[str]:
    """What the variants' trials gave."""
    trials = []
    for name, variants in results.trials.items():
        for variant, seconds in variants.items():
            trials.append(f"{name}, {variant}: {seconds:.2f} s")
    if not trials:
        return []
    rule = f"Trials of {TRIAL_ROUNDS} rounds, of which the fastest was measured"
    return [f"{rule}: {'; '.join(trials)}."]
