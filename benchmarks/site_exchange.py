"""``python -m benchmarks.site_exchange [ROUNDS]``: what an exchange costs beyond training.

Takes about a minute. A SuperLink and two sites on this machine, TLS and authentication on, as the
tests start them. The time of a round that is not spent at the slower site is what Flower and the
way to the site's service take.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "deploy"))

from real_superlink import Loopback

SITES = (0, 1)
DATA = "--data digits --limit 400 --partition dirichlet:0.5 --clients 2"
WORK = re.compile(r"round (\d+): ('local'|evaluated the personal model), ([\d.]+) s")


def main() -> None:
    """Run a deployment and print what its exchanges cost."""
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with tempfile.TemporaryDirectory(prefix="fedtailor-") as folder:
        deployment = Loopback(Path(folder))
        try:
            seconds = measure_exchanges(deployment, rounds)
        finally:
            deployment.close()
    seconds = seconds[1:]  # in the first one the sites build their networks
    lower, median, upper = statistics.quantiles(seconds, n=4)
    print(
        "seconds per exchange beyond training and evaluation, "
        f"{len(seconds)} exchanges with {len(SITES)} sites:"
    )
    print(
        f"median {median:.2f}, middle half {lower:.2f} to {upper:.2f}, longest {max(seconds):.2f}"
    )


def measure_exchanges(deployment: Loopback, rounds: int) -> list[float]:
    """Seconds of every round that neither site spent on work."""
    deployment.run(f"fedtailor partition {DATA} --out dealt --export sites")
    deployment.superlink()
    deployment.register(*SITES)
    for site in SITES:
        deployment.node(site, f"sites/site-{site}.npz")
        deployment.hears(f"node-{site}", "connected")
    options = f"--method fedavg --lr 0.1 --rounds {rounds} --sites {len(SITES)}"
    deployment.federate(options, "run")
    worked = [find_work_seconds(deployment.said(f"node-{site}")) for site in SITES]
    seconds = []
    for line in (deployment.folder / "run/rounds.jsonl").read_text().splitlines():
        record = json.loads(line)
        slowest = max(by_round.get(record["t"], 0.0) for by_round in worked)
        seconds.append(record["seconds"] - slowest)
    return seconds


def find_work_seconds(log: str) -> dict[int, float]:
    """Seconds that a site worked in every exchange, by round.

    It trains, and evaluates the round before.
    """
    seconds: dict[int, float] = {}
    for t, what, spent in WORK.findall(log):
        exchange = int(t) if what == "'local'" else int(t) + 1
        seconds[exchange] = seconds.get(exchange, 0.0) + float(spent)
    return seconds


if __name__ == "__main__":
    main()
