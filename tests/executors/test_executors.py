"""A method cannot tell which executor runs it, and a client that fails is left out alone."""

from __future__ import annotations

import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from fedtailor.core.errors import NoRoom
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, tmap
from fedtailor.data.federation import Federation
from fedtailor.engine.exchange import Exchange
from fedtailor.executors import Executor
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.processes import Processes
from fedtailor.executors.sequential import Sequential
from fedtailor.executors.shared_memory import Arena, Reader
from fedtailor.executors.visit import Look, Reply, Visit
from fedtailor.executors.world import AnyMethod, World
from fedtailor.method import Cohort, Method, one_by_one
from fedtailor.methods import find
from fedtailor.methods.ditto import Ditto
from fedtailor.methods.fedavg import FedAvg
from fedtailor.storage.private_state import FileStore, MemoryStore
from fedtailor.testing.small_world import EXECUTORS, digits, run_small, small
from fedtailor.training.optim import Plan
from helpers import differences, gap

PLAN = Plan(lr=0.05, batch=10)


def make_world(method: AnyMethod, rounds: int = 2) -> World:
    return World(method, small(), digits(), PLAN, 0, rounds)


# ---------------------------------------------------------------- clients that fail
class Model(NamedTuple):
    w: Params


@dataclass(frozen=True)
class Faulty(Method[Model, Model, None, Model]):
    """FedAvg in which client 1 (the one with 17 examples) fails."""

    how: str = "raise"

    def init(self, new, clients):
        return Model(new(0))

    def send(self, server, k):
        return Model(server.w)

    def local(self, c, down: Model, keep: None) -> tuple[Model, None]:
        w = c.train(c.loss, down.w)
        if c.n == 17 and self.how == "raise":
            raise RuntimeError("sensor\nunplugged")
        if c.n == 17:
            wrong = {
                "nan": lambda x: x * float("nan"),
                "shape": lambda x: x.flatten()[:1],
                "far": lambda x: x + 1e6,
            }[self.how]
            w = tmap(wrong, w)
        return Model(w), None

    def merge(self, server, ups):
        return Model(ups.mean("w"))

    def personal(self, c, down, keep):
        return down.w


@pytest.mark.parametrize("executor", ["sequential", "processes"])
@pytest.mark.parametrize(
    ("how", "why"),
    [
        ("raise", "RuntimeError: sensor unplugged"),
        ("nan", "NaN or infinity"),
        ("shape", "of shape (1,), not"),
        ("far", "times further from the download"),
    ],
)
def test_a_client_that_fails_is_left_out_by_name(executor, how, why):
    run = run_small(Faulty(how), rounds=2, executor=executor)
    assert list(run.exchange.traffic.lost) == [1]
    assert why in run.exchange.traffic.lost[1]
    others = [k for k in range(6) if k != 1]
    by_hand = run_without_failures(digits(), others)
    assert differences(run.server.w, by_hand) == []
    everyone = run_small(FedAvg(), rounds=2)
    assert "head.weight" in differences(run.server.w, everyone.server.w)


def run_without_failures(federation: Federation, clients: Sequence[int]) -> Params:
    """Two rounds of FedAvg over some of the clients only."""
    method = FedAvg()
    runner = ClientRunner(World(method, small(), federation, PLAN, 0, 2), MemoryStore())
    exchange = Exchange(method, Sequential(runner), runner.filters, 0, 2)
    with torch_settings():
        server = method.init(runner.new, 6)
        for t in (1, 2):
            server = method.round(server, Cohort(exchange, clients, t))
    return server.w


# ---------------------------------------------------------------- visits
@dataclass(frozen=True)
class Counting(Method[Model, Model, Model, Model]):
    """Every visit adds 1 to what a client keeps, and sends it."""

    def init(self, new, clients):
        return Model({"x": torch.zeros(2)})

    def send(self, server, k):
        return server

    def first_keep(self, c, down: Model) -> Model:
        return Model({"x": 10 + down.w["x"]})

    def local(self, c, down: Model, keep: Model) -> tuple[Model, Model]:
        new = Model({"x": keep.w["x"] + 1})
        return new, new

    def personal(self, c, down, keep):
        return keep.w

    def predict(self, c, w, x):
        return w["x"].sum() * torch.ones(len(x), c.classes)


def make_visits(executor: Executor) -> tuple[dict[int, list[Reply]], list[int]]:
    """Looks at clients before and after calls, in bundles of different lengths."""
    down = Model({"x": torch.zeros(2)})
    look = Visit(Look.PERSONAL, 1, 0, down)
    call = Visit("local", 1, 1, down)
    score = Visit(Look.SCORE, 1, 0, down)
    bundles = {4: [look, call, look], 1: [call], 2: [look], 3: [score, call], 0: [call]}
    finished: list[int] = []
    with torch_settings():
        return executor.run(bundles, lambda k, replies: finished.append(k)), finished


@pytest.mark.parametrize("name", EXECUTORS)
def test_bundles_of_visits_are_made_in_order(name):
    executor = EXECUTORS[name](make_world(Counting()))
    replies, finished = make_visits(executor)
    assert list(replies) == [0, 1, 2, 3, 4]
    assert sorted(finished) == [0, 1, 2, 3, 4]
    assert [reply.error for bundle in replies.values() for reply in bundle] == [""] * 8
    assert [float(reply.up["x"][0]) for reply in replies[4][::2]] == [
        10,
        11,
    ]  # before and after
    assert float(replies[4][1].up.w["x"][0]) == 11
    assert float(replies[2][0].up["x"][0]) == 10
    assert replies[3][0].up.test.n.sum() == 8
    assert [replies[k][-1].n for k in range(5)] == [30, 17, 24, 9, 1]
    assert executor.store.clients() == [0, 1, 3, 4]  # a look leaves nothing behind
    executor.close()


@pytest.mark.parametrize("name", EXECUTORS)
def test_an_error_is_a_reply_and_leaves_the_state_as_it_was(name):
    executor = EXECUTORS[name](make_world(Counting()))
    down = Model({"x": torch.zeros(2)})
    call = Visit("local", 1, 1, down)
    broken = Visit("local", 1, 2, Model({}))
    with torch_settings():
        executor.run({0: [call]}, lambda k, replies: None)
        replies = executor.run({0: [call], 5: [broken, call]}, lambda k, replies: None)
    assert replies[5][0].error == "KeyError: 'x'"
    assert replies[5][0].n == 0
    assert replies[5][1].error == ""  # the next visit of the same client is made
    assert float(replies[0][0].up.w["x"][0]) == 12
    executor.close()


# ---------------------------------------------------------------- executors agree
def test_any_number_of_workers_gives_the_same_bits():
    reference = run_small(Ditto(), norm="batch").hash
    for workers in (1, 3):
        run = run_small(
            Ditto(), norm="batch", executor=lambda world, n=workers: Processes(world, n)
        )
        assert run.hash == reference


def test_state_on_disk_gives_the_same_bits(tmp_path):
    def in_files(world: World) -> Executor:
        return Sequential(ClientRunner(world, FileStore(tmp_path / "a")))

    def in_files_of_workers(world: World) -> Executor:
        return Processes(world, 2, tmp_path / "b")

    reference = run_small(Ditto()).hash
    assert run_small(Ditto(), executor=in_files).hash == reference
    assert run_small(Ditto(), executor=in_files_of_workers).hash == reference
    assert len(list((tmp_path / "a").iterdir())) == 6
    assert len(list((tmp_path / "b").iterdir())) == 6


def test_lost_replies_are_the_same_in_every_executor():
    one = run_small(Ditto(), rounds=4, drop=0.5, dtype=torch.float64)
    assert one.exchange.traffic.lost
    two = run_small(
        Ditto(), rounds=4, drop=0.5, dtype=torch.float64, executor="processes"
    )
    assert two.hash == one.hash
    many = run_small(Ditto(), rounds=4, drop=0.5, dtype=torch.float64, executor="vmap")
    assert gap(many.server, one.server) < 1e-9
    for other in (two, many):
        assert other.exchange.traffic.lost == one.exchange.traffic.lost


OWN_METHOD = '''"""Somebody's own method."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch

from fedtailor import Method, Params


class Mean(NamedTuple):
    value: Params


class Model(NamedTuple):
    w: Params


class Up(NamedTuple):
    w: Params
    means: dict[int, Mean | None]


@dataclass(frozen=True)
class Mine(Method[Model, Model, None, Up]):

    def init(self, new, clients):
        return Model(new(0))

    def send(self, server, k):
        return server

    def local(self, c, down: Model, keep: None) -> tuple[Up, None]:
        ones = torch.ones(c.classes)
        return Up(c.train(c.loss, down.w), {7: Mean({"x": ones}), 8: None}), None

    def merge(self, server, ups):
        assert ups.by_client()[0].means[7].value["x"].sum() == 10
        return Model(ups.mean("w"))

    def personal(self, c, down, keep):
        return down.w
'''


def test_workers_run_a_method_from_somebodys_own_file(tmp_path):
    """Its annotations are text, and what it names is in no module that workers can import."""
    path = tmp_path / "mine.py"
    path.write_text(OWN_METHOD)
    method = find(str(path))()
    run = run_small(method, executor="processes")
    assert run.exchange.traffic.lost == {}
    assert run.hash == run_small(method).hash


@pytest.mark.parametrize("executor", ["processes", "vmap"])
def test_scores_are_the_same_in_every_executor(executor):
    one = run_small(Ditto(), dtype=torch.float64).scores()
    run = run_small(Ditto(), dtype=torch.float64, executor=executor)
    other = run.scores()
    run.executor.close()
    for k, score in one.items():
        assert torch.equal(other[k].test.correct, score.test.correct)
        assert torch.equal(other[k].val.n, score.val.n)
        assert torch.allclose(other[k].test.loss, score.test.loss, atol=1e-9)


# ---------------------------------------------------------------- vmap
@dataclass(frozen=True)
class OneByOne(Faulty):
    """FedAvg whose client function is marked as not to be vectorised."""

    @one_by_one
    def local(self, c, down: Model, keep: None) -> tuple[Model, None]:
        return Model(c.train(c.loss, down.w)), None


def test_what_is_marked_one_by_one_runs_so_and_says_so_once():
    run = run_small(OneByOne(), executor="vmap", dtype=torch.float64)
    assert run.executor.notices() == [
        "vmap: 'local' runs one client at a time, because it is marked one_by_one"
    ]
    assert run.executor.notices() == []
    assert run.hash == run_small(OneByOne(), dtype=torch.float64).hash


def test_what_cannot_be_vectorised_runs_one_by_one_and_says_so():
    run = run_small(Faulty("none"), executor="vmap")  # 'if' on a tensor's value
    (notice,) = run.executor.notices()
    assert notice.startswith("vmap: 'local' runs one client at a time, because ")


# ---------------------------------------------------------------- the machine
@pytest.mark.skipif(
    not hasattr(resource, "prlimit"),
    reason="only Linux takes room from another process",
)
def test_where_the_machine_has_no_room_no_client_is_left_out(tmp_path):
    world = make_world(Ditto())
    workers = Processes(world, 2, tmp_path)
    for process in workers._pool._processes:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1000, 1000))
    server = world.method.init(ClientRunner(world, MemoryStore()).new, 6)
    visits = {k: [Visit("local", 1, 0, world.method.send(server, k))] for k in range(6)}
    with pytest.raises(NoRoom, match="cannot be written: File too large"):
        workers.run(visits, lambda k, replies: None)
    assert list(tmp_path.iterdir()) == []
    # new workers have taken their place
    assert run_small(Ditto(), executor="processes").hash == run_small(Ditto()).hash


def test_an_arena_writes_shared_tensors_once(tmp_path):
    arena = Arena(tmp_path / "arena")
    reader = Reader()
    x = torch.randn(1000)
    y = torch.arange(5)
    flat = {"x": x, "y": y, "n": 3, "empty": torch.zeros(0)}
    messages = [arena.write(flat) for _ in range(50)]
    assert arena._end < 5000
    for message in messages:
        assert differences(reader.read(message, copy=False), flat) == []
    # it grows: earlier messages stay readable
    large = arena.write({"z": torch.ones(100_000)})
    assert reader.read(large, copy=True)["z"].sum() == 100_000
    assert differences(reader.read(messages[0], copy=True), flat) == []


def test_a_killed_run_leaves_no_memory_taken():
    code = (
        "import os, signal; from fedtailor.executors.processes import find_pool; "
        "print(find_pool(2).folder, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    command = [sys.executable, "-c", code]
    printed = subprocess.run(command, capture_output=True, text=True, timeout=60).stdout
    folder = Path(printed.strip())
    until = time.monotonic() + 60
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert printed
    assert not folder.exists()
