"""Writes what was measured as a document for people."""

from __future__ import annotations

import datetime
import os
import platform
import subprocess
import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from benchmarks.harness.job_runner import PEERS
from benchmarks.harness.measurements import Section, Target

WIDTH = 100  # of the document's lines
HEAD = """# Benchmarks
{quick}
Written by `make bench`, which measures everything on one machine in one run. Every number is a
median of {repeats} repeats (in brackets the least and the largest), where a repeat is the median of
its timed rounds after a warm-up; the contenders of a scenario take turns, first repeat of all,
second repeat of all, and so on. Ratios are medians of the repeats' ratios.

| | |
|---|---|
| date | {date} |
| machine | {machine} |
| load when it began | {load:.2f} |
| FedTailor's environment | {ours} |
| the peers' environment | {peers} |

Load: processes that wanted to run, on average over the minute before; much above 0 means that the
machine was busy with something else, and the numbers should not be trusted.

## Targets

{targets}
"""
QUICK = """
**Tiny sizes (`--quick`): these numbers mean nothing, and the titles speak of the real sizes.**
"""
TAIL = """
## To repeat it

    export FEDTAILOR_DATA=...   # a folder with cifar10, fashion_mnist, ag_news and har
    make bench                  # everything, into docs/benchmarks.md; sets up .venv-bench for peers
    .venv/bin/python -m benchmarks S2 S4 --repeats 7 --out mine.md    # some scenarios
    .venv/bin/python -m benchmarks --quick --out quick.md    # tiny, no peers: does it still work?

Raw results are in `runs/bench`. A run that was interrupted goes on where it stopped; results of
other sources are measured again, and `--fresh` forgets all. What is computed stands in files that
all contenders read (`benchmarks/work_file.py`); the contenders are the programs in
`benchmarks/programs`, their networks are in `benchmarks/networks.py`.

fluke-fl 0.8.1 is not among the peers: its modules import torchvision (`fluke/nets.py`,
`fluke/data/datasets.py`), whose wheels for Linux on the package index need the GPU libraries
(`libcudart`, `libtorch_cuda`).
"""
PRINT_PEERS = (
    "import importlib.metadata as m; "
    "print(', '.join(f'{p} {m.version(p)}' for p in ('torch', 'pfl', 'flwr', 'ray')))"
)
MET = {True: "yes", False: "**no**", None: ""}


@dataclass(frozen=True)
class Session:
    """How one run of the benchmarks measured."""

    repeats: int
    load: float  # average load of the machine when it began
    quick: bool


def write_document(
    path: Path, sections: Sequence[Section], left_out: Sequence[str], session: Session
) -> None:
    """Write the targets, a section for every scenario, and a line for each one left out."""
    text = write_head(sections, session)
    for section in sections:
        text += write_section(section)
    for line in left_out:
        text += f"\n{line}\n"
    text += TAIL
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


def write_head(sections: Sequence[Section], session: Session) -> str:
    """How and where it was measured, and the targets of all scenarios."""
    targets: list[Target] = []
    for section in sections:
        targets += section.targets
    rows = [
        (target.text, target.wanted, target.measured, MET[target.met])
        for target in targets
    ]
    python = f"Python {platform.python_version()}"
    packages = f"torch {version('torch')}, numpy {version('numpy')}"
    return HEAD.format(
        quick=QUICK if session.quick else "",
        repeats=session.repeats,
        date=datetime.date.today().isoformat(),
        machine=describe_machine(),
        load=session.load,
        ours=f"{python}, {packages}",
        peers=describe_peers(),
        targets=write_table(("target", "wanted", "measured", "met"), rows),
    )


def write_section(section: Section) -> str:
    """A heading, a text, a table, and notes."""
    blocks = [
        f"## {section.title}",
        wrap(section.text),
        write_table(section.header, section.rows),
        *(wrap(note) for note in section.notes),
    ]
    return "\n" + "\n\n".join(blocks) + "\n"


def write_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table in Markdown; all columns but the first are aligned to the right."""
    rule = ["---", *["---:"] * (len(header) - 1)]
    lines = [header, rule, *rows]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in lines)


def wrap(text: str) -> str:
    """A paragraph in lines of the document's width."""
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)


def describe_machine() -> str:
    """Processor, cores and memory."""
    processor = find_processor() or platform.machine()
    cores = len(os.sched_getaffinity(0))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return f"{processor}, {cores} cores, {memory:.0f} GB, {platform.system()}"


def find_processor() -> str:
    """The processor's name, where the system tells it."""
    info = Path("/proc/cpuinfo")
    if not info.exists():
        return ""
    for line in info.read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return ""


def describe_peers() -> str:
    """Versions in the peers' environment."""
    python = PEERS / "python"
    if not python.exists():
        return "none"
    command = [str(python), "-c", PRINT_PEERS]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.stdout.strip():
        return done.stdout.strip()
    return f"broken ({done.stderr.strip().splitlines()[-1]})"
