"""A small world of real digits, for the conformance suite and the tests: a few ragged clients, a small network."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import nn

from fedtailor.data.federation import Federation
from fedtailor.exchange import Exchange
from fedtailor.executors import Executor
from fedtailor.executors.processes import Processes
from fedtailor.executors.sequential import Sequential
from fedtailor.executors.site import AnyMethod, Site, World
from fedtailor.executors.vectorized import Vectorized
from fedtailor.method import Cohort
from fedtailor.models.backbone import Backbone
from fedtailor.optim import Plan
from fedtailor.rng import Rng
from fedtailor.store import MemoryStore, fingerprint
from fedtailor.tree import Tree
from fedtailor.wire import encode

SIZES = (30, 17, 24, 9, 1, 40)  # training examples: ragged, one smaller than a batch, one with a single example


def digits(sizes: tuple[int, ...] = SIZES, classes: int = 10, skew: bool = True) -> Federation:
    """Clients with the given numbers of training examples; with ``skew`` each sees few classes."""
    raw = load_digits()
    x = torch.tensor(raw.images / 8 - 1, dtype=torch.float32)[:, None]
    y = torch.tensor(raw.target, dtype=torch.int64)
    order = Rng.seed(7).permutation(len(y))
    order = order[y[order] < classes]
    if skew:  # neighbours in this order share labels
        order = order[torch.argsort(y[order] * 100 + Rng.seed(8).permutation(len(order)) % 350, stable=True)]
    held, start, parts = 8, 0, list[tuple[torch.Tensor, ...]]()
    gap = len(order) // len(sizes)
    for n in sizes:
        mine = order[start : start + n + 2 * held]
        mine = mine[Rng.seed(9, start).permutation(len(mine))]
        parts.append((mine[:n], mine[n : n + held], mine[n + held :]))
        start += max(gap, n + 2 * held) if start + gap + n < len(order) else n
    train, val, test = (list(p) for p in zip(*parts, strict=True))
    return Federation("digits", "image", x, y, classes, train, val, test)


def small(kind: str = "cnn", norm: str = "group", classes: int = 10) -> Backbone:
    """A network of a few thousand parameters for 8 x 8 digits; ``linear`` for methods that ask for it."""
    if kind == "linear":
        return Backbone(nn.Flatten(), nn.Linear(64, classes), features=64, kind="linear")
    between = nn.BatchNorm2d(4) if norm == "batch" else nn.GroupNorm(2, 4) if norm == "group" else nn.Identity()
    layers = dict(
        conv1=nn.Conv2d(1, 4, 3, padding=1), norm1=between, relu1=nn.ReLU(), pool1=nn.MaxPool2d(2),
        flatten=nn.Flatten(), fc1=nn.Linear(64, 16), relu2=nn.ReLU(),
    )  # fmt: skip
    base = nn.Sequential()
    for name, layer in layers.items():
        base.add_module(name, layer)
    return Backbone(base, nn.Linear(16, classes), features=16, kind="cnn")


@contextmanager
def settings(dtype: torch.dtype = torch.float32, threads: int = 1) -> Any:
    """Torch as every executor wants it, and as it was afterwards."""
    before = torch.get_default_dtype(), torch.get_num_threads()
    torch.set_default_dtype(dtype)
    torch.set_num_threads(threads)
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_default_dtype(before[0])
        torch.set_num_threads(before[1])
        torch.set_flush_denormal(False)


@dataclass
class Played:
    """What came of a trial."""

    server: Tree
    executor: Executor
    exchange: Exchange
    site: Site  # for looking at clients: site.client(k, t, *path), site.load(k), site._score(k, down, t)
    hash: str

    def keep(self, k: int) -> Tree:
        """The private state of client k (None if it has none)."""
        found = self.site.load(k)
        return found[0] if found else None


Make = Callable[[World], Executor]
EXECUTORS: dict[str, Make] = {
    "sequential": lambda w: Sequential(Site(w, MemoryStore())),
    "processes": lambda w: Processes(w, 2),
    "vmap": lambda w: Vectorized(Site(w, MemoryStore()), 2),
}


def play(
    method: AnyMethod,
    *,
    rounds: int = 3,
    executor: str = "sequential",
    federation: Federation | None = None,
    backbone: Backbone | None = None,
    plan: Plan = Plan(lr=0.05, batch=10),  # noqa: B008 (frozen)
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    bn: str = "average",
    share: float = 1.0,
    drop: float = 0.0,
    norm: str = "group",
) -> Played:
    """Run a method for some rounds and give back the server's state and the executor with all private states."""
    with settings(dtype):
        federation = federation or digits()
        backbone = backbone or small(method.suits, norm, federation.classes)
        method = method.resolve(backbone)
        world = World(method, backbone, federation, plan, seed, rounds, bn, dtype)
        runner = EXECUTORS[executor](world)
        site = Site(world, runner.store)
        exchange = Exchange(method, runner, seed, rounds, drop)
        everybody = list(range(federation.clients))
        server = method.setup(method.init(site.new, federation.clients), Cohort(exchange, everybody, 0))
        for t in range(1, rounds + 1):
            chosen = method.sample(server, everybody, share, Rng.seed(seed, 1, t))
            server = method.round(server, Cohort(exchange, chosen, t))
        states = ((k, runner.store.get(k) or {}) for k in runner.store.clients())
        return Played(server, runner, exchange, site, fingerprint(encode(server), states))
