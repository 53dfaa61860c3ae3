"""A small federation of real digits, for the conformance suite and the tests."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from fedtailor.client import Client
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Tree
from fedtailor.core.wire import Flat, decode, encode
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
from fedtailor.executors.visit import Look
from fedtailor.executors.world import AnyMethod, World
from fedtailor.filters import SETUP_CALLS, Filter, RoundPlan
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


def digits(
    sizes: tuple[int, ...] = SIZES,
    classes: int = 10,
    skew: bool = True,
) -> Federation:
    """Clients with the given numbers of training examples; with ``skew`` each sees few classes."""
    images, labels = read_digits()
    pixels = images.reshape(-1, 1, 8, 8) / 8 - 1
    x = torch.tensor(pixels, dtype=torch.float32)
    y = torch.tensor(labels, dtype=torch.int64)
    order = _order_samples(y, classes, skew)
    train: list[Tensor] = []
    val: list[Tensor] = []
    test: list[Tensor] = []
    start = 0
    gap = len(order) // len(sizes)
    for n in sizes:
        needed = n + 2 * HELD_OUT
        mine = order[start : start + needed]
        shuffled = Rng.seed(9, start).permutation(len(mine))
        mine = mine[shuffled]
        train.append(mine[:n])
        val.append(mine[n : n + HELD_OUT])
        test.append(mine[n + HELD_OUT :])
        has_room = start + gap + n < len(order)
        start += max(gap, needed) if has_room else n
    return Federation("digits", "image", x, y, classes, train, val, test)


def _order_samples(y: Tensor, classes: int, skew: bool) -> Tensor:
    """All samples of the first classes, in the order in which clients get them."""
    order = Rng.seed(7).permutation(len(y))
    order = order[y[order] < classes]
    if not skew:
        return order
    # neighbours in this order share labels
    jitter = Rng.seed(8).permutation(len(order))
    rank = y[order] * 100 + jitter % 350
    return order[torch.argsort(rank, stable=True)]


def small(kind: str = "cnn", norm: str = "group", classes: int = 10) -> Backbone:
    """A network of a few thousand parameters for 8 x 8 digits, or a ``linear`` one."""
    # modules draw first values that are never used
    with torch.random.fork_rng(devices=[]):
        if kind == "linear":
            head = nn.Linear(64, classes)
            return Backbone(nn.Flatten(), head, features=64, kind="linear")
        layers: dict[str, nn.Module] = {
            "conv1": nn.Conv2d(1, 4, 3, padding=1),
            "norm1": _make_norm(norm),
            "relu1": nn.ReLU(),
            "pool1": nn.MaxPool2d(2),
            "flatten": nn.Flatten(),
            "fc1": nn.Linear(64, 16),
            "relu2": nn.ReLU(),
        }
        base = nn.Sequential(OrderedDict(layers))
        head = nn.Linear(16, classes)
        return Backbone(base, head, features=16, kind="cnn")


def _make_norm(norm: str) -> nn.Module:
    """A normalisation layer for four channels."""
    if norm == "batch":
        return nn.BatchNorm2d(4)
    if norm == "group":
        return nn.GroupNorm(2, 4)
    return nn.Identity()


@dataclass
class SmallRun:
    """What came of a small run."""

    server: Tree
    executor: Executor
    exchange: Exchange
    # to look at clients: runner.client(k, t, *path), runner.load(k)
    runner: ClientRunner
    t: int  # rounds that are over

    @property
    def method(self) -> AnyMethod:
        """The method, with its defaults filled in."""
        return self.runner.method

    @property
    def clients(self) -> list[int]:
        """Ids of all clients."""
        federation = self.runner.world.federation
        return list(range(federation.clients))

    @property
    def store(self) -> Store:
        """All private states."""
        return self.executor.store

    @property
    def hash(self) -> str:
        """A digest of the server's state and of all private states."""
        states = self.private_states()
        return fingerprint(encode(self.server), states.items())

    def private_states(self) -> dict[int, Flat]:
        """Every stored state, by client."""
        return {k: self.store.get(k) or {} for k in self.store.clients()}

    def keep(self, k: int) -> Tree:
        """The private state of client k (None if it has none)."""
        return self.runner.load(k).keep

    def save(self) -> Saved:
        """Everything, as a checkpoint holds it."""
        server = dump_flat(encode(self.server))
        states = self.private_states()
        return self.t, server, {k: dump_flat(state) for k, state in states.items()}

    # ---------------------------------------------------------------- the next round
    def next_visit(self, k: int) -> tuple[Client, Tree, Tree]:
        """Client k as the next evaluation sees it, what it is sent, and what it keeps."""
        down = self.method.send(self.server, k)
        return self.runner.load_client(k, down, self.t + 1)

    def next_client(self, k: int) -> Client:
        """Client k in the first call of the next round."""
        t = self.t + 1
        return self.runner.client(k, t, Purpose.CALL, t, 1)

    # ---------------------------------------------------------------- evaluation
    def scores(self) -> dict[int, Score]:
        """The personal models on their clients' data."""
        method = self.method
        downs = {k: method.send(self.server, k) for k in self.clients}
        with torch_settings(self.runner.world.dtype):
            replies = self.exchange.look(Look.SCORE, downs, self.t)
        for k, reply in replies.items():
            if reply.error:
                raise RuntimeError(f"client {k} cannot be evaluated: {reply.error}")
        return {k: reply.up for k, reply in replies.items()}

    def accuracy(self) -> float:
        """Weighted test accuracy of the personal models."""
        scores = self.scores().values()
        task = self.runner.world.task
        found = measure(task, [score.test for score in scores])
        return found.accuracy or 0.0


MakeExecutor = Callable[[World], Executor]


def run_one_by_one(world: World) -> Executor:
    """The reference executor, with states in memory."""
    runner = ClientRunner(world, MemoryStore())
    return Sequential(runner)


def vectorise_in_blocks(size: int) -> MakeExecutor:
    """Makes an executor that runs blocks of so many clients under vmap."""

    def make(world: World) -> Executor:
        runner = ClientRunner(world, MemoryStore())
        return Vectorized(runner, size)

    return make


EXECUTORS: dict[str, MakeExecutor] = {
    "sequential": run_one_by_one,
    "processes": lambda world: Processes(world, 2),
    "vmap": vectorise_in_blocks(2),
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
    """Run a method for some rounds; its missing defaults are filled in.

    Args:
        late: the last client joins at round 2.
        since: continue from what ``SmallRun.save`` gave.
        until: stop after this round of all ``rounds``.
    """
    if bn == "local":
        filters = (LocalBuffers(), *filters)
    with torch_settings(dtype):
        federation = federation or digits()
        backbone = backbone or small(method.test_backbone, norm, federation.classes)
        method = method.with_defaults_for(backbone)
        world = World(method, backbone, federation, plan, seed, rounds, filters, dtype)
        run = _start_run(world, executor, drop)
        if since is None:
            _set_up(run, late)
        else:
            _load(run, since)
        _run_rounds(run, until or rounds, share, late)
    return run


def _start_run(world: World, executor: str | MakeExecutor, drop: float) -> SmallRun:
    """A run before its first round; the server has no state yet."""
    make_executor = EXECUTORS[executor] if isinstance(executor, str) else executor
    for f in world.filters:
        f.begin_simulation(None, resume=False)
    started = make_executor(world)
    runner = ClientRunner(world, started.store)
    exchange = Exchange(
        world.method,
        started,
        runner.filters.for_server(),
        world.seed,
        world.rounds,
        drop,
    )
    return SmallRun(None, started, exchange, runner, t=0)


def _set_up(run: SmallRun, late: bool) -> None:
    """The server's first state, and what the method asks clients before the first round."""
    method = run.method
    first = run.clients[:-1] if late else run.clients
    server = method.init(run.runner.new, len(run.clients))
    run.server = method.setup(server, Cohort(run.exchange, first, 0))


def _load(run: SmallRun, saved: Saved) -> None:
    """Everything as it was saved."""
    run.t, server, states = saved
    flat = parse_flat(server, "server")
    run.server = decode(server_type(run.method), flat)
    for k, state in states.items():
        run.store.put(k, parse_flat(state, f"client {k}"))


def _run_rounds(run: SmallRun, last: int, share: float, late: bool) -> None:
    """The rounds up to ``last``; one without replies is skipped."""
    method = run.method
    while run.t < last:
        run.t += 1
        clients = run.clients
        if late and run.t == 1:
            clients = clients[:-1]
        if late and run.t == 2:
            newcomers = Cohort(run.exchange, clients[-1:], 1, SETUP_CALLS)
            run.server = method.setup(run.server, newcomers)
        down = method.send(run.server, clients[0])
        run.exchange.filters.before_round(
            RoundPlan(run.t, len(clients), share, False, down)
        )
        rng = Rng.seed(run.exchange.seed, Purpose.SAMPLE, run.t)
        chosen = method.sample(run.server, clients, share, rng)
        cohort = Cohort(run.exchange, chosen, run.t)
        with suppress(NoReplies):
            run.server = method.round(run.server, cohort)
        run.exchange.filters.after_round(run.t)
