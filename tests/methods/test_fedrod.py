"""FedRoD: a balanced generic task, and a private head that moves nothing but itself."""

from __future__ import annotations

import pytest
import torch

from fedtailor.client import Client
from fedtailor.core.rng import Purpose
from fedtailor.core.tensors import onehot
from fedtailor.core.torch_settings import torch_settings
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedrod import Down, FedRoD, Keep
from fedtailor.testing.small_world import SmallRun, digits, run_small
from fedtailor.training.optim import Plan
from helpers import equal, gap, names, overhear

LR = 0.05


def start() -> SmallRun:
    """Clients of one batch each, so that a round is a step."""
    return run_small(
        FedRoD(),
        rounds=1,
        dtype=torch.float64,
        plan=Plan(lr=LR, batch=10),
        federation=digits(sizes=(10, 10)),
    )


def client(played: SmallRun) -> Client:
    return played.runner.client(0, 2, Purpose.CALL, 2, 1)


@pytest.mark.parametrize("gamma", [1.0, 0.5])
def test_a_step_by_hand(gamma: float) -> None:
    played = start()
    down, keep = Down(*played.server), played.keep(0)
    with torch_settings(torch.float64):
        c = client(played)
        h = c.model.base(down.base, c.x)
        counts = torch.bincount(c.y, minlength=10).double()
        assert 0 < int((counts > 0).sum()) < 10  # classes are missing
        generic = h @ down.head["head.weight"].T + down.head["head.bias"]
        # balanced softmax: p_c ~ n_c^gamma exp(z_c)
        balanced = torch.exp(generic) * counts**gamma
        wrong = balanced / balanced.sum(1, keepdim=True) - onehot(c.y, 10)
        both = generic + h @ keep.own["own.weight"].T + keep.own["own.bias"]
        wrong_own = torch.softmax(both, 1) - onehot(c.y, 10)
        up, new = FedRoD(gamma=gamma).local(c, down, keep)
    assert (
        gap(up.head["head.weight"], down.head["head.weight"] - LR * wrong.T @ h / 10)
        < 1e-9
    )
    assert gap(up.head["head.bias"], down.head["head.bias"] - LR * wrong.mean(0)) < 1e-9
    assert (
        gap(new.own["own.weight"], keep.own["own.weight"] - LR * wrong_own.T @ h / 10)
        < 1e-9
    )
    assert not equal(up.base, down.base)


def test_the_private_head_moves_neither_extractor_nor_generic_head() -> None:
    played = run_small(FedRoD(), rounds=2, norm="batch")
    down, keep = Down(*played.server), played.keep(0)
    other = Keep({k: 10 * v + 1 for k, v in keep.own.items()})
    with torch_settings():
        up, _ = FedRoD().local(client(played), down, keep)
        same, _ = FedRoD().local(client(played), down, other)
    assert equal(up, same)


def test_private_heads_stay_at_home() -> None:
    played, heard = overhear(FedRoD())
    for sent in heard:
        for up in sent.up.values():
            assert all(name.startswith(("base.", "head.")) for name in names(up))
    heads = {
        tuple(played.keep(k).own["own.weight"].flatten().tolist()) for k in range(6)
    }
    assert len(heads) == 6


def test_the_global_model_predicts_with_the_generic_head_alone() -> None:
    played = run_small(FedRoD())
    method, c = played.runner.method, played.runner.client(0, 3)
    with torch_settings():
        shared = method.shared(played.server)
        generic = c.model.head(shared, c.model.base(shared, c.x))
        personal = method.personal(c, Down(*played.server), played.keep(0))
        added = c.model.own(personal, c.model.base(personal, c.x))
        assert torch.equal(method.predict(c, shared, c.x), generic)
        assert torch.equal(method.predict(c, personal, c.x), generic + added)
        assert torch.allclose(c.model(personal, c.x), generic + added)


def test_a_newcomer_predicts_as_the_global_model() -> None:
    played = run_small(FedRoD())
    method, c, down = (
        played.runner.method,
        played.runner.client(0, 3),
        Down(*played.server),
    )
    with torch_settings():
        w = method.personal(c, down, method.first_keep(c, down))
        shared = method.shared(played.server)
        assert torch.equal(
            method.predict(c, w, c.x).argmax(1),
            method.predict(c, shared, c.x).argmax(1),
        )


def test_without_balance_the_global_model_is_that_of_fedavg() -> None:
    rod, avg = run_small(FedRoD(gamma=0.0), rounds=2), run_small(FedAvg(), rounds=2)
    assert equal({**rod.server.base, **rod.server.head}, avg.server.w)
    assert FedRoD(gamma=0.0).warnings() and not FedRoD().warnings()
