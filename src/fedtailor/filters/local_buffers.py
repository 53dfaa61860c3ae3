"""BatchNorm statistics that stay with their client (``--bn local``), without any method knowing.

They are taken out of what goes up, remembered per client, and put into what came down. The default policy is to
average them like any other number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.tree import Params, Tree


class LocalBuffers:
    """The policy for a network whose buffers have the given names."""

    def __init__(self, names: frozenset[str]) -> None:
        self.names = names

    def enter(self, down: Tree, memory: Params) -> Tree:
        """What came down, with this client's own statistics (or untouched ones) in place of anybody else's."""

        def put(path: str, w: Params) -> Params:
            owned = {k for k in w if k in self.names}
            needed = {b for b in self.names if b not in w and _sibling(b, w)}
            mine = {b: memory.get(f"{path}/{b}", memory.get(b)) for b in owned | needed}
            return w | {b: _untouched(b, w) if v is None else v for b, v in mine.items()}

        return _dicts(put, down)

    def leave(self, up: Tree, memory: Params) -> tuple[Tree, Params]:
        """What goes up, without statistics, and the client's new memory of them."""
        kept: Params = dict(memory)

        def strip(path: str, w: Params) -> Params:
            for b in w.keys() & self.names:
                kept[f"{path}/{b}"] = kept[b] = w[b].detach().clone()
            return {k: v for k, v in w.items() if k not in self.names}

        return _dicts(strip, up), kept


def _sibling(buffer: str, w: Params) -> bool:
    """Whether the layer of a buffer has its other parameters in w."""
    return buffer.rsplit(".", 1)[0] + ".weight" in w


def _untouched(buffer: str, w: Params) -> Tensor:
    like = w[buffer.rsplit(".", 1)[0] + ".weight"]
    return torch.ones_like(like) if buffer.endswith("running_var") else torch.zeros_like(like)


def _dicts(f: Callable[[str, Params], Params], tree: Any, path: str = "") -> Any:
    """Apply f to every dict of parameters."""
    if isinstance(tree, dict):
        if any(isinstance(v, Tensor) for v in tree.values()):
            return f(path, tree)
        return {k: _dicts(f, v, f"{path}/{k}") for k, v in tree.items()}
    if isinstance(tree, list):
        return [_dicts(f, v, f"{path}/{i}") for i, v in enumerate(tree)]
    if hasattr(tree, "_fields"):
        return type(tree)(
            *(_dicts(f, v, f"{path}/{n}") for n, v in zip(tree._fields, tree, strict=True))
        )
    return tree
