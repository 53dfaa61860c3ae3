"""A deployment on this machine: real processes, started by the commands of docs/deploy.md."""

from __future__ import annotations

import contextlib
import io
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from fedtailor.cli.main import app

DOC = Path(__file__).parents[2] / "docs" / "deploy.md"
BIN = Path(sys.executable).parent
TIMEOUT = 240  # seconds, far more than anything here takes
IN_PROCESS = ("partition", "keys", "run")  # commands that need no process of their own
SECURE = "--superlink server.example.org:8000 --root-certificates keys/ca.pem"


class Step(NamedTuple):
    """A command of the walk-through."""

    place: str  # server, node-0, node-1
    keeps_running: bool
    command: str


def read_walk_through() -> tuple[list[Step], dict[str, str]]:
    """The commands of the document, and the files it tells to write."""
    steps: list[Step] = []
    files: dict[str, str] = {}
    blocks = re.findall(r"^```(\w+) ([^\n]+)\n(.*?)^```", DOC.read_text(), re.M | re.S)
    for kind, info, body in blocks:
        if kind == "toml":
            files[info] = body
            continue
        place, _, rest = info.partition(" ")
        for line in body.strip().split("\n"):
            steps.append(Step(place, rest == "keeps running", line))
    return steps, files


class RealSuperLink:
    """The processes of a deployment in one folder, on a free port; all end with ``close``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self.environment = {
            **os.environ,
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "FLWR_HOME": str(folder / "flwr"),
            "XDG_DATA_HOME": str(folder / "home"),
            "COLUMNS": "200",
            "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}",
        }

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    # ---------------------------------------------------------------- commands
    def localise(self, command: str) -> list[str]:
        """A command of the document as it is on this machine."""
        command = command.replace("server.example.org:8000", self.address)
        command = command.replace("server.example.org", "127.0.0.1")
        command = command.replace(
            "--host 0.0.0.0 --port 8000", f"--host 127.0.0.1 --port {self.port}"
        )
        return shlex.split(command)

    def run(self, command: str, code: int = 0) -> str:
        """Run a command to its end; returns what it printed."""
        words = self.localise(command)
        if words[0] == "fedtailor" and words[1] in IN_PROCESS and not code:
            with (
                contextlib.chdir(self.folder),
                contextlib.redirect_stdout(io.StringIO()) as out,
            ):
                app(words[1:], standalone_mode=False)
            return out.getvalue()
        done = subprocess.run(
            words,
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=TIMEOUT,
            check=False,
        )
        assert done.returncode == code, (
            f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{self.read_all_logs()}"
        )
        return done.stdout + done.stderr

    def start(self, name: str, command: str) -> subprocess.Popen[bytes]:
        """Start a command that keeps running; what it prints is in NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self.localise(command),
                cwd=self.folder,
                env=self.environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def kill(self, name: str) -> None:
        """End a process as a power cut or the kernel would."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def stop(self, name: str) -> None:
        """Ask a process to end."""
        process = self.processes.pop(name)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def close(self) -> None:
        """Stop all processes, the last one first."""
        for name in list(self.processes)[::-1]:
            self.stop(name)

    # ---------------------------------------------------------------- waiting
    def read_log(self, name: str) -> str:
        """What a process has printed so far."""
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def read_all_logs(self) -> str:
        """The ends of all logs, for the message of a failed test."""
        logs = []
        for path in sorted(self.folder.rglob("*.log")):
            text = path.read_text(errors="replace")[-2500:]
            logs.append(f"== {path.relative_to(self.folder)}\n{text}")
        return "\n".join(logs)

    def wait_until(self, condition: Callable[[], bool], what: str) -> None:
        """Wait for something that must happen."""
        end = time.monotonic() + TIMEOUT
        while not condition():
            assert time.monotonic() < end, (
                f"waited in vain for {what}\n{self.read_all_logs()}"
            )
            time.sleep(0.05)

    def wait_for_text(self, name: str, text: str) -> None:
        """Wait until a process has printed something."""
        self.wait_until(lambda: text in self.read_log(name), f"'{text}' from {name}")

    def wait_for_end(self, name: str, code: int = 0) -> None:
        """Wait until a process has ended, with this code."""
        process = self.processes[name]
        self.wait_until(lambda: process.poll() is not None, f"the end of {name}")
        assert process.returncode == code, self.read_all_logs()
        del self.processes[name]

    def wait_until_listening(self) -> None:
        """Wait until the SuperLink accepts connections."""

        def accepts() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        self.wait_until(accepts, "the SuperLink")

    # ---------------------------------------------------------------- the usual commands
    def start_superlink(self) -> None:
        """Start the SuperLink of the document, with keys, and wait until it is ready."""
        steps, _ = read_walk_through()
        commands = [step.command for step in steps]
        command = next(c for c in commands if c.startswith("flower-superlink"))
        if not (self.folder / "keys").exists():
            self.run("fedtailor keys keys --nodes 4 --host server.example.org")
        self.start("superlink", command)
        self.wait_until_listening()

    def register(self, *nodes: int) -> None:
        """Let the nodes with these numbers connect."""
        keys = " ".join(f"keys/node-{i}.pub" for i in nodes)
        self.run(f"fedtailor register {keys} {SECURE}")

    def start_node(self, i: int, data: str, more: str = "") -> None:
        """Start node i."""
        command = (
            f"fedtailor node --data {data} {SECURE} --key keys/node-{i}.key {more}"
        )
        self.start(f"node-{i}", command)

    def federate(self, options: str, out: str, code: int = 0) -> str:
        """Run an experiment on the sites to its end."""
        return self.run(self.federate_command(options, out), code)

    @staticmethod
    def federate_command(options: str, out: str) -> str:
        """The command that runs an experiment on the sites."""
        return f"fedtailor federate {SECURE} {options} --out {out}"
