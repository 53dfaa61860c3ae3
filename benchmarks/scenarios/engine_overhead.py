"""S2: what the engine adds to a method's own work, and the federation tax."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.bare_loops import HEAD_EPOCHS, PRIVATE_SHARE
from benchmarks.harness.job_runner import Job
from benchmarks.harness.measurements import (
    Contender,
    Measurement,
    ScenarioResults,
    Section,
    compare_at_most,
    count_threads,
)
from benchmarks.work_file import describe_work, write_work_file
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare

TITLE = "S2: 20 clients, Fashion-MNIST, 4-layer CNN"
TEXT = (
    "6,000 images partitioned by Dirichlet(0.1), batches of 10, one epoch a round, all clients "
    "take part. The bare loop is the method's own forward and backward work and updates as plain "
    "PyTorch (`benchmarks/bare_loops.py`), in two single-threaded processes that share the "
    "clients between them, on the same batches, with inputs ready as floats in memory: nothing is "
    "sent, averaged, stored or checked. FedTailor runs two workers and does all that. Layout of "
    "images, allocator, denormals and threads are FedTailor's in the bare loop, too, so that the "
    "ratio tells what the engine adds, and nothing of how PyTorch is set up; the plain loop has "
    "PyTorch's own settings. CD2-pFed has half of its channels private from the first round on; "
    "Fed3+2p's phases are measured apart: in phase 1 a model goes from client to client, so that "
    "some must wait, which the bare loop does not."
)
HEADER = ("method", "FedTailor, s a round", "bare loop, s a round", "ratio")
METHODS: dict[str, dict[str, Any]] = {  # with the constants that make all rounds alike
    "fedavg": {},
    "fedper": {},
    "fedrep": {"head_epochs": HEAD_EPOCHS},
    "ditto": {},
    "fedcp": {},
    "cd2pfed": {"li": False, "p": PRIVATE_SHARE},
    "fed3p2p-1": {"phase1": 1000},
    "fed3p2p-2": {"phase1": 1},
    "gpfl": {},
    "pfedc": {},
}
WITH_TARGET = ("fedcp", "cd2pfed", "fed3p2p-1", "fed3p2p-2", "gpfl", "pfedc")
THREADS = (1, 2)  # of the plain loop


@dataclass(frozen=True)
class Size:
    """How much is computed."""

    data: str
    clients: int
    examples: int  # of all clients together
    timed: int  # rounds
    workers: int


FULL = Size("fashion_mnist", clients=20, examples=6000, timed=2, workers=2)
QUICK = Size("digits", clients=4, examples=200, timed=1, workers=1)


def plan(quick: bool, folder: Path, peers: bool) -> list[Contender]:
    """FedTailor, the bare loops of all methods, and a plain FedAvg."""
    size = QUICK if quick else FULL
    ours = []
    bare = []
    for name in METHODS:
        options = choose_options(name, size)
        work = name_work_file(folder, size, name)
        rounds = count_rounds(name, size)
        # FedRep trains its head for more epochs, Ditto a second model
        epochs = HEAD_EPOCHS + 1 if name == "fedrep" else 2
        described = describe_work(
            prepare(make_experiment(options)), rounds["warm"] + size.timed + 1, epochs
        )
        write_work_file(work, described)
        ours.append(
            {"name": name, "options": options, **rounds, "whole": name == "fedavg"}
        )
        bare.append({"name": name, "method": name, "work": str(work), **rounds})
    plain = []
    for threads in THREADS[:1] if quick else THREADS:
        part = {
            "name": count_threads(threads),
            "work": str(name_work_file(folder, size, "fedavg")),
            "threads": threads,
            **count_rounds("fedavg", size),
        }
        plain.append(part)
    plain_job = Job("S2/plain loop", "plain_rounds", tuple(plain), threads=max(THREADS))
    return [
        Contender("FedTailor", Job("S2/FedTailor", "fedtailor_rounds", tuple(ours))),
        Contender("bare loop", Job("S2/bare loop", "bare_rounds", tuple(bare))),
        Contender("plain loop", plain_job),
    ]


def choose_options(name: str, size: Size) -> dict[str, Any]:
    """FedTailor's options for a method, or for one of its phases."""
    return {
        "method": name.partition("-")[0],
        "set": METHODS[name],
        "data": size.data,
        "clients": size.clients,
        "limit": size.examples,
        "partition": "dirichlet:0.1",
        "model": "cnn",
        "rounds": 1000,
        "executor": "processes",
        "workers": size.workers,
    }


def count_rounds(name: str, size: Size) -> dict[str, int]:
    """Rounds to warm up and rounds to time."""
    return {
        "warm": 2 if name == "fed3p2p-2" else 1,  # its second round forms groups
        "timed": 1 if name == "fedrep" else size.timed,  # they take five times as long
    }


def name_work_file(folder: Path, size: Size, name: str) -> Path:
    """The file that says what a method computes."""
    return folder / "work" / f"s2-{size.data}-{name}.npz"


def report(results: ScenarioResults) -> Section:
    """A row for every method, and the federation tax."""
    rows = []
    tax = measure_tax(results)
    title = "Federation tax: S2 FedAvg round ÷ plain PyTorch loop"
    targets = [compare_at_most(title, tax, 0.55)]
    if results.has("FedTailor", "bare loop"):
        for name in METHODS:
            ours = results.seconds("FedTailor", name)
            bare = results.seconds("bare loop", name)
            ratio = ours / bare
            rows.append((name, ours.show(), bare.show(), ratio.show()))
            if name in WITH_TARGET:
                title = f"S2: {name}'s round ÷ its bare loop"
                targets.append(compare_at_most(title, ratio, 1.15))
    notes = []
    if tax:
        notes.append(explain_tax(results, tax))
    if tax and results.has("bare loop"):
        notes.append(explain_least_tax(results))
    return Section(
        TITLE, TEXT, HEADER, rows, [*notes, *results.failure_notes()], targets
    )


def measure_tax(results: ScenarioResults) -> Measurement | None:
    """FedTailor's FedAvg round by that of the plain loop."""
    if not results.has("FedTailor", "plain loop"):
        return None
    return results.seconds("FedTailor", "fedavg") / find_plain_seconds(results)


def find_plain_seconds(results: ScenarioResults) -> Measurement:
    """Seconds a round of the plain loop with its best number of threads."""
    return results.seconds("plain loop", find_best_threads(results))


def find_best_threads(results: ScenarioResults) -> str:
    """``1 thread`` or ``2 threads``: with which the plain loop is fastest."""
    return results.fastest_part("plain loop", results.part_names("plain loop"))


def explain_tax(results: ScenarioResults, tax: Measurement) -> str:
    """What the tax is, and that both have learned the same."""
    best = find_best_threads(results)
    times = []
    for threads in results.part_names("plain loop"):
        times.append(
            f"{results.seconds('plain loop', threads).show()} s with {threads}"
        )
    ours = results.parts("FedTailor", "fedavg")[0]["check"]["loss"]
    plain = results.parts("plain loop", best)[0]["check"]["loss"]
    return (
        "**Federation tax:** FedTailor's FedAvg round ÷ the round of a plain PyTorch loop in one "
        f"process: **{tax.show()}**. The plain loop (a module, `torch.optim.SGD`, "
        "`load_state_dict` per client, an average; batches are rows of a tensor in memory, no "
        f"DataLoader) takes the same steps with {best}, its best ({', '.join(times)}). Test loss "
        f"of the final models: {ours:.5f} and {plain:.5f}."
    )


def explain_least_tax(results: ScenarioResults) -> str:
    """What the tax would be if the engine did nothing."""
    least = results.seconds("bare loop", "fedavg") / find_plain_seconds(results)
    return (
        "The bare loop of FedAvg, which takes these steps and does nothing else, is at "
        f"{least.show()} of the plain loop: that is what two single-threaded processes side by "
        "side give on this machine, where they share cache and memory (one alone is faster, see "
        "below), and a tax below it is out of reach."
    )
