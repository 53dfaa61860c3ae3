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
from collections.abc import Mapping, Sequence
from multiprocessing.connection import Connection, wait
from pathlib import Path

import numpy as np

from fedtailor.core.errors import NoRoom, UserError, writing
from fedtailor.core.wire import encode
from fedtailor.executors import Done, Executor
from fedtailor.executors.shared_memory import (
    Arena,
    Reader,
    SharedMessage,
    shared_folder,
)
from fedtailor.executors.visit import Reply, Visit, reply_type
from fedtailor.executors.worker import pack_world
from fedtailor.executors.world import World
from fedtailor.storage.private_state import FileStore

AHEAD = 2  # clients a worker has in hand: one it works on, one waiting
# by number of workers: a comparison starts its processes once
_POOLS: dict[int, Pool] = {}


class Pool:
    """Worker processes that outlive a run."""

    def __init__(self, workers: int) -> None:
        self.folder = shared_folder()
        self.pipes: list[Connection] = []
        self._processes: list[subprocess.Popen[bytes]] = []
        for _ in range(workers):
            self._start_worker()
        atexit.register(self.close)

    def _start_worker(self) -> None:
        ours, theirs = socket.socketpair()
        module = "fedtailor.executors.processes_worker"
        command = [sys.executable, "-m", module, str(theirs.fileno()), str(self.folder)]
        one_thread = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
        process = subprocess.Popen(command, pass_fds=[theirs.fileno()], env=one_thread)
        self._processes.append(process)
        theirs.close()
        self.pipes.append(Connection(ours.detach()))

    def alive(self) -> bool:
        """Whether all workers are."""
        return all(process.poll() is None for process in self._processes)

    def close(self) -> None:
        """End the workers and free the memory."""
        for pipe in self.pipes:
            with contextlib.suppress(OSError):
                pipe.close()
        for process in self._processes:
            process.kill()  # workers ignore SIGTERM; what they have written is removed below
            process.wait()
        shutil.rmtree(self.folder, ignore_errors=True)
        atexit.unregister(self.close)


def find_pool(workers: int) -> Pool:
    """The pool of so many workers, started if need be."""
    if workers in _POOLS and not _POOLS[workers].alive():
        _POOLS.pop(workers).close()
    if workers not in _POOLS:
        _POOLS[workers] = Pool(workers)
    return _POOLS[workers]


def drop_pool(pool: Pool) -> None:
    """End a pool whose pipes hold replies that nobody will read."""
    for workers, known in list(_POOLS.items()):
        if known is pool:
            _POOLS.pop(workers).close()


class Processes(Executor):
    """Bitwise equal to Sequential, for any number of workers."""

    late_evaluation = True

    def __init__(self, world: World, workers: int, state: Path | None = None) -> None:
        self.world = world
        self._pool = find_pool(workers)
        self._folder = Path(tempfile.mkdtemp(prefix="run-", dir=self._pool.folder))
        self._arena = Arena(self._folder / "down")
        self._reader = Reader()
        store = FileStore(state or self._folder / "state")
        self.store = store
        packed = self._folder / "world"
        # every worker maps this file: one copy of the data for all
        inputs = self._folder / "x.npy"
        try:
            with writing(self._folder):
                np.save(inputs, world.federation.x.cpu().numpy())
                packed.write_bytes(pack_world(world))
        except UserError:
            self.close()
            raise
        for pipe in self._pool.pipes:
            pipe.send(("world", str(packed), str(inputs), str(store.folder), sys.path))

    def close(self) -> None:
        """Free the run's memory; the workers stay for the next run."""
        shutil.rmtree(self._folder, ignore_errors=True)

    def run(
        self, visits: Mapping[int, Sequence[Visit]], done: Done
    ) -> dict[int, list[Reply]]:
        """Give the clients to the workers, the longest visits first, and wait for the replies."""
        try:
            replies = self._exchange(visits, done)
        except (
            BaseException
        ) as error:  # replies are left in the pipes: start new workers next time
            drop_pool(self._pool)
            if isinstance(error, EOFError | ConnectionError):
                raise UserError(
                    "a worker process died, perhaps out of memory: fewer --workers need less"
                ) from None
            raise
        return {k: replies[k] for k in sorted(replies)}

    def _exchange(
        self, visits: Mapping[int, Sequence[Visit]], done: Done
    ) -> dict[int, list[Reply]]:
        messages = self._write_messages(visits)
        queue = self._order_by_length(visits)
        busy = dict.fromkeys(self._pool.pipes, 0)

        def feed(pipe: Connection, depth: int) -> None:
            if queue and busy[pipe] < depth:
                k = queue.pop()
                pipe.send(("visit", k, messages[k]))
                busy[pipe] += 1

        # one client each, then a second one each: no long visit waits behind another
        for depth in range(1, AHEAD + 1):
            for pipe in self._pool.pipes:
                feed(pipe, depth)
        replies: dict[int, list[Reply]] = {}
        while len(replies) < len(visits):
            for ready in wait(self._pool.pipes):
                assert isinstance(ready, Connection)
                k, answers = ready.recv()
                if isinstance(answers, str):
                    raise NoRoom(answers)
                replies[k] = self._read_replies(visits[k], answers)
                busy[ready] -= 1
                feed(ready, AHEAD)
                done(k, replies[k])
        return replies

    def _write_messages(
        self, visits: Mapping[int, Sequence[Visit]]
    ) -> dict[int, list[tuple[Visit, SharedMessage]]]:
        """What every client is sent, written to shared memory."""
        self._arena.reset()
        messages: dict[int, list[tuple[Visit, SharedMessage]]] = {}
        for k, bundle in visits.items():
            messages[k] = []
            for visit in bundle:
                shared = self._arena.write(encode(visit.down))
                messages[k].append((visit._replace(down=None), shared))
        return messages

    def _order_by_length(self, visits: Mapping[int, Sequence[Visit]]) -> list[int]:
        """Clients by expected duration, the longest last."""
        sizes = [len(index) for index in self.world.federation.train]
        return sorted(visits, key=lambda k: (not visits[k][-1].before, sizes[k], -k))

    def _read_replies(
        self, visits: Sequence[Visit], messages: Sequence[SharedMessage]
    ) -> list[Reply]:
        replies = []
        for visit, message in zip(visits, messages, strict=True):
            flat = self._reader.read(message, copy=True)
            replies.append(
                Reply.decode(reply_type(self.world.method, visit.function), flat)
            )
        return replies
