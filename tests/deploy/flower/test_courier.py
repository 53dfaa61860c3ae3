"""Messages between Flower's process and the service, through a socket."""

import contextlib
import socket
import threading

import pytest

from fedtailor.deploy.flower.courier import ask_service
from fedtailor.deploy.flower.node_processes import answer_connection


@pytest.fixture
def listener(tmp_path, monkeypatch):
    """A socket in place of the service's."""
    path = str(tmp_path / "s")
    monkeypatch.setenv("FEDTAILOR_SOCKET", path)
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(path)
        made.listen()
        yield made


@pytest.mark.parametrize("size", [0, 1, 3_000_000])
def test_messages_pass_the_socket_whole(size, listener):
    message = bytes(i % 251 for i in range(1000)) * (size // 1000) + b"x" * (
        size % 1000
    )

    def serve():
        connection, _ = listener.accept()
        with connection:
            answer_connection(connection, lambda data: data[::-1])

    thread = threading.Thread(target=serve)
    thread.start()
    assert ask_service(message) == message[::-1]
    thread.join()


def test_a_service_that_dies_is_noticed(listener):
    thread = threading.Thread(target=lambda: listener.accept()[0].close())
    thread.start()
    with contextlib.suppress(BrokenPipeError), pytest.raises(ConnectionError):
        ask_service(b"hello")
    thread.join()
