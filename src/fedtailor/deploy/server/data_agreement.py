"""Whether the data of all sites fit together, and what they have in common."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterable, Mapping
from dataclasses import replace
from typing import Any, TypeVar

from fedtailor.core.errors import UserError
from fedtailor.deploy.data_facts import DataSpec, SiteFacts

T = TypeVar("T", bound=Hashable)


def agree_on_data(facts: Mapping[str, SiteFacts], given: Mapping[str, Any]) -> DataSpec:
    """What the data of all sites are, by their names; ``given`` values win over what sites say.

    A site whose data differ is named in a UserError.
    """
    sites = list(facts.values())
    kind, shape, dtype = find_most_common((f.kind, f.shape, f.dtype) for f in sites)
    labels = agree_on_labels(sites)
    classes = len(labels) or agree_on_classes(sites)
    vocabulary = find_most_common(f.vocabulary for f in sites)
    spec = DataSpec(kind, shape, dtype, classes, labels, vocabulary)
    if "classes" in given:
        spec = replace(spec, classes=given["classes"])
    if "shape" in given:
        spec = replace(spec, shape=tuple(given["shape"]))
    for name, mine in facts.items():
        misfit = find_misfit(mine, spec)
        if misfit:
            raise UserError(f"site '{name}' does not fit the run: {misfit}")
    return spec


def agree_on_labels(sites: list[SiteFacts]) -> tuple[str, ...]:
    """Names of the classes: the common ones, or the union in order where most sites have names."""
    first = sites[0].labels
    if all(f.labels == first for f in sites):
        return first
    named = sum(bool(f.labels) for f in sites)
    if 2 * named <= len(sites):
        return ()
    return tuple(sorted({label for f in sites for label in f.labels}))


def agree_on_classes(sites: list[SiteFacts]) -> int:
    """Number of classes: what most sites know for sure, else the largest that any site has."""
    exact = [f.classes for f in sites if f.exact]
    if exact:
        return find_most_common(exact)
    return max(f.classes for f in sites)


def find_most_common(values: Iterable[T]) -> T:
    """The most frequent value; of several, the one that comes first."""
    return Counter(values).most_common(1)[0][0]


def find_misfit(facts: SiteFacts, spec: DataSpec) -> str:
    """Why a site's data do not fit the run, or nothing if they do."""
    if facts.kind != spec.kind:
        return f"it has {facts.kind} data, the run {spec.kind} data"
    if facts.shape != spec.shape:
        return f"its inputs have the shape {facts.shape}, the run's {spec.shape}"
    if facts.dtype != spec.dtype:
        return f"its inputs are {facts.dtype}, the run's {spec.dtype}"
    if facts.vocabulary != spec.vocabulary:
        return (
            f"its vocabulary has {facts.vocabulary} words, the run's {spec.vocabulary}"
        )
    one_is_unnamed = bool(facts.labels) != bool(spec.labels)
    if one_is_unnamed or not set(facts.labels) <= set(spec.labels):
        mine = list(facts.labels) or "by number"
        theirs = list(spec.labels) or "by number"
        return f"its classes are called {mine}, the run's {theirs}"
    # names say by themselves which classes they are
    fixed = facts.exact and not facts.labels
    if facts.classes > spec.classes or (fixed and facts.classes != spec.classes):
        return f"it has {facts.classes} classes, the run {spec.classes}"
    return ""
