"""Clients spread over worker processes, one thread each; tensors travel through shared memory."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np

from fedtailor.core.errors import NoRoom, UserError, writing
from fedtailor.core.tree import Tree
from fedtailor.core.wire import decode, encode
from fedtailor.executors import Tick
from fedtailor.executors.riders import Carrier
from fedtailor.executors.shared_memory import Arena, Parcel, Reader, shared_folder
from fedtailor.executors.visit import Reply, Visit, reply_type
from fedtailor.executors.worker import pack
from fedtailor.executors.world import World
from fedtailor.storage.private_state import FileStore

AHEAD = 2  # visits a worker has in hand: one it works on, one waiting
_POOLS: dict[int, Pool] = {}  # by number of workers; a comparison starts its processes once


class Pool:
    """Worker processes that outlive a run."""

    def __init__(self, workers: int) -> None:
        self.folder = shared_folder()
        self.pipes: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for _ in range(workers):
            ours, theirs = socket.socketpair()
            command = [
                sys.executable,
                "-m",
                "fedtailor.executors.processes_worker",
                str(theirs.fileno()),
                str(self.folder),
            ]
            quiet = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
            self._processes.append(subprocess.Popen(command, pass_fds=[theirs.fileno()], env=quiet))
            theirs.close()
            self.pipes.append(Connection(ours.detach()))
        atexit.register(self.close)

    def alive(self) -> bool:
        """Whether all workers are."""
        return all(p.poll() is None for p in self._processes)

    def close(self) -> None:
        """End the workers and free the memory."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        for process in self._processes:
            process.kill()  # SIGTERM is not theirs to obey; what they have written is removed below
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.close)


def pool(workers: int) -> Pool:
    """The pool of so many workers, started if need be."""
    if workers in _POOLS and not _POOLS[workers].alive():
        _POOLS.pop(workers).close()
    if workers not in _POOLS:
        _POOLS[workers] = Pool(workers)
    return _POOLS[workers]


class Processes(Carrier):
    """Bitwise equal to Sequential, for any number of workers."""

    def __init__(self, world: World, workers: int, state: Path | None = None) -> None:
        super().__init__()
        self.world, self._pool = world, pool(workers)
        self._folder = Path(tempfile.mkdtemp(prefix="run-", dir=self._pool.folder))
        self.store = FileStore(state or self._folder / "state")
        self._arena, self._reader = Arena(self._folder / "down"), Reader()
        f, inputs, parcel = world.federation, self._folder / "x.npy", self._folder / "world"
        try:
            with writing(self._folder):
                np.save(
                    inputs, f.x.cpu().numpy()
                )  # every worker maps this file: one copy of the data for all
                parcel.write_bytes(pack(world))
        except UserError:
            self.close()
            raise
        for pipe in self._pool.pipes:
            pipe.send(("world", str(parcel), str(inputs), str(self.store.folder), sys.path))

    def call(
        self, name: str, downs: Mapping[int, Tree], t: int, call: int, tick: Tick
    ) -> dict[int, Reply]:
        """The replies by client, in client order."""
        return self.carry({k: Visit(name, t, call, down) for k, down in downs.items()}, tick)

    def notices(self) -> list[str]:
        """Nothing to tell."""
        return []

    def close(self) -> None:
        """Free the run's memory; the workers stay for the next one."""
        shutil.rmtree(self._folder, ignore_errors=True)

    # ---------------------------------------------------------------- visits and answers
    def exchange(
        self, bundles: dict[int, list[Visit]], done: Callable[[int], None]
    ) -> dict[int, list[Reply]]:
        """Deal the clients to the workers, the longest visits first, and wait for the answers."""
        self._arena.reset()
        sizes = [len(i) for i in self.world.federation.train]
        parcels = {
            k: [self._arena.write(encode(v.down)) for v in asked] for k, asked in bundles.items()
        }
        queue = sorted(bundles, key=lambda k: (not bundles[k][-1].before, sizes[k], -k))
        out, busy = dict[int, list[Reply]](), dict.fromkeys(self._pool.pipes, 0)

        def feed(pipe: Connection, depth: int) -> None:
            if queue and busy[pipe] < depth:
                k = queue.pop()
                asked = zip(bundles[k], parcels[k], strict=True)
                pipe.send(("visit", k, [(v.name, parcel, v.t, v.call) for v, parcel in asked]))
                busy[pipe] += 1

        try:
            for depth in range(
                1, AHEAD + 1
            ):  # one each, then a second each: no long visit waits behind another
                for pipe in self._pool.pipes:
                    feed(pipe, depth)
            while len(out) < len(bundles):
                for ready in wait(self._pool.pipes):
                    assert isinstance(ready, Connection)
                    k, answers = ready.recv()
                    if isinstance(answers, str):
                        raise NoRoom(answers)
                    out[k] = [self._read(v, *a) for v, a in zip(bundles[k], answers, strict=True)]
                    busy[ready] -= 1
                    feed(ready, AHEAD)
                    done(k)
        except (
            BaseException
        ) as error:  # an interrupted call leaves answers in the pipes: start afresh next time
            for workers, mine in list(_POOLS.items()):
                if mine is self._pool:
                    _POOLS.pop(workers).close()
            if isinstance(error, EOFError | ConnectionError):
                raise UserError(
                    "a worker process died, perhaps out of memory: fewer --workers need less"
                ) from None
            raise
        return out

    def _read(self, visit: Visit, n: int, parcel: Parcel | None, error: str) -> Reply:
        kind = reply_type(self.world.method, visit.name)
        return Reply(
            n, None if parcel is None else decode(kind, self._reader.read(parcel, copy=True)), error
        )
