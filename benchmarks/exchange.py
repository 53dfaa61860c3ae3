"""What an exchange with a site costs beyond training: ``python benchmarks/exchange.py`` (about a minute).

A SuperLink and two sites on this machine, TLS and authentication on, as the tests start them. The time of a round
that is not spent at the slower site is what Flower and the way to the site's service take.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "deploy"))

from real_superlink import RealSuperLink

DEALT = "--data digits --limit 400 --partition dirichlet:0.5 --clients 2"


def measure(place: RealSuperLink, rounds: int) -> list[float]:
    place.run(f"fedtailor partition {DEALT} --out dealt --export sites")
    place.start_superlink()
    place.register(0, 1)
    for i in (0, 1):
        place.start_node(i, f"sites/site-{i}.npz")
        place.wait_for_text(f"node-{i}", "connected")
    place.federate(f"--method fedavg --lr 0.1 --rounds {rounds} --sites 2", "run")
    lines = [
        json.loads(line) for line in (place.folder / "run/rounds.jsonl").read_text().splitlines()
    ]
    spent = [_at_site(place.read_log(f"node-{i}")) for i in (0, 1)]
    return [r["seconds"] - max(site.get(r["t"], 0.0) for site in spent) for r in lines]


def _at_site(log: str) -> dict[int, float]:
    """Seconds that a site worked for each exchange: the training, and the evaluation of the round before."""
    found: dict[int, float] = {}
    for t, what, seconds in re.findall(
        r"round (\d+): ('local'|evaluated the personal model), ([\d.]+) s", log
    ):
        at = int(t) + (what != "'local'")
        found[at] = found.get(at, 0.0) + float(seconds)
    return found


def main() -> None:
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory(prefix="fedtailor-") as folder:
        place = RealSuperLink(Path(folder))
        try:
            seconds = measure(place, rounds)[1:]  # in the first one the sites build their networks
        finally:
            place.close()
    quarters = statistics.quantiles(seconds, n=4)
    print(
        f"seconds per exchange beyond training and evaluation, {len(seconds)} exchanges with 2 sites:"
    )
    print(
        f"median {quarters[1]:.2f}, middle half {quarters[0]:.2f} to {quarters[2]:.2f}, longest {max(seconds):.2f}"
    )


if __name__ == "__main__":
    main()
