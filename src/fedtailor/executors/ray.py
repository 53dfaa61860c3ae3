"""Clients spread over a ray cluster: the worker code of ``processes``, on machines that share no disk.

The inputs go into ray's object store once. Private states stay with this process: a visit carries its client's state
there and the new one back, so a visit whose worker died is simply made again.
"""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch
from numpy.typing import NDArray

from fedtailor._version import __version__
from fedtailor.core.errors import UserError
from fedtailor.core.torch_settings import apply_worker_settings
from fedtailor.core.tree import Tree
from fedtailor.core.wire import Flat, decode, encode, split
from fedtailor.executors import Tick
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.ray_cluster import connect, faults, ray, tell
from fedtailor.executors.visit import Reply, reply_type
from fedtailor.executors.worker import pack, serve, settle
from fedtailor.executors.world import World
from fedtailor.storage.files import dump_flat, parse_flat
from fedtailor.storage.private_state import FileStore, MemoryStore, Store

AHEAD = 2  # visits a worker has in hand: one it works on, one waiting
TRIES = 3  # workers that may die of one visit
PATIENCE = 120  # seconds without any worker at all
SETTLING = -1  # stands where a visit has its client: the worker is being told about the world
DEATHS = (faults.RayActorError, faults.OutOfMemoryError, faults.WorkerCrashedError)


class Answer(NamedTuple):
    """What a visit brings back, as bytes."""

    n: int
    up: bytes | None
    error: str
    state: bytes | None  # the client's private state, where it is a new one


class Worker:
    """Lives in a process of the cluster: holds one network and visits the clients it is told to."""

    def __init__(self) -> None:
        self._site: ClientRunner | None = None

    def settle(self, parcel: bytes, x: NDArray[Any], path: list[str]) -> tuple[str, str]:
        """Get to know the world of a run; tells the machine this is and the versions it computes with."""
        sys.path += [
            p for p in path if p not in sys.path
        ]  # what the driver can import, where it is here too
        apply_worker_settings()
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", message="The given NumPy array is not writable"
            )  # nobody writes inputs
            inputs = torch.from_numpy(x)
        self._site = settle(parcel, inputs, MemoryStore())
        return ray.get_runtime_context().get_node_id(), versions()

    def visit(
        self, name: str, k: int, named: bytes, plain: Flat, state: bytes | None, t: int, call: int
    ) -> Answer:
        """One visit to client k, which brings its private state along."""
        assert self._site is not None
        self._site.store = MemoryStore()
        before = None if state is None else parse_flat(state, f"the state of client {k}")
        if before is not None:
            self._site.store.put(k, before)
        n, up, error = serve(
            self._site, name, k, {**parse_flat(named, f"what client {k} is sent"), **plain}, t, call
        )
        after = self._site.store.get(k)
        changed = after is not None and after is not before
        return Answer(
            n,
            None if up is None else dump_flat(up),
            error,
            dump_flat(after) if after and changed else None,
        )


class Ray:
    """Bitwise equal to Sequential, for any number of workers and machines."""

    def __init__(
        self, world: World, address: str, workers: int | None = None, state: Path | None = None
    ) -> None:
        if world.device != "cpu":
            raise UserError(
                f"executor=ray runs on the cluster's cores; for device={world.device} choose vmap"
            )
        cores = connect(address, workers)
        self.world = world
        self.store: Store = FileStore(state) if state else MemoryStore()
        self._parcel, self._x = ray.put(pack(world)), ray.put(world.federation.x.numpy())
        self._machines: dict[Any, str] = {}  # settled worker -> where it is
        self._under_way: dict[
            Any, tuple[Any, int]
        ] = {}  # promised result -> worker and client, in order of sending
        self._deaths: Counter[int] = Counter()
        self._notices: list[str] = []
        self._told = 0  # workers the user knows of
        self._wanted = workers or cores
        for _ in range(self._wanted):
            self._hire()

    def call(
        self, name: str, downs: Mapping[int, Tree], t: int, call: int, tick: Tick
    ) -> dict[int, Reply]:
        """The replies by client, in client order; the longest visits begin first."""
        sizes = [len(i) for i in self.world.federation.train]
        queue = sorted(downs, key=lambda k: (sizes[k], -k))
        kind, parcels, out = (
            reply_type(self.world.method, name),
            self._post(downs),
            dict[int, Reply](),
        )
        self._deaths.clear()
        try:
            while len(out) < len(downs):
                self._feed(queue, name, parcels, t, call)
                k, answer = self._next(queue)
                if answer is not None:
                    if answer.state is not None:
                        self.store.put(k, parse_flat(answer.state, f"the state of client {k}"))
                    up = (
                        None
                        if answer.up is None
                        else decode(kind, parse_flat(answer.up, f"the reply of client {k}"))
                    )
                    out[k] = Reply(answer.n, up, answer.error)
                    tick()
        except (
            BaseException
        ) as error:  # an interrupted call leaves visits under way: nobody waits for them
            self.close()
            if isinstance(error, faults.RayError):
                raise UserError(f"ray: {tell(error)}") from None
            raise
        return {k: out[k] for k in sorted(out)}

    def notices(self) -> list[str]:
        """Where the workers are, and which of them died."""
        news, self._notices = self._notices, []
        many, machines = len(self._machines), len(set(self._machines.values()))
        if many != self._told and (not self._told or many == self._wanted):
            self._told = many
            news.append(f"ray: {many} of {self._wanted} workers are up, on {machines} machine(s)")
        return news

    def close(self) -> None:
        """Give the workers' cores back to the cluster; the connection stays for the next run."""
        workers = {*self._machines, *(worker for worker, _ in self._under_way.values())}
        self._machines.clear()
        self._under_way.clear()
        for worker in workers:
            _dismiss(worker)

    # ---------------------------------------------------------------- inside
    def _post(self, downs: Mapping[int, Tree]) -> dict[int, tuple[Any, Flat]]:
        """Downloads in the object store; one that goes to many clients is there once and travels once a machine."""
        known: dict[tuple[tuple[str, int], ...], Any] = {}
        out: dict[int, tuple[Any, Flat]] = {}
        for k, down in downs.items():
            named, plain = split(encode(down))
            key = tuple((name, id(x)) for name, x in named.items())
            if key not in known:
                known[key] = ray.put(dump_flat(named))
            out[k] = known[key], plain
        return out

    def _hire(self) -> None:
        """Ask for one more worker; it gets visits once it has settled, which a full cluster may put off."""
        worker: Any = ray.remote(num_cpus=1)(Worker).remote()
        self._under_way[worker.settle.remote(self._parcel, self._x, sys.path)] = worker, SETTLING

    def _feed(
        self, queue: list[int], name: str, parcels: dict[int, tuple[Any, Flat]], t: int, call: int
    ) -> None:
        """One visit for every worker, then a second one each: no long visit waits behind another."""
        busy = Counter(worker for worker, _ in self._under_way.values())
        for depth in range(AHEAD):
            for worker in self._machines:
                if queue and busy[worker] == depth:
                    k = queue.pop()
                    state = self.store.get(k)
                    carried = None if state is None else dump_flat(state)
                    ref = worker.visit.remote(name, k, *parcels[k], carried, t, call)
                    self._under_way[ref] = worker, k
                    busy[worker] += 1

    def _next(self, queue: list[int]) -> tuple[int, Answer | None]:
        """The next thing that is done: a visit, or a worker that has settled or died."""
        at_work = any(k != SETTLING for _, k in self._under_way.values())
        done, _ = ray.wait(
            list(self._under_way), num_returns=1, timeout=None if at_work else PATIENCE
        )
        if not done:
            raise UserError(
                f"no ray worker in {PATIENCE} s: all cores of the cluster are taken ('ray status' tells)"
            )
        worker, k = self._under_way[done[0]]
        try:
            result = ray.get(done[0])
        except DEATHS as error:
            queue += self._bury(worker, error)
            return k, None
        except faults.RayTaskError as error:
            where = "starting" if k == SETTLING else f"visiting client {k}"
            raise UserError(f"a ray worker failed when {where}: {tell(error.cause)}") from None
        del self._under_way[done[0]]
        if k == SETTLING:
            machine, theirs = result
            if theirs != versions():
                raise UserError(
                    f"a ray worker has {theirs}, this process {versions()}: install the same everywhere"
                )
            self._machines[worker] = machine
            return k, None
        return k, result

    def _bury(self, worker: Any, error: Exception) -> list[int]:
        """Replace a dead worker; gives the clients whose visits must be made again."""
        mine = {ref: k for ref, (who, k) in self._under_way.items() if who == worker}
        for ref in mine:
            del self._under_way[ref]
        self._machines.pop(worker, None)
        _dismiss(worker)  # one that only cannot be reached would keep its core
        if getattr(error, "actor_init_failed", False):
            raise UserError(
                f"a ray worker cannot start: {tell(error)}; every machine needs fedtailor as it is here"
            )
        visits = [k for k in mine.values() if k != SETTLING]
        first = visits[0] if visits else SETTLING
        self._deaths[first] += 1
        what = f"visiting client {first}" if visits else "starting"
        if self._deaths[first] >= (TRIES if visits else TRIES * self._wanted):
            many = self._deaths[first]
            raise UserError(
                f"{many} ray workers died when {what} (out of memory?), the last one so: {tell(error)}"
            )
        self._notices.append(
            f"warning: a ray worker died when {what} and is replaced: {tell(error)}"
        )
        self._hire()
        return visits[::-1]


def _dismiss(worker: Any) -> None:
    with contextlib.suppress(Exception):  # dead already, or the cluster is gone
        ray.kill(worker)


def versions() -> str:
    """What results depend on beside the experiment."""
    return f"fedtailor {__version__} with torch {torch.__version__}"
