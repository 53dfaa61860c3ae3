"""Which executor suits a run: a fixed rule of network, batch, clients and device type, never of load or timing."""

from __future__ import annotations

import copy
import os
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from fedtailor.core.errors import UserError
from fedtailor.data.federation import features
from fedtailor.executors import Executor
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.processes import Processes
from fedtailor.executors.sequential import Sequential
from fedtailor.executors.vectorized import Vectorized
from fedtailor.executors.world import World
from fedtailor.experiment.config import Experiment
from fedtailor.experiment.run_folder import CONFIG, RunFolder
from fedtailor.storage.private_state import FileStore, MemoryStore

# A rough price of one training example on one core: some overhead, so much for every multiplication of the forward
# pass and for every parameter that is updated. Worker processes take about two seconds to start, so runs that are
# over sooner stay in one process. Fitted to `make bench`, like the bounds below.
OVERHEAD, PER_PRODUCT, PER_PARAMETER, WORTH = 5e-5, 1.4e-10, 2e-10, 5.0  # seconds
# Networks so small that PyTorch's own overhead is most of a step: many clients in one step are then several times
# faster. Word vectors are not among them, as vmap has no sparse gradients.
SMALL, LIGHT, MANY = 30_000, 200_000, 8  # parameters, multiplications of an example, clients


class Choice(NamedTuple):
    """An executor's name and why it was chosen."""

    name: str
    why: str


def settle_on(options: Experiment, world: World, folder: RunFolder, resume: bool) -> Choice:
    """The executor of a run: the one that is wished, or that it began with, or that suits it."""
    if options.batching == "keep" and options.executor == "vmap":
        raise UserError(
            "batching=keep gives batches of different sizes, which vmap cannot run; choose fill or drop"
        )
    if resume and (folder.path / CONFIG).exists():
        before = str(folder.read_config()["executor"])
        wanted = before if options.executor == "auto" else options.executor
        if "vmap" in (before, wanted) and before != wanted:
            raise UserError(
                f"the run began with executor {before}, whose rounding differs from {wanted}'s"
            )
        return Choice(wanted, "the run began so")
    return (
        choose(world, options.workers)
        if options.executor == "auto"
        else Choice(options.executor, "")
    )


def choose(world: World, workers: int | None) -> Choice:
    """The rule behind ``--executor auto``."""
    if world.device != "cpu":
        return Choice("vmap", f"the network runs on {world.device}")
    cores = workers or cpus()
    parameters = sum(p.numel() for p in world.backbone.parameters())
    clients = world.federation.clients
    products = _multiplications(world)
    if parameters <= SMALL and products <= LIGHT and clients >= MANY and _suits_vmap(world):
        return Choice("vmap", f"{parameters:,} parameters are few and {clients} clients many")
    if cores == 1:
        return Choice("sequential", "there is one core")
    visits = sum(len(i) for i in world.federation.train) * world.plan.epochs * world.rounds
    work = f"{visits:,} training examples through {parameters:,} parameters"
    if visits * (OVERHEAD + PER_PRODUCT * products + PER_PARAMETER * parameters) < WORTH:
        return Choice("sequential", f"{work} are little work")
    return Choice("processes", f"{cores} cores share {work}")


def _multiplications(world: World) -> int:
    """Of one example's way forward, in convolutions and linear layers."""
    network, f, found = (
        copy.deepcopy(world.backbone).to_empty(device="cpu").eval(),
        world.federation,
        [0],
    )

    def count(layer: nn.Module, given: Any, out: Tensor) -> None:
        found[0] += out.numel() * layer.get_parameter("weight")[0].numel()

    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            layer.register_forward_hook(count)
    first = torch.zeros(1, dtype=torch.int64)
    x = features(f.x[first if f.row is None else f.row[first]])
    with torch.no_grad():
        network(x.to(next(network.parameters()).dtype) if x.is_floating_point() else x)
    return found[0]


def _suits_vmap(world: World) -> bool:
    """Whether nothing would have to be run one client at a time."""
    odd = (nn.Embedding, nn.RNNBase)
    alone = getattr(type(world.method).local, "one_by_one", False)
    return (
        world.plan.batching != "keep"
        and not alone
        and not any(isinstance(m, odd) for m in world.backbone.modules())
    )


def start(name: str, world: World, options: Experiment, folder: RunFolder) -> Executor:
    """The executor of that name, ready."""
    state = folder.clear_state() if options.state == "disk" else None
    if name == "processes":
        return Processes(world, options.workers or cpus(), state)
    if name == "ray":
        from fedtailor.executors.ray import Ray  # here, because ray is an extra

        return Ray(world, options.ray_address, options.workers, state)
    site = ClientRunner(world, FileStore(state) if state else MemoryStore())
    return Vectorized(site) if name == "vmap" else Sequential(site)


def cpus() -> int:
    """Cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
