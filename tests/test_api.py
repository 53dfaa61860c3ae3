"""The public names of the package."""

from __future__ import annotations

import importlib
import inspect

import pytest

import fedtailor


def test_run_is_a_function_and_no_module() -> None:
    with pytest.raises(ModuleNotFoundError):
        importlib.import_module("fedtailor.run")
    assert inspect.isfunction(fedtailor.run)
    result = fedtailor.run(
        "fedavg", clients=3, limit=200, rounds=1, executor="sequential"
    )
    assert result["method"] == "fedavg" and result["rounds"] == 1


def test_public_names_exist() -> None:
    for name in fedtailor.__all__:
        assert hasattr(fedtailor, name), name


def test_an_observer_follows_a_run_from_python() -> None:
    class Accuracies(fedtailor.Observer):
        def __init__(self) -> None:
            self.seen: list[float | None] = []

        def round(self, record) -> None:
            assert record.evaluation is not None
            self.seen.append(record.evaluation.test.accuracy)

    observer = Accuracies()
    result = fedtailor.run(
        "fedavg", clients=3, limit=200, rounds=2, observers=[observer]
    )
    assert len(observer.seen) == 2 and observer.seen[-1] == result["accuracy"]["last"]
