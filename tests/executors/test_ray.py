"""A ray cluster of two nodes gives the bits of one process, and survives the death of a worker."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest
import ray

import fedtailor
from fedtailor.core.errors import ClientError, UserError
from fedtailor.core.tree import Params, average
from fedtailor.executors import Executor
from fedtailor.executors.ray import Ray
from fedtailor.executors.ray_cluster import connect
from fedtailor.executors.world import World
from fedtailor.method import Method
from fedtailor.methods import find
from fedtailor.methods.ditto import Ditto
from fedtailor.methods.fedavg import FedAvg, Up
from fedtailor.testing.small_world import run_small

SECRET = {"RAY_USAGE_STATS_ENABLED": "0"}
COMMAND = [
    sys.executable,
    "-m",
    "fedtailor",
    "run",
    "--data",
    "digits",
    "--clients",
    "4",
    "--method",
    "ditto",
]


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """A cluster of two nodes with one core each, started as anybody starts one."""
    folder = tempfile.mkdtemp(prefix="ray-")  # short: sockets lie in it
    host, program = (
        ray.util.get_node_ip_address(),
        str(Path(sys.executable).with_name("ray")),
    )
    with socket.socket() as free:
        free.bind((host, 0))
        there = f"{host}:{free.getsockname()[1]}"
    options = [
        f"--node-ip-address={host}",
        "--num-cpus=1",
        "--object-store-memory=100000000",
        "--block",
    ]
    head = [
        "--head",
        f"--port={there.rsplit(':')[1]}",
        "--include-dashboard=false",
        f"--temp-dir={folder}",
    ]
    nodes: list[subprocess.Popen[bytes]] = []
    try:
        for role in (head, [f"--address={there}"]):
            quiet = subprocess.DEVNULL
            command = [program, "start", *role, *options]
            nodes.append(
                subprocess.Popen(
                    command, stdout=quiet, stderr=quiet, env={**os.environ, **SECRET}
                )
            )
            wait(lambda: reachable(there) and nodes[-1].poll() is None)
        wait(lambda: joined(there))
        wait(lambda: sum(node["Alive"] for node in ray.nodes()) == 2)
        yield there
    finally:
        ray.shutdown()
        for node in reversed(nodes):
            node.terminate()
        for node in nodes:
            node.wait(30)
        shutil.rmtree(folder, ignore_errors=True)


def wait(condition: Callable[[], bool], seconds: float = 90) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "the cluster does not come up"
        time.sleep(0.2)


def reachable(address: str) -> bool:
    try:
        socket.create_connection(address.rsplit(":", 1), 1).close()
    except OSError:
        return False
    return True


def joined(address: str) -> bool:
    try:
        return connect(address, None) > 0
    except UserError:  # its first node is on its way
        return False


def both(address: str, state: Path | None = None) -> Callable[[World], Executor]:
    """An executor whose two workers have settled, so that both take part from the first visit."""

    def make(world: World) -> Ray:
        executor = Ray(world, address, 2, state)
        while len(executor._machines) < 2:
            executor._next([])
        assert executor.notices() == ["ray: 2 of 2 workers are up, on 2 machine(s)"]
        return executor

    return make


def test_two_nodes_give_the_bits_of_one_process(address):
    run = run_small(Ditto(), executor=both(address))
    reference = run_small(Ditto())
    assert run.hash == reference.hash
    assert run.store.clients() == list(range(6))
    assert run.accuracy() == reference.accuracy()
    run.executor.close()
    wait(lambda: ray.available_resources().get("CPU") == 2)  # cores are given back


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["fedavg", "fedcp", "cd2pfed", "fed3p2p", "gpfl", "pfedc"]
)
def test_other_methods_give_the_same_bits(address, name):
    method = find(name)()
    run = run_small(method, rounds=4, executor=both(address))
    assert run.hash == run_small(method, rounds=4).hash
    run.executor.close()


@pytest.mark.slow
def test_lost_replies_local_statistics_and_state_on_disk(address, tmp_path):
    options = {"norm": "batch", "bn": "local", "drop": 0.4, "rounds": 4}
    run = run_small(Ditto(), executor=both(address, tmp_path), **options)
    assert run.hash == run_small(Ditto(), **options).hash
    assert run.exchange.traffic.lost
    assert len(list(tmp_path.iterdir())) == 6
    run.executor.close()


class Model(NamedTuple):
    w: Params


@dataclass(frozen=True)
class Deadly(Method[Model, Model, Model, Model]):
    """FedAvg that remembers, and kills the worker at client 1 (17 examples) in round 2.

    With a file ``mark`` only once: the file tells that it has happened.
    """

    mark: str = ""

    def init(self, new, clients):
        return Model(new(0))

    def send(self, server, k):
        return Model(server.w)

    def first_keep(self, c, down: Model) -> Model:
        return Model(down.w)

    def local(self, c, down: Model, keep: Model) -> tuple[Model, Model]:
        if c.n == 17 and c.t == 2 and not (self.mark and Path(self.mark).exists()):
            if self.mark:
                Path(self.mark).touch()
            os.kill(os.getpid(), signal.SIGKILL)
        w = c.train(c.loss, average([down.w, keep.w], [1, 1]))
        return Model(w), Model(w)

    def merge(self, server, ups):
        return Model(ups.mean("w"))

    def personal(self, c, down, keep):
        return keep.w


@pytest.mark.slow
def test_a_visit_whose_worker_is_killed_is_made_again(address, tmp_path):
    method = Deadly(str(tmp_path / "mark"))
    run = run_small(method, rounds=3, executor=both(address))
    assert Path(method.mark).exists()
    assert not run.exchange.traffic.lost
    notices = " ".join(run.executor.notices())
    assert "a ray worker died when visiting client 1 and is replaced" in notices
    reference = run_small(method, rounds=3)  # the mark is there: it kills no more
    assert run.hash == reference.hash
    ray.kill(next(iter(run.executor._machines)))  # one that is idle
    assert run.accuracy() == reference.accuracy()
    run.executor.close()


@pytest.mark.slow
def test_a_client_that_kills_every_worker_stops_the_run_in_one_line(address):
    with pytest.raises(
        UserError,
        match=r"^3 ray workers died when visiting client 1 \(out of memory\?\).*$",
    ):
        run_small(Deadly(), rounds=3, executor=both(address))
    wait(lambda: ray.available_resources().get("CPU") == 2)


@pytest.mark.slow
def test_the_command_joins_a_cluster_and_stops_politely(address, tmp_path):
    env = {**os.environ, **SECRET, "RAY_ADDRESS": address}
    on_ray = [
        *COMMAND,
        "--executor",
        "ray",
        "--ray-address",
        "auto",
        "--rounds",
        "200",
        "--quiet",
    ]
    run = subprocess.Popen(
        [*on_ray, "--out", str(tmp_path / "ray")],
        env=env,
        stderr=subprocess.PIPE,
        text=True,
    )
    rounds = tmp_path / "ray" / "rounds.jsonl"
    wait(lambda: rounds.exists() and len(rounds.read_text().splitlines()) > 2)
    run.send_signal(signal.SIGTERM)
    said = run.communicate(timeout=60)[1]
    assert run.returncode == 130
    assert "go on with --resume" in said
    assert "Traceback" not in said
    done = str(len(rounds.read_text().splitlines()) + 2)
    again = [*on_ray, "--rounds", done, "--resume", "--out", str(tmp_path / "ray")]
    subprocess.run(again, env=env, check=True)
    subprocess.run(
        [*COMMAND, "--rounds", done, "--quiet", "--out", str(tmp_path / "one")],
        env=env,
        check=True,
    )
    results = [
        json.loads((tmp_path / name / "result.json").read_text())
        for name in ("ray", "one")
    ]
    assert results[0]["hash"] == results[1]["hash"]
    assert results[0]["executor"] == "ray"


def complaint(*arguments: str, first: str = "") -> str:
    """What the command says of a mistake: one line."""
    lines = [
        "import sys",
        first,
        "from fedtailor.cli.main import main",
        f"sys.argv[1:] = {list(arguments)!r}",
        "main()",
    ]
    program = "\n".join(lines)
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 2, done.stderr
    assert len(done.stderr.splitlines()) == 1, done.stderr
    return done.stderr


def test_mistakes_are_one_line(tmp_path):
    run = ["run", "--executor", "ray", "--quiet", "--out"]
    assert "pip install 'fedtailor[ray]'" in complaint(
        *run, str(tmp_path / "a"), first="sys.modules['ray'] = None"
    )
    there = complaint(*run, str(tmp_path / "b"), "--ray-address", "127.0.0.1:1")
    assert (
        "no ray cluster to be joined (ray_address=127.0.0.1:1): [Errno 111] Connection refused"
        in there
    )
    nowhere = complaint(*run, str(tmp_path / "c"), "--ray-address", "ray://here")
    assert "'ray://here' is neither auto, nor local, nor HOST:PORT" in nowhere


@dataclass(frozen=True)
class Typo(FedAvg):
    """Calls a function that does not exist."""

    def local(self, c, down, keep):
        return Up(c.trian(c.loss, down.w)), keep


def test_a_bug_in_a_method_ends_the_run_and_says_where(address):
    options = {"clients": 4, "limit": 200, "rounds": 2, "partition": "iid"}
    with pytest.raises(ClientError) as caught:
        fedtailor.run(Typo, **options, executor="ray", ray_address=address, workers=1)
    assert f"'local' failed in local, {__file__}, line " in caught.value.line
    assert "c.trian(c.loss, down.w)" in caught.value.traceback
