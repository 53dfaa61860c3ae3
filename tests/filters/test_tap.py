"""A tap hears what goes between server and clients, in every executor, and changes nothing."""

from __future__ import annotations

import cloudpickle
import pytest
import torch

from fedtailor.filters.tap import Tap
from fedtailor.methods.ditto import Ditto
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedper import FedPer
from fedtailor.testing.small_world import run_small
from helpers import differences, gap, overhear


def test_it_hears_every_call():
    run, heard = overhear(FedPer(), rounds=2)
    assert [call.call.function for call in heard] == ["receive", "local", "local"]
    assert [call.t for call in heard] == [0, 1, 2]
    for call in heard:
        assert list(call.down) == list(call.up) == list(range(6))
    merged = heard[-1].up
    assert {name for up in merged.values() for name in up.base} == set(run.server.base)


def test_what_was_sent_is_what_the_server_had():
    run, one = overhear(FedAvg(), rounds=2, until=1)
    _, both = overhear(FedAvg(), rounds=2)
    for down in both[1].down.values():
        assert differences(down.w, run.server.w) == []
    assert differences(both[0].up, one[0].up) == []


@pytest.mark.parametrize("executor", ["processes", "vmap"])
@pytest.mark.parametrize("method", [FedAvg(), Ditto()])
def test_it_hears_the_same_in_every_executor(method, executor):
    options = {"norm": "batch", "dtype": torch.float64, "drop": 0.3}
    _, one = overhear(method, **options)
    run, two = overhear(method, **options, executor=executor)
    run.executor.close()
    assert [call.call for call in two] == [call.call for call in one]
    for ours, theirs in zip(two, one, strict=True):
        assert list(ours.up) == list(theirs.up)
        assert gap(ours.down, theirs.down) < 1e-9
        assert gap(ours.up, theirs.up) < 1e-9


def test_a_lost_reply_is_not_heard():
    _, heard = overhear(FedAvg(), drop=0.5)
    assert [len(call.down) for call in heard] == [6] * 3
    assert min(len(call.up) for call in heard) < 6


def test_it_changes_nothing():
    run, _ = overhear(Ditto(), norm="batch")
    assert run.hash == run_small(Ditto(), norm="batch").hash


def test_evaluations_are_not_heard():
    run, heard = overhear(FedAvg(), rounds=1)
    run.scores()
    assert [call.call.function for call in heard] == ["local"]


def test_what_it_heard_stays_as_it_was():
    """Tensors of the server may be changed in place later."""
    run, heard = overhear(FedAvg(), rounds=1)
    before = heard[0].up[0].w["head.weight"].clone()
    run.server.w["head.weight"].zero_()
    assert torch.equal(heard[0].up[0].w["head.weight"], before)


def test_a_workers_copy_starts_empty():
    tap = Tap()
    run_small(FedAvg(), rounds=1, filters=[tap])
    assert len(tap.traffic) == 1
    assert cloudpickle.loads(cloudpickle.dumps(tap)).traffic == []
