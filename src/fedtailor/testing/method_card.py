"""What a method says about itself: paper, hyper-parameters, what is sent and what stays."""

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
from fedtailor.engine.exchange import Traffic
from fedtailor.method import Doc
from fedtailor.method_types import call_types, client_functions, keep_type, server_type
from fedtailor.methods import AnyMethod, find, name_of
from fedtailor.testing.small_world import run_small, small
from fedtailor.training.optim import Plan

YEAR = re.compile(r"\b(?:19|20)\d\d\b")


@dataclass(frozen=True)
class HyperParameter:
    """One hyper-parameter."""

    name: str
    kind: str
    default: Any
    doc: str  # symbol, meaning, source


@dataclass(frozen=True)
class MessageField:
    """One field of a message or a state."""

    name: str
    kind: str
    doc: str


@dataclass(frozen=True)
class ClientCall:
    """One function that the server calls on clients: what is sent and what comes back."""

    name: str
    down: list[MessageField]
    up: list[MessageField]


@dataclass(frozen=True)
class MethodCard:
    """One method."""

    name: str
    title: str  # the first line of its file
    paper: str
    year: str
    text: str  # the whole docstring
    hyper: list[HyperParameter]
    server: list[MessageField]
    calls: list[ClientCall]  # ``local`` first
    keep: list[MessageField]  # never leaves the client
    also_sent: list[MessageField]  # stays with the client, and is sent as well
    reveals: dict[str, str]  # what the server can compute, and how


def describe_method(cls: type[AnyMethod]) -> MethodCard:
    """The card of a method."""
    module = sys.modules[cls.__module__]
    text = inspect.cleandoc(module.__doc__ or cls.__doc__ or cls.__name__)
    title, _, rest = text.partition("\n")
    paper = _find_paper(rest)
    years = YEAR.findall(paper)
    method = cls()
    keep = list_fields(keep_type(method))
    functions = sorted(client_functions(cls), key=lambda name: (name != "local", name))
    calls = []
    for name in functions:
        down, up = call_types(method, name)
        calls.append(ClientCall(name, list_fields(down), list_fields(up)))
    return MethodCard(
        name=name_of(cls),
        title=title.rstrip("."),
        paper=paper,
        year=years[-1] if years else "",
        text=text,
        hyper=list_hyper_parameters(cls),
        server=list_fields(server_type(method)),
        calls=calls,
        keep=[f for f in keep if f.name not in cls.also_sent],
        also_sent=[f for f in keep if f.name in cls.also_sent],
        reveals=cls.reveals,
    )


def _find_paper(text: str) -> str:
    """The first paragraph that names a year."""
    for paragraph in text.strip().split("\n\n"):
        if YEAR.search(paragraph):
            return " ".join(paragraph.split())
    return ""


def list_hyper_parameters(cls: type[AnyMethod]) -> list[HyperParameter]:
    """Names, types, defaults and docs of a method's fields."""
    hints = get_type_hints(cls)
    found = []
    for field in dataclasses.fields(cls):  # type: ignore[arg-type]
        doc = field.metadata.get("doc", "")
        found.append(
            HyperParameter(field.name, name_type(hints[field.name]), field.default, doc)
        )
    return found


def list_fields(kind: Any) -> list[MessageField]:
    """Names, types and docs of the fields of a message or state."""
    if kind == Params:
        return [MessageField("values", "Params", "first values, by parameter name")]
    if not hasattr(kind, "_fields"):
        return []
    hints = get_type_hints(kind, include_extras=True)
    return [
        MessageField(name, name_type(hints[name]), _find_doc(hints[name]))
        for name in kind._fields
    ]


def _find_doc(hint: Any) -> str:
    """The text in ``Annotated[..., Doc(text)]``."""
    for extra in getattr(hint, "__metadata__", ()):
        if isinstance(extra, Doc):
            return extra.text
    return ""


def name_type(kind: Any) -> str:
    """A type as people write it: float, int or None, softmax | gumbel, Params."""
    origin = get_origin(kind)
    parts = get_args(kind)
    if kind == Params:
        return "Params"
    if origin is Literal:
        return " | ".join(map(str, parts))
    if origin is Annotated:
        return name_type(parts[0])
    if origin is frozenset:
        return f"any of {name_type(parts[0])}"
    if origin in (Union, UnionType):
        return " or ".join(map(name_type, parts))
    if origin:
        return f"{origin.__name__}[{', '.join(map(name_type, parts))}]"
    if kind is NoneType:
        return "None"
    if kind is ...:
        return "..."
    return str(getattr(kind, "__name__", kind))


def measure_traffic(cls: type[AnyMethod]) -> tuple[float, float]:
    """Bytes up and down of one round after setup, relative to FedAvg's on the same network."""
    ours = _second_round(cls, cls.test_backbone)
    reference = _fedavg_round(cls.test_backbone)
    return ours.bytes_up / reference.bytes_up, ours.bytes_down / reference.bytes_down


@cache
def _fedavg_round(backbone: str) -> Traffic:
    return _second_round(find("fedavg"), backbone)


def _second_round(cls: type[AnyMethod], backbone: str) -> Traffic:
    """The bytes of the second of two rounds, without what is sent once at the beginning."""
    # one step per epoch: only the messages matter here
    quick = Plan(lr=0.01, batch=1000, batching="keep")
    net = small(backbone, "batch")
    one = run_small(cls(), rounds=2, until=1, plan=quick, backbone=net).exchange.traffic
    two = run_small(cls(), rounds=2, until=2, plan=quick, backbone=net).exchange.traffic
    return Traffic(two.bytes_up - one.bytes_up, two.bytes_down - one.bytes_down)
