"""What several test files share: small runs whose traffic is recorded, and comparisons of trees."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.tree import Params, Tree, tmap
from fedtailor.core.wire import encode
from fedtailor.data.federation import Federation
from fedtailor.data.sets.digits import read_digits
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.world import AnyMethod, World
from fedtailor.filters.tap import Tap, Traffic
from fedtailor.methods.fedavg import FedAvg
from fedtailor.models import build
from fedtailor.storage.private_state import MemoryStore
from fedtailor.testing.small_world import SmallRun, digits, run_small, small
from fedtailor.training.optim import Plan

UNKNOWN = 99  # a client that no server has heard of


# ---------------------------------------------------------------- small runs
def words() -> dict[str, Any]:
    """Options of ``run_small``: grey levels of digits, read as words, and a network for them."""
    x = torch.tensor(read_digits()[0], dtype=torch.int64)
    return {
        "federation": replace(digits(), kind="text", x=x),
        "backbone": build("fasttext", (64,), 10, vocabulary=17),
    }


def overhear(method: AnyMethod, **options: Any) -> tuple[SmallRun, list[Traffic]]:
    """A small run, and what went between server and clients meanwhile."""
    tap = Tap()
    run = run_small(method, filters=[tap], **options)
    return run, tap.traffic


def make_runner(
    plan: Plan, norm: str = "batch", method: AnyMethod | None = None, rounds: int = 5
) -> ClientRunner:
    """The clients of the small world, to be called one by one."""
    world = World(method or FedAvg(), small(norm=norm), digits(), plan, 0, rounds)
    return ClientRunner(world, MemoryStore())


@dataclass(frozen=True)
class Adam:
    """An optimiser that nothing in the engine knows of; its state holds a plain number."""

    lr: float

    def init(self, w: Params) -> Tree:
        zeros = tmap(torch.zeros_like, w)
        return {"t": 0, "mean": zeros, "square": zeros}

    def step(self, w: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        t = state["t"] + 1
        mean = {k: 0.9 * state["mean"][k] + 0.1 * g for k, g in gradient.items()}
        square = {
            k: 0.999 * state["square"][k] + 0.001 * g * g for k, g in gradient.items()
        }
        new = {}
        for name in gradient:
            first = mean[name] / (1 - 0.9**t)
            second = square[name] / (1 - 0.999**t)
            new[name] = w[name] - self.lr * first / (second.sqrt() + 1e-3)
        return new, {"t": t, "mean": mean, "square": square}


def deal_batches(
    t: int, call: int, k: int, n: int, size: int, epochs: int, seed: int = 0
) -> list[list[Tensor]]:
    """The batches of client k in a call of round t, by epoch: positions among its examples.

    It is the one thing that a second implementation of a method must take from a run.
    """
    stream = Rng.seed(seed, Purpose.CALL, t, call, k)
    dealt = []
    for epoch in range(epochs):
        order = stream.fold(epoch).permutation(n)
        steps = -(-n // size)
        # the last batch is filled up from the beginning
        places = torch.arange(steps * size) % n
        dealt.append(list(order[places].split(size)))
    return dealt


# ---------------------------------------------------------------- comparisons
def names(tree: Tree) -> set[str]:
    """The parameters in a message, whatever field holds them."""
    return {
        path.split("/", 1)[-1]
        for path, value in encode(tree).items()
        if isinstance(value, Tensor)
    }


def gap(a: Tree, b: Tree) -> float:
    """The largest difference between two trees of the same shape."""
    one = encode(a)
    two = encode(b)
    assert one.keys() == two.keys()
    largest = 0.0
    for path, x in one.items():
        if isinstance(x, Tensor) and x.numel():
            difference = x.double() - two[path].double()
            largest = max(largest, float(difference.abs().max()))
    return largest


def equal(a: Tree, b: Tree) -> bool:
    """Whether two trees are the same to the last bit."""
    one = encode(a)
    two = encode(b)
    return one.keys() == two.keys() and not differences(one, two)


def differences(a: Tree, b: Tree) -> list[str]:
    """The paths at which two trees of the same shape are not the same to the last bit."""
    one = encode(a)
    two = encode(b)
    assert one.keys() == two.keys()
    found = []
    for path, x in one.items():
        same = torch.equal(x, two[path]) if isinstance(x, Tensor) else x == two[path]
        if not same:
            found.append(path)
    return found


# ---------------------------------------------------------------- random tests
def random_seed() -> int:
    """The seed of a random test: FEDTAILOR_TEST_SEED, or a new one. Failures must name it."""
    return int(os.environ.get("FEDTAILOR_TEST_SEED", os.getpid()))


def planted(groups: int, clients: int = 8, n: int = 40) -> Federation:
    """Real digits, dealt evenly; the clients of group k % groups read them with shifted labels."""
    f = digits(sizes=(n,) * clients, skew=False)
    y = f.y.clone()
    for k in range(clients):
        mine = torch.cat([f.train[k], f.val[k], f.test[k]])
        y[mine] = (f.y[mine] + k % groups * 10 // groups) % 10
    return replace(f, y=y)


def members(cluster: dict[int, int]) -> set[frozenset[int]]:
    """The clients of every cluster, however the clusters are numbered."""
    return {
        frozenset(k for k, j in cluster.items() if j == one) for one in cluster.values()
    }
