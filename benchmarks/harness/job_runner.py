"""Runs a program as a child process, samples the memory of its processes, keeps its results."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
import uuid
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.programs.job_io import RESULT_MARK

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv-bench" / "bin"  # the peers' environment
SAMPLING_SECONDS = 0.2  # between two samples of memory
PAGE_SIZE = os.sysconf("SC_PAGE_SIZE")
JOB_VARIABLE = "FEDTAILOR_BENCH_JOB"  # in the environment of all processes of a job

PartResults = dict[str, dict[str, Any]]  # what the program printed, by part


@dataclass(frozen=True)
class Job:
    """One contender in one scenario."""

    name: str
    program: str  # a module of benchmarks.programs
    parts: tuple[dict[str, Any], ...]
    # of the peers' environment; empty for FedTailor's own Python
    launcher: tuple[str, ...] = ()
    threads: int = 1

    def command(self) -> list[str]:
        """The command line, without its last argument, the job's file."""
        launcher = [sys.executable]
        if self.launcher:
            executable, *options = self.launcher
            launcher = [str(PEERS / executable), *options]
        return [*launcher, "-m", f"benchmarks.programs.{self.program}"]


@dataclass(frozen=True)
class JobResult:
    """What one run of a job gave."""

    parts: PartResults
    peak_memory: int  # bytes, of all processes together


class JobFailed(Exception):
    """A program failed, or printed fewer results than it was asked for."""


class ResultStore:
    """Results by job and repeat; those of other sources or other arguments are not used."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.source = digest_sources()

    def path(self, job: Job, repeat: int) -> Path:
        """The file of one result."""
        name = job.name.replace("/", "-").replace(" ", "_")
        return self.folder / "raw" / f"{name}-{repeat}.json"

    def load(self, job: Job, repeat: int) -> JobResult | None:
        """A result that was measured with today's sources."""
        path = self.path(job, repeat)
        if not path.exists():
            return None
        record = json.loads(path.read_text())
        same_source = record["source"] == self.source
        same_job = record["job"] == as_json(job)
        if not (same_source and same_job):
            return None
        return JobResult(record["parts"], record["peak_rss"])

    def save(self, job: Job, repeat: int, result: JobResult) -> None:
        """Write a result."""
        record = {
            "source": self.source,
            "job": asdict(job),
            "repeat": repeat,
            "parts": result.parts,
            "peak_rss": result.peak_memory,
        }
        path = self.path(job, repeat)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1))


def as_json(job: Job) -> Any:
    """A job as it comes back from a JSON file: tuples are lists."""
    return json.loads(json.dumps(asdict(job)))


def run_job(job: Job, repeat: int, store: ResultStore) -> JobResult:
    """Run a job once, unless its result is there already."""
    known = store.load(job, repeat)
    if known is not None:
        return known
    tag = uuid.uuid4().hex
    job_file = store.folder / "jobs" / f"{tag}.json"
    job_file.parent.mkdir(parents=True, exist_ok=True)
    job_file.write_text(json.dumps({"parts": job.parts}))
    log = job_file.with_suffix(".log")
    memory = MemorySampler(tag)
    try:
        child = run_program(job, job_file, log, tag)
    except FileNotFoundError as missing:
        raise JobFailed(f"{job.name}: there is no {missing.filename}") from None
    finally:
        peak = memory.stop()
    parts = parse_results(child.stdout.decode(errors="replace"))
    if child.returncode or len(parts) != len(job.parts):
        raise JobFailed(explain_failure(job, child.returncode, len(parts), log))
    result = JobResult(parts, peak)
    store.save(job, repeat, result)
    job_file.unlink()
    log.unlink()
    return result


def run_program(
    job: Job, job_file: Path, log: Path, tag: str
) -> subprocess.CompletedProcess[bytes]:
    """Run the program to its end; what it prints as errors goes into ``log``."""
    threads = str(job.threads)
    paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
    environment = {
        **os.environ,
        "OMP_NUM_THREADS": threads,
        "MKL_NUM_THREADS": threads,
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        JOB_VARIABLE: tag,
    }
    with log.open("wb") as errors:
        return subprocess.run(
            [*job.command(), str(job_file)],
            cwd=ROOT,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=errors,
            check=False,
        )


def parse_results(printed: str) -> PartResults:
    """The results among the lines a program printed, by part."""
    results = {}
    for line in printed.splitlines():
        if line.startswith(RESULT_MARK):
            result = json.loads(line.removeprefix(RESULT_MARK))
            results[result.pop("name")] = result
    return results


def explain_failure(job: Job, code: int, results: int, log: Path) -> str:
    """One line: the exit code, how many results there are, and the end of the log."""
    lines = log.read_text(errors="replace").strip().splitlines()
    done = f"{results} of {len(job.parts)} parts"
    return f"{job.name} ended with code {code} and {done}: {' | '.join(lines[-3:])}"


class MemorySampler:
    """The largest sum of resident memory over all processes of a job.

    A page that several processes map counts in each of them. Processes are known by a variable
    that all descendants inherit, so that daemons are found, too.
    """

    def __init__(self, tag: str) -> None:
        self.peak = 0
        self._variable = f"{JOB_VARIABLE}={tag}".encode()
        self._processes: set[str] = set()  # of the job
        self._older = set(os.listdir("/proc"))  # than the job
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._sample, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """The peak in bytes."""
        self._stopped.set()
        self._thread.join()
        return self.peak

    def _sample(self) -> None:
        while not self._stopped.wait(SAMPLING_SECONDS):
            total = 0
            for pid in os.listdir("/proc"):
                if pid.isdigit() and pid not in self._older:
                    total += self._resident_memory(pid)
            self.peak = max(self.peak, total)

    def _resident_memory(self, pid: str) -> int:
        process = Path("/proc", pid)
        try:
            if pid not in self._processes:
                # A fork has its parent's variables until it starts its own program, so a process
                # that does not belong to the job yet is looked at again next time.
                if self._variable not in (process / "environ").read_bytes():
                    return 0
                self._processes.add(pid)
            pages = (process / "statm").read_bytes().split()[1]
        except OSError:  # the process has ended, or belongs to another user
            return 0
        return int(pages) * PAGE_SIZE


def digest_sources() -> str:
    """A digest of the package and of the benchmarks."""
    digest = hashlib.sha256()
    for folder in ("src", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
