"""A small federation of real digits, for the conformance suite and the tests: a few ragged clients."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Tree
from fedtailor.core.wire import decode, encode
from fedtailor.data.federation import Federation
from fedtailor.data.sets.digits import read_digits
from fedtailor.engine.exchange import SETUP_CALLS, Exchange
from fedtailor.evaluation.score import Score
from fedtailor.evaluation.summary import measure
from fedtailor.executors import Executor
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.processes import Processes
from fedtailor.executors.sequential import Sequential
from fedtailor.executors.vectorized import Vectorized
from fedtailor.executors.visit import Look
from fedtailor.executors.world import AnyMethod, World
from fedtailor.filters import Filter
from fedtailor.filters.local_buffers import LocalBuffers
from fedtailor.method import Cohort, NoReplies
from fedtailor.method_types import server_type
from fedtailor.models.backbone import Backbone
from fedtailor.storage.files import dump_flat, fingerprint, parse_flat
from fedtailor.storage.private_state import MemoryStore, Store
from fedtailor.training.optim import Plan

# Training examples of each client: ragged, one smaller than a batch, one with a single example.
SIZES = (30, 17, 24, 9, 1, 40)
HELD_OUT = 8  # validation examples of each client, and as many test examples

Saved = tuple[int, bytes, dict[int, bytes]]  # round, server's state, private states


def digits(sizes: tuple[int, ...] = SIZES, classes: int = 10, skew: bool = True) -> Federation:
    """Clients with the given numbers of training examples; with ``skew`` each sees few classes."""
    images, labels = read_digits()
    x = torch.tensor(images.reshape(-1, 1, 8, 8) / 8 - 1, dtype=torch.float32)
    y = torch.tensor(labels, dtype=torch.int64)
    order = Rng.seed(7).permutation(len(y))
    order = order[y[order] < classes]
    if skew:  # neighbours in this order share labels
        jitter = Rng.seed(8).permutation(len(order)) % 350
        order = order[torch.argsort(y[order] * 100 + jitter, stable=True)]
    train: list[Tensor] = []
    val: list[Tensor] = []
    test: list[Tensor] = []
    start = 0
    gap = len(order) // len(sizes)
    for n in sizes:
        mine = order[start : start + n + 2 * HELD_OUT]
        mine = mine[Rng.seed(9, start).permutation(len(mine))]
        train.append(mine[:n])
        val.append(mine[n : n + HELD_OUT])
        test.append(mine[n + HELD_OUT :])
        has_room = start + gap + n < len(order)
        start += max(gap, n + 2 * HELD_OUT) if has_room else n
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
    """What came of a small run."""

    server: Tree
    executor: Executor
    exchange: Exchange
    runner: ClientRunner  # to look at clients: runner.client(k, t, *path), runner.load(k)
    t: int

    @property
    def hash(self) -> str:
        """A digest of the server's state and of all private states."""
        states = ((k, self.store.get(k) or {}) for k in self.store.clients())
        return fingerprint(encode(self.server), states)

    @property
    def store(self) -> Store:
        """All private states."""
        return self.executor.store

    def keep(self, k: int) -> Tree:
        """The private state of client k (None if it has none)."""
        return self.runner.load(k).keep

    def save(self) -> Saved:
        """Everything, as a checkpoint holds it."""
        states = {k: dump_flat(self.store.get(k) or {}) for k in self.store.clients()}
        return self.t, dump_flat(encode(self.server)), states

    def scores(self) -> dict[int, Score]:
        """The personal models on their clients' data."""
        clients = range(self.runner.world.federation.clients)
        downs = {k: self.runner.method.send(self.server, k) for k in clients}
        with torch_settings(self.runner.world.dtype):
            replies = self.exchange.look(Look.SCORE, downs, self.t)
        for k, reply in replies.items():
            if reply.error:
                raise RuntimeError(f"client {k} cannot be evaluated: {reply.error}")
        return {k: reply.up for k, reply in replies.items()}

    def accuracy(self) -> float:
        """Weighted test accuracy of the personal models."""
        tallies = [score.test for score in self.scores().values()]
        return measure(self.runner.world.task, tallies).accuracy or 0.0


MakeExecutor = Callable[[World], Executor]
EXECUTORS: dict[str, MakeExecutor] = {
    "sequential": lambda world: Sequential(ClientRunner(world, MemoryStore())),
    "processes": lambda world: Processes(world, 2),
    "vmap": lambda world: Vectorized(ClientRunner(world, MemoryStore()), 2),
}


def run_small(
    method: AnyMethod,
    *,
    rounds: int = 3,
    executor: str | MakeExecutor = "sequential",
    federation: Federation | None = None,
    backbone: Backbone | None = None,
    plan: Plan = Plan(lr=0.05, batch=10),  # noqa: B008 (frozen)
    seed: int = 0,
    dtype: torch.dtype = torch.float32,
    bn: str = "average",
    filters: Sequence[Filter] = (),
    share: float = 1.0,
    drop: float = 0.0,
    norm: str = "group",
    late: bool = False,
    since: Saved | None = None,
    until: int | None = None,
) -> SmallRun:
    """Run a method for some rounds.

    Args:
        method: the method; its missing defaults are filled in.
        late: the last client joins at round 2.
        since: continue from what ``SmallRun.save`` gave.
        until: stop after this round of all ``rounds``.
    """
    with torch_settings(dtype):
        federation = federation or digits()
        backbone = backbone or small(method.test_backbone, norm, federation.classes)
        method = method.with_defaults_for(backbone)
        if bn == "local":
            filters = (LocalBuffers(), *filters)
        world = World(method, backbone, federation, plan, seed, rounds, filters, dtype)
        make_executor = EXECUTORS[executor] if isinstance(executor, str) else executor
        runs_clients = make_executor(world)
        runner = ClientRunner(world, runs_clients.store)
        exchange = Exchange(method, runs_clients, runner.filters, seed, rounds, drop)
        clients = list(range(federation.clients))
        first = clients[:-1] if late else clients
        if since is None:
            begun = 0
            server = method.init(runner.new, federation.clients)
            server = method.setup(server, Cohort(exchange, first, 0))
        else:
            begun, saved_server, states = since
            server = decode(server_type(method), parse_flat(saved_server, "server"))
            for k, state in states.items():
                runs_clients.store.put(k, parse_flat(state, f"client {k}"))
        last = until or rounds
        for t in range(begun + 1, last + 1):
            if late and t == 2:
                server = method.setup(server, Cohort(exchange, clients[-1:], 1, SETUP_CALLS))
            present = first if t == 1 else clients
            rng = Rng.seed(seed, Purpose.SAMPLE, t)
            chosen = method.sample(server, present, share, rng)
            try:
                server = method.round(server, Cohort(exchange, chosen, t))
            except NoReplies:
                continue
        return SmallRun(server, runs_clients, exchange, runner, last)
