"""What every worker does: build a client runner from a copied world, make visits."""

from __future__ import annotations

import inspect
import io
from collections import ChainMap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, get_args, get_type_hints

import cloudpickle
import torch
from torch import Tensor

from fedtailor.core.wire import Flat, decode
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.sequential import attempt
from fedtailor.executors.visit import Reply, Visit, down_type
from fedtailor.executors.world import AnyMethod, World
from fedtailor.method_types import call_types, client_functions, keep_type, server_type
from fedtailor.storage.private_state import Store


class WorldPickler(cloudpickle.Pickler):  # type: ignore[misc]
    """A pickler for functions that use both ``torch`` and ``c.classes``.

    cloudpickle takes the two for a use of ``torch.classes``, a module that cannot be pickled.
    """

    dispatch_table: ClassVar[ChainMap[type, Callable[[Any], Any]]] = ChainMap(
        {
            type(torch.classes): lambda _: (getattr, (torch, "classes")),
            type(torch.ops): lambda _: (getattr, (torch, "ops")),
        },
        cloudpickle.Pickler.dispatch_table,
    )


def pack_world(world: World) -> bytes:
    """The world without its inputs, which all workers of a machine share."""
    resolve_annotations(world.method)
    federation = replace(world.federation, x=world.federation.x[:0])
    packed = io.BytesIO()
    WorldPickler(packed).dump(replace(world, federation=federation))
    return packed.getvalue()


def resolve_annotations(method: AnyMethod) -> None:
    """Put types in the place of annotations that are text (``from __future__ import annotations``).

    A method from somebody's own file is copied without the module in which a worker could look up
    what the text means.
    """
    types: list[Any] = [server_type(method), keep_type(method)]
    functions = [getattr(type(method), name) for name in client_functions(type(method))]
    for function in functions:
        types += call_types(method, function.__name__)
    classes = [cls for kind in types for cls in _list_named_tuples(kind)]
    for holder in (*functions, *classes, *type(method).__mro__):
        annotations = inspect.get_annotations(holder)
        if annotations and not holder.__module__.startswith("fedtailor."):
            hints = get_type_hints(holder, include_extras=True)
            holder.__annotations__ = {name: hints[name] for name in annotations}


def _list_named_tuples(kind: Any) -> Iterator[Any]:
    """The named tuples within a type, such as ``dict[int, Up | None]``."""
    inner: Iterable[Any] = get_args(kind)
    if hasattr(kind, "_fields"):
        yield kind
        inner = get_type_hints(kind).values()
    for part in inner:
        yield from _list_named_tuples(part)


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
