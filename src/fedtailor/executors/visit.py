"""A visit to a client and its reply, and the declared types of both."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from fedtailor.core.tree import Params, Tree
from fedtailor.evaluation.score import Score
from fedtailor.executors.world import AnyMethod, World
from fedtailor.method_types import call_types


class Visit(NamedTuple):
    """One call of a client function, or one evaluation ('@...')."""

    name: str
    t: int
    call: int
    down: Tree
    before: bool = (
        False  # look at the state as it was when round t was over, though the next may have begun
    )


class Reply(NamedTuple):
    """What came back from a client: an upload, or the reason why there is none."""

    n: int
    up: Tree
    error: str = ""


class Candidate(NamedTuple):
    """A personal model and its score: a run that keeps the models of its best round asks for both at once."""

    score: Score
    model: Params


def reply_type(method: AnyMethod, name: str) -> Any:
    """The declared type of what comes back from a visit."""
    if name == "@candidate":
        return Candidate
    if name in ("@personal", "@pool"):
        return Params
    return Score if name.startswith("@") else call_types(method, name)[1]


def down_type(world: World, name: str) -> Any:
    """The declared type of what a visit is sent."""
    if name == "@global":
        return dict[str, Tensor]
    return call_types(world.method, "local" if name.startswith("@") else name)[0]
