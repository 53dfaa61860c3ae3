"""S4: small models, where vectorising over clients is to pay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.measured import Contender, Found, Section, Value, bar, count_threads
from benchmarks.running import Job
from benchmarks.workload import lay_down, settle

TITLE = "S4: 100 clients, small models"
TASKS: dict[str, dict[str, Any]] = {
    "digits, MLP 64-128-10": {"data": "digits", "model": "mlp"},
    "digits, CNN": {"data": "digits", "model": "cnn"},
    "AG News, fastText": {"data": "ag_news", "model": "fasttext", "limit": 4000},
    "HAR, HAR-CNN": {"data": "har", "model": "har_cnn", "limit": 2000},
}
ROUNDS = {
    "digits, MLP 64-128-10": 20,
    "digits, CNN": 10,
}  # timed; where a round is short, more of them
EXECUTORS, THREADS = ("sequential", "processes", "vmap"), (1, 2)
MLP, QUICKLY = "digits, MLP 64-128-10", ("sequential", "vmap")


def plan(quick: bool, folder: Path, peers: bool) -> list[Contender]:
    ours, plain = [], []
    for name, task in TASKS.items():
        if quick and name != MLP:
            continue
        options = {
            "method": "fedavg",
            **task,
            "clients": 10 if quick else 100,
            "partition": "iid",
            "validation": 0.0,
        }
        rounds = {"warm": 1, "timed": 1 if quick else ROUNDS.get(name, 2)}
        work = folder / "work" / f"s4-{task['data']}-{task['model']}-{options['clients']}.npz"
        lay_down(work, settle(options), rounds["timed"] + 2)
        for executor in QUICKLY if quick else EXECUTORS:
            chosen = {**options, "executor": executor, "workers": 2}
            ours.append({"name": f"{name}/{executor}", "options": chosen, **rounds, "whole": True})
        plain += [
            {"name": f"{name}/{count_threads(n)}", "work": str(work), **rounds, "threads": n}
            for n in (THREADS[:1] if quick else THREADS)
        ]
    return [
        Contender("FedTailor", Job("S4/FedTailor", "ours", tuple(ours))),
        Contender("plain loop", Job("S4/plain loop", "plain", tuple(plain), threads=max(THREADS))),
    ]


def report(found: Found) -> Section:
    rows, losses, value = [], [], None
    both = found.has("FedTailor") and found.has("plain loop")
    for name in (
        n for n in TASKS if both and f"{n}/vmap" in found.records["FedTailor"][0]["parts"]
    ):
        way, plain = _best(found, name)
        told, cells = [f"plain {_loss(found, 'plain loop', f'{name}/{way}')}"], []
        for executor in EXECUTORS:
            part = f"{name}/{executor}"
            if part not in found.records["FedTailor"][0]["parts"]:
                cells.append("")
                continue
            seconds = found.seconds("FedTailor", part)
            cells.append(f"{seconds.show()}, {(plain / seconds).median:.2f}×")
            told.append(f"{executor} {_loss(found, 'FedTailor', part)}")
        rows.append((name, f"{plain.show()}, {way}", *cells))
        losses.append(f"{name}: {', '.join(told)}")
        if name == MLP:
            value = plain / found.seconds("FedTailor", f"{MLP}/vmap")
    said = {
        s
        for r in found.records.get("FedTailor", [])[:1]
        for p in r["parts"].values()
        for s in p["said"]
    }
    return Section(
        TITLE,
        "FedAvg, 100 clients with equally many samples drawn at random, batches of 10, one epoch, everybody takes "
        "part. The plain loop is that of the federation tax, at its best number of threads. Behind every time stands "
        "how many times faster than the plain loop it is.",
        ("task", "plain loop, s a round", *EXECUTORS),
        rows,
        [
            f"Test loss of the final models: {'; '.join(losses)}.",
            *(f"FedTailor said: {s}." for s in sorted(said)),
            *(f"{n} was not measured: {why}" for n, why in found.failures.items()),
        ],
        [bar("S4: plain loop's round ÷ FedTailor's with vmap, MLP", value, 5.0, most=False)],
    )


def _best(found: Found, name: str) -> tuple[str, Value]:
    """The plain loop's best number of threads for a task."""
    ways = [p for p in found.records["plain loop"][0]["parts"] if p.startswith(f"{name}/")]
    part, seconds = found.best("plain loop", ways)
    return part.rpartition("/")[2], seconds


def _loss(found: Found, contender: str, part: str) -> str:
    return f"{found.parts(contender, part)[0]['check']['loss']:.5f}"
