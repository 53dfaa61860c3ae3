"""A site's doors: the socket on which the resident answers, and Flower's processes that bring the letters there."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import socket
import ssl
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from fedtailor.core.errors import UserError
from fedtailor.deploy.flower.courier import receive
from fedtailor.deploy.flower.superlink import QUIET

Say = Callable[[str], None]
HERE = Path(__file__).parent
CONNECTED = "SuperNode ID:"
PATIENCE = 75.0  # seconds: after a power cut a SuperLink takes the old connection for alive for up to a minute


@dataclass(frozen=True)
class Doors:
    """Where the letters come from."""

    superlink: str
    certificates: Path | None
    key: Path | None
    folder: Path  # of the site

    @property
    def log(self) -> Path:
        """What Flower's processes say."""
        return self.folder / "flower.log"

    def supernode(self, port: int) -> list[str]:
        """The command of the SuperNode."""
        secure = (
            ["--insecure"]
            if self.certificates is None
            else ["--root-certificates", str(self.certificates)]
        )
        key = [] if self.key is None else ["--auth-supernode-private-key", str(self.key)]
        return [
            *_python("supernode.py"),
            "--superlink",
            self.superlink,
            *secure,
            *key,
            "--isolation",
            "process",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]

    @staticmethod
    def superexec(port: int) -> list[str]:
        """The command of what hands messages over."""
        return [
            *_python("courier.py"),
            "--insecure",
            "--runtime-api-address",
            f"127.0.0.1:{port}",
            "--parent-pid",
            str(os.getpid()),
        ]


def _python(script: str) -> list[str]:
    return [
        sys.executable,
        "-P",
        str(HERE / script),
    ]  # -P: no module of this folder shadows another one


def state_folder(given: Path | None, name: str) -> Path:
    """Where a site's private state is kept; readable by its owner only."""
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    folder = (given or home / "fedtailor" / name).expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}") from None
    return folder


def keep_open(handle: Callable[[bytes], bytes], doors: Doors, say: Say) -> None:
    """Answer letters until stopped; Flower's processes are started again when they end."""
    with _alone(doors.folder), _socket() as (listener, path), _terminable():
        environment = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(doors.folder / "flower"),
            "FEDTAILOR_SOCKET": path,
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        }
        check_certificate(doors, say)
        children = _Children(doors, environment, say)
        try:
            while True:
                children.tend()
                with contextlib.suppress(TimeoutError):
                    line, _ = listener.accept()
                    with line:
                        line.settimeout(None)
                        _answer(line, handle)
        except KeyboardInterrupt:
            say("stopped")
        finally:
            children.end()


def check_certificate(doors: Doors, say: Say) -> None:
    """Refuse a SuperLink whose certificate is expired or of somebody else: Flower would try for ever."""
    if doors.certificates is None:
        return
    host, _, port = doors.superlink.rpartition(":")
    try:
        trust = ssl.create_default_context(cafile=str(doors.certificates))
        with socket.create_connection((host.strip("[]"), int(port)), 10) as line:
            trust.wrap_socket(line, server_hostname=host.strip("[]")).close()
    except ssl.SSLCertVerificationError as error:
        raise UserError(
            f"the certificate of the SuperLink at {doors.superlink} will not do: {error.verify_message}"
        ) from None
    except ssl.SSLError as error:
        raise UserError(
            f"no TLS with {doors.certificates} at {doors.superlink}: {error.reason or error}"
        ) from None
    except ValueError:
        raise UserError(f"--superlink {doors.superlink}: write it as HOST:PORT") from None
    except OSError:
        say(f"nobody answers at {doors.superlink} yet; waiting for the SuperLink")


def _answer(line: socket.socket, handle: Callable[[bytes], bytes]) -> None:
    with contextlib.suppress(ConnectionError):  # the courier has gone: the letter will come again
        answer = handle(receive(line, int.from_bytes(receive(line, 8), "little")))
        line.sendall(len(answer).to_bytes(8, "little") + answer)


class _Children:
    """The SuperNode and what hands its messages over."""

    def __init__(self, doors: Doors, environment: dict[str, str], say: Say) -> None:
        self._doors, self._environment, self._say = doors, environment, say
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connected, self._begun, self._again, self._told = False, time.monotonic(), 0.0, False
        self._mark = doors.folder / "connected"  # to which SuperLink this site has been connected

    def tend(self) -> None:
        """See that they run; stop with one line when the SuperLink does not want this site."""
        if self._processes and not self._connected and CONNECTED in self._said():
            self._connected, self._told = True, False
            self._mark.write_text(self._doors.superlink)
            self._say(f"connected to the SuperLink at {self._doors.superlink}")
        if all(p.poll() is None for p in self._processes) and self._processes:
            return
        if time.monotonic() < self._again:
            return
        if self._processes:
            self._explain()
            self.end()
        self._start()

    def _explain(self) -> None:
        said = self._said()
        if self._connected:
            self._connected, self._begun = False, time.monotonic()
            self._say("lost the connection to the SuperLink; trying again")
        why = next(
            (line.strip() for line in said.splitlines() if "[code:" in line or "rror:" in line), ""
        )
        known = self._mark.exists() and self._mark.read_text() == self._doors.superlink
        if not known or "Unable to parse" in said or time.monotonic() - self._begun > PATIENCE:
            raise UserError(
                f"the SuperLink at {self._doors.superlink} does not let this site in ({why or self._doors.log}): "
                "register its public key there, and check that the key has not been withdrawn"
            )
        if not self._told:
            self._told = True
            self._say(
                f"the SuperLink does not let this site in yet ({why or 'it does not say why'}); trying again"
            )

    def _said(self) -> str:
        with contextlib.suppress(OSError):
            return self._doors.log.read_text(errors="replace")
        return ""

    def _start(self) -> None:
        self._again = time.monotonic() + 2.0
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        with self._doors.log.open("wb") as log:
            for command in (self._doors.supernode(port), self._doors.superexec(port)):
                self._processes.append(
                    subprocess.Popen(
                        command,
                        env=self._environment,
                        stdout=log,
                        stderr=log,
                        stdin=subprocess.DEVNULL,
                    )
                )

    def end(self) -> None:
        """End them."""
        for process in self._processes:
            with contextlib.suppress(OSError):
                process.terminate()
        for process in self._processes:
            try:
                process.wait(10)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self._processes = []


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One site a folder."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"a site is running with the state in {folder}; give this one another --name"
            ) from None
        yield


@contextlib.contextmanager
def _socket() -> Iterator[tuple[socket.socket, str]]:
    """A socket that nobody else can open."""
    folder = tempfile.mkdtemp(prefix="fedtailor-")  # with mode 0700
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            path = f"{folder}/resident"
            listener.bind(path)
            listener.listen()
            listener.settimeout(0.5)
            yield listener, path
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _terminable() -> Iterator[None]:
    """SIGTERM stops a site as Ctrl-C does."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
