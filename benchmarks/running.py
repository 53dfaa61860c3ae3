"""Runs a program as a child, samples the memory of all its processes, and remembers what came out."""

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

from benchmarks.programs.talk import MARK

ROOT = Path(__file__).parent.parent
PEERS = ROOT / ".venv-bench" / "bin"
EVERY = 0.2  # seconds between two looks at memory
PAGE = os.sysconf("SC_PAGE_SIZE")
TAG = "FEDTAILOR_BENCH_JOB"


@dataclass(frozen=True)
class Job:
    """One contender in one scenario."""

    name: str
    program: str  # a module of benchmarks.programs
    parts: tuple[dict[str, Any], ...]
    launcher: tuple[str, ...] = ()  # of the peers' environment; empty for FedTailor's own Python
    threads: int = 1

    def command(self) -> list[str]:
        """What to run, without its last argument, the job's file."""
        launcher = (
            [str(PEERS / self.launcher[0]), *self.launcher[1:]]
            if self.launcher
            else [sys.executable]
        )
        return [*launcher, "-m", f"benchmarks.programs.{self.program}"]


class Failed(Exception):
    """A program ended badly."""


class Store:
    """Results by job and repeat; those of other sources or other arguments are not used."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.source = folder, digest_sources()

    def path(self, job: Job, repeat: int) -> Path:
        return self.folder / "raw" / f"{job.name.replace('/', '-').replace(' ', '_')}-{repeat}.json"

    def get(self, job: Job, repeat: int) -> dict[str, Any] | None:
        """What is known, if it was measured with today's sources."""
        path = self.path(job, repeat)
        if not path.exists():
            return None
        record: dict[str, Any] = json.loads(path.read_text())
        same = record["source"] == self.source and record["job"] == json.loads(
            json.dumps(asdict(job))
        )
        return record if same else None

    def put(self, job: Job, repeat: int, parts: dict[str, Any], peak: int) -> dict[str, Any]:
        """Write it down."""
        record = {
            "source": self.source,
            "job": asdict(job),
            "repeat": repeat,
            "parts": parts,
            "peak_rss": peak,
        }
        path = self.path(job, repeat)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(record, indent=1))
        return record


def run(job: Job, repeat: int, store: Store) -> dict[str, Any]:
    """Run a job once, unless it has been."""
    known = store.get(job, repeat)
    if known is not None:
        return known
    tag = uuid.uuid4().hex
    told = store.folder / "jobs" / f"{tag}.json"
    told.parent.mkdir(parents=True, exist_ok=True)
    told.write_text(json.dumps({"parts": job.parts}))
    cores = {v: str(job.threads) for v in ("OMP_NUM_THREADS", "MKL_NUM_THREADS")}
    environment = {**os.environ, **cores, TAG: tag, "PYTHONPATH": os.pathsep.join(_paths())}
    log = told.with_suffix(".log")
    with log.open("wb") as errors:
        memory = Memory(tag)
        try:
            child = subprocess.run(
                [*job.command(), str(told)],
                cwd=ROOT,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=errors,
                check=False,
            )
        except FileNotFoundError as missing:
            raise Failed(f"{job.name}: there is no {missing.filename}") from None
        finally:
            peak = memory.stop()
    parts = _results(child.stdout.decode(errors="replace"))
    if child.returncode or len(parts) != len(job.parts):
        tail = " | ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
        raise Failed(
            f"{job.name} ended with code {child.returncode} and {len(parts)} of {len(job.parts)} parts: {tail}"
        )
    told.unlink()
    log.unlink()
    return store.put(job, repeat, parts, peak)


def _paths() -> list[str]:
    given = os.environ.get("PYTHONPATH")
    return [str(ROOT), *([given] if given else [])]


def _results(text: str) -> dict[str, Any]:
    lines = [json.loads(line[len(MARK) :]) for line in text.splitlines() if line.startswith(MARK)]
    return {r.pop("name"): r for r in lines}


class Memory:
    """The largest sum of resident memory over all processes of a job.

    A page that several processes map counts in each of them. Processes are known by a variable that all descendants
    inherit, so that daemons are found, too.
    """

    def __init__(self, tag: str) -> None:
        self._tag, self._mine = f"{TAG}={tag}".encode(), set[str]()
        self._others = set(os.listdir("/proc"))  # older than the job
        self._over, self.peak = threading.Event(), 0
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Bytes."""
        self._over.set()
        self._thread.join()
        return self.peak

    def _watch(self) -> None:
        while not self._over.wait(EVERY):
            young = (
                pid for pid in os.listdir("/proc") if pid.isdigit() and pid not in self._others
            )
            self.peak = max(self.peak, sum(map(self._resident, young)))

    def _resident(self, pid: str) -> int:
        try:
            if pid not in self._mine:
                if self._tag not in Path("/proc", pid, "environ").read_bytes():
                    return 0  # asked again next time: a fork has its parent's variables until it starts its program
                self._mine.add(pid)
            return int(Path("/proc", pid, "statm").read_bytes().split()[1]) * PAGE
        except OSError:  # it has gone, or is somebody else's
            return 0


def digest_sources() -> str:
    """A digest of the package and of the benchmarks: results of other sources are measured again."""
    digest = hashlib.sha256()
    for folder in ("src", "benchmarks"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]
