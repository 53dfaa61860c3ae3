"""Clients spread over a ray cluster, on machines that share no disk.

The inputs go into ray's object store once. Private states stay with this process: a
visit carries its client's state to the worker and the new state back, so a visit whose
worker died is simply repeated.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from fedtailor._version import __version__
from fedtailor.core.errors import UserError
from fedtailor.core.torch_settings import apply_worker_settings
from fedtailor.core.wire import Flat, encode, split
from fedtailor.executors import Done, Executor
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.ray_cluster import connect, faults, last_line, ray
from fedtailor.executors.visit import Reply, Visit, reply_type
from fedtailor.executors.worker import make_visit, pack_world, unpack_world
from fedtailor.executors.world import World
from fedtailor.storage.files import dump_flat, parse_flat
from fedtailor.storage.private_state import FileStore, MemoryStore, Store

AHEAD = 2  # clients a worker has in hand: one it works on, one waiting
MAX_DEATHS = 3  # workers that may die of one client
PATIENCE = 120  # seconds without any worker at all
STARTING = -1  # in place of a client's id: the worker is being set up
DEATHS = (faults.RayActorError, faults.OutOfMemoryError, faults.WorkerCrashedError)

# visit, reference to the tensors it sends, plain values
Message = list[tuple[Visit, Any, Flat]]


class Answer(NamedTuple):
    """What the visits to a client bring back, as bytes."""

    replies: list[bytes]
    state: bytes | None  # the client's private state, if it changed


class Worker:
    """Lives in a process of the cluster: holds one network and makes the visits it is sent."""

    def __init__(self) -> None:
        self._runner: ClientRunner | None = None

    def start(self, packed: bytes, x: NDArray[Any], path: list[str]) -> tuple[str, str]:
        """Get ready for a run; gives the machine's id and the versions installed there."""
        # import what the driver can import
        sys.path += [p for p in path if p not in sys.path]
        apply_worker_settings()
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="The given NumPy array is not writable"
            )
            inputs = torch.from_numpy(x)
        self._runner = unpack_world(packed, inputs, MemoryStore())
        return ray.get_runtime_context().get_node_id(), describe_versions()

    def visit(self, k: int, message: Message, state: bytes | None) -> Answer:
        """Visit client k, whose private state comes along."""
        assert self._runner is not None
        self._runner.store = MemoryStore()
        before = (
            None if state is None else parse_flat(state, f"the state of client {k}")
        )
        if before is not None:
            self._runner.store.put(k, before)
        replies = []
        for visit, reference, plain in message:
            data: Any = ray.get(reference)
            tensors = parse_flat(data, f"what client {k} is sent")
            reply = make_visit(self._runner, k, visit, {**tensors, **plain})
            replies.append(dump_flat(reply.encode()))
        after = self._runner.store.get(k)
        changed = after is not None and after is not before
        return Answer(replies, dump_flat(after) if after and changed else None)


class Ray(Executor):
    """Bitwise equal to Sequential, for any number of workers and machines."""

    def __init__(
        self,
        world: World,
        address: str,
        workers: int | None = None,
        state: Path | None = None,
    ) -> None:
        if world.device != "cpu":
            raise UserError(
                f"executor=ray runs on the cluster's cores; for device={world.device} choose vmap"
            )
        cores = connect(address, workers)
        self.world = world
        self.store: Store = FileStore(state) if state else MemoryStore()
        self._packed = ray.put(pack_world(world))
        self._x = ray.put(world.federation.x.numpy())
        self._machines: dict[Any, str] = {}  # worker that is ready -> its machine
        # promised result -> worker and client, in order of sending
        self._under_way: dict[Any, tuple[Any, int]] = {}
        self._deaths: Counter[int] = Counter()
        self._notices: list[str] = []
        self._announced = 0  # workers the user knows of
        self._wanted = workers or cores
        for _ in range(self._wanted):
            self._hire()

    def run(
        self, visits: Mapping[int, Sequence[Visit]], done: Done
    ) -> dict[int, list[Reply]]:
        """Make every client's visits; the largest clients begin first."""
        sizes = [len(index) for index in self.world.federation.train]
        queue = sorted(visits, key=lambda k: (sizes[k], -k))
        messages = self._put_messages(visits)
        replies: dict[int, list[Reply]] = {}
        self._deaths.clear()
        try:
            while len(replies) < len(visits):
                self._feed(queue, messages)
                k, answer = self._next(queue)
                if answer is not None:
                    replies[k] = self._read(k, visits[k], answer)
                    done(k, replies[k])
        except (
            BaseException
        ) as error:  # visits are still under way: nobody waits for them
            self.close()
            if isinstance(error, faults.RayError):
                raise UserError(f"ray: {last_line(error)}") from None
            raise
        return {k: replies[k] for k in sorted(replies)}

    def notices(self) -> list[str]:
        """Where the workers are, and which of them died."""
        notices = self._notices
        self._notices = []
        ready = len(self._machines)
        machines = len(set(self._machines.values()))
        if ready != self._announced and (not self._announced or ready == self._wanted):
            self._announced = ready
            notices.append(
                f"ray: {ready} of {self._wanted} workers are up, on {machines} machine(s)"
            )
        return notices

    def close(self) -> None:
        """Give the workers' cores back to the cluster; the connection stays for the next run."""
        workers = {*self._machines, *(worker for worker, _ in self._under_way.values())}
        self._machines.clear()
        self._under_way.clear()
        for worker in workers:
            _kill(worker)

    # ---------------------------------------------------------------- messages
    def _put_messages(
        self, visits: Mapping[int, Sequence[Visit]]
    ) -> dict[int, Message]:
        """What clients are sent, in the object store; what many are sent is stored once."""
        stored: dict[tuple[tuple[str, int], ...], Any] = {}
        messages: dict[int, Message] = {}
        for k, bundle in visits.items():
            messages[k] = []
            for visit in bundle:
                tensors, plain = split(encode(visit.down))
                key = tuple((name, id(x)) for name, x in tensors.items())
                if key not in stored:
                    stored[key] = ray.put(dump_flat(tensors))
                messages[k].append((visit._replace(down=None), stored[key], plain))
        return messages

    def _read(self, k: int, visits: Sequence[Visit], answer: Answer) -> list[Reply]:
        """The replies of client k; its new private state goes into the store."""
        if answer.state is not None:
            self.store.put(k, parse_flat(answer.state, f"the state of client {k}"))
        replies = []
        for visit, data in zip(visits, answer.replies, strict=True):
            flat = parse_flat(data, f"the reply of client {k}")
            replies.append(
                Reply.decode(reply_type(self.world.method, visit.function), flat)
            )
        return replies

    # ---------------------------------------------------------------- workers
    def _hire(self) -> None:
        """Ask for one more worker; a full cluster may take its time."""
        worker: Any = ray.remote(num_cpus=1)(Worker).remote()
        promise = worker.start.remote(self._packed, self._x, sys.path)
        self._under_way[promise] = (worker, STARTING)

    def _feed(self, queue: list[int], messages: Mapping[int, Message]) -> None:
        """Give every worker one client, then a second one."""
        busy = Counter(worker for worker, _ in self._under_way.values())
        for depth in range(AHEAD):
            for worker in self._machines:
                if queue and busy[worker] == depth:
                    k = queue.pop()
                    state = self.store.get(k)
                    carried = None if state is None else dump_flat(state)
                    promise = worker.visit.remote(k, messages[k], carried)
                    self._under_way[promise] = (worker, k)
                    busy[worker] += 1

    def _next(self, queue: list[int]) -> tuple[int, Answer | None]:
        """Wait for a client's answer, or for a worker to start or die (None)."""
        is_working = any(k != STARTING for _, k in self._under_way.values())
        timeout = None if is_working else PATIENCE
        finished, _ = ray.wait(list(self._under_way), num_returns=1, timeout=timeout)
        if not finished:
            raise UserError(
                f"no ray worker in {PATIENCE} s: all cores of the cluster are taken "
                "('ray status' tells)"
            )
        worker, k = self._under_way[finished[0]]
        try:
            result = ray.get(finished[0])
        except DEATHS as error:
            queue += self._replace_dead(worker, error)
            return k, None
        except faults.RayTaskError as error:
            action = "starting" if k == STARTING else f"visiting client {k}"
            raise UserError(
                f"a ray worker failed when {action}: {last_line(error.cause)}"
            ) from None
        del self._under_way[finished[0]]
        if k == STARTING:
            self._welcome(worker, *result)
            return k, None
        return k, result

    def _welcome(self, worker: Any, machine: str, versions: str) -> None:
        """A worker is ready; refuse it if it computes with other versions."""
        if versions != describe_versions():
            raise UserError(
                f"a ray worker has {versions}, this process {describe_versions()}: "
                "install the same everywhere"
            )
        self._machines[worker] = machine

    def _replace_dead(self, worker: Any, error: Exception) -> list[int]:
        """Replace a dead worker; gives the clients that must be visited again."""
        lost = {
            promise: k for promise, (who, k) in self._under_way.items() if who == worker
        }
        for promise in lost:
            del self._under_way[promise]
        self._machines.pop(worker, None)
        _kill(worker)  # one that only cannot be reached would keep its core
        if getattr(error, "actor_init_failed", False):
            raise UserError(
                f"a ray worker cannot start: {last_line(error)}; "
                "every machine needs fedtailor as it is here"
            )
        clients = [k for k in lost.values() if k != STARTING]
        first = clients[0] if clients else STARTING
        action = f"visiting client {first}" if clients else "starting"
        self._deaths[first] += 1
        deaths = self._deaths[first]
        if deaths >= (MAX_DEATHS if clients else MAX_DEATHS * self._wanted):
            raise UserError(
                f"{deaths} ray workers died when {action} (out of memory?), "
                f"the last one so: {last_line(error)}"
            )
        self._notices.append(
            f"warning: a ray worker died when {action} and is replaced: {last_line(error)}"
        )
        self._hire()
        return clients[::-1]


def _kill(worker: Any) -> None:
    with contextlib.suppress(Exception):  # dead already, or the cluster is gone
        ray.kill(worker)


def describe_versions() -> str:
    """What results depend on beside the experiment."""
    return f"fedtailor {__version__} with torch {torch.__version__}"
