"""What was measured: results by contender, their medians over repeats, and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.running import Job


@dataclass(frozen=True)
class Value:
    """A number by repeat."""

    by_repeat: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.by_repeat)

    def __truediv__(self, other: Value) -> Value:
        """Ratios of the same repeats: what slows one of two neighbours slows the other."""
        return Value(tuple(a / b for a, b in zip(self.by_repeat, other.by_repeat, strict=False)))

    def show(self, digits: int = 3, unit: str = "") -> str:
        """The median, and the least and the largest."""
        low, high = min(self.by_repeat), max(self.by_repeat)
        return (
            f"{_round(self.median, digits)}{unit} ({_round(low, digits)} – {_round(high, digits)})"
        )


@dataclass(frozen=True)
class Contender:
    """A job, or the best of several variants: each is tried once, and the fastest is measured."""

    name: str
    job: Job | None
    variants: tuple[tuple[Job, Job], ...] = ()  # (short trial, the job itself)


@dataclass
class Found:
    """All results of a scenario."""

    records: dict[str, list[dict[str, Any]]] = field(
        default_factory=dict
    )  # by contender, in the order of repeats
    failures: dict[str, str] = field(default_factory=dict)
    trials: dict[str, dict[str, float]] = field(
        default_factory=dict
    )  # by contender and variant, seconds a round
    chosen: dict[str, str] = field(default_factory=dict)  # by contender, the variant

    def has(self, name: str) -> bool:
        return bool(self.records.get(name))

    def seconds(self, name: str, part: str = "") -> Value:
        """Seconds a round: the median of a repeat's timed rounds."""
        return Value(tuple(statistics.median(p["seconds"]) for p in self.parts(name, part)))

    def memory(self, name: str) -> Value:
        """Peak resident memory of all processes, in MB."""
        return Value(tuple(r["peak_rss"] / 1e6 for r in self.records[name]))

    def parts(self, name: str, part: str = "") -> list[dict[str, Any]]:
        """One part's results, by repeat."""
        return [r["parts"][part or next(iter(r["parts"]))] for r in self.records[name]]

    def best(self, name: str, parts: Sequence[str]) -> tuple[str, Value]:
        """The part with the least median."""
        part = min(parts, key=lambda p: self.seconds(name, p).median)
        return part, self.seconds(name, part)


@dataclass(frozen=True)
class Bar:
    """What was to be reached, and what was."""

    text: str
    wanted: str
    measured: str
    met: bool | None  # None: not measured


@dataclass(frozen=True)
class Section:
    """A scenario's part of the document."""

    title: str
    text: str
    head: tuple[str, ...]
    rows: list[tuple[str, ...]]
    notes: list[str] = field(default_factory=list)
    bars: list[Bar] = field(default_factory=list)


def bar(text: str, value: Value | None, limit: float, *, most: bool) -> Bar:
    """A ratio against its limit: at most, or at least."""
    wanted = f"{'≤' if most else '≥'} {limit:g}"
    if value is None:
        return Bar(text, wanted, "not measured", None)
    return Bar(text, wanted, value.show(), value.median <= limit if most else value.median >= limit)


def count_threads(n: int) -> str:
    """``1 thread``, ``2 threads``."""
    return f"{n} thread{'s' if n > 1 else ''}"


def _round(x: float, digits: int) -> str:
    return f"{x:,.{max(0, digits - len(str(int(abs(x)))))}f}" if abs(x) >= 1 else f"{x:.{digits}g}"
