"""What uploads give away by algebra: recovered from real uploads, with its error."""

from __future__ import annotations

import functools
from typing import Any

import pytest
import torch

from fedtailor import methods
from fedtailor.audit.algebra import Finding, find_by_algebra, recover_personal_head
from fedtailor.audit.record import Recording, record
from fedtailor.core.torch_settings import torch_settings
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import prepare

OPTIONS: dict[str, Any] = {
    "data": "digits",
    "partition": "dirichlet:0.5",
    "clients": 6,
    "limit": 240,
    "rounds": 2,
    "executor": "sequential",
}


@functools.cache
def play(method: str) -> Recording:
    """Two rounds of a real run, with an eye on client 3."""
    precise = {"dtype": "float64"} if method == "gpfl" else {}
    setup = prepare(make_experiment({**OPTIONS, "method": method, **precise}))
    return record(setup, 3, 2, lambda _: None)


def find(recording: Recording) -> Finding:
    with torch_settings(recording.world.dtype):
        (finding,) = find_by_algebra(recording)
    return finding


def test_the_personal_head_of_fedcp() -> None:
    recording = play("fedcp")
    finding = find(recording)
    assert finding.is_found
    assert finding.error < 1e-6
    upload = recording.last("local")
    head = recover_personal_head(upload.down, upload.up)
    true_head = recording.runner.load(3).keep.head
    assert head.keys() == true_head.keys()
    # the blended head that was sent is another
    sent = next(iter(upload.up.shared.values()))
    assert float((sent - next(iter(true_head.values()))).abs().max()) > 1e-3


def test_the_class_shares_of_gpfl() -> None:
    finding = find(play("gpfl"))
    assert finding.name == "class shares"
    truth = torch.tensor(finding.truth)
    recovered = torch.tensor(finding.recovered)
    error = float((truth - recovered).abs().max())
    assert finding.error == pytest.approx(error, abs=1e-5)
    assert finding.is_found == (finding.error < 0.05)
    if float(truth.min()) == 0:
        assert finding.error < 0.05
    blind = float((truth - 0.1).abs().max())
    assert finding.error < 0.5 * blind


def test_the_owned_tasks_of_pfedc() -> None:
    finding = find(play("pfedc"))
    assert finding.is_found
    assert finding.error == 0
    assert finding.recovered == finding.truth


def test_the_directions_of_pacfl() -> None:
    finding = find(play("pacfl"))
    assert finding.is_found
    assert 0 < finding.error < 0.1
    assert all(0.5 < closeness <= 1 + 1e-5 for closeness in finding.recovered)


@pytest.mark.parametrize("method", ["fed3p2p", "fedproto"])
def test_class_counts(method: str) -> None:
    finding = find(play(method))
    assert finding.is_found
    assert finding.error == 0
    assert sum(finding.truth) > 0


def test_of_others_nothing_is_known() -> None:
    recording = play("fedavg")
    assert find_by_algebra(recording) == []


def test_methods_name_what_is_found() -> None:
    """``fedtailor show`` prints ``reveals``; each entry has its recovery, and only they."""
    naming = {name for name in methods.names() if methods.find(name).reveals}
    assert naming == {"fed3p2p", "fedcp", "fedproto", "gpfl", "pacfl", "pfedc"}
    for name in naming:
        finding = find(play(name))
        assert {finding.name: finding.how} == methods.find(name).reveals
