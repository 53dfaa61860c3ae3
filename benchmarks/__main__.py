"""``python -m benchmarks [S1 S2 ...]``: measure, then write docs/benchmarks.md."""

from __future__ import annotations

import argparse
import os
import shutil
import statistics
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

from benchmarks import auto, document, limit, s1, s2, s3, s4
from benchmarks.measured import Contender, Found, Section
from benchmarks.running import ROOT, Failed, Job, Store, run
from fedtailor.core.errors import UserError

SCENARIOS: dict[str, ModuleType] = {
    "S1": s1,
    "S2": s2,
    "S3": s3,
    "S4": s4,
    "limit": limit,
    "auto": auto,
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help=f"of {', '.join(SCENARIOS)} (all)")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument(
        "--out", type=Path, default=ROOT / "docs" / "benchmarks.md", help="the document"
    )
    parser.add_argument(
        "--raw", type=Path, default=ROOT / "runs" / "bench", help="raw results, to go on from"
    )
    parser.add_argument("--fresh", action="store_true", help="forget raw results")
    parser.add_argument("--no-peers", action="store_true", help="FedTailor and plain PyTorch alone")
    parser.add_argument(
        "--quick", action="store_true", help="tiny sizes, one repeat, no peers: does it still work?"
    )
    chosen = parser.parse_args()
    if unknown := set(chosen.scenarios) - set(SCENARIOS):
        parser.error(f"no scenario {', '.join(sorted(unknown))}; there are {', '.join(SCENARIOS)}")
    repeats = 1 if chosen.quick else chosen.repeats
    folder = (chosen.raw / "quick" if chosen.quick else chosen.raw).resolve()
    if chosen.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    load, store, peers = os.getloadavg()[0], Store(folder), not (chosen.no_peers or chosen.quick)
    sections, skipped, failed = list[Section](), list[str](), False
    for name in chosen.scenarios or SCENARIOS:
        scenario = SCENARIOS[name]
        try:
            contenders = scenario.plan(chosen.quick, folder, peers)
        except UserError as why:
            skipped.append(f"{scenario.TITLE} was left out: {why}.")
            say(skipped[-1])
            continue
        found = measure(contenders, repeats, store, together=2 if chosen.quick else 1)
        failed |= bool(found.failures)
        sections.append(scenario.report(found))
    document.write(chosen.out, sections, skipped, repeats, load, chosen.quick)
    say(f"written: {chosen.out}")
    sys.exit(1 if failed else 0)


def measure(contenders: Sequence[Contender], repeats: int, store: Store, together: int) -> Found:
    """Repeat 1 of every contender, then repeat 2 ...; ``together`` contenders at a time, one where time matters."""
    found, jobs = Found(), dict[str, Job]()
    for c in contenders:
        try:
            jobs[c.name] = c.job or choose_variant(c, store, found)
        except Failed as why:
            found.failures[c.name] = str(why)
            say(f"  {why}")

    def attempt(name: str, repeat: int) -> None:
        began = time.monotonic()
        try:
            found.records.setdefault(name, []).append(run(jobs[name], repeat, store))
        except Failed as why:
            found.failures[name] = str(why)
            found.records.pop(name)
            say(f"  {why}")
        else:
            say(
                f"{jobs[name].name}: repeat {repeat} of {repeats}, {time.monotonic() - began:.0f} s"
            )

    with ThreadPoolExecutor(together) as pool:
        for repeat in range(1, repeats + 1):
            names = [name for name in jobs if name not in found.failures]
            list(pool.map(attempt, names, [repeat] * len(names)))
    found.records = {name: found.records[name] for name in jobs if name in found.records}
    return found


def choose_variant(contender: Contender, store: Store, found: Found) -> Job:
    """The variant that is fastest in a short trial."""
    trials = found.trials.setdefault(contender.name, {})
    jobs = dict[str, Job]()
    for trial, job in contender.variants:
        part = next(iter(run(trial, 0, store)["parts"].values()))
        way = job.name.partition(", ")[2]
        trials[way], jobs[way] = statistics.median(part["seconds"]), job
        say(f"{trial.name}: {trials[way]:.2f} s a round")
    found.chosen[contender.name] = min(trials, key=trials.__getitem__)
    return jobs[found.chosen[contender.name]]


def say(text: str) -> None:
    print(text, flush=True)


if __name__ == "__main__":
    main()
