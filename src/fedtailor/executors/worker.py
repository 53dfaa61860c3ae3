"""What a worker does, wherever it runs: settle in the world of a run, and visit the clients it is told to."""

from __future__ import annotations

from dataclasses import replace

import cloudpickle
import torch
from torch import Tensor

from fedtailor.core.wire import Flat, decode, encode
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.sequential import attempt
from fedtailor.executors.visit import down_type
from fedtailor.executors.world import World
from fedtailor.storage.private_state import Store


def pack(world: World) -> bytes:
    """The world without its inputs, which all workers of a machine share."""
    f = world.federation
    return bytes(cloudpickle.dumps(replace(world, federation=replace(f, x=f.x[:0]))))


def settle(parcel: bytes, x: Tensor, store: Store) -> ClientRunner:
    """The place where a worker runs clients: the world from its parcel, around the inputs it shares with others."""
    world: World = cloudpickle.loads(parcel)
    torch.set_default_dtype(world.dtype)
    return ClientRunner(replace(world, federation=replace(world.federation, x=x)), store)


def serve(
    site: ClientRunner, name: str, k: int, down: Flat, t: int, call: int
) -> tuple[int, Flat | None, str]:
    """One visit, flat: how many samples the client has, its upload, and why there is none."""
    reply = attempt(site, name, k, decode(down_type(site.world, name), down), t, call)
    return reply.n, None if reply.error else encode(reply.up), reply.error
