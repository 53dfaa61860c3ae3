"""Work files say exactly what is to be computed, so that all contenders compute the same.

A file holds the data, which client has which of them, every batch of every round, and the network's
first values. FedTailor decides all of it (:func:`describe_work`), and every contender reads it.

The peers' programs read work files in an environment that has no FedTailor, which is why FedTailor
is imported only inside the functions that need it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from benchmarks.networks import build_network

if TYPE_CHECKING:
    from fedtailor.core.rng import Rng
    from fedtailor.experiment.prepare import Setup

EVALUATION_BATCH = 500  # examples
# by round, place in the cohort and epoch: positions in the client's data, batch after batch
Positions = dict[int, list[list[Tensor]]]
INITIAL = "initial/"  # begins the names of the network's values in a file


@dataclass(frozen=True)
class Task:
    """The network and how it is trained."""

    network: str
    shape: tuple[int, ...]
    classes: int
    vocabulary: int
    lr: float
    batch: int


@dataclass(frozen=True)
class Work:
    """What is to be computed; clients are numbered from 0, rounds from 1."""

    task: Task
    x: Tensor  # as stored: bytes for images
    y: Tensor
    rows: list[Tensor]  # by client, the rows of its training data
    test: Tensor  # rows on which the final model is evaluated
    cohorts: Tensor  # (rounds, clients of a round)
    positions: Positions
    initial: dict[str, Tensor]  # the network's first values

    def inputs(self, rows: Tensor) -> Tensor:
        """Inputs as the network takes them: bytes become numbers in [-1, 1]."""
        x = self.x[rows]
        if x.dtype != torch.uint8:
            return x
        return x.float().div_(127.5).sub_(1.0)

    def cohort(self, t: int) -> list[int]:
        """The clients of round ``t``."""
        clients: list[int] = self.cohorts[t - 1].tolist()
        return clients

    def visit_rows(self, t: int, place: int) -> Tensor:
        """The rows of the first epoch of a visit, batch after batch."""
        client = int(self.cohorts[t - 1, place])
        return self.rows[client][self.positions[t][place][0]]

    def build_network(self) -> nn.Sequential:
        """The network, with any values."""
        task = self.task
        return build_network(task.network, task.shape, task.classes, task.vocabulary)

    def build_initial_network(self) -> nn.Sequential:
        """The network with its first values."""
        net = self.build_network()
        net.load_state_dict(self.initial)
        return net

    @torch.no_grad()
    def evaluate(self, net: nn.Module) -> dict[str, float]:
        """Loss and accuracy of a model on the test rows: equal where the same was learned."""
        loss = 0.0
        correct = 0.0
        for rows in self.test.split(EVALUATION_BATCH):
            y = self.y[rows]
            logits = net(self.inputs(rows))
            loss += float(F.cross_entropy(logits, y, reduction="sum"))
            correct += float((logits.argmax(-1) == y).sum())
        examples = len(self.test)
        return {"loss": loss / examples, "accuracy": correct / examples}


def write_work_file(path: Path, work: Work) -> None:
    """Write a work file; one that is there is whole."""
    rounds = sorted(work.positions)
    visits = [epochs for t in rounds for epochs in work.positions[t]]
    lengths = [[len(epochs[0]) for epochs in work.positions[t]] for t in rounds]
    tensors = {
        "x": work.x,
        "y": work.y,
        "sizes": torch.tensor([len(rows) for rows in work.rows]),
        "rows": torch.cat(work.rows),
        "test": work.test,
        "cohorts": work.cohorts,
        "lengths": torch.tensor(lengths),
        "positions": torch.cat([torch.stack(epochs) for epochs in visits], 1),
    }
    for name, value in work.initial.items():
        tensors[f"{INITIAL}{name}"] = value
    arrays = {name: value.numpy() for name, value in tensors.items()}
    task = json.dumps(asdict(work.task)).encode()
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_suffix(".part.npz")
    np.savez(temporary, task=np.frombuffer(task, np.uint8), **arrays)
    temporary.replace(path)


def read_work_file(path: str | Path) -> Work:
    """Read a work file."""
    with np.load(path) as file:
        tensors = {name: torch.from_numpy(file[name]) for name in file.files}
    task = json.loads(tensors["task"].numpy().tobytes())
    task["shape"] = tuple(task["shape"])
    initial = {}
    for name, value in tensors.items():
        if name.startswith(INITIAL):
            initial[name.removeprefix(INITIAL)] = value
    return Work(
        Task(**task),
        tensors["x"],
        tensors["y"],
        list(tensors["rows"].split(tensors["sizes"].tolist())),
        tensors["test"],
        tensors["cohorts"],
        split_positions(tensors["positions"], tensors["lengths"].tolist()),
        initial,
    )


def split_positions(positions: Tensor, lengths: list[list[int]]) -> Positions:
    """Positions by round, place in the cohort and epoch; ``lengths`` are by round and place."""
    by_round: Positions = {}
    start = 0
    for t, places in enumerate(lengths, 1):
        by_round[t] = []
        for length in places:
            visit = positions[:, start : start + length]
            by_round[t].append(list(visit.unbind(0)))
            start += length
    return by_round


def describe_work(setup: Setup, rounds: int, epochs: int = 1) -> Work:
    """What FedTailor would compute in so many rounds, with so many epochs a visit."""
    from fedtailor.executors.client_runner import ClientRunner
    from fedtailor.storage.private_state import MemoryStore

    world = setup.world
    federation = world.federation
    task = Task(
        setup.options.model,
        federation.shape,
        federation.classes,
        federation.vocabulary,
        world.plan.lr,
        world.plan.batch,
    )
    test = federation.common
    if test is None:
        test = torch.cat(federation.test)
    cohorts = draw_cohorts(setup, rounds)
    # other rows need not be in the file
    used = torch.cat([*federation.train, test]).unique()
    return Work(
        task,
        federation.x[used],
        federation.y[used],
        [torch.searchsorted(used, rows) for rows in federation.train],
        torch.searchsorted(used, test),
        torch.tensor(cohorts),
        draw_all_positions(setup, cohorts, epochs),
        ClientRunner(world, MemoryStore()).new(0),
    )


def draw_cohorts(setup: Setup, rounds: int) -> list[list[int]]:
    """The clients of every round, as FedTailor draws them."""
    from fedtailor.core.rng import Purpose, Rng
    from fedtailor.experiment.config import parse_participation
    from fedtailor.method import Method

    share = parse_participation(setup.options.participation)[0]
    clients = list(range(setup.world.federation.clients))
    cohorts = []
    for t in range(1, rounds + 1):
        rng = Rng.seed(setup.options.seed, Purpose.SAMPLE, t)
        cohorts.append(Method.sample(setup.world.method, None, clients, share, rng))
    return cohorts


def draw_all_positions(
    setup: Setup, cohorts: list[list[int]], epochs: int
) -> Positions:
    """The batches of all visits, as FedTailor draws them."""
    from fedtailor.core.rng import Purpose, Rng

    world = setup.world
    positions: Positions = {}
    for t, cohort in enumerate(cohorts, 1):
        positions[t] = []
        for k in cohort:
            rng = Rng.seed(setup.options.seed, Purpose.CALL, t, 1, k)
            examples = len(world.federation.train[k])
            positions[t].append(draw_positions(rng, examples, world.plan.batch, epochs))
    return positions


def draw_positions(rng: Rng, examples: int, batch: int, epochs: int) -> list[Tensor]:
    """The batches of a visit, by epoch: a permutation, its last batch filled from its beginning."""
    batches = -(-examples // batch)
    places = torch.arange(batches * batch) % examples
    return [rng.fold(epoch).permutation(examples)[places] for epoch in range(epochs)]
