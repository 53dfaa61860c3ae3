"""Trees as flat, named values and back: one encoding for workers, nodes, checkpoints and private state.

The declared types of Server, Down, Keep and Up are the schema: ``decode(Down, encode(down))`` gives ``down`` back.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from fedtailor.core.tree import Tree, tmap

Flat = dict[str, Any]  # path -> Tensor, or a plain value that JSON can hold


def encode(tree: Tree, path: str = "") -> Flat:
    """Every tensor under its path; subtrees without tensors as one plain value."""
    flat = _lay(tree, path)
    return {path: _plain(tree)} if flat is None else flat


def _lay(tree: Tree, path: str) -> Flat | None:
    """The tree laid out below ``path``, or None where it holds no tensor."""
    if isinstance(tree, Tensor):
        return {path: tree}
    if not isinstance(tree, dict | list | tuple):
        return None
    start, out, found = path + "/" if path else "", Flat(), False
    for key, value in _items(tree):
        place = f"{start}{key}"
        flat = {place: value} if isinstance(value, Tensor) else _lay(value, place)
        found |= flat is not None
        out.update({place: _plain(value)} if flat is None else flat)
    return out if found else None


def _items(tree: Tree) -> Iterable[tuple[Any, Tree]]:
    if isinstance(tree, dict):
        return tree.items()
    return zip(tree._fields, tree, strict=True) if hasattr(tree, "_fields") else enumerate(tree)


def _plain(tree: Tree) -> Any:
    if isinstance(tree, dict):
        return {str(k): _plain(v) for k, v in tree.items()}
    if isinstance(tree, list | tuple):
        return [_plain(v) for v in tree]
    return tree


def decode(kind: Any, flat: Flat, path: str = "") -> Tree:
    """Rebuild a tree of the declared type from its flat form."""
    if path in flat:
        return _revive(kind, flat[path])
    start = path + "/" if path else ""
    inside = {k[len(start) :]: v for k, v in flat.items() if k.startswith(start)}
    if not inside:
        return _revive(kind, None)
    kind = _concrete(kind)
    if hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        return kind(*(decode(hints[f], inside, f) for f in kind._fields))
    origin, args = get_origin(kind) or kind, get_args(kind)
    if origin is dict:
        of = args or (str, Tensor)
        if of[0] is str and of[1] is Tensor:  # parameters: the rest of the path is the name
            return dict(inside)
        names = dict.fromkeys(k.split("/", 1)[0] for k in inside)
        return {of[0](name): decode(of[1], inside, name) for name in names}
    if origin in (list, tuple):
        names = dict.fromkeys(k.split("/", 1)[0] for k in inside)
        parts = [
            decode(_nth(args, i), inside, name) for i, name in enumerate(sorted(names, key=int))
        ]
        return parts if origin is list else tuple(parts)
    raise TypeError(f"cannot rebuild {kind} from {sorted(inside)[:3]}")


def _nth(args: tuple[Any, ...], i: int) -> Any:
    return args[i] if i < len(args) and args[i] is not Ellipsis else args[0] if args else Any


def _concrete(kind: Any) -> Any:
    """X of ``X | None``."""
    if get_origin(kind) in (Union, types.UnionType):
        return next(a for a in get_args(kind) if a is not type(None))
    return kind


def _revive(kind: Any, value: Any) -> Tree:
    """A plain value (or tensor) as the declared type has it."""
    if isinstance(value, Tensor):
        return value
    if kind is type(None) or (value is None and get_origin(kind) in (Union, types.UnionType)):
        return None
    kind = _concrete(kind)
    origin, args = get_origin(kind) or kind, get_args(kind)
    if hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        return kind(*(_revive(hints[f], v) for f, v in zip(kind._fields, value or [], strict=True)))
    if origin is dict:
        key, of = args or (str, Any)
        return {key(k): _revive(of, v) for k, v in (value or {}).items()}
    if origin in (list, tuple):
        parts = [_revive(_nth(args, i), v) for i, v in enumerate(value or [])]
        return parts if origin is list else tuple(parts)
    return value


def split(flat: Flat) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors and plain values apart."""
    return (
        {k: v for k, v in flat.items() if isinstance(v, Tensor)},
        {k: v for k, v in flat.items() if not isinstance(v, Tensor)},
    )


def size(tree: Tree) -> int:
    """Bytes of a message: its tensors, and eight for every plain number."""
    return weigh(encode(tree))


def weigh(flat: Flat) -> int:
    """Bytes of a flat message."""
    return sum(v.nbytes if isinstance(v, Tensor) else _weight(v) for v in flat.values())


def _weight(plain: Any) -> int:
    if isinstance(plain, dict):
        return sum(map(_weight, plain.values()))
    if isinstance(plain, list):
        return sum(map(_weight, plain))
    return 0 if plain is None else len(plain.encode()) if isinstance(plain, str) else 8


def own(tree: Tree) -> Tree:
    """The tree with every tensor in memory of its own."""
    return tmap(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, tree)
