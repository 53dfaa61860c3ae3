"""Writes what was measured as a document for people."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import textwrap
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path

from benchmarks.measured import Bar, Section
from benchmarks.running import PEERS

HEAD = """# Benchmarks
{quick}
Written by `make bench`, which measures everything on one machine in one run. Every number is a median of {repeats}
repeats (in brackets the least and the largest), where a repeat is the median of its timed rounds after a warm-up; the
contenders of a scenario take turns, first repeat of all, second repeat of all, and so on. Ratios are medians of the
repeats' ratios.

| | |
|---|---|
| date | {date} |
| machine | {machine} |
| load when it began | {load} |
| FedTailor's environment | {ours} |
| the peers' environment | {peers} |

Load: processes that wanted to run, on average over the minute before; much above 0 means that the machine was busy
with something else, and the numbers should not be trusted.

## Bars

{bars}
"""
QUICK = "\n**Tiny sizes (`--quick`): these numbers mean nothing, and the titles speak of the real sizes.**\n"
TAIL = """
## To repeat it

    export FEDTAILOR_DATA=...   # a folder with cifar10, fashion_mnist, ag_news and har
    make bench                  # everything, into docs/benchmarks.md; sets up the peers' environment, .venv-bench
    .venv/bin/python -m benchmarks S2 S4 --repeats 7 --out mine.md    # some scenarios
    .venv/bin/python -m benchmarks --quick --out quick.md             # tiny sizes, no peers: does it still work?

Raw results are in `runs/bench`. A run that was interrupted goes on where it stopped; results of other sources are
measured again, and `--fresh` forgets all. What is computed stands in files that all contenders read
(`benchmarks/work.py`); the contenders are the programs in `benchmarks/programs`, their networks are in
`benchmarks/networks.py`.

fluke-fl 0.8.1 is not among the peers: its modules import torchvision (`fluke/nets.py`, `fluke/data/datasets.py`), whose
wheels for Linux on the package index need the GPU libraries (`libcudart`, `libtorch_cuda`).
"""
PROBE = (
    "import importlib.metadata as m; "
    "print(', '.join(f'{p} {m.version(p)}' for p in ('torch', 'pfl', 'flwr', 'ray')))"
)


def write(
    path: Path,
    sections: Sequence[Section],
    skipped: Sequence[str],
    repeats: int,
    load: float,
    quick: bool,
) -> None:
    """One table a scenario, and what was to be reached."""
    bars = [b for s in sections for b in s.bars]
    text = HEAD.format(
        quick=QUICK if quick else "",
        repeats=repeats,
        date=datetime.date.today().isoformat(),
        machine=describe_machine(),
        load=f"{load:.2f}",
        ours=f"Python {platform.python_version()}, torch {version('torch')}, numpy {version('numpy')}",
        peers=describe_peers(),
        bars=table(("bar", "wanted", "measured", "met"), [_row(b) for b in bars]),
    )
    for s in sections:
        notes = [f"\n{_wrap(note)}" for note in s.notes]
        text += "\n".join(
            ["", f"## {s.title}", "", _wrap(s.text), "", table(s.head, s.rows), *notes, ""]
        )
    text += "".join(f"\n{line}\n" for line in skipped) + TAIL
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def _wrap(text: str) -> str:
    return textwrap.fill(text, 118, break_long_words=False, break_on_hyphens=False)


def _row(b: Bar) -> tuple[str, ...]:
    return b.text, b.wanted, b.measured, {True: "yes", False: "**no**", None: ""}[b.met]


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As Markdown."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def describe_machine() -> str:
    """Processor, cores and memory."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    return f"{names[0] if names else platform.machine()}, {cores} cores, {memory:.0f} GB, {platform.system()}"


def describe_peers() -> str:
    """Versions in the peers' environment."""
    python = PEERS / "python"
    if not python.exists():
        return "none"
    done = subprocess.run([str(python), "-c", PROBE], capture_output=True, text=True, check=False)
    return done.stdout.strip() or f"broken ({done.stderr.strip().splitlines()[-1]})"
