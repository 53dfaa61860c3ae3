"""What a worker does, wherever it runs: build a client runner from a copied world, and make visits."""

from __future__ import annotations

from dataclasses import replace

import cloudpickle
import torch
from torch import Tensor

from fedtailor.core.wire import Flat, decode
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.sequential import attempt
from fedtailor.executors.visit import Reply, Visit, down_type
from fedtailor.executors.world import World
from fedtailor.storage.private_state import Store


def pack_world(world: World) -> bytes:
    """The world without its inputs, which all workers of a machine share."""
    federation = replace(world.federation, x=world.federation.x[:0])
    return bytes(cloudpickle.dumps(replace(world, federation=federation)))


def unpack_world(packed: bytes, x: Tensor, store: Store) -> ClientRunner:
    """A client runner for the packed world around the shared inputs."""
    world: World = cloudpickle.loads(packed)
    torch.set_default_dtype(world.dtype)
    federation = replace(world.federation, x=x)
    return ClientRunner(replace(world, federation=federation), store)


def make_visit(runner: ClientRunner, k: int, visit: Visit, down: Flat) -> Reply:
    """One visit, with what is sent in flat form."""
    tree = decode(down_type(runner.method, visit.function), down)
    return attempt(runner, k, visit._replace(down=tree))
