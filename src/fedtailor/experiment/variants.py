"""The variants of a comparison: methods, each with options of its own.

``fedcp``, ``fedcp[lam=1]`` and ``mine.py[lam=1,epochs=2]`` are variants. In brackets stand the
method's hyper-parameters and options of the experiment. A comma begins a new option only where
``name=`` follows it, so that ``fedcp[without=cs,ss]`` leaves out two parts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fedtailor import methods
from fedtailor.core.errors import UserError, unknown
from fedtailor.executors.world import AnyMethod
from fedtailor.experiment.config import Experiment, options_in

OwnMethod = AnyMethod | type[AnyMethod]

# What stands in brackets must leave data and seeds alone: results are paired over both.
SHARED = (options_in("data") - {"batch"}) | {"method", "set", "name", "data_dir"}

NEXT_NAME = re.compile(r",(?=\s*[A-Za-z_][\w.]*\s*=)")
UNSAFE = re.compile(r"[^A-Za-z0-9._=+,-]+")
LONGEST_STEM = 80  # characters of a folder's name


@dataclass(frozen=True)
class Variant:
    """A row of a comparison: a method with options of its own."""

    label: str  # what it is called in tables, figures and records
    method: str  # a name, or a file
    hyper: dict[str, Any] = field(default_factory=dict)
    options: dict[str, Any] = field(default_factory=dict)
    own: OwnMethod | None = None  # a method that was given in code

    @property
    def written(self) -> str:
        """As the command line takes it, with the path of a file."""
        return self.method + self.label.removeprefix(name_of(self.method))

    def add(self, values: Mapping[str, Any], word: str) -> Variant:
        """The same with more values, and a label that says so by one word."""
        own = split_options(self.method, self.own, values)
        inside = self.label.partition("[")[2].removesuffix("]")
        words = f"{inside},{word}" if inside else word
        return dataclasses.replace(
            self,
            label=f"{self.label.partition('[')[0]}[{words}]",
            hyper={**self.hyper, **own.hyper},
            options={**self.options, **own.options},
        )


@dataclass(frozen=True)
class Split:
    """Values by what they belong to."""

    hyper: dict[str, Any]
    options: dict[str, Any]


def folder_stem(label: str) -> str:
    """The name of a variant's folders, without the seed: ``fedcp[lam=1]`` is ``fedcp-lam=1``."""
    plain = label.replace("[", "-", 1).removesuffix("]")
    safe = UNSAFE.sub("_", plain)
    if safe == plain and len(safe) <= LONGEST_STEM:
        return safe
    # characters were lost: two labels must not meet in one folder
    digest = hashlib.sha256(label.encode()).hexdigest()[:6]
    return f"{safe[:LONGEST_STEM]}-{digest}"


def name_of(label: str) -> str:
    """What a method is called in tables: a file by its name."""
    return Path(label).stem if label.endswith(".py") else label


# ---------------------------------------------------------------- reading
def parse_variant(text: str) -> Variant:
    """A variant as it is written: ``fedcp[without=cs]``."""
    name, bracket, rest = text.strip().partition("[")
    if not bracket:
        methods.find(name)
        return Variant(name_of(name), name)
    if not rest.endswith("]"):
        raise UserError(
            f"{text}: the bracket is not closed; write 'METHOD[name=value]', in quotes"
        )
    values = parse_assignments(rest.removesuffix("]"), text)
    own = split_options(name, None, values)
    inside = ",".join(f"{key}={value}" for key, value in values.items())
    label = f"{name_of(name)}[{inside}]"
    return Variant(label, name, own.hyper, own.options)


def parse_assignments(text: str, where: str) -> dict[str, str]:
    """``a=1,b=x,y`` as names and values."""
    values: dict[str, str] = {}
    for pair in NEXT_NAME.split(text):
        name, equals, value = pair.partition("=")
        name = name.strip()
        if not equals or not name:
            raise UserError(
                f"{where}: write options as name=value, with commas between"
            )
        if name in values:
            raise UserError(f"{where}: {name} is given twice")
        values[name] = value.strip()
    return values


def split_options(
    method: str, own: OwnMethod | None, values: Mapping[str, Any]
) -> Split:
    """Hyper-parameters of the method, and options of the experiment.

    A name that is both is the method's.
    """
    fields = list_hyper_parameters(method, own)
    hyper: dict[str, Any] = {}
    options: dict[str, Any] = {}
    for name, value in values.items():
        if name in fields:
            hyper[name] = value
            continue
        check_option(method, name, fields)
        options[name] = value
    return Split(hyper, options)


def check_option(method: str, name: str, fields: Iterable[str]) -> None:
    """Refuse what is no option, and what all variants must have in common."""
    if name in SHARED:
        raise UserError(
            f"{method}[{name}=...]: variants are compared on the same data and seeds;"
            f" give {name} for all of them"
        )
    if name not in Experiment.model_fields:
        known = {*fields, *Experiment.model_fields} - SHARED
        raise unknown(f"hyper-parameter or option of {method}", name, known)


def list_hyper_parameters(method: str, own: OwnMethod | None) -> set[str]:
    """Names of a method's hyper-parameters."""
    if own is None:
        cls = methods.find(method)
    else:
        cls = own if isinstance(own, type) else type(own)
    if not dataclasses.is_dataclass(cls):
        return set()
    return {one.name for one in dataclasses.fields(cls)}


# ---------------------------------------------------------------- given in code
def make_variants(
    given: Sequence[str | OwnMethod] | Mapping[str, str | OwnMethod],
) -> list[Variant]:
    """The variants of a comparison; a mapping gives their labels."""
    if isinstance(given, Mapping):
        variants = [
            dataclasses.replace(_make_variant(one), label=label)
            for label, one in given.items()
        ]
    else:
        variants = [_make_variant(one) for one in given]
    if not variants:
        raise UserError("name at least one method")
    check_labels(variants)
    return variants


def _make_variant(given: str | OwnMethod) -> Variant:
    if isinstance(given, str):
        return parse_variant(given)
    cls = given if isinstance(given, type) else type(given)
    name = methods.name_of(cls)
    return Variant(name, name, own=given)


def check_labels(variants: Sequence[Variant]) -> None:
    """Refuse two variants of one label: tables and folders could not tell them apart."""
    seen: dict[str, Variant] = {}
    for variant in variants:
        other = seen.setdefault(variant.label, variant)
        if other is variant:
            continue
        if other.method != variant.method:
            raise UserError(
                f"{other.method} and {variant.method} are both called"
                f" {variant.label}: rename one"
            )
        raise UserError(f"{variant.label} is named twice")
