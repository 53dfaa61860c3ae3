"""A deployment on this machine: real flower-superlink and fedtailor node processes, the commands of docs/deploy.md."""

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
LIMIT = 240  # seconds, far more than anything here takes


class Step(NamedTuple):
    """A command of the walk-through."""

    place: str  # server, node-0, node-1
    lasting: bool
    command: str


def walk_through() -> tuple[list[Step], dict[str, str]]:
    """The commands of the document, and the files it tells to write."""
    steps, files = list[Step](), dict[str, str]()
    for kind, info, body in re.findall(
        r"^```(\w+) ([^\n]+)\n(.*?)^```", DOC.read_text(), re.M | re.S
    ):
        if kind == "toml":
            files[info] = body
        else:
            place, _, rest = info.partition(" ")
            steps += [
                Step(place, rest == "keeps running", line) for line in body.strip().split("\n")
            ]
    return steps, files


class Loopback:
    """Processes in one folder, on a free port; all end with it."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.processes = folder, dict[str, subprocess.Popen[bytes]]()
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        quiet = {
            "FLWR_TELEMETRY_ENABLED": "0",
            "FLWR_DISABLE_UPDATE_CHECK": "1",
            "OMP_NUM_THREADS": "1",
        }
        home = {
            "FLWR_HOME": str(folder / "flwr"),
            "XDG_DATA_HOME": str(folder / "home"),
            "COLUMNS": "200",
        }
        self.env = {**os.environ, **quiet, **home, "PATH": f"{BIN}{os.pathsep}{os.environ['PATH']}"}

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    def local(self, command: str) -> list[str]:
        """A command of the document as it is on this machine."""
        command = command.replace("server.example.org:8000", self.address).replace(
            "server.example.org", "127.0.0.1"
        )
        return shlex.split(
            command.replace("--host 0.0.0.0 --port 8000", f"--host 127.0.0.1 --port {self.port}")
        )

    def run(self, command: str, code: int = 0) -> str:
        """Run a command to its end; gives what it said. Those that need no Flower are run in this very process."""
        words = self.local(command)
        if words[:1] == ["fedtailor"] and words[1] in ("partition", "keys", "run") and not code:
            with contextlib.chdir(self.folder), contextlib.redirect_stdout(io.StringIO()) as said:
                app(words[1:], standalone_mode=False)
            return said.getvalue()
        done = subprocess.run(
            self.local(command),
            cwd=self.folder,
            env=self.env,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        assert done.returncode == code, (
            f"{command}\n{done.stdout[-3000:]}\n{done.stderr[-3000:]}\n{self.logs()}"
        )
        return done.stdout + done.stderr

    def start(self, name: str, command: str) -> subprocess.Popen[bytes]:
        """Start a command that keeps running; what it says is in NAME.log."""
        with (self.folder / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(
                self.local(command),
                cwd=self.folder,
                env=self.env,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        self.processes[name] = process
        return process

    def said(self, name: str) -> str:
        path = self.folder / f"{name}.log"
        return path.read_text(errors="replace") if path.exists() else ""

    def until(self, what: Callable[[], bool], why: str) -> None:
        """Wait for something."""
        end = time.monotonic() + LIMIT
        while not what():
            assert time.monotonic() < end, f"waited in vain for {why}\n{self.logs()}"
            time.sleep(0.05)

    def hears(self, name: str, text: str) -> None:
        """Wait until a process has said something."""
        self.until(lambda: text in self.said(name), f"'{text}' from {name}")

    def kill(self, name: str) -> None:
        """As a power cut or the kernel would."""
        process = self.processes.pop(name)
        process.send_signal(signal.SIGKILL)
        process.wait()

    def end(self, name: str) -> None:
        """Politely."""
        process = self.processes.pop(name)
        process.terminate()
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def logs(self) -> str:
        parts = [
            f"== {p.relative_to(self.folder)}\n{p.read_text(errors='replace')[-2500:]}"
            for p in sorted(self.folder.rglob("*.log"))
        ]
        return "\n".join(parts)

    def close(self) -> None:
        for name in list(self.processes)[::-1]:
            self.end(name)

    # ---------------------------------------------------------------- short ways
    def superlink(self) -> None:
        """The SuperLink of the document, with keys, ready."""
        steps, _ = walk_through()
        server = next(s.command for s in steps if s.command.startswith("flower-superlink"))
        if not (self.folder / "keys").exists():
            self.run("fedtailor keys keys --nodes 4 --host server.example.org")
        self.start("superlink", server)
        self.listening()

    def listening(self) -> None:
        def answers() -> bool:
            with socket.socket() as probe:
                return probe.connect_ex(("127.0.0.1", self.port)) == 0

        self.until(answers, "the SuperLink")

    def register(self, *nodes: int) -> None:
        keys = " ".join(f"keys/node-{i}.pub" for i in nodes)
        self.run(
            f"fedtailor register {keys} --superlink server.example.org:8000 --root-certificates keys/ca.pem"
        )

    def node(self, i: int, data: str, more: str = "") -> None:
        secure = f"--superlink server.example.org:8000 --root-certificates keys/ca.pem --key keys/node-{i}.key"
        self.start(f"node-{i}", f"fedtailor node --data {data} {secure} {more}")

    def federate(self, options: str, out: str, code: int = 0) -> str:
        return self.run(self.federating(options, out), code)

    @staticmethod
    def federating(options: str, out: str) -> str:
        return (
            f"fedtailor federate --superlink server.example.org:8000 --root-certificates keys/ca.pem {options} "
            f"--out {out}"
        )
