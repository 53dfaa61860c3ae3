"""A method cannot tell which executor runs it, and what a client does wrong stays with that client."""

import resource
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import torch

from fedtailor.core.errors import NoRoom
from fedtailor.core.tree import Params, average, tmap
from fedtailor.engine.exchange import Exchange
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.processes import Processes
from fedtailor.executors.sequential import Sequential
from fedtailor.executors.shared_memory import Arena, Reader
from fedtailor.executors.world import World
from fedtailor.method import Cohort, Method, one_by_one
from fedtailor.methods.ditto import Ditto
from fedtailor.methods.fedavg import FedAvg
from fedtailor.storage.private_state import FileStore, MemoryStore
from fedtailor.testing.small_world import digits, run_small, small
from fedtailor.training.optim import Plan


class State(NamedTuple):
    w: Params


class Message(NamedTuple):
    w: Params


@dataclass(frozen=True)
class Faulty(Method[State, Message, None, Message]):
    """FedAvg in which client 1 (the one with 17 examples) misbehaves."""

    how: str = "raise"

    def init(self, new, clients):
        return State(new(0))

    def send(self, server, k):
        return Message(server.w)

    def local(self, c, down: Message, keep: None) -> tuple[Message, None]:
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
        return Message(w), None

    def merge(self, server, ups):
        return State(average(ups.w, ups.n))

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
def test_a_client_that_misbehaves_is_left_out_by_name(executor, how, why):
    played = run_small(Faulty(how), rounds=2, executor=executor)
    assert list(played.exchange.traffic.lost) == [1] and why in played.exchange.traffic.lost[1]
    world = digits()
    sound = [k for k in range(6) if k != 1]
    others = run_small(FedAvg(), rounds=2, federation=world)
    assert all(bool(torch.isfinite(x).all()) for x in played.server.w.values())
    by_hand = play_without(world, sound)
    assert all(torch.equal(played.server.w[k], by_hand[k]) for k in by_hand)
    assert not torch.equal(played.server.w["head.weight"], others.server.w["head.weight"])


def play_without(world, ids) -> Params:
    """FedAvg over some of the clients only."""
    site = ClientRunner(
        World(FedAvg(), small(), world, Plan(lr=0.05, batch=10), 0, 2), MemoryStore()
    )
    method, exchange = FedAvg(), Exchange(FedAvg(), Sequential(site), 0, 2)
    server = method.init(site.new, 6)
    for t in (1, 2):
        server = method.round(server, Cohort(exchange, ids, t))
    return server.w


def test_any_number_of_workers_gives_the_same_bits():
    reference = run_small(Ditto(), norm="batch").hash
    for workers in (1, 3):
        assert (
            run_small(Ditto(), norm="batch", executor=lambda w, n=workers: Processes(w, n)).hash
            == reference
        )


def test_state_on_disk_gives_the_same_bits(tmp_path):
    reference = run_small(Ditto()).hash
    on_disk = run_small(
        Ditto(), executor=lambda w: Sequential(ClientRunner(w, FileStore(tmp_path / "a")))
    )
    by_workers = run_small(Ditto(), executor=lambda w: Processes(w, 2, tmp_path / "b"))
    assert on_disk.hash == by_workers.hash == reference
    assert len(list((tmp_path / "a").iterdir())) == 6


@pytest.mark.skipif(
    not hasattr(resource, "prlimit"), reason="only Linux takes room from another process"
)
def test_where_the_machine_has_no_room_no_client_is_left_out(tmp_path):
    world = World(Ditto(), small(), digits(), Plan(lr=0.05, batch=10), 0, 2)
    workers = Processes(world, 2, tmp_path)
    for process in workers._pool._processes:
        resource.prlimit(process.pid, resource.RLIMIT_FSIZE, (1000, 1000))
    server = world.method.init(ClientRunner(world, MemoryStore()).new, 6)
    with pytest.raises(NoRoom, match="cannot be written: File too large"):
        workers.call(
            "local", {k: world.method.send(server, k) for k in range(6)}, 1, 0, lambda: None
        )
    assert list(tmp_path.iterdir()) == []
    assert (
        run_small(Ditto(), executor="processes").hash == run_small(Ditto()).hash
    )  # other workers took their place


def test_lost_replies_are_the_same_in_every_executor():
    one, two = (
        run_small(Ditto(), rounds=4, drop=0.5, executor=e) for e in ("sequential", "processes")
    )
    assert (
        one.hash == two.hash
        and one.exchange.traffic.lost.keys() == two.exchange.traffic.lost.keys()
    )
    assert one.exchange.traffic.lost


@dataclass(frozen=True)
class Alone(Method[State, Message, None, Message]):
    """FedAvg whose client function refuses to be vectorised."""

    init, send, merge, personal = Faulty.init, Faulty.send, Faulty.merge, Faulty.personal

    @one_by_one
    def local(self, c, down: Message, keep: None) -> tuple[Message, None]:
        return Message(c.train(c.loss, down.w)), None


def test_what_cannot_be_vectorised_runs_alone_and_says_so():
    played = run_small(Alone(), executor="vmap", dtype=torch.float64)
    assert (
        "one client at a time" in played.executor.notices()[0] and played.executor.notices() == []
    )
    assert played.hash == run_small(Alone(), dtype=torch.float64).hash
    looks = run_small(
        Faulty("none"), executor="vmap", dtype=torch.float64
    )  # 'if' on a tensor's value
    assert any("'local' runs one client at a time" in n for n in looks.executor.notices())


def test_an_arena_writes_shared_tensors_once(tmp_path):
    arena, reader = Arena(tmp_path / "arena"), Reader()
    x, y = torch.randn(1000), torch.arange(5)
    parcels = [arena.write({"x": x, "y": y, "n": 3, "empty": torch.zeros(0)}) for _ in range(50)]
    assert arena._end < 5000
    for parcel in parcels:
        back = reader.read(parcel, copy=False)
        assert (
            torch.equal(back["x"], x)
            and torch.equal(back["y"], y)
            and back["n"] == 3
            and len(back["empty"]) == 0
        )
    big = arena.write({"z": torch.ones(100_000)})  # grows: earlier parcels stay readable
    assert reader.read(big, copy=True)["z"].sum() == 100_000 and torch.equal(
        reader.read(parcels[0], copy=True)["x"], x
    )


def test_a_killed_run_leaves_no_memory_taken():
    code = (
        "import os, signal; from fedtailor.executors.processes import pool; "
        "print(pool(2).folder, flush=True); os.kill(os.getpid(), signal.SIGKILL)"
    )
    said = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60
    ).stdout
    folder = Path(said.strip())
    until = time.monotonic() + 60
    while folder.exists() and time.monotonic() < until:
        time.sleep(0.1)
    assert said and not folder.exists()
