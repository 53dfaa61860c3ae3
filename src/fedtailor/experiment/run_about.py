"""Where a run's results come from: ``about.json`` says version, command, machine and times."""

from __future__ import annotations

import json
import os
import platform
import shlex
import sys
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from fedtailor._version import __version__
from fedtailor.storage.files import write_bytes

ABOUT = "about.json"
CPU_INFO = Path("/proc/cpuinfo")

Session = dict[str, Any]  # from one start of a run to its end or interruption


def read_sessions(folder: Path) -> list[Session]:
    """Every start of a run, the first one first."""
    try:
        found: list[Session] = json.loads((folder / ABOUT).read_text())["sessions"]
    except (OSError, ValueError, KeyError):
        return []
    return found


def begin_session(folder: Path, resume: bool) -> None:
    """Write down that a run begins, or goes on."""
    session = {
        "version": __version__,
        "command": describe_command(),
        "machine": describe_machine(),
        "started": now(),
        "ended": None,
        "how": "running",
    }
    earlier = read_sessions(folder) if resume else []
    write_sessions(folder, [*earlier, session])


def end_session(folder: Path, how: str) -> None:
    """Write down that it is over: finished, or stopped."""
    sessions = read_sessions(folder)
    if sessions and sessions[-1]["how"] == "running":
        sessions[-1] |= {"ended": now(), "how": how}
        write_sessions(folder, sessions)


def write_sessions(folder: Path, sessions: list[Session]) -> None:
    """Write the file whole."""
    text = json.dumps({"sessions": sessions}, indent=1)
    write_bytes(folder / ABOUT, text.encode())


def describe_command() -> str:
    """What was typed, or the program that called."""
    program, *words = sys.argv or [""]
    name = Path(program).name
    if name in ("fedtailor", "__main__.py"):
        return shlex.join(["fedtailor", *words])
    return shlex.join(["python", program, *words]) if program else "python"


def describe_machine() -> dict[str, Any]:
    """What the run computes on."""
    return {
        "host": platform.node(),
        "system": platform.platform(),
        "processor": name_processor(),
        "cores": os.cpu_count(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def name_processor() -> str:
    """The model of the processor, as far as the system tells it."""
    try:
        lines = CPU_INFO.read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.processor() or platform.machine()


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
