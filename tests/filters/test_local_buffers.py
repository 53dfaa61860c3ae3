"""BatchNorm statistics: averaged by default, or at home, as asked; never by accident."""

import pytest
import torch

import fedtailor
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.wire import encode
from fedtailor.executors.sequential import Sequential
from fedtailor.methods.ditto import Ditto
from fedtailor.methods.fedavg import FedAvg
from fedtailor.testing.small_world import EXECUTORS, run_small

STATISTICS = ("running_mean", "running_var")


def tapped(played_with):
    """A sequential executor that remembers every upload."""
    seen = []

    def make(world):
        executor = EXECUTORS["sequential"](world)
        assert isinstance(executor, Sequential)
        call = executor.call

        def listen(name, downs, t, number, tick):
            replies = call(name, downs, t, number, tick)
            seen.extend(r.up for r in replies.values())
            return replies

        executor.call = listen
        return executor

    return run_small(**played_with, executor=make), seen


@pytest.mark.parametrize("method", [FedAvg(), Ditto()])
def test_averaged_statistics_are_the_weighted_mean_of_the_uploads(method):
    played, seen = tapped({"method": method, "norm": "batch", "rounds": 1})
    n = torch.tensor([float(len(i)) for i in played.runner.world.federation.train])
    name = "base.norm1.running_mean"
    mean = sum(w * up.w[name] for w, up in zip(n / n.sum(), seen, strict=True))
    assert torch.allclose(played.server.w[name], mean, atol=1e-6)
    assert played.server.w[name].abs().sum() > 0


@pytest.mark.parametrize("method", [FedAvg(), Ditto()])
def test_local_statistics_never_go_up_and_differ_between_clients(method):
    played, seen = tapped({"method": method, "norm": "batch", "rounds": 2, "bn": "local"})
    assert len(seen) == 12 and not played.exchange.traffic.lost
    assert not [path for up in seen for path in encode(up) if path.endswith(STATISTICS)]
    assert not [k for k in played.server.w if k.endswith(STATISTICS)]
    first = run_small(method, rounds=0, norm="batch").server.w["head.weight"]
    assert not torch.equal(played.server.w["head.weight"], first), (
        "the model itself is averaged as ever"
    )
    memories = [played.runner.load(k)[1]["base.norm1.running_mean"] for k in range(6)]
    assert all(not torch.equal(memories[0], m) for m in memories[1:])


def test_local_statistics_are_used_again_in_the_next_round():
    """Round 2 by hand from the client's own statistics gives what the run remembers, to the bit; fresh ones do not."""
    first = run_small(FedAvg(), norm="batch", rounds=2, until=1, bn="local")
    _, own = first.runner.load(0)
    after_two = run_small(FedAvg(), norm="batch", rounds=2, bn="local").runner.load(0)[1]
    names = ["base.norm1.running_mean", "base.norm1.running_var"]

    def second_round(statistics):
        c = first.runner.client(0, 2, Purpose.CALL, 2, 1)
        with torch_settings():
            return c.train(c.loss, first.server.w | statistics)

    again = second_round({n: own[n] for n in names})
    fresh = second_round({names[0]: torch.zeros(4), names[1]: torch.ones(4)})
    for n in names:
        assert torch.equal(again[n], after_two[n]) and not torch.equal(fresh[n], after_two[n])


def test_global_models_are_evaluated_with_the_clients_own_statistics():
    options = {
        "model": "resnet32",
        "limit": 150,
        "clients": 3,
        "rounds": 1,
        "executor": "sequential",
        "lr": 0.05,
    }
    local, mean = (
        fedtailor.run("fedavg", "digits", bn=bn, **options) for bn in ("local", "average")
    )
    assert local["views"]["global_ptest"]["n"] == mean["views"]["global_ptest"]["n"] > 0
    assert local["hash"] != mean["hash"]
