"""What sites tell of their data, and whether the data of all sites fit together."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Federation


def spec_of(federation: Federation) -> dict[str, Any]:
    """What every site's data must be."""
    f = federation
    return {
        "kind": f.kind,
        "shape": list(f.shape),
        "dtype": str(f.x.dtype)[6:],
        "classes": f.classes,
        "labels": list(f.labels),
        "vocabulary": f.vocabulary,
    }


def agree_on(facts: Mapping[str, dict[str, Any]], given: dict[str, Any]) -> dict[str, Any]:
    """What the data of all sites are; one that differs is named."""
    first = next(iter(facts.values()))
    inputs = Counter((f["kind"], tuple(f["shape"]), f["dtype"]) for f in facts.values())
    kind, shape, dtype = max(inputs, key=lambda i: inputs[i])
    named = 2 * sum(bool(f["labels"]) for f in facts.values()) > len(facts)
    labels = sorted({label for f in facts.values() for label in f["labels"]}) if named else []
    if all(f["labels"] == first["labels"] for f in facts.values()):
        labels = first["labels"]
    exact = Counter(f["classes"] for f in facts.values() if f["exact"])
    classes = len(labels) or (
        max(exact, key=lambda c: exact[c]) if exact else max(f["classes"] for f in facts.values())
    )
    sizes = Counter(f["vocabulary"] for f in facts.values())
    spec = {
        "kind": kind,
        "shape": list(shape),
        "dtype": dtype,
        "classes": classes,
        "labels": labels,
        "vocabulary": max(sizes, key=lambda v: sizes[v]),
    } | given
    for name, mine in facts.items():
        wrong = find_misfit(mine, spec)
        if wrong:
            raise UserError(f"site '{name}' does not fit the run: {wrong}")
    return spec


def find_misfit(facts: dict[str, Any], spec: dict[str, Any]) -> str:
    """Why a site's data will not do, if they will not."""
    if facts["kind"] != spec["kind"]:
        return f"it has {facts['kind']} data, the run {spec['kind']} data"
    if list(facts["shape"]) != list(spec["shape"]):
        return (
            f"its inputs have the shape {tuple(facts['shape'])}, the run's {tuple(spec['shape'])}"
        )
    if facts["dtype"] != spec["dtype"]:
        return f"its inputs are {facts['dtype']}, the run's {spec['dtype']}"
    if facts["vocabulary"] != spec["vocabulary"]:
        return f"its vocabulary has {facts['vocabulary']} words, the run's {spec['vocabulary']}"
    if bool(facts["labels"]) != bool(spec["labels"]) or not set(facts["labels"]) <= set(
        spec["labels"]
    ):
        return f"its classes are called {facts['labels'] or 'by number'}, the run's {spec['labels'] or 'by number'}"
    fixed = facts["exact"] and not facts["labels"]  # names say by themselves which classes they are
    if facts["classes"] > spec["classes"] or (fixed and facts["classes"] != spec["classes"]):
        return f"it has {facts['classes']} classes, the run {spec['classes']}"
    return ""


def check_facts(facts: dict[str, Any]) -> dict[str, Any]:
    """What a site says of its data, with the types it must have."""
    n = [int(v) for v in facts["n"]]
    if len(n) != 3 or min(n) < 0 or n[0] < 1:
        raise ValueError(f"{n} samples to train, validate and test")
    return {
        "kind": str(facts["kind"]),
        "shape": [int(d) for d in facts["shape"]],
        "dtype": str(facts["dtype"]),
        "classes": int(facts["classes"]),
        "exact": bool(facts["exact"]),
        "n": n,
        "labels": [str(label) for label in facts["labels"]],
        "vocabulary": int(facts["vocabulary"]),
    }
