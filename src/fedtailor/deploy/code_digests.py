"""Whether two places run the same code: digests of a method's source and of the engine that runs it."""

from __future__ import annotations

import ast
import hashlib
import inspect
import textwrap
from functools import cache
from pathlib import Path
from typing import get_args, get_type_hints

from fedtailor.executors.world import AnyMethod
from fedtailor.method_types import client_functions

# What decides a client's numbers: the modules that methods may import, and those under them.
ENGINE = (
    "_version.py",
    "client.py",
    "core",
    "data/federation.py",
    "evaluation",
    "executors/client_runner.py",
    "executors/visit.py",
    "executors/world.py",
    "filters",
    "maths",
    "method.py",
    "method_types.py",
    "models",
    "storage",
    "training",
)


def digest_method(cls: type[AnyMethod]) -> str:
    """A short digest of the file that holds a method."""
    return hashlib.sha256(Path(inspect.getfile(cls)).read_bytes()).hexdigest()[:16]


@cache
def digest_engine() -> str:
    """A short digest of the part of fedtailor that decides a client's numbers."""
    home, digest = Path(__file__).parents[1], hashlib.sha256()
    for name in ENGINE:
        for path in (
            sorted((home / name).rglob("*.py")) if (home / name).is_dir() else [home / name]
        ):
            digest.update(f"{path.relative_to(home)} ".encode() + path.read_bytes())
    return digest.hexdigest()[:16]


def asked_in_setup(cls: type[AnyMethod]) -> list[str]:
    """The client functions that a method's setup asks for, found in its source and in what that calls; not training."""
    calls, seen, queue = set(client_functions(cls)), set[str](), ["setup"]
    while queue:
        name = queue.pop()
        if name in seen or not inspect.isfunction(getattr(cls, name, None)):
            continue
        seen.add(name)
        tree = ast.parse(textwrap.dedent(inspect.getsource(getattr(cls, name))))
        used = {
            n.attr
            for n in ast.walk(tree)
            if isinstance(n, ast.Attribute)
            and isinstance(n.value, ast.Name)
            and n.value.id == "self"
        }
        queue += sorted(used - calls)
        seen |= used & calls
    return sorted((seen & calls) - {"local"})


def explain(cls: type[AnyMethod], name: str) -> str:
    """What a client function is about, in the words of its author."""
    function = getattr(cls, name)
    up = get_args(get_type_hints(function)["return"])[0]
    text = (inspect.getdoc(function) or inspect.getdoc(up) or "").split("\n", 1)[0]
    sends = ", ".join(getattr(up, "_fields", ()))
    return f"{text} (sends {getattr(up, '__name__', '')}: {sends or 'nothing'})"
