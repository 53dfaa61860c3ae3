"""BatchNorm statistics that stay with their client (``--bn local``).

No method knows of it: the statistics are taken out of what goes up, remembered by the
client, and put into what comes down. Without this filter they are averaged like
parameters.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, Tree
from fedtailor.filters import Filter
from fedtailor.training.net import Template


class LocalBuffers(Filter):
    """Keeps the buffers of a network on the clients."""

    name = "buffers"

    def __init__(self, buffers: frozenset[str] = frozenset()) -> None:
        self.withheld = buffers

    def for_network(self, template: Template) -> LocalBuffers:
        """For the buffers of this network."""
        return LocalBuffers(template.buffers)

    def client_receives(self, down: Tree, memory: Params) -> Tree:
        """The download with this client's own statistics, or initial ones where it has none yet."""

        def insert(path: str, w: Params) -> Params:
            present = {name for name in w if name in self.withheld}
            missing = {
                name for name in self.withheld if name not in w and _has_layer(name, w)
            }
            own: Params = {}
            for name in present | missing:
                value = memory.get(f"{path}/{name}", memory.get(name))
                own[name] = _initial(name, w) if value is None else value
            return w | own

        return _map_models(insert, down)

    def client_sends(
        self, up: Tree, down: Tree, memory: Params, rng: Rng
    ) -> tuple[Tree, Params]:
        """The upload without statistics, and the statistics to remember."""
        kept = dict(memory)

        def strip(path: str, w: Params) -> Params:
            for name in w.keys() & self.withheld:
                value = w[name].detach().clone()
                kept[f"{path}/{name}"] = value
                kept[name] = value
            return {
                name: value for name, value in w.items() if name not in self.withheld
            }

        return _map_models(strip, up), kept


def _weight_of(buffer: str) -> str:
    """The weight of the layer that a buffer belongs to."""
    return buffer.rsplit(".", 1)[0] + ".weight"


def _has_layer(buffer: str, w: Params) -> bool:
    """Whether the layer of a buffer has its parameters in ``w``."""
    return _weight_of(buffer) in w


def _initial(buffer: str, w: Params) -> Tensor:
    """A first value: variance 1, mean 0."""
    weight = w[_weight_of(buffer)]
    if buffer.endswith("running_var"):
        return torch.ones_like(weight)
    return torch.zeros_like(weight)


def _map_models(
    function: Callable[[str, Params], Params], tree: Any, path: str = ""
) -> Any:
    """Apply a function to every dict of parameters in a tree, with its path."""
    if isinstance(tree, dict):
        if any(isinstance(value, Tensor) for value in tree.values()):
            return function(path, tree)
        return {
            k: _map_models(function, value, f"{path}/{k}") for k, value in tree.items()
        }
    if isinstance(tree, list):
        return [
            _map_models(function, value, f"{path}/{i}") for i, value in enumerate(tree)
        ]
    if hasattr(tree, "_fields"):
        named = zip(tree._fields, tree, strict=True)
        return type(tree)(
            *(_map_models(function, value, f"{path}/{name}") for name, value in named)
        )
    return tree
