"""The processes of a site: the service's socket, and Flower's processes that bring messages."""

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
from fedtailor.deploy.flower.courier import receive_message, send_message
from fedtailor.deploy.flower.superlink import QUIET

Answer = Callable[[bytes], bytes]
Say = Callable[[str], None]

HERE = Path(__file__).parent
CONNECTED = "SuperNode ID:"  # in Flower's log once the SuperNode is connected
ACCEPT_TIMEOUT = 0.5  # seconds between two checks whether Flower's processes still run
RESTART_PAUSE = 2.0  # seconds between two starts of Flower's processes
# Seconds to try again: after a power cut a SuperLink believes for up to a minute that the old
# connection is alive, and refuses a second one.
RECONNECT_TIMEOUT = 75.0


@dataclass(frozen=True)
class NodeOptions:
    """How a site reaches its SuperLink."""

    superlink: str  # HOST:PORT
    certificates: Path | None
    key: Path | None
    folder: Path  # of the site's private state

    @property
    def log(self) -> Path:
        """The file with what Flower's processes print."""
        return self.folder / "flower.log"

    def supernode_command(self, port: int) -> list[str]:
        """The command of the SuperNode, which listens on this port of this machine."""
        command = [*python_command("supernode.py"), "--superlink", self.superlink]
        if self.certificates is None:
            command += ["--insecure"]
        else:
            command += ["--root-certificates", str(self.certificates)]
        if self.key is not None:
            command += ["--auth-supernode-private-key", str(self.key)]
        return [
            *command,
            "--isolation",
            "process",
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]

    @staticmethod
    def courier_command(port: int) -> list[str]:
        """The command of the process that passes the SuperNode's messages to the service."""
        address = f"127.0.0.1:{port}"
        command = [
            *python_command("courier.py"),
            "--insecure",
            "--runtime-api-address",
            address,
        ]
        return [*command, "--parent-pid", str(os.getpid())]


def python_command(script: str) -> list[str]:
    """The command that runs a file of this folder, whose other files shadow no module (-P)."""
    return [sys.executable, "-P", str(HERE / script)]


def make_state_folder(given: Path | None, name: str) -> Path:
    """The folder of a site's private state, readable by its owner only."""
    home = Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local/share")
    folder = (given or home / "fedtailor" / name).expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise UserError(f"{folder} cannot be made: {error.strerror}") from None
    return folder


def run_node(answer: Answer, options: NodeOptions, say: Say) -> None:
    """Answer messages until stopped; Flower's processes are started again when they end."""
    with lock_folder(options.folder), open_socket() as listener, stop_on_sigterm():
        environment = {
            **os.environ,
            **QUIET,
            "FLWR_HOME": str(options.folder / "flower"),
            "FEDTAILOR_SOCKET": listener.getsockname(),
            "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.05",
        }
        check_certificate(options, say)
        processes = FlowerProcesses(options, environment, say)
        try:
            while True:
                processes.keep_running()
                with contextlib.suppress(TimeoutError):
                    connection, _ = listener.accept()
                    with connection:
                        connection.settimeout(None)
                        answer_connection(connection, answer)
        except KeyboardInterrupt:
            say("stopped")
        finally:
            processes.stop()


def answer_connection(connection: socket.socket, answer: Answer) -> None:
    """Answer the message of one connection."""
    # the courier has gone: the message comes again
    with contextlib.suppress(ConnectionError):
        send_message(connection, answer(receive_message(connection)))


def check_certificate(options: NodeOptions, say: Say) -> None:
    """Refuse a SuperLink with an expired or foreign certificate: Flower would try for ever."""
    if options.certificates is None:
        return
    superlink = options.superlink
    host, _, port = superlink.rpartition(":")
    host = host.strip("[]")
    try:
        context = ssl.create_default_context(cafile=str(options.certificates))
        with socket.create_connection((host, int(port)), 10) as connection:
            context.wrap_socket(connection, server_hostname=host).close()
    except ssl.SSLCertVerificationError as error:
        reason = error.verify_message
        raise UserError(
            f"the certificate of the SuperLink at {superlink} will not do: {reason}"
        ) from None
    except ssl.SSLError as error:
        raise UserError(
            f"no TLS with {options.certificates} at {superlink}: {error.reason or error}"
        ) from None
    except ValueError:
        raise UserError(f"--superlink {superlink}: write it as HOST:PORT") from None
    except OSError:
        say(f"nobody answers at {superlink} yet; waiting for the SuperLink")


class FlowerProcesses:
    """The SuperNode, and the process that passes its messages to the service."""

    def __init__(
        self, options: NodeOptions, environment: dict[str, str], say: Say
    ) -> None:
        self._options = options
        self._environment = environment
        self._say = say
        self._processes: list[subprocess.Popen[bytes]] = []
        self._connected = False
        self._trying_since = time.monotonic()
        self._next_start = 0.0  # not before this time
        self._warned = False  # that the SuperLink does not let this site in yet
        # which it was connected to before
        self._last_superlink = options.folder / "connected"

    def keep_running(self) -> None:
        """Start the processes, again if one has ended.

        Raises UserError when the SuperLink does not let this site in.
        """
        if self._processes:
            self._notice_connection()
            if all(process.poll() is None for process in self._processes):
                return
        if time.monotonic() < self._next_start:
            return
        if self._processes:
            self._explain_end()
            self.stop()
        self._start()

    def stop(self) -> None:
        """End the processes."""
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

    def _start(self) -> None:
        self._next_start = time.monotonic() + RESTART_PAUSE
        port = find_free_port()
        with self._options.log.open("wb") as log:
            for command in (
                self._options.supernode_command(port),
                self._options.courier_command(port),
            ):
                process = subprocess.Popen(
                    command,
                    env=self._environment,
                    stdout=log,
                    stderr=log,
                    stdin=subprocess.DEVNULL,
                )
                self._processes.append(process)

    def _notice_connection(self) -> None:
        if self._connected or CONNECTED not in self._read_log():
            return
        superlink = self._options.superlink
        self._connected = True
        self._warned = False
        self._last_superlink.write_text(superlink)
        self._say(f"connected to the SuperLink at {superlink}")

    def _explain_end(self) -> None:
        """Say why the processes ended; raise UserError where trying again is of no use."""
        log = self._read_log()
        if self._connected:
            self._connected = False
            self._trying_since = time.monotonic()
            self._say("lost the connection to the SuperLink; trying again")
        reason = find_error_line(log)
        waited = time.monotonic() - self._trying_since
        if (
            not self._was_connected_before()
            or "Unable to parse" in log
            or waited > RECONNECT_TIMEOUT
        ):
            superlink = self._options.superlink
            raise UserError(
                f"the SuperLink at {superlink} does not let this site in "
                f"({reason or self._options.log}): register its public key there, "
                "and check that the key has not been withdrawn"
            )
        if not self._warned:
            self._warned = True
            why = reason or "it does not say why"
            self._say(
                f"the SuperLink does not let this site in yet ({why}); trying again"
            )

    def _was_connected_before(self) -> bool:
        if not self._last_superlink.exists():
            return False
        return self._last_superlink.read_text() == self._options.superlink

    def _read_log(self) -> str:
        try:
            return self._options.log.read_text(errors="replace")
        except OSError:
            return ""


def find_error_line(log: str) -> str:
    """The first line of Flower's log that tells of an error, or nothing."""
    for line in log.splitlines():
        if "[code:" in line or "rror:" in line:
            return line.strip()
    return ""


def find_free_port() -> int:
    """A port of this machine that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


@contextlib.contextmanager
def lock_folder(folder: Path) -> Iterator[None]:
    """Refuse a second site in the same folder."""
    with (folder / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise UserError(
                f"a site is running with the state in {folder}; give this one another --name"
            ) from None
        yield


@contextlib.contextmanager
def open_socket() -> Iterator[socket.socket]:
    """A socket that no other user can open."""
    folder = tempfile.mkdtemp(prefix="fedtailor-")  # with mode 0700
    try:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(f"{folder}/service")
            listener.listen()
            listener.settimeout(ACCEPT_TIMEOUT)
            yield listener
    finally:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def stop_on_sigterm() -> Iterator[None]:
    """Let SIGTERM stop a site as Ctrl-C does."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
