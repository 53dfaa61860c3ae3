"""S3: what a population twenty times larger costs."""

from __future__ import annotations

from pathlib import Path

from benchmarks.measured import Contender, Found, Section, bar
from benchmarks.running import Job

TITLE = "S3: 500 and 10,000 clients, cohort 25"
FULL = {
    "data": "fashion_mnist",
    "clients": (500, 10_000),
    "cohort": 25,
    "train": 90,
    "test": 30,
    "timed": 3,
}
QUICK = {"data": "digits", "clients": (20, 60), "cohort": 4, "train": 9, "test": 3, "timed": 1}
METHODS, MODELS = ("fedavg", "ditto"), ("lenet_mgda", "mlp")
QUICKLY = (("ditto",), ("mlp",))


def plan(quick: bool, folder: Path, peers: bool) -> list[Contender]:
    size = QUICK if quick else FULL
    found = []
    for method in QUICKLY[0] if quick else METHODS:
        for model in QUICKLY[1] if quick else MODELS:
            for i, clients in enumerate(size["clients"]):
                options = {
                    "method": method,
                    "model": model,
                    "participation": str(size["cohort"] / clients),
                    "evaluate_every": 1,
                    "evaluate_clients": "cohort",
                    "rounds": 1000,
                    "executor": "sequential" if quick else "processes",
                    "workers": 2,
                }
                population = {
                    "name": size["data"],
                    "clients": clients,
                    "each": size["train"],
                    "test": size["test"],
                }
                part = {
                    "name": "ours",
                    "options": options,
                    "population": population,
                    "warm": 2,
                    "timed": size["timed"],
                }
                name = f"{method}, {model}, {'many' if i else 'few'}"
                found.append(Contender(name, Job(f"S3/{name}", "ours", (part,))))
    return found


def report(found: Found) -> Section:
    rows, bars = [], []
    for method in METHODS:
        for model in MODELS:
            few, many = (f"{method}, {model}, {which}" for which in ("few", "many"))
            if not (found.has(few) and found.has(many)):
                continue
            seconds, memory = (
                found.seconds(many) / found.seconds(few),
                found.memory(many) / found.memory(few),
            )
            rows.append(
                (
                    method,
                    model,
                    found.seconds(few).show(),
                    found.seconds(many).show(),
                    seconds.show(),
                    f"{found.memory(few).median:,.0f}",
                    f"{found.memory(many).median:,.0f}",
                    memory.show(),
                )
            )
            bars.append(
                bar(
                    f"S3: {method}, {model}: seconds, 10,000 clients ÷ 500", seconds, 1.2, most=True
                )
            )
            bars.append(
                bar(
                    f"S3: {method}, {model}: peak RSS, 10,000 clients ÷ 500", memory, 1.5, most=True
                )
            )
    return Section(
        TITLE,
        "Both populations index the same 60,000 Fashion-MNIST images, 120 a client (90 to train, 30 to test on), so "
        "that the larger one overlaps. A round trains and then evaluates a cohort of 25. Ditto keeps a private model "
        "per client. Peak RSS is the sum over all processes, sampled five times a second from start to the last timed "
        "round; pages that several processes map (the images) count in each. What a run does at its very end, where "
        "everybody is evaluated once, is not in these numbers.",
        (
            "method",
            "network",
            "s a round, 500",
            "s a round, 10,000",
            "ratio",
            "MB, 500",
            "MB, 10,000",
            "ratio",
        ),
        rows,
        [f"{n} was not measured: {why}" for n, why in found.failures.items()],
        bars,
    )
