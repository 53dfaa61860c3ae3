"""What is kept of finished runs, so that the document outlives them.

``records/NAME.json`` has a row for every method of a comparison.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from fedtailor.evaluation.paired import (
    ClientResult,
    Difference,
    compare_paired,
    compare_summaries,
)
from fedtailor.experiment.run_folder import JOURNAL, read_journal
from fedtailor.report.leaderboard import make_rows
from fedtailor.report.run_values import list_client_results, list_values
from fedtailor.storage.files import write_bytes

FOLDER = Path(__file__).parent / "records"


@dataclass(frozen=True)
class Record:
    """A method in a comparison. Pairs are mean and standard deviation over seeds."""

    command: str  # that gives it; another command is another record
    seeds: int
    best: tuple[float, float]  # test accuracy at the round that validation data chose
    on_test: tuple[float, float]  # at the best round on test data
    rise: float  # what the last third of the rounds added to the test accuracy
    std: float  # over clients
    bytes: float  # per round
    n: int  # test examples
    seconds: float | None = None  # per round
    # every seed's own values by name (report/run_values.py), and its clients: id -> accuracy
    # at the chosen round and test examples; records of earlier versions have none
    by_seed: dict[str, dict[str, Any]] = field(default_factory=dict)

    def variance(self) -> float:
        """Of the mean ``on_test``: of seeds or of the finite test sets, whichever is larger."""
        mean, deviation = self.on_test
        of_seeds = deviation**2 / self.seeds
        of_test_sets = mean * (1 - mean) / self.n
        return max(of_seeds, of_test_sets)

    def client_results(self) -> dict[int, dict[int, ClientResult]]:
        """By seed and client, the accuracy at the chosen round; empty in old records."""
        return {
            int(seed): {
                int(k): ClientResult(*pair) for k, pair in values["clients"].items()
            }
            for seed, values in self.by_seed.items()
        }


def read_records(name: str) -> dict[str, Record]:
    """What is recorded of a comparison, by method."""
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return {}
    recorded = json.loads(path.read_text())
    return {method: Record(**values) for method, values in recorded.items()}


def save_record(name: str, method: str, record: Record) -> None:
    """Add a method to what is recorded of a comparison, or replace it."""
    records = read_records(name) | {method: record}
    lines = []
    for key, value in sorted(records.items()):
        lines.append(f"{json.dumps(key)}: {json.dumps(asdict(value))}")
    text = ",\n".join(lines)
    FOLDER.mkdir(exist_ok=True)
    write_bytes(FOLDER / f"{name}.json", f"{{\n{text}\n}}\n".encode())


def summarise_runs(
    command: str, results: Sequence[dict[str, Any]], runs: Sequence[Path]
) -> Record:
    """Finished runs of one method, one for every seed, as a record."""
    (row,) = make_rows({"method": list(results)})
    return Record(
        command=command,
        seeds=row.seeds,
        best=round_pair(row.accuracy),
        on_test=round_pair(row.on_test),
        rise=round(statistics.fmean(measure_rise(run) for run in runs), 5),
        std=round(row.client_std.mean, 5),
        bytes=round(row.bytes_per_round),
        n=results[0]["views"]["personal"]["n"],
        seconds=round(row.seconds_per_round, 3),
        by_seed={str(result["seed"]): keep_values(result) for result in results},
    )


def keep_values(result: dict[str, Any]) -> dict[str, Any]:
    """All numbers of one run: accuracies, measures, fairness, views, diagnostics, cost, clients."""
    values: dict[str, Any] = {}
    for name, value in list_values(result).items():
        values[name] = None if value is None else round(value, 5)
    (clients,) = list_client_results([result]).values()
    values["clients"] = {
        str(k): [round(client.value, 5), client.n] for k, client in clients.items()
    }
    return values


def measure_rise(run: Path) -> float:
    """What the last third of the rounds added to the test accuracy.

    Much, where a method has not learned all it can yet.
    """
    accuracy = {}
    for record in read_journal(run / JOURNAL):
        if record.get("evaluation"):
            accuracy[record["t"]] = float(record["evaluation"]["test"]["accuracy"])
    last = max(accuracy)
    earlier = [t for t in accuracy if t <= 2 * last / 3]
    before = max(earlier, default=last)
    return accuracy[last] - accuracy[before]


def measure_difference(high: Record, low: Record) -> Difference:
    """How much better ``high`` is: paired over seeds and clients where both records have them.

    Records of earlier versions have means and deviations only.
    """
    paired = compare_paired(high.client_results(), low.client_results())
    if paired is not None:
        return paired
    one = (high.on_test[0], math.sqrt(high.variance()))
    other = (low.on_test[0], math.sqrt(low.variance()))
    return compare_summaries(one, other, min(high.seeds, low.seeds))


def round_pair(pair: tuple[float, float]) -> tuple[float, float]:
    """Both to five digits after the point."""
    first, second = pair
    return round(first, 5), round(second, 5)
