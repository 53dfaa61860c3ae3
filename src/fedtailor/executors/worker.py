"""A worker process: holds one network and visits the clients it is told to.

Started as a program of its own (``python -m fedtailor.executors.worker FD FOLDER``), so that it shares no threads or
locks with its parent and never runs the user's script again.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
import torch

from fedtailor.executors.arena import Arena, Parcel, Reader
from fedtailor.executors.sequential import attempt
from fedtailor.executors.site import Site, World
from fedtailor.store import FileStore
from fedtailor.wire import call_types, decode, encode


def down_type(world: World, name: str) -> Any:
    """The declared type of what a visit is sent."""
    if name == "@global":
        return dict[str, torch.Tensor]
    return call_types(world.method, "local" if name.startswith("@") else name)[0]


def work(pipe: Connection, folder: Path) -> None:
    """Serve until the pipe closes."""
    reader, site, made = Reader(), None, 0
    arenas = [Arena(folder / f"up-{os.getpid()}-{i}") for i in range(2)]  # one is read while the other is written
    while True:
        message = pipe.recv()
        if message[0] == "world":
            sys.path[:] = message[4]  # what the parent can import, its workers can
            world: World = cloudpickle.loads(Path(message[1]).read_bytes())
            torch.set_default_dtype(world.dtype)
            x = torch.from_numpy(np.load(message[2], mmap_mode="c"))
            world = replace(world, federation=replace(world.federation, x=x))
            site, reader = Site(world, FileStore(Path(message[3]))), Reader()
            continue
        _, name, k, parcel, t, call = message
        assert site is not None
        down = decode(down_type(site.world, name), reader.read(parcel, copy=False))
        reply = attempt(site, name, k, down, t, call)
        arena = arenas[made % 2]
        made += 1
        arena.reset()
        up: Parcel | None = None if reply.error else arena.write(encode(reply.up))
        pipe.send((k, reply.n, up, reply.error))


def main() -> None:
    """Entry of the process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's to handle
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    with contextlib.suppress(EOFError, BrokenPipeError, ConnectionResetError):  # the parent has gone
        work(Connection(int(sys.argv[1])), Path(sys.argv[2]))


if __name__ == "__main__":
    main()
