"""How a method declares its hyper-parameters and documents its messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

from annotated_types import Ge, Gt, Le

from fedtailor.core.errors import unknown

T = TypeVar("T")

# Ranges of hyper-parameters; a value outside is refused by name.
Positive = Annotated[float, Gt(0)]
NonNegative = Annotated[float, Ge(0)]
Share = Annotated[float, Ge(0), Le(1)]
Count = Annotated[int, Ge(1)]


@dataclass(frozen=True)
class Doc:
    """What a field holds: ``w: Annotated[Params, Doc("the global model")]``."""

    text: str


def hyper(default: T, doc: str) -> T:
    """A hyper-parameter of a method: its default, and its symbol, meaning and source in one line.

    Example:
        lam: NonNegative = hyper(1.0, "lambda, pull towards the global model; 1 in the paper")
    """
    made: T = field(default=default, metadata={"doc": doc})
    return made


def read_sets(method: Any) -> None:
    """Fields declared ``frozenset[Literal[...]]`` may be given as text, ``without="gfm,cpn"``."""
    hints = get_type_hints(type(method))
    for f in fields(method):
        kind = hints[f.name]
        if get_origin(kind) is not frozenset:
            continue
        given = getattr(method, f.name)
        chosen = read_set(given, kind)
        object.__setattr__(method, f.name, chosen)


def read_set(value: str | Iterable[str], kind: Any) -> frozenset[str]:
    """A set from ``"a, b"`` or from words; words that are not declared are refused."""
    words = value
    if isinstance(value, str):
        words = value.replace(" ", "").split(",")
    chosen = frozenset(word for word in words if word)
    (literal,) = get_args(kind)
    allowed = get_args(literal)
    for word in sorted(chosen):
        if word not in allowed:
            raise unknown("part to leave out named", word, allowed)
    return chosen
