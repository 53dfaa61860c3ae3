"""The first sentence of a report is honest: about size, uncertainty, and losing."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fedtailor.report.story.headline import compose_headline
from fedtailor.report.story.reported_runs import ReportedRun, group_runs


def make_run(method: str, seed: int, values: list[float], **more: Any) -> ReportedRun:
    """A finished run, as far as a headline needs it."""
    measure = more.get("measure", {}).get("name", "accuracy")
    clients = [
        {"id": k, "n_test": 100, "n_train": 300, measure: value}
        for k, value in enumerate(values)
    ]
    mean = sum(values) / len(values)
    result: dict[str, Any] = {
        "method": method,
        "data": "digits",
        "seed": seed,
        "rounds": 5,
        "partition": f"p{seed}",
        measure: {"best": mean, "last": mean, "best_round": 4},
        "clients": clients,
        **more,
    }
    return ReportedRun(Path(method), {"method": method}, result, [], [])


def tell(*runs: ReportedRun) -> tuple[str, str]:
    headline = compose_headline(group_runs(runs))
    return headline.sentence, " ".join(headline.remarks)


def test_a_gain_is_told_with_its_interval_and_its_clients() -> None:
    alone = make_run("local", 0, [0.8, 0.82, 0.84, 0.86])
    better = make_run("fedper", 0, [0.85, 0.86, 0.9, 0.9])
    sentence, remarks = tell(alone, better)
    assert sentence.startswith("FedPer's personal models are right in 87.8 % of cases")
    assert "4.8 points above training alone (95 % interval" in sentence
    assert "all 4 clients gain" in sentence and "chance" not in sentence
    assert "One seed only" in remarks


def test_an_interval_with_zero_in_it_says_so() -> None:
    alone = make_run("local", 0, [0.8, 0.8, 0.8, 0.8])
    other = make_run("fedper", 0, [0.9, 0.75, 0.85, 0.76])
    sentence, _ = tell(alone, other)
    assert "which may be chance: the interval includes zero" in sentence
    assert "2 of 4 clients gain" in sentence


def test_losing_to_training_alone_is_the_headline() -> None:
    alone = make_run("local", 0, [0.9, 0.91, 0.92, 0.93])
    worse = make_run("fedper", 0, [0.8, 0.8, 0.83, 0.84])
    sentence, _ = tell(alone, worse)
    assert sentence.startswith("Federation does not pay here: FedPer's")
    assert "below training alone" in sentence and "0 of 4 clients gain" in sentence


def test_other_data_give_no_gain() -> None:
    alone = make_run("local", 0, [0.8, 0.8])
    other = make_run("fedper", 0, [0.9, 0.9], partition="another")
    sentence, remarks = tell(alone, other)
    assert "training alone" not in sentence
    assert "on other data or other seeds" in remarks


@pytest.mark.parametrize("unit", [None, "mmHg"])
def test_errors_count_downwards(unit: str | None) -> None:
    """A measure of which less is better: below training alone is a gain."""
    told = {"name": "mae", "higher_is_better": False, "unit": unit}
    alone = make_run("local", 0, [4.0, 4.1, 4.2, 4.1], measure=told)
    other = make_run("fedper", 0, [3.0, 3.0, 3.3, 3.1], measure=told)
    sentence, _ = tell(alone, other)
    assert "reach a mean absolute error of 3.1" in sentence
    assert "below training alone" in sentence and "all 4 clients gain" in sentence
    assert "points" not in sentence and (unit or "") in sentence


def test_seeds_of_one_method_are_one_group_and_settings_tell_others_apart() -> None:
    runs = [make_run("fedper", seed, [0.8, 0.9]) for seed in (0, 1)]
    other = make_run("fedper", 0, [0.7, 0.8])
    other.config["lr"] = 0.5
    labels = [group.label for group in group_runs([*runs, other]).groups]
    assert labels == ["fedper (lr default)", "fedper (lr 0.5)"]
