"""The measure that a run's results are told by: accuracy, or what its task has instead."""

from __future__ import annotations

from typing import Any

from fedtailor.training.task import LESS_IS_BETTER

Result = dict[str, Any]  # what result.json holds
# measures that are shares of something, which tables show in per cent
SHARES = ("accuracy", "auroc", "c_index")


def measure_of(result: Result) -> str:
    """The measure's name; accuracy in files that do not say."""
    name: str = result.get("measure", {}).get("name", "accuracy")
    return name


def is_more_better(measure: str) -> bool:
    """Whether a larger value is better."""
    return measure not in LESS_IS_BETTER


def name_many(measure: str) -> str:
    """What several clients' values are called."""
    return "accuracies" if measure == "accuracy" else f"{measure} values"


def quoted(result: Result) -> dict[str, Any]:
    """The ways the measure is told: best, last, best_on_test."""
    found: dict[str, Any] = result[measure_of(result)]
    return found


def quoted_means(result: Result) -> dict[str, Any]:
    """The same of the mean of the clients' measures."""
    found: dict[str, Any] = result[f"{measure_of(result)}_mean_of_clients"]
    return found


def chosen_value(result: Result) -> float:
    """The measure at the chosen round, or at the last where none could be chosen."""
    found = quoted(result)
    return float(found["last"] if found["best"] is None else found["best"])


def rank(result_value: float, measure: str) -> float:
    """A number that sorts the best first."""
    return -result_value if is_more_better(measure) else result_value


def in_table(measure: str) -> tuple[str, float]:
    """How a table writes it: a unit behind the name, and what values are multiplied by."""
    return (" %", 100.0) if measure in SHARES else ("", 1.0)
