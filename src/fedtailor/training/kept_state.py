"""The state of a client's optimisers (momentum, moments) from one round to the next.

It is part of the client's private state, like what filters remember, and never sent. Every training
of a visit has a state of its own, by its place in the visit; loops that a method writes itself
(``c.step``) begin anew.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from fedtailor.core.tree import Params, Tree

NAME = "optimiser"  # prefix in a client's private state
RESTARTING = "scheduled"  # steps of this round, which a schedule within rounds counts


class KeptStates:
    """The states that one visit begins with and leaves behind."""

    def __init__(self, function: str, memory: Params) -> None:
        self.memory = dict(memory)
        self._function = function
        self._count = 0

    def resume(self, first: Tree) -> Tree:
        """What the next training goes on with: ``first`` where nothing of its form was kept."""
        prefix = f"{self._function}.{self._count}/"
        fresh = flatten(first, prefix)
        kept = {path: x for path, x in self.memory.items() if path.startswith(prefix)}
        if _shapes(kept) != _shapes(fresh):
            return first
        for path, value in fresh.items():
            if path.rpartition("/")[2] == RESTARTING:
                kept[path] = value
        return unflatten(first, kept, prefix)

    def keep(self, state: Tree) -> None:
        """Remember what that training ended with."""
        prefix = f"{self._function}.{self._count}/"
        others = {
            path: x for path, x in self.memory.items() if not path.startswith(prefix)
        }
        self.memory = others | flatten(state, prefix)
        self._count += 1


def flatten(state: Tree, prefix: str) -> Params:
    """Nested dictionaries of tensors and numbers as one, by paths."""
    if isinstance(state, int | float):
        state = torch.tensor(state)
    if isinstance(state, Tensor):
        return {prefix.removesuffix("/"): state}
    flat: Params = {}
    for name, value in (state or {}).items():
        flat |= flatten(value, f"{prefix}{name}/")
    return flat


def unflatten(like: Tree, flat: Params, prefix: str) -> Tree:
    """The same the other way round, in the form of ``like``."""
    if isinstance(like, Tensor):
        return flat[prefix.removesuffix("/")]
    if isinstance(like, int | float):
        return type(like)(flat[prefix.removesuffix("/")].item())
    if like is None:
        return None
    items: dict[str, Any] = {}
    for name, value in like.items():
        items[name] = unflatten(value, flat, f"{prefix}{name}/")
    return items


def _shapes(flat: Params) -> dict[str, Any]:
    return {path: value.shape for path, value in flat.items()}
