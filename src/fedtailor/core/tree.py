"""Trees of tensors (named tuples, dicts, lists): all that ever crosses a client's border."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor
from torch.nn import functional as F

Params: TypeAlias = dict[str, Tensor]  # named as in nn.Module.state_dict(): parameters and buffers
Tree: TypeAlias = Any  # NamedTuple | dict | list | tuple of trees, Tensor, number, string or None


STATISTICS = (".running_mean", ".running_var")  # of BatchNorm: averaged, but never trained


def tmap(f: Callable[..., Any], tree: Tree, *rest: Tree) -> Tree:
    """Apply f to every leaf (and to the leaves at the same place in ``rest``)."""
    if isinstance(tree, dict):
        return {k: tmap(f, tree[k], *(r[k] for r in rest)) for k in tree}
    if isinstance(tree, list):
        return [tmap(f, *xs) for xs in zip(tree, *rest, strict=True)]
    if isinstance(tree, tuple):
        parts = [tmap(f, *xs) for xs in zip(tree, *rest, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return None if tree is None else f(tree, *rest)


def leaves(tree: Tree) -> list[Any]:
    """All leaves, in order."""
    out: list[Any] = []
    _collect(tree, out)
    return out


def _collect(tree: Tree, out: list[Any]) -> None:
    if isinstance(tree, dict | list | tuple):
        for x in tree.values() if isinstance(tree, dict) else tree:
            _collect(x, out)
    elif tree is not None:
        out.append(tree)


def tensors(tree: Tree) -> list[Tensor]:
    """All leaves that are tensors, in order."""
    return [x for x in leaves(tree) if isinstance(x, Tensor)]


def fill(like: Tree, values: Sequence[Any]) -> Tree:
    """The tree ``like`` with its leaves replaced, in order."""
    it = iter(values)
    return tmap(lambda _: next(it), like)


def unstack(tree: Tree, count: int) -> list[Tree]:
    """The trees of which ``tree`` is the stack; plain values are the same in all."""
    if isinstance(tree, Tensor):
        return list(tree.unbind(0))
    if not isinstance(tree, dict | list | tuple):
        return [tree] * count
    inside = tree.values() if isinstance(tree, dict) else tree
    columns = [unstack(x, count) for x in inside]
    rows = zip(*columns, strict=True) if columns else iter([()] * count)
    if isinstance(tree, dict):
        return [dict(zip(tree, row, strict=True)) for row in rows]
    return [type(tree)(*row) if hasattr(tree, "_fields") else type(tree)(row) for row in rows]


def stack(trees: Sequence[Tree]) -> Tree:
    """One tree with a leading client axis; a tensor that all clients share is expanded, not copied."""

    def join(*xs: Any) -> Any:
        if not isinstance(xs[0], Tensor):
            if any(x != xs[0] for x in xs):
                raise ValueError("trees with different plain values cannot be stacked")
            return xs[0]
        return (
            xs[0].expand(len(xs), *xs[0].shape) if all(x is xs[0] for x in xs) else torch.stack(xs)
        )

    return tmap(join, *trees)


def part(w: Params, *prefixes: str) -> Params:
    """The parameters of the named submodules."""
    starts = tuple(p + "." for p in prefixes)
    return {k: v for k, v in w.items() if k.startswith(starts)}


def without(w: Params, *prefixes: str) -> Params:
    """All parameters but those of the named submodules."""
    starts = tuple(p + "." for p in prefixes)
    return {k: v for k, v in w.items() if not k.startswith(starts)}


def learned(w: Params) -> Params:
    """What is trained: all but BatchNorm's running statistics, which are measured."""
    return {k: v for k, v in w.items() if not is_statistic(k)}


def is_statistic(name: str) -> bool:
    """Whether this is a running statistic of a BatchNorm layer, by name."""
    return name.endswith(STATISTICS)


def rename(w: Params, old: str, new: str) -> Params:
    """The parameters of submodule ``old`` under the name ``new``."""
    return {new + k[len(old) :]: v for k, v in w.items() if k.startswith(old + ".")}


def add(a: Tree, b: Tree, scale: float | Tensor = 1.0) -> Tree:
    """a + scale * b"""
    return tmap(lambda x, y: x + scale * y, a, b)


def subtract(a: Tree, b: Tree) -> Tree:
    """a - b"""
    return tmap(lambda x, y: x - y, a, b)


def lerp(a: Tree, b: Tree, weight: float | Tensor) -> Tree:
    """a + weight * (b - a)"""
    return tmap(lambda x, y: x + weight * (y - x), a, b)


def dot(a: Tree, b: Tree) -> Tensor:
    """The inner product of two trees."""
    return torch.stack(leaves(tmap(lambda x, y: (x * y).sum(), a, b))).sum()


def sqdist(a: Tree, b: Tree) -> Tensor:
    """||a - b||^2, with mse_loss because its gradient goes once through memory instead of four times."""
    return torch.stack(leaves(tmap(lambda x, y: F.mse_loss(x, y, reduction="sum"), a, b))).sum()


def average(trees: Sequence[Tree], weight: Tensor | Sequence[float]) -> Tree:
    """sum_k weight_k tree_k / sum_k weight_k, added in client order so that every executor rounds alike."""
    weight = torch.as_tensor(weight, dtype=torch.float64)
    share = (weight / weight.sum()).tolist()
    total = [x * share[0] for x in leaves(trees[0])]
    if len(share) == 1 or not total:  # one tree is its own mean, to the last bit
        return trees[0]
    whole = all(
        isinstance(x, Tensor) for x in total
    )  # what is sealed can be added, one by one, and that is all
    for p, tree in zip(share[1:], trees[1:], strict=True):
        mine = leaves(tree)
        if len(mine) != len(total):
            raise ValueError("trees of different shapes have no average")
        if whole:
            torch._foreach_add_(total, mine, alpha=p)
        else:
            total = [torch.add(a, b, alpha=p) for a, b in zip(total, mine, strict=True)]
    return fill(trees[0], total)


def total(trees: Sequence[Tree]) -> Tree:
    """sum_k tree_k, added in client order."""
    out = trees[0]
    for tree in trees[1:]:
        out = add(out, tree)
    return out
