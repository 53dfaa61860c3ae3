"""Trees of tensors (named tuples, dicts, lists): all that ever goes between server and clients.

Example:
    >>> tmap(lambda x: 2 * x, {"a": torch.ones(2), "b": [torch.zeros(1)]})
    {'a': tensor([2., 2.]), 'b': [tensor([0.])]}
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

# named as in nn.Module.state_dict(): parameters and buffers
Params: TypeAlias = dict[str, Tensor]
# NamedTuple | dict | list | tuple of trees, Tensor, number, string or None
Tree: TypeAlias = Any

# of BatchNorm: averaged, but never trained
STATISTICS = (
    ".running_mean",
    ".running_var",
)


# ---------------------------------------------------------------- structure
def tmap(function: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply a function to every leaf of a tree.

    Args:
        function: of one leaf, and of the leaves at the same place in ``rest``.
        tree: the tree whose structure the result has; ``None`` stays ``None``.
        rest: further trees of the same structure.
    """
    if tree is None:
        return None
    if isinstance(tree, dict):
        mapped = {}
        for key, value in tree.items():
            others = [other[key] for other in rest]
            mapped[key] = tmap(function, value, *others)
        return mapped
    if not isinstance(tree, list | tuple):
        return function(tree, *rest)
    items = []
    for values in zip(tree, *rest, strict=True):
        items.append(tmap(function, *values))
    return _like(tree, items)


def _like(tree: Tree, items: Sequence[Any]) -> Tree:
    """The items as a list, tuple or named tuple, whichever ``tree`` is."""
    if hasattr(tree, "_fields"):
        return type(tree)(*items)
    return type(tree)(items)


def leaves(tree: Tree) -> list[Any]:
    """All leaves, in order."""
    found: list[Any] = []
    _collect_leaves(tree, found)
    return found


def _collect_leaves(tree: Tree, found: list[Any]) -> None:
    if isinstance(tree, dict):
        for value in tree.values():
            _collect_leaves(value, found)
    elif isinstance(tree, list | tuple):
        for value in tree:
            _collect_leaves(value, found)
    elif tree is not None:
        found.append(tree)


def tensors(tree: Tree) -> list[Tensor]:
    """All leaves that are tensors, in order."""
    return [leaf for leaf in leaves(tree) if isinstance(leaf, Tensor)]


def fill(like: Tree, values: Sequence[Any]) -> Tree:
    """The tree ``like`` with its leaves replaced, in order."""
    remaining = iter(values)
    return tmap(lambda _: next(remaining), like)


class _Hole:
    """Stands where ``partition`` took a tensor out."""


def partition(tree: Tree) -> tuple[list[Tensor], Tree]:
    """The tensors of a tree, in order, and the tree without them; ``combine`` puts them back."""

    def take_out(leaf: Any) -> Any:
        if isinstance(leaf, Tensor):
            return _Hole
        return leaf

    return tensors(tree), tmap(take_out, tree)


def combine(values: Sequence[Tensor], rest: Tree) -> Tree:
    """The tree that ``partition`` took apart, with these tensors."""
    remaining = iter(values)

    def put_back(leaf: Any) -> Any:
        if leaf is _Hole:
            return next(remaining)
        return leaf

    return tmap(put_back, rest)


def stack(trees: Sequence[Tree]) -> Tree:
    """One tree with a leading client axis; what all clients share is not copied."""
    return tmap(_stack_leaves, *trees)


def _stack_leaves(*values: Any) -> Any:
    first = values[0]
    if not isinstance(first, Tensor):
        if any(value != first for value in values):
            raise ValueError("trees with different plain values cannot be stacked")
        return first
    if all(value is first for value in values):
        return first.expand(len(values), *first.shape)
    return torch.stack(values)


def unstack(tree: Tree, count: int) -> list[Tree]:
    """The ``count`` trees of which ``tree`` is the stack; plain values are the same in all."""
    if isinstance(tree, Tensor):
        return list(tree.unbind(0))
    if not isinstance(tree, dict | list | tuple):
        return [tree] * count
    if isinstance(tree, dict):
        keys = list(tree)
        rows = _unstack_all(tree.values(), count)
        return [dict(zip(keys, row, strict=True)) for row in rows]
    rows = _unstack_all(tree, count)
    return [_like(tree, row) for row in rows]


def _unstack_all(values: Iterable[Tree], count: int) -> list[tuple[Any, ...]]:
    """The i-th parts of all values together, for every i."""
    columns = [unstack(value, count) for value in values]
    if not columns:
        return [()] * count
    return list(zip(*columns, strict=True))


# ---------------------------------------------------------------- parameters by name
def part(w: Params, *prefixes: str) -> Params:
    """The parameters of the named submodules: ``part(w, "head")``."""
    starts = _with_dots(prefixes)
    return _select(w, lambda name: name.startswith(starts))


def without(w: Params, *prefixes: str) -> Params:
    """All parameters but those of the named submodules."""
    starts = _with_dots(prefixes)
    return _select(w, lambda name: not name.startswith(starts))


def rename(w: Params, old: str, new: str) -> Params:
    """The parameters of submodule ``old`` under the name ``new``."""
    renamed: Params = {}
    for name, value in part(w, old).items():
        renamed[new + name.removeprefix(old)] = value
    return renamed


def learned(w: Params) -> Params:
    """What is trained: all but BatchNorm's running statistics, which are measured."""
    return _select(w, lambda name: not is_statistic(name))


def is_statistic(name: str) -> bool:
    """Whether a name is that of a running statistic of a BatchNorm layer."""
    return name.endswith(STATISTICS)


def _with_dots(prefixes: Sequence[str]) -> tuple[str, ...]:
    """How names of parameters below these submodules begin."""
    return tuple(prefix + "." for prefix in prefixes)


def _select(w: Params, is_wanted: Callable[[str], bool]) -> Params:
    """The parameters whose names are wanted, in order."""
    selected: Params = {}
    for name, value in w.items():
        if is_wanted(name):
            selected[name] = value
    return selected


# ---------------------------------------------------------------- arithmetic
def add(a: Tree, b: Tree, scale: float | Tensor = 1.0) -> Tree:
    """a + scale * b"""

    def add_leaves(x: Tensor, y: Tensor) -> Tensor:
        return x + scale * y

    return tmap(add_leaves, a, b)


def subtract(a: Tree, b: Tree) -> Tree:
    """a - b"""

    def subtract_leaves(x: Tensor, y: Tensor) -> Tensor:
        return x - y

    return tmap(subtract_leaves, a, b)


def lerp(a: Tree, b: Tree, weight: float | Tensor) -> Tree:
    """a + weight * (b - a)"""

    def move(x: Tensor, y: Tensor) -> Tensor:
        return x + weight * (y - x)

    return tmap(move, a, b)


def dot(a: Tree, b: Tree) -> Tensor:
    """The inner product of two trees."""

    def multiply(x: Tensor, y: Tensor) -> Tensor:
        return (x * y).sum()

    products = leaves(tmap(multiply, a, b))
    return torch.stack(products).sum()


def sqdist(a: Tree, b: Tree) -> Tensor:
    """||a - b||^2"""

    def square_gap(x: Tensor, y: Tensor) -> Tensor:
        # its gradient goes once through memory, that of (x - y)^2 four times
        return F.mse_loss(x, y, reduction="sum")

    squares = leaves(tmap(square_gap, a, b))
    return torch.stack(squares).sum()


def average(trees: Sequence[Tree], weight: Tensor | Sequence[float]) -> Tree:
    """sum_k weight_k tree_k / sum_k weight_k

    Added in client order, so that every executor rounds alike. One tree is its own
    mean, bit for bit.
    """
    weights = torch.as_tensor(weight, dtype=torch.float64)
    weights = weights / weights.sum()
    first_share, *shares = weights.tolist()
    first, *others = trees
    first_leaves = leaves(first)
    if not others or not first_leaves:
        return first
    total = [leaf * first_share for leaf in first_leaves]
    for share, tree in zip(shares, others, strict=True):
        values = leaves(tree)
        if len(values) != len(total):
            raise ValueError("trees of different shapes have no average")
        torch._foreach_add_(total, values, alpha=share)
    return fill(first, total)


def total(trees: Sequence[Tree]) -> Tree:
    """sum_k tree_k, added in client order."""
    out = trees[0]
    for tree in trees[1:]:
        out = add(out, tree)
    return out
