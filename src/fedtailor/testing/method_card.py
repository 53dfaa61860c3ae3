"""What a method's file says about itself: paper, hyper-parameters with their comments, what crosses the border."""

from __future__ import annotations

import dataclasses
import inspect
import re
import sys
from dataclasses import dataclass
from functools import cache
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from fedtailor.core.tree import Params
from fedtailor.engine.exchange import Ledger
from fedtailor.method_types import call_types, client_functions, keep_type, server_type
from fedtailor.methods import AnyMethod, find, name_of
from fedtailor.testing.small_world import run_small, small
from fedtailor.training.optim import Plan


@dataclass(frozen=True)
class Hyper:
    """One hyper-parameter."""

    name: str
    kind: str
    default: Any
    comment: str  # symbol, meaning, source: what the file says beside it


@dataclass(frozen=True)
class Piece:
    """One field of a message or a state."""

    name: str
    kind: str
    comment: str


@dataclass(frozen=True)
class Call:
    """One kind of visit to a client, what is sent and what comes back."""

    name: str
    down: list[Piece]
    up: list[Piece]


@dataclass(frozen=True)
class About:
    """One method."""

    name: str
    title: str  # the first line of its file
    paper: str
    year: str
    text: str  # the whole docstring
    hyper: list[Hyper]
    server: list[Piece]
    calls: list[Call]  # ``local`` first
    keep: list[Piece]  # never leaves the client
    lent: list[Piece]  # stays with the client, and goes up as well


def describe(cls: type[AnyMethod]) -> About:
    """Read a method's file."""
    module = sys.modules[cls.__module__]
    text = inspect.cleandoc(module.__doc__ or cls.__doc__ or cls.__name__)
    title, _, rest = text.partition("\n")
    paper = next(
        (
            " ".join(p.split())
            for p in rest.strip().split("\n\n")
            if re.search(r"\b(19|20)\d\d\b", p)
        ),
        "",
    )
    year = re.findall(r"\b(?:19|20)\d\d\b", paper)
    method = cls()
    visits = sorted(client_functions(cls), key=lambda name: (name != "local", name))
    calls = [Call(name, *map(_pieces, call_types(method, name))) for name in visits]
    keep, lent = _pieces(keep_type(method)), set(cls.also_sent)
    comments = _comments(cls)
    fields = [f for f in dataclasses.fields(cls)]  # type: ignore[arg-type]
    hyper = [Hyper(f.name, _kind(f.type), f.default, comments.get(f.name, "")) for f in fields]
    said = name_of(cls), title.rstrip("."), paper, year[-1] if year else "", text, hyper
    private = [p for p in keep if p.name not in lent]
    return About(
        *said, _pieces(server_type(method)), calls, private, [p for p in keep if p.name in lent]
    )


def traffic(cls: type[AnyMethod]) -> tuple[float, float]:
    """Bytes up and down of one round in the small world (after setup), relative to FedAvg's on the same network."""
    ours, theirs = _ledger(cls, cls.test_backbone), _reference(cls.test_backbone)
    return ours.up / theirs.up, ours.down / theirs.down


@cache
def _reference(test_backbone: str) -> Ledger:
    return _ledger(find("fedavg"), test_backbone)


def _ledger(cls: type[AnyMethod], test_backbone: str) -> Ledger:
    """The bytes of the second of two rounds: what was sent once, at the beginning, is not counted."""
    quick = Plan(
        lr=0.01, batch=1000, batching="keep"
    )  # one step per epoch: only the messages matter here
    net = small(test_backbone, "batch")
    one, two = (
        run_small(cls(), rounds=2, until=t, plan=quick, backbone=net).exchange.ledger
        for t in (1, 2)
    )
    return Ledger(two.up - one.up, two.down - one.down)


def _pieces(kind: Any) -> list[Piece]:
    if not hasattr(kind, "_fields"):
        return []
    comments, hints = _comments(kind), get_type_hints(kind)
    return [Piece(f, _kind(hints[f]), comments.get(f, "")) for f in kind._fields]


def _comments(cls: type) -> dict[str, str]:
    """The comment at the end of every field's line, or on the line of its own before it."""
    try:
        source = inspect.getsource(cls)
    except (OSError, TypeError):
        return {}
    found = re.findall(r"^\s+(\w+)\s*:[^#\n]*?#\s*(.+)$", source, re.MULTILINE)
    return dict(found)


def _kind(kind: Any) -> str:
    """A type as people write it: float, int or None, softmax | gumbel, Params."""
    origin, parts = get_origin(kind), get_args(kind)
    if kind == Params:
        return "Params"
    if origin is Literal:
        return " | ".join(map(str, parts))
    if origin is Annotated:
        return _kind(parts[0])
    if origin in (Union, UnionType):
        return " or ".join(map(_kind, parts))
    if origin:
        return f"{origin.__name__}[{', '.join(map(_kind, parts))}]"
    return {NoneType: "None", ...: "..."}.get(kind, str(getattr(kind, "__name__", kind)))
