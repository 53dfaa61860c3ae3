"""Which executor suits a run: a fixed rule of network, batch, clients and device type, never of load or timing."""

from __future__ import annotations

import os
from typing import NamedTuple

from torch import nn

from fedtailor.config import Experiment
from fedtailor.executors import Executor
from fedtailor.executors.processes import Processes
from fedtailor.executors.sequential import Sequential
from fedtailor.executors.site import Site, World
from fedtailor.executors.vectorized import Vectorized
from fedtailor.folder import Folder
from fedtailor.store import FileStore, MemoryStore

# A rough price of one training example on one core: some overhead, and so much per parameter. Worker processes take
# a few seconds to start, so runs that are over sooner stay in one process.
OVERHEAD, PER_PARAMETER, WORTH = 1e-4, 1.4e-9, 8.0  # seconds
# Networks so small that PyTorch's own overhead is most of a step: many clients in one step are then several times
# faster. Word vectors are not among them, as vmap has no sparse gradients.
SMALL, MANY = 30_000, 32  # parameters, clients


class Choice(NamedTuple):
    """An executor's name and why it was chosen."""

    name: str
    why: str


def choose(world: World, workers: int | None) -> Choice:
    """The rule behind ``--executor auto``."""
    if world.device != "cpu":
        return Choice("vmap", f"the network runs on {world.device}")
    cores = workers or cpus()
    parameters = sum(p.numel() for p in world.backbone.parameters())
    clients = world.federation.clients
    if parameters <= SMALL and clients >= MANY and _suits_vmap(world):
        return Choice("vmap", f"{parameters:,} parameters are few and {clients} clients many")
    if cores == 1:
        return Choice("sequential", "there is one core")
    visits = sum(len(i) for i in world.federation.train) * world.plan.epochs * world.rounds
    work = f"{visits:,} training examples through {parameters:,} parameters"
    if visits * (OVERHEAD + PER_PARAMETER * parameters) < WORTH:
        return Choice("sequential", f"{work} are little work")
    return Choice("processes", f"{cores} cores share {work}")


def _suits_vmap(world: World) -> bool:
    """Whether nothing would have to be run one client at a time."""
    odd = (nn.Embedding, nn.RNNBase)
    alone = getattr(type(world.method).local, "one_by_one", False)
    return world.plan.batching != "keep" and not alone and not any(isinstance(m, odd) for m in world.backbone.modules())


def start(name: str, world: World, options: Experiment, folder: Folder) -> Executor:
    """The executor of that name, ready."""
    state = folder.state() if options.state == "disk" else None
    if name == "processes":
        return Processes(world, options.workers or cpus(), state)
    if name == "ray":
        from fedtailor.executors.ray import Ray  # here, because ray is an extra

        return Ray(world, options.ray_address, options.workers, state)
    site = Site(world, FileStore(state) if state else MemoryStore())
    return Vectorized(site) if name == "vmap" else Sequential(site)


def cpus() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
