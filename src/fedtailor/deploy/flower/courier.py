"""What runs in Flower's processes at a site instead of sent code: passes messages to the service.

Started by path (``python -P courier.py ARGS``), so that it imports neither torch nor the package.
Flower starts a new Python for every message, which takes seconds; here a fork of a process that
has imported Flower already does the same work. The app that came with the run is neither unpacked
nor loaded: a site runs its own code only.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import socket
from typing import Any

import numpy as np

RUNNER = "flwr.supernode.runtime.run_clientapp"
RECORD = "letter"  # name of the record that holds a message's bytes, on the wire
SMALL = 1 << 20  # bytes
LENGTH = 8  # bytes of a message's length on the socket
FORKS = multiprocessing.get_context("forkserver")


def make_client_app() -> Any:
    """A ClientApp that passes each message to the site's service, and sends back the answer."""
    from flwr.app import Context, Message
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def pass_on(message: Message, context: Context) -> Message:
        answer = ask_service(unwrap_message(message.content))
        return Message(wrap_message(answer), reply_to=message)

    return app


def wrap_message(data: bytes) -> Any:
    """The content of Flower's message: small data as one object, large ones cut into chunks."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, RecordDict

    if len(data) <= SMALL:
        return RecordDict({RECORD: ConfigRecord({"it": data})})
    return RecordDict(
        {RECORD: ArrayRecord({"it": Array(np.frombuffer(data, np.uint8))})}
    )


def unwrap_message(content: Any) -> bytes:
    """Our message in the content of Flower's."""
    if RECORD in content.config_records:
        return bytes(content.config_records[RECORD]["it"])
    return bytes(content.array_records[RECORD]["it"].numpy().tobytes())


def ask_service(data: bytes) -> bytes:
    """The answer of the site's service to a message."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(os.environ["FEDTAILOR_SOCKET"])
        send_message(connection, data)
        return receive_message(connection)


def send_message(connection: socket.socket, data: bytes) -> None:
    """Send a message behind its length."""
    connection.sendall(len(data).to_bytes(LENGTH, "little") + data)


def receive_message(connection: socket.socket) -> bytes:
    """Receive a message that ``send_message`` sent."""
    size = int.from_bytes(receive_bytes(connection, LENGTH), "little")
    return receive_bytes(connection, size)


def receive_bytes(connection: socket.socket, size: int) -> bytes:
    """Receive ``size`` bytes."""
    data = bytearray()
    while len(data) < size:
        chunk = connection.recv(min(size - len(data), 1 << 20))
        if not chunk:
            raise ConnectionError("the other side closed the connection")
        data += chunk
    return bytes(data)


def run_client_app(
    address: str,
    token: str,
    insecure: bool,
    certificates: bytes | None,
    parent: int | None,
) -> None:
    """Handle one message in a process of its own; the app is ours, whatever came with the run."""
    runner = importlib.import_module(RUNNER)
    for name in ("install_from_fab", "get_load_client_app_fn", "run_clientapp"):
        if not hasattr(runner, name):
            raise RuntimeError(
                f"this version of Flower loads apps in another way ({name} is gone)"
            )
    vars(runner).update(
        install_from_fab=lambda *args, **kwargs: None,
        get_load_client_app_fn=lambda **kwargs: lambda *args: make_client_app(),
    )
    runner.run_clientapp(
        runtime_api_address=address,
        token=token,
        insecure=insecure,
        certificates=certificates,
        parent_pid=parent,
    )


def launch_fork(_: Any, spec: Any) -> Any:
    """In place of ``SubprocessExecutor.launch``: a fork, and for messages to clients only."""
    from flwr.supercore.constant import TaskType
    from flwr.supercore.superexec.executor.types import LaunchResult
    from flwr.supercore.tls import validate_and_resolve_root_certificates

    if spec.task_type != TaskType.CLIENT_APP:
        return LaunchResult.failed(f"this site runs no {spec.task_type}")
    multiprocessing.active_children()  # joins the processes that are done
    certificates = validate_and_resolve_root_certificates(
        spec.root_certificates_path, spec.insecure
    )
    arguments = (
        spec.runtime_api_address,
        spec.token,
        spec.insecure,
        certificates,
        spec.parent_pid,
    )
    FORKS.Process(target=run_client_app, args=arguments).start()
    return LaunchResult.accepted()


def main() -> None:
    """Run Flower's own SuperExec, with another way to start an app."""
    from flwr.supercore.cli.flower_superexec import flower_superexec
    from flwr.supercore.superexec.executor.subprocess_executor import SubprocessExecutor

    FORKS.set_forkserver_preload([RUNNER, "flwr.clientapp"])
    SubprocessExecutor.launch = launch_fork  # type: ignore[method-assign, assignment]
    flower_superexec()


if __name__ == "__main__":
    main()
