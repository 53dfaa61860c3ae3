"""What runs in Flower's processes at a site instead of sent code: a courier between Flower and the resident.

Started by path (``python -P superexec.py ARGS``), so that it imports neither torch nor the package. Flower starts a new
Python for every message, which takes seconds; here a fork of a process that has imported Flower already does the same
work. The app that came with the run is neither unpacked nor loaded: a site runs its own code only.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import sys
from typing import Any

import numpy as np

RUNNER = "flwr.supernode.runtime.run_clientapp"
SMALL = 1 << 20  # bytes
FORKS = multiprocessing.get_context("forkserver")


def courier() -> Any:
    """A ClientApp that carries the letter in a message to the resident, and its answer back."""
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def carry(message: Message, context: Context) -> Message:
        return Message(wrap(ask(unwrap(message.content))), reply_to=message)

    return app


def wrap(letter: bytes) -> Any:
    """The content of a message: a small letter is one object for Flower, a large one is cut into chunks."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    if len(letter) <= SMALL:
        return RecordDict({"letter": ConfigRecord({"it": letter})})
    return RecordDict({"letter": ArrayRecord({"it": Array(np.frombuffer(letter, np.uint8))})})


def unwrap(content: Any) -> bytes:
    """The letter in a message."""
    if "letter" in content.config_records:
        return bytes(content.config_records["letter"]["it"])
    return bytes(content.array_records["letter"]["it"].numpy().tobytes())


def ask(letter: bytes) -> bytes:
    """The resident's answer to a letter."""
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(os.environ["FEDTAILOR_SOCKET"])
        line.sendall(len(letter).to_bytes(8, "little") + letter)
        size = int.from_bytes(receive(line, 8), "little")
        return receive(line, size)


def receive(line: socket.socket, size: int) -> bytes:
    """So many bytes."""
    data = bytearray()
    while len(data) < size:
        piece = line.recv(min(size - len(data), 1 << 20))
        if not piece:
            raise ConnectionError("the resident hung up")
        data += piece
    return bytes(data)


def serve_message(
    address: str, token: str, insecure: bool, certificates: bytes | None, parent: int | None
) -> None:
    """One message, in a process of its own; the app is ours, whatever came with the run."""
    runner = (
        sys.modules[RUNNER]
        if RUNNER in sys.modules
        else __import__(RUNNER, fromlist=["run_clientapp"])
    )
    for name in ("install_from_fab", "get_load_client_app_fn", "run_clientapp"):
        if not hasattr(runner, name):
            raise RuntimeError(f"this version of Flower loads apps in another way ({name} is gone)")
    vars(runner).update(
        install_from_fab=lambda *args, **kwargs: None,
        get_load_client_app_fn=lambda **kwargs: lambda *args: courier(),
    )
    runner.run_clientapp(
        runtime_api_address=address,
        token=token,
        insecure=insecure,
        certificates=certificates,
        parent_pid=parent,
    )


def launch(_: Any, spec: Any) -> Any:
    """In place of ``SubprocessExecutor.launch``: a fork, and for messages to clients only."""
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor.types import LaunchResult
    from flwr.supercore.tls import validate_and_resolve_root_certificates

    if spec.task_type != TaskType.CLIENT_APP:
        return LaunchResult.failed(f"this site runs no {spec.task_type}")
    multiprocessing.active_children()  # lets those that are done go
    certificates = validate_and_resolve_root_certificates(
        spec.root_certificates_path, spec.insecure
    )
    arguments = (spec.runtime_api_address, spec.token, spec.insecure, certificates, spec.parent_pid)
    FORKS.Process(target=serve_message, args=arguments).start()
    return LaunchResult.accepted()


def main() -> None:
    """Flower's own SuperExec, with another way to start an app."""
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor

    FORKS.set_forkserver_preload([RUNNER, "flwr.clientapp"])
    SubprocessExecutor.launch = launch  # type: ignore[method-assign, assignment]
    flower_superexec()


if __name__ == "__main__":
    main()
