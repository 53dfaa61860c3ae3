"""Letters between a run and its sites: visits and their answers as the bytes of safetensors files.

A request names the run, the client and one or more visits (function, round, call) and holds what each is sent; an
answer holds what comes of each. What is inside is encoded from the declared types of the method, as everywhere else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.tree import Tree
from fedtailor.core.wire import Flat, decode, encode
from fedtailor.executors.visit import Visit
from fedtailor.storage.files import dump_flat, parse_flat

FORMAT = 1

About = dict[str, Any]


class Letter(NamedTuple):
    """A letter, opened: what it says, and the flat trees in it."""

    about: About
    flat: Flat

    def tree(self, i: int, kind: Any) -> Tree:
        """The i-th tree, of its declared type."""
        start = f"{i}/"
        return decode(
            kind, {k[len(start) :]: v for k, v in self.flat.items() if k.startswith(start)}, "it"
        )


def write(about: About, trees: Sequence[Tree] = ()) -> bytes:
    """A letter; a tensor that several of its trees share is in it once."""
    flat: Flat = {}
    same: dict[str, str] = {}
    first: dict[int, str] = {}
    for i, tree in enumerate(trees):
        for path, value in encode(tree, f"{i}/it").items():
            if isinstance(value, Tensor) and id(value) in first:
                same[path] = first[id(value)]
                continue
            if isinstance(value, Tensor):
                first[id(value)] = path
            flat[path] = value
    return dump_flat(
        {"about": {**about, "format": FORMAT, "same": same, "order": _order(trees)}, **flat}
    )


def _order(trees: Sequence[Tree]) -> list[str]:
    """All paths in the order of the trees, which decides the order of sums."""
    return [path for i, tree in enumerate(trees) for path in encode(tree, f"{i}/it")]


def request(about: About, visits: Sequence[Visit]) -> bytes:
    """A letter to a site."""
    listed = [{"name": v.name, "t": v.t, "call": v.call, "before": v.before} for v in visits]
    return write({**about, "visits": listed}, [v.down for v in visits])


def read(data: bytes) -> Letter:
    """Open a letter; what is no letter is refused in one line."""
    flat = parse_flat(data, "the message")
    about = flat.pop("about", None)
    if not isinstance(about, dict) or about.get("format") != FORMAT:
        raise UserError("the message is damaged or of another version of fedtailor")
    try:
        values = {**flat, **{path: flat[source] for path, source in about["same"].items()}}
        return Letter(about, {path: values[path] for path in about["order"]})
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"the message is damaged ({error})") from None
