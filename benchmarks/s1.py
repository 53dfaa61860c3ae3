"""S1: pfl-research's own benchmark, beside pfl-research and Flower."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.measured import Bar, Contender, Found, Section, bar
from benchmarks.populations import populate
from benchmarks.running import Job
from benchmarks.workload import lay_down, settle

TITLE = "S1: 1,000 users, cohort 50, the 1,626,442-parameter CNN"
FULL = {
    "data": "cifar10",
    "clients": 1000,
    "each": 50,
    "participation": "0.05",
    "lr": 0.1,
    "timed": 4,
}
QUICK = {
    "data": "digits",
    "clients": 20,
    "each": 10,
    "participation": "0.2",
    "lr": 0.05,
    "timed": 1,
}
HEAD = (
    "contender",
    "seconds a round",
    "× FedTailor",
    "peak RSS, MB",
    "test loss after 1 round",
    "at the end",
    "accuracy, %",
)
TRIED = 2  # timed rounds of a variant's trial


def plan(quick: bool, folder: Path, peers: bool) -> list[Contender]:
    size = QUICK if quick else FULL
    population = {"name": size["data"], "clients": size["clients"], "each": size["each"], "test": 0}
    options = {
        "method": "fedavg",
        "model": "pflcnn",
        "participation": size["participation"],
        "lr": size["lr"],
        "evaluate_clients": "1",
        "executor": "sequential" if quick else "processes",
        "workers": 2,
    }
    work = folder / "work" / f"s1-{size['data']}.npz"
    lay_down(work, settle(options, populate(**population)), size["timed"] + 2)
    rounds = {"work": str(work), "warm": 1, "timed": size["timed"]}
    ours = {"name": "ours", "population": population, "options": options, **rounds, "whole": True}
    early = {
        **ours,
        "name": "early",
        "warm": 0,
        "timed": 0,
    }  # one round: rounding has had no time to grow
    found = [Contender("FedTailor", Job("S1/FedTailor", "ours", (ours, early)))]
    if not peers:
        return found
    ways = {
        "1 process, 1 thread": (("python",), 1),
        "1 process, 2 threads": (("python",), 2),
        "2 processes of torchrun, 1 thread each": (
            ("torchrun", "--standalone", "--nproc-per-node", "2"),
            1,
        ),
    }
    variants = tuple(
        (
            _pfl(f"{way} (trial)", launcher, threads, {**rounds, "timed": TRIED}),
            _pfl(way, launcher, threads, rounds),
        )
        for way, (launcher, threads) in ways.items()
    )
    flower = {"name": "flower", **rounds, "actors": 2}
    return [
        *found,
        Contender("pfl", None, variants),
        Contender("Flower", Job("S1/Flower", "flower_rounds", (flower,), ("python",))),
    ]


def _pfl(way: str, launcher: tuple[str, ...], threads: int, rounds: dict[str, Any]) -> Job:
    return Job(
        f"S1/pfl, {way}",
        "pfl_rounds",
        ({"name": "pfl", **rounds, "threads": threads},),
        launcher,
        threads,
    )


def report(found: Found) -> Section:
    rows, bars = [], list[Bar]()
    ours = found.seconds("FedTailor") if found.has("FedTailor") else None
    for name in found.records:
        seconds, part = found.seconds(name), found.parts(name)[0]
        early, check = part.get("early") or found.parts(name, "early")[0]["check"], part["check"]
        label = f"{name}, {found.chosen[name]}" if name in found.chosen else name
        times = (seconds / ours).show() if ours else ""
        rows.append(
            (
                label,
                seconds.show(),
                times,
                f"{found.memory(name).median:,.0f}",
                f"{early['loss']:.6f}",
                f"{check['loss']:.4f}",
                f"{100 * check['accuracy']:.2f}",
            )
        )
    for name, limit in (("pfl", 2.0), ("Flower", 10.0)):
        value = found.seconds(name) / ours if ours and found.has(name) else None
        bars.append(bar(f"S1: {name}'s round ÷ FedTailor's", value, limit, most=False))
    trials = [
        f"{n}, {way}: {s:.2f} s" for n, ways in found.trials.items() for way, s in ways.items()
    ]
    notes = (
        [f"Trials of {TRIED} rounds, of which the fastest was measured: {'; '.join(trials)}."]
        if trials
        else []
    )
    return Section(
        TITLE,
        "FedAvg on CIFAR-10 as in pfl-research's benchmark: every user has 50 images, a round visits 50 users, one "
        "epoch of SGD (learning rate 0.1) in batches of 10, all users weigh the same. No contender has dropout, none "
        "evaluates in a timed round, and all read the same file: same first values, users, batches. That they learn "
        "the same is seen in the loss on held-out images after the first round; what rounding adds to it later is "
        "magnified by training, so that the final losses agree to three digits only. Where fewer than 50,000 training "
        "images are at hand, users share images. FedTailor runs two workers; Flower two ray actors of one core each, "
        "its message-based FedAvg strategy and the client of its PyTorch quickstart, data loaded once per actor; pfl "
        "its SimulatedBackend and FederatedAveraging, with the processes and threads that were fastest. All have the "
        "same network, layer by layer; images lie channels last in FedTailor (its engine does that) and as PyTorch "
        "has them by itself in the others, all of which flush denormals, as FedTailor does.",
        HEAD,
        rows,
        [*notes, *(f"{n} was not measured: {why}" for n, why in found.failures.items())],
        bars,
    )
