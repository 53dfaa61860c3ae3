"""S2: what the engine adds to a method's own work, and the federation tax."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.bare import HEAD_EPOCHS, SHARE
from benchmarks.measured import Contender, Found, Section, bar, count_threads
from benchmarks.running import Job
from benchmarks.workload import lay_down, settle

TITLE = "S2: 20 clients, Fashion-MNIST, 4-layer CNN"
FULL = {"data": "fashion_mnist", "clients": 20, "limit": 6000, "timed": 2}
QUICK = {"data": "digits", "clients": 4, "limit": 200, "timed": 1}
SEEDS = ("fedcp", "cd2pfed", "fed3p2p-1", "fed3p2p-2", "gpfl", "pfedc")
METHODS: dict[str, dict[str, Any]] = {  # with what must be set for a round to be like another
    "fedavg": {},
    "fedper": {},
    "fedrep": {"head_epochs": HEAD_EPOCHS},
    "ditto": {},
    "fedcp": {},
    "cd2pfed": {"li": False, "p": SHARE},
    "fed3p2p-1": {"phase1": 1000},
    "fed3p2p-2": {"phase1": 1},
    "gpfl": {},
    "pfedc": {},
}
THREADS = (1, 2)


def plan(quick: bool, folder: Path, peers: bool) -> list[Contender]:
    size = QUICK if quick else FULL
    ours, bare, plain = [], [], []
    for name, constants in METHODS.items():
        options = {
            "method": name.partition("-")[0],
            "set": constants,
            "data": size["data"],
            "clients": size["clients"],
            "limit": size["limit"],
            "partition": "dirichlet:0.1",
            "model": "cnn",
            "rounds": 1000,
            "executor": "processes",
            "workers": 1 if quick else 2,
        }
        warm = 2 if name == "fed3p2p-2" else 1  # its second round forms groups
        work = folder / "work" / f"s2-{size['data']}-{name}.npz"
        epochs = HEAD_EPOCHS + 1 if name == "fedrep" else 2
        lay_down(work, settle(options), warm + size["timed"] + 1, epochs)
        rounds = {
            "warm": warm,
            "timed": 1 if name == "fedrep" else size["timed"],
        }  # fedrep's take five times as long
        ours.append({"name": name, "options": options, **rounds, "whole": name == "fedavg"})
        bare.append({"name": name, "method": name, "work": str(work), **rounds})
        if name == "fedavg":
            threads = THREADS[:1] if quick else THREADS
            plain = [
                {"name": count_threads(n), "work": str(work), **rounds, "threads": n}
                for n in threads
            ]
    return [
        Contender("FedTailor", Job("S2/FedTailor", "ours", tuple(ours))),
        Contender("bare loop", Job("S2/bare loop", "bare_rounds", tuple(bare))),
        Contender("plain loop", Job("S2/plain loop", "plain", tuple(plain), threads=max(THREADS))),
    ]


def report(found: Found) -> Section:
    rows, bars = [], []
    both = found.has("FedTailor") and found.has("bare loop")
    for name in METHODS if both else ():
        ours, bare = found.seconds("FedTailor", name), found.seconds("bare loop", name)
        rows.append((name, ours.show(), bare.show(), (ours / bare).show(3)))
        if name in SEEDS:
            bars.append(bar(f"S2: {name}'s round ÷ its bare loop", ours / bare, 1.15, most=True))
    tax, notes = None, list[str]()
    if found.has("FedTailor") and found.has("plain loop"):
        ways = list(found.records["plain loop"][0]["parts"])
        part, plain = found.best("plain loop", ways)
        tax = found.seconds("FedTailor", "fedavg") / plain
        every = ", ".join(f"{found.seconds('plain loop', way).show()} s with {way}" for way in ways)
        checks = [
            found.parts("FedTailor", "fedavg")[0]["check"],
            found.parts("plain loop", part)[0]["check"],
        ]
        notes.append(
            f"**Federation tax:** FedTailor's FedAvg round ÷ the round of a plain PyTorch loop in one process: "
            f"**{tax.show(3)}**. The plain loop (a module, `torch.optim.SGD`, `load_state_dict` per client, an "
            f"average; batches are rows of a tensor in memory, no DataLoader) takes the same steps with {part}, its "
            f"best ({every}). Test loss of the final models: {checks[0]['loss']:.5f} and "
            f"{checks[1]['loss']:.5f}."
        )
    if tax and both:
        least = found.seconds("bare loop", "fedavg") / plain
        notes.append(
            f"The bare loop of FedAvg, which takes these steps and does nothing else, is at {least.show(3)} of the "
            f"plain loop: that is what two single-threaded processes side by side give on this machine, where they "
            f"share cache and memory (one alone is faster, see below), and a tax below it is out of reach."
        )
    return Section(
        TITLE,
        "6,000 images dealt by Dirichlet(0.1), batches of 10, one epoch a round, everybody takes part. The bare loop "
        "is the method's own forward and backward work and updates as plain PyTorch (`benchmarks/bare.py`), in two "
        "single-threaded processes between which the clients are dealt, on the same batches, with inputs ready as "
        "floats in memory: nothing is sent, averaged, stored or checked. FedTailor runs two workers and does all that. "
        "Layout of images, allocator, denormals and threads are FedTailor's in the bare loop, too, so that the ratio "
        "tells what the engine adds, and nothing of how PyTorch is set up; the plain loop has PyTorch's own settings. "
        "CD2-pFed has half of its channels private from the first round on; Fed3+2p's phases are measured apart: in "
        "phase 1 a model goes from client to client, so that some must wait, which the bare loop does not.",
        ("method", "FedTailor, s a round", "bare loop, s a round", "ratio"),
        rows,
        [*notes, *(f"{n} was not measured: {why}" for n, why in found.failures.items())],
        [bar("Federation tax: S2 FedAvg round ÷ plain PyTorch loop", tax, 0.55, most=True), *bars],
    )
