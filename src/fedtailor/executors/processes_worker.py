"""A worker process: holds one network and makes the visits it is sent.

Started as a program of its own (``python -m fedtailor.executors.processes_worker FD FOLDER``), so
that it shares no threads or locks with its parent and never runs the user's script again.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import torch

from fedtailor.core.errors import NoRoom
from fedtailor.core.torch_settings import apply_worker_settings
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.shared_memory import Arena, Reader, SharedMessage
from fedtailor.executors.visit import Visit
from fedtailor.executors.worker import make_visit, unpack_world
from fedtailor.storage.private_state import FileStore


class Worker:
    """Serves one parent process."""

    def __init__(self, folder: Path) -> None:
        self._runner: ClientRunner | None = None
        self._reader = Reader()
        # two: the parent reads one while the other is written
        self._arenas = [Arena(folder / f"up-{os.getpid()}-{i}") for i in range(2)]
        self._served = 0

    def open_world(self, world: str, inputs: str, states: str, path: list[str]) -> None:
        """Get ready for a run; the arguments are files, a folder, and the parent's import path."""
        sys.path[:] = path
        x = torch.from_numpy(np.load(inputs, mmap_mode="c"))
        self._runner = unpack_world(
            Path(world).read_bytes(), x, FileStore(Path(states))
        )
        self._reader = Reader()

    def serve(
        self, k: int, visits: list[tuple[Visit, SharedMessage]]
    ) -> list[SharedMessage] | str:
        """Visit client k; gives the replies, or why the machine has no room for them."""
        assert self._runner is not None
        arena = self._arenas[self._served % 2]
        self._served += 1
        arena.reset()
        replies = []
        try:
            for visit, message in visits:
                down = self._reader.read(message, copy=False)
                reply = make_visit(self._runner, k, visit, down)
                replies.append(arena.write(reply.encode()))
                arena.forget()
        except NoRoom as full:
            return str(full)
        return replies


def work(pipe: Connection, folder: Path) -> None:
    """Serve until the pipe closes."""
    worker = Worker(folder)
    while True:
        kind, *arguments = pipe.recv()
        if kind == "world":
            worker.open_world(*arguments)
        else:
            k: int = arguments[0]
            visits: list[Any] = arguments[1]
            pipe.send((k, worker.serve(k, visits)))


def main() -> None:
    """Entry of the process."""
    # Ctrl-C, timeout and batch systems signal a whole group of processes; the parent finishes its
    # round first, and needs its workers for that.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    apply_worker_settings()
    parent = os.getppid()
    folder = Path(sys.argv[2])
    try:
        work(Connection(int(sys.argv[1])), folder)
    except (EOFError, OSError) as error:
        has_parent = os.getppid() == parent
        if has_parent and not isinstance(error, EOFError | ConnectionError):
            raise
    # a parent that was killed could not remove it, and the memory would stay taken
    shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
