"""What a worker does, wherever it runs: settle in the world of a run, and visit the clients it is told to."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import cloudpickle
import torch
from torch import Tensor

from fedtailor.core.allocator import retain
from fedtailor.core.wire import Flat, call_types, decode, encode
from fedtailor.executors.sequential import attempt
from fedtailor.executors.site import Site, World
from fedtailor.storage.private_state import Store


def down_type(world: World, name: str) -> Any:
    """The declared type of what a visit is sent."""
    if name == "@global":
        return dict[str, Tensor]
    return call_types(world.method, "local" if name.startswith("@") else name)[0]


def pack(world: World) -> bytes:
    """The world without its inputs, which all workers of a machine share."""
    f = world.federation
    return bytes(cloudpickle.dumps(replace(world, federation=replace(f, x=f.x[:0]))))


def settle(parcel: bytes, x: Tensor, store: Store) -> Site:
    """The place where a worker runs clients: the world from its parcel, around the inputs it shares with others."""
    world: World = cloudpickle.loads(parcel)
    torch.set_default_dtype(world.dtype)
    return Site(replace(world, federation=replace(world.federation, x=x)), store)


def serve(
    site: Site, name: str, k: int, down: Flat, t: int, call: int
) -> tuple[int, Flat | None, str]:
    """One visit, flat: how many samples the client has, its upload, and why there is none."""
    reply = attempt(site, name, k, decode(down_type(site.world, name), down), t, call)
    return reply.n, None if reply.error else encode(reply.up), reply.error


def prefer_one_thread() -> None:
    """The arithmetic of every worker: one thread, no time wasted on denormal numbers."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    retain()
