"""A file of one's own may hold a subclass of a shipped method: it is found, runs everywhere and
passes the checks.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import pytest
import torch

import fedtailor
from fedtailor.core.errors import UserError
from fedtailor.core.tree import average
from fedtailor.method_types import call_types, client_functions, declared_types
from fedtailor.methods import find, make, name_of
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedcp import FedCP
from fedtailor.testing.conformance import check_method
from fedtailor.testing.small_world import run_small
from helpers import equal, overhear

SMALL: dict[str, Any] = {
    "rounds": 2,
    "clients": 4,
    "limit": 200,
    "partition": "dirichlet:0.5",
}
UNCHANGED = """
from dataclasses import dataclass
from fedtailor.methods.fedcp import FedCP

@dataclass(frozen=True)
class Mine(FedCP):
    '''FedCP under another name.'''
"""
ONE_HOOK = """
import torch
from dataclasses import dataclass
from fedtailor.method import Uploads, hyper
from fedtailor.methods.fedavg import FedAvg, Server, Up

@dataclass(frozen=True)
class Equal(FedAvg):
    '''FedAvg in which all clients have the same weight.'''

    power: float = hyper(0.0, "power of a client's number of examples in its weight")

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return Server(ups.mean("w", ups.n**self.power))
"""
CLIENT_HOOK = """
from dataclasses import dataclass
from fedtailor.client import Client
from fedtailor.methods.fedavg import Down, FedAvg, Up

@dataclass(frozen=True)
class Longer(FedAvg):
    '''FedAvg with one more epoch.'''

    def local(self, c: Client, down: Down, keep: None) -> tuple[Up, None]:
        return Up(c.train(c.loss, down.w, epochs=c.plan.epochs + 1)), None
"""


@pytest.fixture
def unchanged(tmp_path: Path) -> Path:
    return write(tmp_path / "mine.py", UNCHANGED)


@pytest.fixture
def one_hook(tmp_path: Path) -> Path:
    return write(tmp_path / "equal.py", ONE_HOOK)


def write(path: Path, text: str) -> Path:
    path.write_text(text, encoding="utf-8")
    return path


def test_a_subclass_is_found_and_keeps_its_parents_types(unchanged: Path) -> None:
    cls = find(str(unchanged))
    assert issubclass(cls, FedCP) and cls is not FedCP
    assert cls.__name__ == "Mine" and name_of(cls) == "mine"
    assert declared_types(cls) == declared_types(FedCP)
    assert client_functions(cls) == client_functions(FedCP)
    for function in client_functions(cls):
        assert call_types(cls(), function) == call_types(FedCP(), function)
    assert dataclasses.asdict(cls()) == dataclasses.asdict(FedCP())  # type: ignore[call-overload]


@pytest.mark.parametrize("executor", ["sequential", "processes"])
def test_a_subclass_runs_as_its_parent_does(unchanged: Path, executor: str) -> None:
    mine = fedtailor.run(str(unchanged), executor=executor, **SMALL)
    theirs = fedtailor.run("fedcp", executor="sequential", **SMALL)
    assert mine["hash"] == theirs["hash"] and mine["accuracy"] == theirs["accuracy"]


def test_a_subclass_passes_the_conformance_suite(unchanged: Path) -> None:
    told: list[str] = []
    assert check_method(find(str(unchanged)), told.append), "\n".join(told)
    assert not any(line.startswith("FAILED") for line in told)


def test_a_class_that_overrides_one_hook_works(one_hook: Path) -> None:
    cls = find(str(one_hook))
    played, heard = overhear(cls(), rounds=1)
    uploads = [heard[0].up[k].w for k in range(6)]
    assert equal(played.server.w, average(uploads, torch.ones(6)))
    assert not equal(played.server.w, run_small(FedAvg(), rounds=1).server.w)
    # a hyper-parameter of its own, beside its parent's
    weighted = make(cls, {"power": "1"})
    assert run_small(weighted, rounds=1).hash == run_small(FedAvg(), rounds=1).hash
    assert make(cls, {"finetune": "2"}).finetune == 2  # type: ignore[attr-defined]


@pytest.mark.parametrize("executor", ["sequential", "processes"])
def test_an_overridden_client_function_runs(tmp_path: Path, executor: str) -> None:
    path = write(tmp_path / "longer.py", CLIENT_HOOK)
    mine = fedtailor.run(str(path), executor=executor, **SMALL)
    longer = fedtailor.run("fedavg", executor="sequential", epochs=2, **SMALL)
    assert mine["hash"] == longer["hash"]
    assert (
        mine["hash"] != fedtailor.run("fedavg", executor="sequential", **SMALL)["hash"]
    )


def test_a_class_that_the_same_file_derives_from_does_not_count(tmp_path: Path) -> None:
    below = (
        ONE_HOOK
        + "\n\n@dataclass(frozen=True)\nclass Below(Equal):\n    '''A step further.'''\n"
    )
    assert find(str(write(tmp_path / "below.py", below))).__name__ == "Below"


def test_two_unrelated_methods_in_one_file_are_refused_in_one_line(
    tmp_path: Path,
) -> None:
    path = write(tmp_path / "both.py", UNCHANGED + ONE_HOOK)
    with pytest.raises(
        UserError, match="exactly one class that derives from Method"
    ) as refused:
        find(str(path))
    assert str(path) in str(refused.value) and "it holds 2" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_file_that_only_imports_a_method_holds_none(tmp_path: Path) -> None:
    path = write(tmp_path / "none.py", "from fedtailor.methods.fedavg import FedAvg\n")
    with pytest.raises(UserError, match="it holds 0"):
        find(str(path))
