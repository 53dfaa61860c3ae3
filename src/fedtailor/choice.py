"""Which executor suits a run: a fixed rule of network, batch, clients and device type, never of load or timing."""

from __future__ import annotations

import os
from typing import NamedTuple

from fedtailor.config import Experiment
from fedtailor.executors import Executor
from fedtailor.executors.processes import Processes
from fedtailor.executors.sequential import Sequential
from fedtailor.executors.site import Site, World
from fedtailor.executors.vectorized import Vectorized
from fedtailor.folder import Folder
from fedtailor.store import FileStore, MemoryStore

SMALL = 60_000  # parameters below which starting processes costs more than they save in a short run
SHORT = 400_000  # example visits below which the same holds


class Choice(NamedTuple):
    """An executor's name and why it was chosen."""

    name: str
    why: str


def choose(world: World, workers: int | None) -> Choice:
    """The rule behind ``--executor auto``."""
    if world.device != "cpu":
        return Choice("vmap", f"the network runs on {world.device}")
    cores = workers or cpus()
    if cores == 1:
        return Choice("sequential", "there is one core")
    parameters = sum(p.numel() for p in world.backbone.parameters())
    visits = sum(len(i) for i in world.federation.train) * world.plan.epochs * world.rounds
    if parameters < SMALL and visits < SHORT:
        return Choice("sequential", f"{parameters:,} parameters and {visits:,} examples to see are little work")
    return Choice("processes", f"{cores} cores share {parameters:,} parameters and {visits:,} examples to see")


def start(name: str, world: World, options: Experiment, folder: Folder) -> Executor:
    """The executor of that name, ready."""
    state = folder.state() if options.state == "disk" else None
    if name == "processes":
        return Processes(world, options.workers or cpus(), state)
    site = Site(world, FileStore(state) if state else MemoryStore())
    return Vectorized(site) if name == "vmap" else Sequential(site)


def cpus() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
