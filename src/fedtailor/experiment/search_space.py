"""What a search varies: ``lr=0.01:1:log,lam=0.1|1|10``.

A range has two ends, ``0.01:1``, and is drawn evenly in its logarithm with ``:log``; it is of whole
numbers where the option is. Choices stand between bars, ``relu|tanh``. ``fedcp.lam=...`` is of one
method; other names are of every method that has them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, get_args, get_type_hints

from fedtailor import methods
from fedtailor.core.errors import UserError, unknown
from fedtailor.experiment.config import Experiment, options_in
from fedtailor.experiment.variants import (
    SHARED,
    Variant,
    list_hyper_parameters,
    name_of,
    parse_assignments,
)

# What a search must not vary: data, length, and how it is measured.
FIXED = SHARED | options_in("evaluation") | options_in("execution") | {"rounds"}
EXAMPLE = "write lr=0.01:1:log for a range, lam=0.1|1|10 for choices"


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included."""

    low: float
    high: float
    is_log: bool
    is_whole: bool

    def holds(self, value: Any) -> bool:
        """Whether a value lies in it."""
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        return is_number and self.low <= value <= self.high

    def extremes(self) -> list[Any]:
        """The values at its ends."""
        ends = (self.low, self.high)
        return [int(end) if self.is_whole else end for end in ends]


@dataclass(frozen=True)
class Choice:
    """One of several values."""

    values: tuple[Any, ...]

    def holds(self, value: Any) -> bool:
        """Whether a value is among them."""
        return value in self.values

    def extremes(self) -> list[Any]:
        """All of them."""
        return list(self.values)


Dimension = Range | Choice
Space = dict[str, Dimension]
Over = str | Sequence[str] | Mapping[str, Any]


def make_spaces(over: Over, variants: Sequence[Variant]) -> dict[str, Space]:
    """By label, what is searched for every variant."""
    given = read_over(over)
    spaces: dict[str, Space] = {variant.label: {} for variant in variants}
    for key, text in given.items():
        prefix, _, name = key.rpartition(".")
        _check_name(name, prefix, variants)
        for variant in variants:
            if prefix and prefix != name_of(variant.method):
                continue
            kind = find_kind(variant, name)
            is_overridden = f"{name_of(variant.method)}.{name}" in given and not prefix
            if kind is not None and not is_overridden:
                spaces[variant.label][name] = parse_dimension(name, text, kind)
    for label, space in spaces.items():
        if not space:
            raise UserError(f"{label} has none of {', '.join(given)}: nothing to tune")
    return spaces


def read_over(over: Over) -> dict[str, Any]:
    """Names and what is searched, from text, several texts, or a mapping."""
    if isinstance(over, Mapping):
        return dict(over)
    texts = [over] if isinstance(over, str) else over
    given: dict[str, Any] = {}
    for text in texts:
        given.update(parse_assignments(text, f"--over {text}"))
    if not given:
        raise UserError(f"say what to search over: {EXAMPLE}")
    return given


def _check_name(name: str, prefix: str, variants: Sequence[Variant]) -> None:
    """Refuse a name that no variant has, or that a search must not vary."""
    there = {name_of(variant.method) for variant in variants}
    if prefix and prefix not in there:
        raise UserError(f"--over {prefix}.{name}: {prefix} is not tuned here")
    known: set[str] = set(Experiment.model_fields) - FIXED
    for variant in variants:
        known |= list_hyper_parameters(variant.method, variant.own)
    if name in known:
        return
    if name in FIXED:
        raise UserError(f"--over {name}: {name} is the same in all trials")
    raise unknown("hyper-parameter or option", name, known)


def find_kind(variant: Variant, name: str) -> Any:
    """The declared type of a hyper-parameter or option; None where the method has neither."""
    if name in list_hyper_parameters(variant.method, variant.own):
        cls = variant.own or methods.find(variant.method)
        cls = cls if isinstance(cls, type) else type(cls)
        return get_type_hints(cls)[name]
    if name in FIXED or name not in Experiment.model_fields:
        return None
    return Experiment.model_fields[name].annotation


# ---------------------------------------------------------------- one dimension
def parse_dimension(name: str, given: Any, kind: Any) -> Dimension:
    """``0.01:1:log``, ``0.1|1|10``, or a list of choices."""
    if not isinstance(given, str):
        return _make_choice(name, given)
    if "|" in given:
        words = [word.strip() for word in given.split("|")]
        return _make_choice(name, [read_number(word) for word in words])
    parts = [part.strip() for part in given.split(":")]
    if len(parts) not in (2, 3):
        raise UserError(f"--over {name}={given}: {EXAMPLE}")
    if parts[2:] not in ([], ["log"]):
        raise UserError(f"--over {name}={given}: no scale '{parts[2]}'; there is log")
    low = read_number(parts[0])
    high = read_number(parts[1])
    if isinstance(low, str) or isinstance(high, str):
        raise UserError(f"--over {name}={given}: the ends of a range are numbers")
    if not low < high:
        raise UserError(f"--over {name}={given}: {low} is not below {high}")
    if parts[2:] and low <= 0:
        raise UserError(f"--over {name}={given}: a logarithmic range begins above 0")
    is_whole = takes_whole_numbers(kind)
    if is_whole and not (isinstance(low, int) and isinstance(high, int)):
        raise UserError(f"--over {name}={given}: {name} is a whole number")
    return Range(low, high, bool(parts[2:]), is_whole)


def _make_choice(name: str, given: Any) -> Choice:
    values = tuple(given) if isinstance(given, Sequence) else ()
    if len(set(values)) < 2:
        raise UserError(f"--over {name}: give two values or more; {EXAMPLE}")
    return Choice(values)


def read_number(word: str) -> Any:
    """A number, or the word as it is."""
    for kind in (int, float):
        try:
            return kind(word)
        except ValueError:
            continue
    return word


def takes_whole_numbers(kind: Any) -> bool:
    """Whether a type is whole numbers only."""
    if kind is int:
        return True
    inner = [one for one in get_args(kind) if one is not type(None)]
    numbers = [one for one in inner if isinstance(one, type) or get_args(one)]
    return bool(numbers) and all(map(takes_whole_numbers, numbers))


# ---------------------------------------------------------------- values
def find_defaults(space: Space, settled: Experiment) -> dict[str, Any] | None:
    """The values that a run has by itself, where all of them lie in the space."""
    values: dict[str, Any] = {}
    for name, dimension in space.items():
        value = settled.set.get(name, getattr(settled, name, None))
        if not dimension.holds(value):
            return None
        values[name] = value
    return values


def list_trials_at_the_edge(space: Space) -> list[dict[str, Any]]:
    """One set of values for every end and choice, so that mistakes show before the search."""
    usual = {name: dimension.extremes()[0] for name, dimension in space.items()}
    found = []
    for name, dimension in space.items():
        for value in dimension.extremes():
            found.append({**usual, name: value})
    return found


def vary(variant: Variant, values: Mapping[str, Any], word: str) -> Variant:
    """A variant with the values of a trial, called by the trial."""
    return dataclasses.replace(
        variant.add(values, word), label=f"{variant.label} {word}"
    )
