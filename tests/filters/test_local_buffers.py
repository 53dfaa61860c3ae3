"""BatchNorm statistics are averaged by default, and stay with their clients if asked for."""

from __future__ import annotations

import pytest
import torch

import fedtailor
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, average
from fedtailor.core.wire import encode
from fedtailor.methods.ditto import Ditto
from fedtailor.methods.fedavg import FedAvg
from fedtailor.testing.small_world import SIZES, run_small
from helpers import differences, gap, overhear

MEAN = "base.norm1.running_mean"
VARIANCE = "base.norm1.running_var"
STATISTICS = ("running_mean", "running_var")


@pytest.mark.parametrize("method", [FedAvg(), Ditto()])
def test_averaged_statistics_are_the_weighted_mean_of_the_uploads(method):
    run, heard = overhear(method, norm="batch", rounds=1)
    uploads = [up.w for up in heard[-1].up.values()]
    assert gap(run.server.w, average(uploads, SIZES)) < 1e-6
    assert run.server.w[MEAN].abs().sum() > 0


@pytest.mark.parametrize("method", [FedAvg(), Ditto()])
def test_local_statistics_never_go_up_and_differ_between_clients(method):
    run, heard = overhear(method, norm="batch", rounds=2, bn="local")
    uploads = [up for call in heard for up in call.up.values()]
    assert len(uploads) == 12
    assert not run.exchange.traffic.lost
    assert not [
        path for up in uploads for path in encode(up) if path.endswith(STATISTICS)
    ]
    assert not [name for name in run.server.w if name.endswith(STATISTICS)]
    own = [run.runner.load(k).memories["buffers"][MEAN] for k in range(6)]
    for other in own[1:]:
        assert not torch.equal(own[0], other)


def test_the_model_itself_is_averaged_as_ever():
    first = run_small(FedAvg(), rounds=0, norm="batch").server.w
    last = run_small(FedAvg(), rounds=2, norm="batch", bn="local").server.w
    assert not torch.equal(last["head.weight"], first["head.weight"])


def test_local_statistics_are_used_again_in_the_next_round():
    """The second round by hand, from the client's own statistics, gives what the run remembers."""
    half = run_small(FedAvg(), norm="batch", rounds=2, until=1, bn="local")
    whole = run_small(FedAvg(), norm="batch", rounds=2, bn="local")
    own = half.runner.load(0).memories["buffers"]
    remembered = whole.runner.load(0).memories["buffers"]

    def train_second_round(statistics: Params) -> Params:
        c = half.runner.client(0, 2, Purpose.CALL, 2, 1)
        with torch_settings():
            trained = c.train(c.loss, half.server.w | statistics)
        return {name: trained[name] for name in (MEAN, VARIANCE)}

    expected = {name: remembered[name] for name in (MEAN, VARIANCE)}
    by_hand = train_second_round({name: own[name] for name in (MEAN, VARIANCE)})
    assert differences(by_hand, expected) == []
    fresh = train_second_round({MEAN: torch.zeros(4), VARIANCE: torch.ones(4)})
    assert set(differences(fresh, expected)) == {MEAN, VARIANCE}


@pytest.mark.parametrize("method", [FedAvg(), Ditto()])
def test_all_executors_agree(method):
    options = {"norm": "batch", "bn": "local", "dtype": torch.float64}
    one = run_small(method, **options)
    two = run_small(method, **options, executor="processes")
    assert two.hash == one.hash
    many = run_small(method, **options, executor="vmap")
    assert gap(many.server, one.server) < 1e-9
    for k in range(6):
        assert gap(many.runner.load(k), one.runner.load(k)) < 1e-9


def test_global_models_are_evaluated_with_the_clients_own_statistics():
    options = {
        "model": "resnet32",
        "limit": 150,
        "clients": 3,
        "rounds": 1,
        "executor": "sequential",
        "lr": 0.05,
    }
    local = fedtailor.run("fedavg", "digits", bn="local", **options)
    mean = fedtailor.run("fedavg", "digits", bn="average", **options)
    assert local["views"]["global_ptest"]["n"] == mean["views"]["global_ptest"]["n"] > 0
    assert local["hash"] != mean["hash"]
