"""Run attacks against merging rules on real data, and write the table of docs/privacy.md.

    python -m experiments.robustness [--out runs/robustness] [--only-write]

A run that is recorded in ``records/robustness.json`` is not run again. The document is
written after every run; what lies between the two marks in it is replaced.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from experiments.records import FOLDER
from fedtailor.engine.start import run_experiment
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.storage.files import write_bytes

RECORDS = FOLDER / "robustness.json"
DOCUMENT = Path(__file__).parent.parent / "docs" / "privacy.md"
BEGIN = "<!-- robustness: begin -->"
END = "<!-- robustness: end -->"

# attackers that send their change once do nothing, and their scores are left out as well
ATTACKS = {
    "scale:1": "none",
    "sign_flip": "sign_flip",
    "scale:-5": "scale:-5",
    "scale:10": "scale:10",
    "noise:50": "noise:50",
    "label_flip": "label_flip",
    "backdoor:5": "backdoor:5",
}
RULES = (
    "mean",
    "median",
    "trimmed:0.2",
    "krum",
    "multikrum:10",
    "geometric",
    "clip:1.0",
    "bulyan",
)
SEEDS = (0, 1)
COMMON: dict[str, Any] = {
    "clients": 20,
    "partition": "dirichlet:1.0",
    "attackers": 0.2,
    "executor": "sequential",
    "evaluate_every": 10,
    "save": "none",
}


class Data(NamedTuple):
    """A data set of the table."""

    title: str
    options: dict[str, Any]
    methods: tuple[str, ...]
    rules: tuple[str, ...]


DATA = {
    "digits": Data(
        "Digits (1,797 images), 30 rounds",
        {"data": "digits", "rounds": 30, "lr": 0.1},
        ("fedavg", "fedper"),
        RULES,
    ),
    "fashion": Data(
        "Fashion-MNIST (6,000 images), 30 rounds",
        {"data": "fashion_mnist", "limit": 6000, "rounds": 30, "model": "mlp"},
        ("fedavg",),
        ("mean", "median", "trimmed:0.2", "multikrum:10", "geometric", "clip:1.0"),
    ),
}


class Case(NamedTuple):
    """One run."""

    data: str
    method: str
    attack: str
    rule: str
    seed: int

    @property
    def key(self) -> str:
        """Its name in the records."""
        return " ".join(map(str, self))

    def options(self) -> dict[str, Any]:
        """The options of ``fedtailor run``."""
        return {
            **COMMON,
            **DATA[self.data].options,
            "method": self.method,
            "attack": self.attack,
            "aggregate": self.rule,
            "seed": self.seed,
        }


def list_cases() -> Iterator[Case]:
    """All runs, in the order in which they are made."""
    for seed in SEEDS:
        for name, data in DATA.items():
            for method in data.methods:
                for attack in ATTACKS:
                    for rule in data.rules:
                        yield Case(name, method, attack, rule, seed)


# ---------------------------------------------------------------- running
def run_case(case: Case, out: Path) -> dict[str, float | None]:
    """Accuracy of the honest clients at the end, and how often a backdoor opened."""
    setup = prepare(make_experiment(case.options()))
    name = case.key.replace(" ", "_").replace(":", "-")
    folder = RunFolder(out / name)
    result = folder.read_result()
    if result is None:
        result = run_experiment(setup, folder, resume=(out / name).exists())
    attack = result.get("attack", {})
    return {
        "accuracy": result["accuracy"]["last"],
        "backdoor": attack.get("backdoor_success"),
    }


def read_records() -> dict[str, Any]:
    """What was measured, by key."""
    if not RECORDS.exists():
        return {}
    records: dict[str, Any] = json.loads(RECORDS.read_text())
    return records


def save_records(records: Mapping[str, Any]) -> None:
    """One line a run."""
    lines = [f"{json.dumps(k)}: {json.dumps(v)}" for k, v in sorted(records.items())]
    text = ",\n".join(lines)
    write_bytes(RECORDS, f"{{\n{text}\n}}\n".encode())


# ---------------------------------------------------------------- the table
def make_tables(records: Mapping[str, Any]) -> str:
    """A table for every data set and method."""
    parts: list[str] = []
    for name, data in DATA.items():
        for method in data.methods:
            parts.append(f"**{data.title}, {method}**\n")
            parts.extend(make_rows(records, name, method))
            parts.append("")
    return "\n".join(parts)


def make_rows(records: Mapping[str, Any], data: str, method: str) -> Iterator[str]:
    """The lines of one table: rules by attacks."""
    yield "| rule | " + " | ".join(ATTACKS.values()) + " | backdoor opens |"
    yield "|---|" + "---:|" * (len(ATTACKS) + 1)
    for rule in DATA[data].rules:
        cells = []
        for attack in ATTACKS:
            cells.append(average(records, Case(data, method, attack, rule, 0)))
        backdoor = Case(data, method, "backdoor:5", rule, 0)
        cells.append(average(records, backdoor, "backdoor"))
        yield f"| {rule} | " + " | ".join(cells) + " |"


def average(records: Mapping[str, Any], case: Case, what: str = "accuracy") -> str:
    """The mean over the seeds that are recorded, in per cent."""
    values = []
    for seed in SEEDS:
        record = records.get(case._replace(seed=seed).key)
        if record is not None and record[what] is not None:
            values.append(100 * record[what])
    if not values:
        return "–"
    return f"{statistics.fmean(values):.1f}"


def write_document(records: Mapping[str, Any]) -> None:
    """Replace the tables in the document."""
    text = DOCUMENT.read_text(encoding="utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    new = f"{before}{BEGIN}\n\n{make_tables(records)}\n{END}{after}"
    write_bytes(DOCUMENT, new.encode())


def main(words: list[str] | None = None) -> None:
    """Run what is not recorded, then write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--out", type=Path, default=Path("runs/robustness"))
    parser.add_argument("--only-write", action="store_true")
    chosen = parser.parse_args(words)
    records = read_records()
    if not chosen.only_write:
        for case in list_cases():
            if case.key not in records:
                records[case.key] = run_case(case, chosen.out)
                save_records(records)
                print(case.key, records[case.key], flush=True)
    write_document(records)


if __name__ == "__main__":
    main()
