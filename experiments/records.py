"""What is kept of finished runs: a row a method in ``records/NAME.json``, so that the document outlives the runs."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from fedtailor.experiment.run_folder import JOURNAL, read_journal
from fedtailor.report.leaderboard import make_rows
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

    def variance(self) -> float:
        """Of the mean ``on_test``: of seeds or of the finite test sets, whichever is larger."""
        mean, spread = self.on_test
        return max(spread**2 / self.seeds, mean * (1 - mean) / self.n)


def read(name: str) -> dict[str, Record]:
    """What is known of a comparison, by method."""
    path = FOLDER / f"{name}.json"
    return (
        {m: Record(**values) for m, values in json.loads(path.read_text()).items()}
        if path.exists()
        else {}
    )


def keep(name: str, method: str, record: Record) -> None:
    """Add a method to what is known of a comparison."""
    known = {m: asdict(r) for m, r in read(name).items()} | {method: asdict(record)}
    lines = ",\n".join(
        f"{json.dumps(m)}: {json.dumps(values)}" for m, values in sorted(known.items())
    )
    FOLDER.mkdir(exist_ok=True)
    write_bytes(FOLDER / f"{name}.json", f"{{\n{lines}\n}}\n".encode())


def condense(command: str, results: list[dict[str, Any]], runs: list[Path]) -> Record:
    """Finished runs of one method, a seed each, as a record."""
    (row,) = make_rows({"method": results})
    return Record(
        command,
        row.seeds,
        _short(row.accuracy),
        _short(row.on_test),
        round(statistics.fmean(gain(run) for run in runs), 5),
        round(row.client_std.mean, 5),
        round(row.bytes_per_round),
        results[0]["views"]["personal"]["n"],
        round(row.seconds_per_round, 3),
    )


def gain(run: Path) -> float:
    """What the last third of the rounds added to the test accuracy: much, where a method has not learned all yet."""
    looks = {
        r["t"]: r["evaluation"]["test"]["accuracy"]
        for r in read_journal(run / JOURNAL)
        if r.get("evaluation")
    }
    last = max(looks)
    before = max((t for t in looks if t <= 2 * last / 3), default=last)
    return float(looks[last] - looks[before])


def contradicts(high: Record, low: Record) -> bool:
    """Whether ``low`` is before ``high`` by more than two standard errors of their difference."""
    return low.on_test[0] - high.on_test[0] > 2 * math.sqrt(high.variance() + low.variance())


def _short(pair: tuple[float, float]) -> tuple[float, float]:
    return round(pair[0], 5), round(pair[1], 5)
