"""Whether two places run the same code: digests of a method's source and of the engine."""

from __future__ import annotations

import hashlib
import inspect
from functools import cache
from pathlib import Path

from fedtailor.executors.world import AnyMethod
from fedtailor.method import Method

PACKAGE = Path(__file__).parents[1]

# What decides a client's numbers, by room or file: the interface, all that methods may import, and
# what a site does for a run. Not in the list: how a site reads its own data (most of data/), what
# runs at the server alone (engine/, deploy/server) and what only shows results.
ENGINE = (
    "_version.py",
    "client.py",
    "core",
    "data/federation.py",
    "data/partition",
    "deploy/data_facts.py",
    "deploy/messages.py",
    "deploy/site",
    "evaluation",
    "executors",
    "experiment",
    "filters",
    "maths",
    "method.py",
    "method_types.py",
    "methods/__init__.py",
    "models",
    "storage",
    "training",
)


def digest_method(cls: type[AnyMethod]) -> str:
    """A short digest of the files that hold a method's class and the methods it derives from."""
    digest = hashlib.sha256()
    for path in list_method_files(cls):
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def list_method_files(cls: type[AnyMethod]) -> list[Path]:
    """The file of a method's class, then those of the methods it derives from."""
    files: list[Path] = []
    for base in cls.__mro__:
        if issubclass(base, Method) and base is not Method:
            path = Path(inspect.getfile(base))
            if path not in files:
                files.append(path)
    return files


@cache
def digest_engine(package: Path = PACKAGE) -> str:
    """A short digest of the part of fedtailor that decides a client's numbers."""
    digest = hashlib.sha256()
    for path in list_engine_files(package):
        name = path.relative_to(package).as_posix()
        digest.update(f"{name} ".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def list_engine_files(package: Path = PACKAGE) -> list[Path]:
    """The files that ``ENGINE`` names, in a fixed order."""
    files: list[Path] = []
    for name in ENGINE:
        path = package / name
        if path.is_dir():
            files += sorted(path.rglob("*.py"))
        else:
            files.append(path)
    return files
