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

from benchmarks.harness.job_runner import ROOT, Job, JobFailed, ResultStore, run_job
from benchmarks.harness.measurements import Contender, ScenarioResults, Section
from benchmarks.harness.report import Session, write_document
from benchmarks.scenarios import SCENARIOS
from fedtailor.core.errors import UserError


def main() -> None:
    """Measure the chosen scenarios and write the document; exit code 1 if a program failed."""
    chosen = parse_arguments()
    folder = chosen.raw / "quick" if chosen.quick else chosen.raw
    folder = folder.resolve()
    if chosen.fresh:
        shutil.rmtree(folder, ignore_errors=True)
    repeats = 1 if chosen.quick else chosen.repeats
    session = Session(repeats, load=os.getloadavg()[0], quick=chosen.quick)
    store = ResultStore(folder)
    sections: list[Section] = []
    left_out: list[str] = []
    failed = False
    for name in chosen.scenarios or SCENARIOS:
        scenario = SCENARIOS[name]
        peers = not (chosen.no_peers or chosen.quick)
        try:
            contenders = scenario.plan(chosen.quick, folder, peers)
        except UserError as why:
            left_out.append(f"{scenario.TITLE} was left out: {why}.")
            print_now(left_out[-1])
            continue
        results = measure_contenders(contenders, session, store)
        failed = failed or bool(results.failures)
        sections.append(scenario.report(results))
    write_document(chosen.out, sections, left_out, session)
    print_now(f"written: {chosen.out}")
    sys.exit(1 if failed else 0)


def parse_arguments() -> argparse.Namespace:
    """The options given on the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("scenarios", nargs="*", help=f"of {', '.join(SCENARIOS)} (all)")
    parser.add_argument("--repeats", type=int, default=5)
    document = ROOT / "docs" / "benchmarks.md"
    parser.add_argument("--out", type=Path, default=document, help="the document")
    raw = ROOT / "runs" / "bench"
    parser.add_argument(
        "--raw", type=Path, default=raw, help="raw results, to go on from"
    )
    parser.add_argument("--fresh", action="store_true", help="forget raw results")
    parser.add_argument(
        "--no-peers", action="store_true", help="FedTailor and plain PyTorch alone"
    )
    quick = "tiny sizes, one repeat, no peers: does it still work?"
    parser.add_argument("--quick", action="store_true", help=quick)
    chosen = parser.parse_args()
    unknown = sorted(set(chosen.scenarios) - set(SCENARIOS))
    if unknown:
        parser.error(
            f"no scenario {', '.join(unknown)}; there are {', '.join(SCENARIOS)}"
        )
    return chosen


def measure_contenders(
    contenders: Sequence[Contender], session: Session, store: ResultStore
) -> ScenarioResults:
    """Repeat 1 of every contender, then repeat 2, and so on."""
    results = ScenarioResults()
    jobs = choose_jobs(contenders, store, results)

    def run_repeat(name: str, repeat: int) -> None:
        job = jobs[name]
        began = time.monotonic()
        try:
            run = run_job(job, repeat, store)
        except JobFailed as why:
            results.failures[name] = str(why)
            results.runs[name].clear()
            print_now(f"  {why}")
            return
        results.runs[name].append(run)
        took = time.monotonic() - began
        print_now(f"{job.name}: repeat {repeat} of {session.repeats}, {took:.0f} s")

    results.runs = {name: [] for name in jobs}
    together = 2 if session.quick else 1  # one at a time where seconds matter
    with ThreadPoolExecutor(together) as pool:
        for repeat in range(1, session.repeats + 1):
            names = [name for name in jobs if name not in results.failures]
            list(pool.map(run_repeat, names, [repeat] * len(names)))
    results.runs = {name: runs for name, runs in results.runs.items() if runs}
    return results


def choose_jobs(
    contenders: Sequence[Contender], store: ResultStore, results: ScenarioResults
) -> dict[str, Job]:
    """The job of every contender that has one; of several variants the fastest."""
    jobs: dict[str, Job] = {}
    for contender in contenders:
        try:
            jobs[contender.name] = contender.job or choose_variant(
                contender, store, results
            )
        except JobFailed as why:
            results.failures[contender.name] = str(why)
            print_now(f"  {why}")
    return jobs


def choose_variant(
    contender: Contender, store: ResultStore, results: ScenarioResults
) -> Job:
    """The variant that is fastest in a short trial."""
    seconds: dict[str, float] = {}
    jobs: dict[str, Job] = {}
    results.trials[contender.name] = seconds
    for variant in contender.variants:
        run = run_job(variant.trial, 0, store)
        first = next(iter(run.parts.values()))
        jobs[variant.name] = variant.job
        seconds[variant.name] = statistics.median(first["seconds"])
        print_now(f"{variant.trial.name}: {seconds[variant.name]:.2f} s a round")
    fastest = min(seconds, key=lambda name: seconds[name])
    results.chosen[contender.name] = fastest
    return jobs[fastest]


def print_now(text: str) -> None:
    """Print a line at once, also into a file."""
    print(text, flush=True)


if __name__ == "__main__":
    main()
