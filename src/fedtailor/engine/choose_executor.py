"""Which executor suits a run: a fixed rule, never of load or timing."""

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

# A rough price of one training example on one core, in seconds. Fitted to `make bench`, like
# the bounds
# below.
EXAMPLE_OVERHEAD = 5e-5
PER_MULTIPLICATION = 1.4e-10  # of the forward pass
PER_PARAMETER = 2e-10  # that is updated
# Worker processes take about two seconds to start: shorter runs stay in one process.
WORTH_PROCESSES = 5.0  # seconds
# In networks so small, PyTorch's own overhead is most of a step: many clients in one step are then
# several times faster.
SMALL_NETWORK = 30_000  # parameters
SMALL_FORWARD = 200_000  # multiplications of an example
MANY_CLIENTS = 8


class Choice(NamedTuple):
    """An executor's name and why it was chosen."""

    name: str
    why: str


def choose_executor(
    config: Experiment, world: World, folder: RunFolder, resume: bool
) -> Choice:
    """The executor of a run: the one asked for, or that it began with, or that suits it."""
    if config.batching == "keep" and config.executor == "vmap":
        raise UserError(
            "batching=keep gives batches of different sizes, which vmap cannot run; "
            "choose fill or drop"
        )
    if resume and (folder.path / CONFIG).exists():
        return _continue_with(config, str(folder.read_config()["executor"]))
    if config.executor != "auto":
        return Choice(config.executor, "")
    return suggest_executor(world, config.workers)


def _continue_with(config: Experiment, before: str) -> Choice:
    """The executor of a resumed run."""
    wanted = before if config.executor == "auto" else config.executor
    if "vmap" in (before, wanted) and before != wanted:
        raise UserError(
            f"the run began with executor {before}, whose rounding differs from {wanted}'s"
        )
    return Choice(wanted, "the run began so")


def suggest_executor(world: World, workers: int | None) -> Choice:
    """The rule behind ``--executor auto``."""
    if world.device != "cpu":
        return Choice("vmap", f"the network runs on {world.device}")
    cores = workers or count_cores()
    parameters = sum(p.numel() for p in world.backbone.parameters())
    multiplications = count_multiplications(world)
    clients = world.federation.clients
    is_small = parameters <= SMALL_NETWORK and multiplications <= SMALL_FORWARD
    if is_small and clients >= MANY_CLIENTS and _suits_vmap(world):
        return Choice(
            "vmap", f"{parameters:,} parameters are few and {clients} clients many"
        )
    if cores == 1:
        return Choice("sequential", "there is one core")
    per_epoch = sum(len(index) for index in world.federation.train)
    examples = per_epoch * world.plan.epochs * world.rounds
    work = f"{examples:,} training examples through {parameters:,} parameters"
    price = (
        EXAMPLE_OVERHEAD
        + PER_MULTIPLICATION * multiplications
        + PER_PARAMETER * parameters
    )
    if examples * price < WORTH_PROCESSES:
        return Choice("sequential", f"{work} are little work")
    return Choice("processes", f"{cores} cores share {work}")


def count_multiplications(world: World) -> int:
    """Multiplications of one example's forward pass, in convolutions and linear layers."""
    network = copy.deepcopy(world.backbone).to_empty(device="cpu").eval()
    federation = world.federation
    found = 0

    def count(layer: nn.Module, given: Any, out: Tensor) -> None:
        nonlocal found
        weight: Any = layer.weight  # a parameter, or frozen
        found += out.numel() * weight[0].numel()

    for layer in network.modules():
        if isinstance(layer, nn.Linear | nn.Conv1d | nn.Conv2d | nn.Conv3d):
            layer.register_forward_hook(count)
    first = torch.zeros(1, dtype=torch.int64)
    x = features(
        federation.x[first if federation.row is None else federation.row[first]]
    )
    if x.is_floating_point():
        x = x.to(next(network.parameters()).dtype)
    with torch.no_grad():
        network(x)
    return found


def _suits_vmap(world: World) -> bool:
    """Whether nothing would have to run one client at a time; vmap has no sparse gradients."""
    if world.plan.batching == "keep":
        return False
    if getattr(type(world.method).local, "one_by_one", False):
        return False
    unsuitable = (nn.Embedding, nn.RNNBase)
    return not any(
        isinstance(module, unsuitable) for module in world.backbone.modules()
    )


def start_executor(
    name: str, world: World, config: Experiment, folder: RunFolder
) -> Executor:
    """The executor of that name, ready."""
    state = folder.clear_state() if config.state == "disk" else None
    if name == "processes":
        return Processes(world, config.workers or count_cores(), state)
    if name == "ray":
        from fedtailor.executors.ray import Ray  # here, because ray is an extra

        return Ray(world, config.ray_address, config.workers, state)
    runner = ClientRunner(world, FileStore(state) if state else MemoryStore())
    if name == "vmap":
        return Vectorized(runner)
    return Sequential(runner)


def count_cores() -> int:
    """Cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
