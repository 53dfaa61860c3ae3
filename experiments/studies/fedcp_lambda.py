"""Choose FedCP's lambda for networks of no paper, by validation data.

    python -m experiments.studies.fedcp_lambda [--out runs/fedcp-lambda] [--only-print]

App. D has lambda for three networks; this is for all others. Every network trains on digits
with every lambda of App. D's search that leaves the loss on, with every seed; the lambda with
the highest validation accuracy, on average over networks and seeds, is FedCP's default. Every
run's validation accuracies are kept in ``records/fedcp-lambda.json``. No test figure is read.
"""

from __future__ import annotations

import argparse
import json
import statistics
from itertools import product
from pathlib import Path
from typing import Any

import fedtailor
from experiments.records import FOLDER
from fedtailor.experiment.run_folder import JOURNAL, read_journal
from fedtailor.storage.files import write_bytes

RECORD = FOLDER / "fedcp-lambda.json"
LAMBDAS = (
    0.1,
    1.0,
    5.0,
    10.0,
)  # App. D also tries 0, which is the ablation without GFM
MODELS = ("cnn", "mlp")
LEARNING_RATES = (0.05, 0.2)
SEEDS = (0, 1)
COMMON: dict[str, Any] = {
    "method": "fedcp",
    "data": "digits",
    "partition": "dirichlet:0.1",
    "clients": 10,
    "rounds": 15,
    "evaluate_every": 3,
    "executor": "vmap",
    "save": "none",
}

Values = dict[
    str, list[float]
]  # by network, learning rate and lambda: one value a seed


def main() -> None:
    """Run what is not recorded, and print the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/fedcp-lambda"))
    parser.add_argument("--only-print", action="store_true")
    chosen = parser.parse_args()
    values = read_record()
    if not chosen.only_print:
        for model, lr, lam in product(MODELS, LEARNING_RATES, LAMBDAS):
            name = name_of(model, lr, lam)
            if name in values:
                continue
            print(name, flush=True)
            values[name] = [run(model, lr, lam, seed, chosen.out) for seed in SEEDS]
            text = json.dumps(values, indent=1)
            write_bytes(RECORD, f"{text}\n".encode())
    for lam, mean in average_by_lambda(values).items():
        print(f"lambda {lam:5g}: validation accuracy {100 * mean:.1f} %")
    print(f"chosen: {choose(values):g}")


def name_of(model: str, lr: float, lam: float) -> str:
    """The key of a setting in the record."""
    return f"{model} lr={lr:g} lam={lam:g}"


def read_record() -> Values:
    """What is recorded so far."""
    if not RECORD.exists():
        return {}
    values: Values = json.loads(RECORD.read_text())
    return values


def run(model: str, lr: float, lam: float, seed: int, out: Path) -> float:
    """The best validation accuracy of one run."""
    folder = out / f"{name_of(model, lr, lam)} seed={seed}".replace(" ", "_")
    options = COMMON | {"model": model, "lr": lr, "seed": seed, "set": {"lam": lam}}
    resume = (folder / JOURNAL).exists()
    fedtailor.run(**options, out=folder, resume=resume)
    accuracies = []
    for line in read_journal(folder / JOURNAL):
        if line.get("evaluation"):
            accuracies.append(float(line["evaluation"]["val"]["accuracy"]))
    return round(max(accuracies), 5)


def average_by_lambda(values: Values) -> dict[float, float]:
    """The mean over networks, learning rates and seeds that are recorded for all lambdas."""
    means = {}
    for lam in LAMBDAS:
        found = []
        for model, lr in product(MODELS, LEARNING_RATES):
            if all(name_of(model, lr, other) in values for other in LAMBDAS):
                found += values[name_of(model, lr, lam)]
        if found:
            means[lam] = statistics.fmean(found)
    return means


def choose(values: Values) -> float:
    """The lambda with the highest mean."""
    means = average_by_lambda(values)
    return max(means, key=lambda lam: means[lam])


if __name__ == "__main__":
    main()
