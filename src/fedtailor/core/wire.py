"""Trees as flat, named values and back: one encoding for everything.

Workers, sites, checkpoints and private state use it. The declared types of Server,
Down, Keep and Up are the schema: ``decode(Down, encode(down))`` gives ``down`` back.
"""

from __future__ import annotations

import types
from collections.abc import Iterable
from typing import Any, Union, get_args, get_origin, get_type_hints

from torch import Tensor

from fedtailor.core.sealed import Sealed
from fedtailor.core.tree import Params, Tree, tmap

# path -> Tensor, Sealed (bytes that cannot be looked at), or a plain value that JSON can hold
Flat = dict[str, Any]


# ---------------------------------------------------------------- encoding
def encode(tree: Tree, path: str = "") -> Flat:
    """Every tensor under its path; subtrees without tensors as one plain value."""
    flat = _encode_tensors(tree, path)
    if flat is None:
        return {path: _to_plain(tree)}
    return flat


def _encode_tensors(tree: Tree, path: str) -> Flat | None:
    """The flat tree below ``path``, or None if it holds no tensor."""
    if isinstance(tree, Tensor | Sealed):
        return {path: tree}
    if not isinstance(tree, dict | list | tuple):
        return None
    start = path + "/" if path else ""
    flat: Flat = {}
    has_tensor = False
    for key, value in _items(tree):
        place = f"{start}{key}"
        # the usual case first: this runs for every tensor of a model
        if isinstance(value, Tensor):
            flat[place] = value
            has_tensor = True
            continue
        inside = _encode_tensors(value, place)
        if inside is None:
            flat[place] = _to_plain(value)
        else:
            flat.update(inside)
            has_tensor = True
    return flat if has_tensor else None


def _items(tree: Tree) -> Iterable[tuple[Any, Tree]]:
    """Keys and values of one level of a tree."""
    if isinstance(tree, dict):
        return tree.items()
    if hasattr(tree, "_fields"):
        return zip(tree._fields, tree, strict=True)
    return enumerate(tree)


def _to_plain(tree: Tree) -> Any:
    """A tree without tensors, as JSON holds it."""
    if isinstance(tree, dict):
        return {str(key): _to_plain(value) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [_to_plain(value) for value in tree]
    return tree


# ---------------------------------------------------------------- decoding
def decode(kind: Any, flat: Flat, path: str = "") -> Tree:
    """Rebuild a tree of the declared type ``kind`` from its flat form."""
    if path in flat:
        return _from_plain(kind, flat[path])
    start = path + "/" if path else ""
    inside = {
        name[len(start) :]: v for name, v in flat.items() if name.startswith(start)
    }
    if not inside:
        return _from_plain(kind, None)
    kind = _without_none(kind)
    if hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        return kind(*(decode(hints[field], inside, field) for field in kind._fields))
    origin = get_origin(kind) or kind
    if origin is dict:
        return _decode_dict(get_args(kind), inside)
    if origin in (list, tuple):
        keys = sorted(_first_keys(inside), key=int)
        items = [decode(_item_type(kind, i), inside, key) for i, key in enumerate(keys)]
        return items if origin is list else tuple(items)
    raise TypeError(f"cannot rebuild {kind} from {sorted(inside)[:3]}")


def _decode_dict(types: tuple[Any, ...], inside: Flat) -> Tree:
    """A dict from the values below it."""
    key_type, value_type = types or (str, Tensor)
    # parameters: the rest of the path is the name
    if key_type is str and value_type is Tensor:
        return dict(inside)
    return {
        key_type(key): decode(value_type, inside, key) for key in _first_keys(inside)
    }


def _first_keys(inside: Flat) -> list[str]:
    """The first parts of all paths, in order, each once."""
    return list(dict.fromkeys(path.split("/", 1)[0] for path in inside))


def _item_type(kind: Any, i: int) -> Any:
    """The declared type of the i-th item of a list or tuple."""
    args = get_args(kind)
    if i < len(args) and args[i] is not Ellipsis:
        return args[i]
    return args[0] if args else Any


def _without_none(kind: Any) -> Any:
    """X of ``X | None``."""
    if get_origin(kind) in (Union, types.UnionType):
        return next(arg for arg in get_args(kind) if arg is not type(None))
    return kind


def _from_plain(kind: Any, value: Any) -> Tree:
    """A plain value (or tensor) as the declared type has it."""
    if isinstance(value, Tensor | Sealed):
        return value
    is_optional = get_origin(kind) in (Union, types.UnionType)
    if kind is type(None) or (value is None and is_optional):
        return None
    kind = _without_none(kind)
    if hasattr(kind, "_fields"):
        hints = get_type_hints(kind)
        named = zip(kind._fields, value or [], strict=True)
        return kind(*(_from_plain(hints[field], v) for field, v in named))
    origin = get_origin(kind) or kind
    if origin is dict:
        key_type, value_type = get_args(kind) or (str, Any)
        return {
            key_type(k): _from_plain(value_type, v) for k, v in (value or {}).items()
        }
    if origin in (list, tuple):
        items = [_from_plain(_item_type(kind, i), v) for i, v in enumerate(value or [])]
        return items if origin is list else tuple(items)
    return value


# ---------------------------------------------------------------- flat trees
def split(flat: Flat) -> tuple[Params, dict[str, Any]]:
    """The tensors and the plain values of a flat tree."""
    named: Params = {}
    plain: dict[str, Any] = {}
    for path, value in flat.items():
        if isinstance(value, Tensor):
            named[path] = value
        else:
            plain[path] = value
    return named, plain


def outlines(flat: Flat) -> Params:
    """The tensors of a flat tree; those that are sealed as shapes without values."""
    named: Params = {}
    for path, value in flat.items():
        if isinstance(value, Tensor):
            named[path] = value
        elif isinstance(value, Sealed):
            named[path] = value.outline()
    return named


def size(tree: Tree) -> int:
    """Bytes of a message: its tensors, and eight for every plain number."""
    return flat_size(encode(tree))


def flat_size(flat: Flat) -> int:
    """Bytes of a flat message; a sealed block counts once, whatever it stands for."""
    blocks: dict[int, int] = {}
    total = 0
    for value in flat.values():
        if isinstance(value, Sealed):
            blocks[id(value.block)] = value.block.nbytes
        elif isinstance(value, Tensor):
            total += value.nbytes
        else:
            total += _plain_size(value)
    return total + sum(blocks.values())


def open_size(tree: Tree) -> int:
    """Bytes that a message would have if nothing in it were sealed."""
    total = 0
    for value in encode(tree).values():
        if isinstance(value, Sealed):
            total += value.plain_bytes
        else:
            total += flat_size({"": value})
    return total


def _plain_size(value: Any) -> int:
    if value is None:
        return 0
    if isinstance(value, dict):
        return sum(map(_plain_size, value.values()))
    if isinstance(value, list):
        return sum(map(_plain_size, value))
    if isinstance(value, str):
        return len(value.encode())
    return 8


def replace_leaves(tree: Tree, new: Flat, path: str = "") -> Tree:
    """The tree with other leaves in the places that ``new`` names by path."""
    if path in new:
        return new[path]
    if not isinstance(tree, dict | list | tuple):
        return tree
    start = path + "/" if path else ""
    items = [replace_leaves(value, new, f"{start}{key}") for key, value in _items(tree)]
    if isinstance(tree, dict):
        return dict(zip(tree, items, strict=True))
    if hasattr(tree, "_fields"):
        return type(tree)(*items)
    return type(tree)(items)


def own(tree: Tree) -> Tree:
    """The tree with every tensor in memory of its own."""
    return tmap(lambda x: x.detach().clone() if isinstance(x, Tensor) else x, tree)
