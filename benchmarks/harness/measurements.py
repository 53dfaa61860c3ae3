"""What was measured: results by contender, their medians over repeats, ratios, and targets."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from benchmarks.harness.job_runner import Job, JobResult


@dataclass(frozen=True)
class Measurement:
    """A number that was measured once in every repeat."""

    by_repeat: tuple[float, ...]

    @property
    def median(self) -> float:
        """The median over repeats."""
        return statistics.median(self.by_repeat)

    def __truediv__(self, other: Measurement) -> Measurement:
        """Ratios of the same repeats: what slows one of two neighbours slows the other."""
        pairs = zip(self.by_repeat, other.by_repeat, strict=False)
        return Measurement(tuple(mine / theirs for mine, theirs in pairs))

    def show(self) -> str:
        """The median, and the least and the largest."""
        median = round_number(self.median)
        least = round_number(min(self.by_repeat))
        largest = round_number(max(self.by_repeat))
        return f"{median} ({least} – {largest})"


def round_number(number: float, digits: int = 3) -> str:
    """A number with that many digits, or with all of those before the point."""
    if abs(number) < 1:
        return f"{number:.{digits}g}"
    whole = len(str(int(abs(number))))
    return f"{number:,.{max(0, digits - whole)}f}"


@dataclass(frozen=True)
class Variant:
    """One of several ways to run a contender."""

    name: str
    trial: Job  # a short one
    job: Job


@dataclass(frozen=True)
class Contender:
    """A job, or the best of several variants: each is tried once, and the fastest is measured."""

    name: str
    job: Job | None
    variants: tuple[Variant, ...] = ()


@dataclass
class ScenarioResults:
    """All results of a scenario."""

    # by contender, then by repeat
    runs: dict[str, list[JobResult]] = field(default_factory=dict)
    # by contender, why it failed
    failures: dict[str, str] = field(default_factory=dict)
    # by contender and variant, seconds a round in its trial
    trials: dict[str, dict[str, float]] = field(default_factory=dict)
    # by contender, the fastest variant
    chosen: dict[str, str] = field(default_factory=dict)

    def has(self, *contenders: str) -> bool:
        """Whether all these contenders were measured."""
        return all(self.runs.get(contender) for contender in contenders)

    def part_names(self, contender: str) -> list[str]:
        """The parts of a contender's job."""
        return list(self.runs[contender][0].parts)

    def parts(self, contender: str, part: str = "") -> list[dict[str, Any]]:
        """The results of one part (of the first one), by repeat."""
        name = part or self.part_names(contender)[0]
        return [run.parts[name] for run in self.runs[contender]]

    def seconds(self, contender: str, part: str = "") -> Measurement:
        """Seconds a round: the median of a repeat's timed rounds."""
        parts = self.parts(contender, part)
        return Measurement(
            tuple(statistics.median(result["seconds"]) for result in parts)
        )

    def memory(self, contender: str) -> Measurement:
        """Peak resident memory of all processes, in MB."""
        return Measurement(tuple(run.peak_memory / 1e6 for run in self.runs[contender]))

    def fastest_part(self, contender: str, parts: Sequence[str]) -> str:
        """The part with the least median of seconds."""
        return min(parts, key=lambda part: self.seconds(contender, part).median)

    def failure_notes(self) -> list[str]:
        """A sentence for every contender that failed."""
        return [
            f"{name} was not measured: {why}" for name, why in self.failures.items()
        ]


@dataclass(frozen=True)
class Target:
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
    header: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: list[str] = field(default_factory=list)
    targets: list[Target] = field(default_factory=list)


def compare_at_most(text: str, measured: Measurement | None, limit: float) -> Target:
    """A target that is met by a median of ``limit`` or less."""
    wanted = f"≤ {limit:g}"
    if measured is None:
        return Target(text, wanted, "not measured", None)
    return Target(text, wanted, measured.show(), measured.median <= limit)


def compare_at_least(text: str, measured: Measurement | None, limit: float) -> Target:
    """A target that is met by a median of ``limit`` or more."""
    wanted = f"≥ {limit:g}"
    if measured is None:
        return Target(text, wanted, "not measured", None)
    return Target(text, wanted, measured.show(), measured.median >= limit)


def count_threads(number: int) -> str:
    """``1 thread``, ``2 threads``."""
    return "1 thread" if number == 1 else f"{number} threads"
