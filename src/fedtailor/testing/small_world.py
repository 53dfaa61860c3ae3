"""A small world of real digits, for the conformance suite and the tests: a few ragged clients, a small network."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import nn

from fedtailor.core.rng import Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Tree
from fedtailor.core.wire import decode, encode
from fedtailor.data.federation import Federation
from fedtailor.data.sets.digits import read_digits
from fedtailor.engine.exchange import Exchange
from fedtailor.evaluation.score import Score
from fedtailor.evaluation.summary import measure
from fedtailor.executors import Executor
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.processes import Processes
from fedtailor.executors.sequential import Sequential
from fedtailor.executors.vectorized import Vectorized
from fedtailor.executors.world import AnyMethod, World
from fedtailor.method import Cohort, NoReplies
from fedtailor.method_types import server_type
from fedtailor.models.backbone import Backbone
from fedtailor.storage.files import dump_flat, fingerprint, parse_flat
from fedtailor.storage.private_state import MemoryStore, Store
from fedtailor.training.optim import Plan

SIZES = (
    30,
    17,
    24,
    9,
    1,
    40,
)  # training examples: ragged, one smaller than a batch, one with a single example


def digits(sizes: tuple[int, ...] = SIZES, classes: int = 10, skew: bool = True) -> Federation:
    """Clients with the given numbers of training examples; with ``skew`` each sees few classes."""
    images, labels = read_digits()
    x = torch.tensor(images.reshape(-1, 1, 8, 8) / 8 - 1, dtype=torch.float32)
    y = torch.tensor(labels, dtype=torch.int64)
    order = Rng.seed(7).permutation(len(y))
    order = order[y[order] < classes]
    if skew:  # neighbours in this order share labels
        order = order[
            torch.argsort(y[order] * 100 + Rng.seed(8).permutation(len(order)) % 350, stable=True)
        ]
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
    with torch.random.fork_rng(devices=[]):  # modules draw first values that nobody uses
        if kind == "linear":
            return Backbone(nn.Flatten(), nn.Linear(64, classes), features=64, kind="linear")
        between = {"batch": nn.BatchNorm2d(4), "group": nn.GroupNorm(2, 4), "none": nn.Identity()}[
            norm
        ]
        layers = {
            "conv1": nn.Conv2d(1, 4, 3, padding=1),
            "norm1": between,
            "relu1": nn.ReLU(),
            "pool1": nn.MaxPool2d(2),
            "flatten": nn.Flatten(),
            "fc1": nn.Linear(64, 16),
            "relu2": nn.ReLU(),
        }
        return Backbone(
            nn.Sequential(OrderedDict(layers)), nn.Linear(16, classes), features=16, kind="cnn"
        )


@dataclass
class SmallRun:
    """What came of a trial."""

    server: Tree
    executor: Executor
    exchange: Exchange
    site: ClientRunner  # for looking at clients: site.client(k, t, *path), site.load(k)
    t: int

    @property
    def hash(self) -> str:
        """A digest of the server's state and of all private states."""
        return fingerprint(
            encode(self.server), ((k, self.store.get(k) or {}) for k in self.store.clients())
        )

    @property
    def store(self) -> Store:
        """All private states."""
        return self.executor.store

    def keep(self, k: int) -> Tree:
        """The private state of client k (None if it has none)."""
        found = self.site.load(k)
        return found[0] if found else None

    def saved(self) -> tuple[int, bytes, dict[int, bytes]]:
        """Everything, as a checkpoint holds it."""
        return (
            self.t,
            dump_flat(encode(self.server)),
            {k: dump_flat(self.store.get(k) or {}) for k in self.store.clients()},
        )

    def scores(self) -> dict[int, Score]:
        """The personal models on their clients' data."""
        downs = {
            k: self.site.method.send(self.server, k)
            for k in range(self.site.world.federation.clients)
        }
        with torch_settings(self.site.world.dtype):
            replies = self.executor.call("@score", downs, self.t, 0, lambda: None)
        for k, reply in replies.items():
            if reply.error:
                raise RuntimeError(f"client {k} cannot be evaluated: {reply.error}")
        return {k: reply.up for k, reply in replies.items()}

    def accuracy(self) -> float:
        """Weighted test accuracy of the personal models."""
        return measure([s.test for s in self.scores().values()]).accuracy or 0.0


Make = Callable[[World], Executor]
EXECUTORS: dict[str, Make] = {
    "sequential": lambda w: Sequential(ClientRunner(w, MemoryStore())),
    "processes": lambda w: Processes(w, 2),
    "vmap": lambda w: Vectorized(ClientRunner(w, MemoryStore()), 2),
}


def run_small(
    method: AnyMethod,
    *,
    rounds: int = 3,
    executor: str | Make = "sequential",
    federation: Federation | None = None,
    backbone: Backbone | None = None,
    plan: Plan = Plan(lr=0.05, batch=10),  # noqa: B008 (frozen)
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    bn: str = "average",
    share: float = 1.0,
    drop: float = 0.0,
    norm: str = "group",
    late: bool = False,
    since: tuple[int, bytes, dict[int, bytes]] | None = None,
    until: int | None = None,
) -> SmallRun:
    """Run a method for some rounds and give back the server's state and the executor with all private states.

    ``late``: the last client joins at round 2. ``since``: go on from what ``Played.saved`` gave. ``until``: stop early.
    """
    with torch_settings(dtype):
        federation = federation or digits()
        backbone = backbone or small(method.test_backbone, norm, federation.classes)
        method = method.with_defaults_for(backbone)
        world = World(method, backbone, federation, plan, seed, rounds, bn, dtype)
        runner = (EXECUTORS[executor] if isinstance(executor, str) else executor)(world)
        site = ClientRunner(world, runner.store)
        exchange = Exchange(method, runner, seed, rounds, drop, stays=site.stays)
        everybody = list(range(federation.clients))
        first = everybody[:-1] if late else everybody
        if since is None:
            begun, server = 0, method.init(site.new, federation.clients)
            server = method.setup(server, Cohort(exchange, first, 0))
        else:
            begun, server = since[0], decode(server_type(method), parse_flat(since[1], "server"))
            for k, state in since[2].items():
                runner.store.put(k, parse_flat(state, f"client {k}"))
        for t in range(begun + 1, (until or rounds) + 1):
            if late and t == 2:
                server = method.setup(server, Cohort(exchange, everybody[-1:], 1, 1000))
            present = first if t == 1 else everybody
            chosen = method.sample(server, present, share, Rng.seed(seed, 1, t))
            try:
                server = method.round(server, Cohort(exchange, chosen, t))
            except NoReplies:
                continue
        return SmallRun(server, runner, exchange, site, until or rounds)
