"""A worker process: holds one network and visits the clients it is told to.

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

import numpy as np
import torch

from fedtailor.core.errors import NoRoom
from fedtailor.core.torch_settings import apply_worker_settings
from fedtailor.executors.shared_memory import Arena, Reader
from fedtailor.executors.worker import serve, settle
from fedtailor.storage.private_state import FileStore


def work(pipe: Connection, folder: Path) -> None:
    """Serve until the pipe closes."""
    reader, site, made = Reader(), None, 0
    arenas = [
        Arena(folder / f"up-{os.getpid()}-{i}") for i in range(2)
    ]  # one is read while the other is written
    while True:
        message = pipe.recv()
        if message[0] == "world":
            sys.path[:] = message[4]  # what the parent can import, its workers can
            x = torch.from_numpy(np.load(message[2], mmap_mode="c"))
            site, reader = (
                settle(Path(message[1]).read_bytes(), x, FileStore(Path(message[3]))),
                Reader(),
            )
            continue
        _, k, asked = message
        assert site is not None
        arena = arenas[made % 2]
        made += 1
        arena.reset()
        answers = []
        try:
            for name, parcel, t, call in asked:
                n, up, error = serve(site, name, k, reader.read(parcel, copy=False), t, call)
                answers.append((n, None if up is None else arena.write(up), error))
                arena.forget()
        except NoRoom as full:
            pipe.send((k, str(full)))
        else:
            pipe.send((k, answers))


def main() -> None:
    """Entry of the process."""
    for number in (
        signal.SIGINT,
        signal.SIGTERM,
    ):  # Ctrl-C, timeout and batch systems signal a whole group
        signal.signal(
            number, signal.SIG_IGN
        )  # the parent finishes its round, for which it needs its workers
    apply_worker_settings()
    parent, folder = os.getppid(), Path(sys.argv[2])
    try:
        work(Connection(int(sys.argv[1])), folder)
    except (EOFError, OSError) as error:
        if os.getppid() == parent and not isinstance(error, EOFError | ConnectionError):
            raise
    shutil.rmtree(
        folder, ignore_errors=True
    )  # a parent that was killed could not, and the memory would stay taken


if __name__ == "__main__":
    main()
