"""Writes the work files: FedTailor's own partition, cohorts, batches and first values, for everybody to use."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.work import Work, write
from fedtailor.core.rng import Purpose, Rng
from fedtailor.data.federation import Federation
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.experiment.config import make_experiment, parse_participation
from fedtailor.experiment.prepare import Setup, prepare
from fedtailor.method import Method
from fedtailor.storage.private_state import MemoryStore


def settle(options: dict[str, Any], federation: Federation | None = None) -> Setup:
    """The experiment that FedTailor would run."""
    return prepare(make_experiment(options), data=federation)


def lay_down(path: Path, setup: Setup, rounds: int, epochs: int = 1) -> None:
    """The file that says what this experiment computes in so many rounds of so many epochs a visit."""
    o, world = setup.options, setup.world
    f, batch = world.federation, world.plan.batch
    cohorts, at = [], dict[int, list[list[Tensor]]]()
    for t in range(1, rounds + 1):
        stream = Rng.seed(o.seed, Purpose.SAMPLE, t)
        cohorts.append(
            Method.sample(
                world.method,
                None,
                list(range(f.clients)),
                parse_participation(o.participation)[0],
                stream,
            )
        )
        at[t] = [draw_positions(o.seed, t, k, len(f.train[k]), batch, epochs) for k in cohorts[-1]]
    first = ClientRunner(world, MemoryStore()).new(0)
    test = f.common if f.common is not None else torch.cat(f.test)
    about = {
        "network": o.model,
        "shape": f.shape,
        "classes": f.classes,
        "vocabulary": f.vocabulary,
        "lr": world.plan.lr,
        "batch": batch,
    }
    used = torch.cat([*f.train, test]).unique()  # the rows that matter, and no others
    train, test = ([torch.searchsorted(used, rows) for rows in part] for part in (f.train, [test]))
    write(path, Work(about, f.x[used], f.y[used], train, test[0], torch.tensor(cohorts), at, first))


def draw_positions(seed: int, t: int, k: int, n: int, batch: int, epochs: int) -> list[Tensor]:
    """The batches of a visit, by epoch: a permutation, its last batch filled up from its beginning."""
    rng, seats = Rng.seed(seed, Purpose.CALL, t, 1, k), torch.arange(-(-n // batch) * batch)
    return [rng.fold(e).permutation(n)[seats % n] for e in range(epochs)]
