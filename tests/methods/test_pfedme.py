"""pFedMe: every batch solves a proximal problem in K steps, and the global copy goes towards
its solution.
"""

from __future__ import annotations

import copy

import pytest
import torch

from fedtailor.client import Client
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import average, sqdist
from fedtailor.methods.pfedme import Down, Keep, PFedMe
from fedtailor.models import Backbone
from fedtailor.testing.small_world import SIZES, SmallRun, digits, run_small, small
from fedtailor.training.optim import Plan
from helpers import equal, gap, overhear

LAM, ETA, INNER = 2.0, 0.05, 0.03


def start(batches: int, backbone: Backbone | None = None) -> SmallRun:
    """A client with so many batches, after its first round."""
    plan, world = Plan(lr=ETA, batch=10), digits(sizes=(10 * batches, 10))
    return run_small(
        PFedMe(),
        rounds=1,
        plan=plan,
        dtype=torch.float64,
        federation=world,
        backbone=backbone,
    )


def client(played: SmallRun) -> Client:
    return played.runner.client(0, 2, Purpose.CALL, 2, 1)


@pytest.mark.parametrize(
    ("batches", "k", "rounds"), [(1, 1, None), (1, 5, None), (3, 2, None), (3, 2, 4)]
)
def test_every_batch_is_k_proximal_steps(
    batches: int, k: int, rounds: int | None
) -> None:
    played = start(batches)
    with torch_settings(torch.float64):
        c, w = client(played), played.server.w
        theta, seen = w, []
        c.each_batch(lambda carry, b: seen.append(b), None, epochs=rounds or 1)
        assert len(seen) == batches * (rounds or 1)
        # local rounds: the first of every shuffle
        seen = seen[:: batches if rounds else 1]
        for b in seen:
            for _ in range(k):
                g = c.grad(c.loss, theta, b)
                theta = {
                    n: v - INNER * (g[n] + LAM * (v - w[n])) for n, v in theta.items()
                }
            w = {n: v - ETA * LAM * (v - theta[n]) for n, v in w.items()}
        method = PFedMe(lam=LAM, inner=k, inner_lr=INNER, local_rounds=rounds)
        up, keep = method.local(client(played), Down(played.server.w), played.keep(0))
    assert gap(up.w, w) < 1e-12 and gap(keep.theta, theta) < 1e-12


def test_the_proximal_problem_is_solved_when_steps_abound() -> None:
    played = start(1, small("linear"))  # a smooth problem
    with torch_settings(torch.float64):
        method = PFedMe(lam=15.0, inner=400, inner_lr=0.05)
        _, keep = method.local(client(played), Down(played.server.w), played.keep(0))
        c, seen = client(played), []
        c.each_batch(lambda carry, b: seen.append(b), None)
        g = c.grad(c.loss, keep.theta, seen[0])
        w = played.server.w
        assert (
            max(float((g[k] + 15.0 * (keep.theta[k] - w[k])).abs().max()) for k in g)
            < 1e-9
        )


@pytest.mark.parametrize("beta", [0.5, 1.0, 2.0])
def test_the_server_goes_beta_of_the_way_to_the_mean(beta: float) -> None:
    played, heard = overhear(PFedMe(beta=beta), rounds=1, dtype=torch.float64)
    first, mean = (
        heard[0].down[0].w,
        average([heard[0].up[k].w for k in range(6)], torch.ones(6)),
    )
    assert (
        gap(played.server.w, {k: (1 - beta) * first[k] + beta * mean[k] for k in mean})
        < 1e-12
    )


def test_the_mean_can_be_weighted_by_data() -> None:
    played, heard = overhear(PFedMe(by_size=True), rounds=1, dtype=torch.float64)
    mean = average([heard[0].up[k].w for k in range(6)], torch.tensor(SIZES))
    assert gap(played.server.w, mean) < 1e-12
    assert gap(run_small(PFedMe(), rounds=1, dtype=torch.float64).server.w, mean) > 1e-4
    world = digits(sizes=(20,) * 6)
    assert (
        len(
            {
                run_small(PFedMe(by_size=b), rounds=2, federation=world).hash
                for b in (False, True)
            }
        )
        == 1
    )


def test_local_rounds_are_epochs_of_a_single_batch() -> None:
    world, plan = digits(sizes=(10,) * 6), Plan(lr=ETA, batch=10, epochs=3)
    made = [
        run_small(PFedMe(local_rounds=r), rounds=2, federation=world, plan=plan).hash
        for r in (None, 3, 2)
    ]
    assert made[0] == made[1] != made[2]


def test_momentum_is_not_used() -> None:
    plans = [
        Plan(lr=ETA, batch=10, momentum=m, weight_decay=d)
        for m, d in ((0.0, 0.0), (0.9, 0.0), (0.0, 0.1))
    ]
    made = [run_small(PFedMe(), rounds=2, plan=plan).hash for plan in plans]
    assert made[0] == made[1] != made[2]


def test_the_personal_model_is_theta_and_shares_no_memory_with_w() -> None:
    played, heard = overhear(PFedMe(), norm="batch", rounds=2)
    method, down = played.runner.method, played.runner.method.send(played.server, 0)
    keep = played.keep(0)
    assert equal(method.personal(played.runner.client(0, 2), down, keep), keep.theta)
    with torch_settings():
        up, new = method.local(client(played), down, keep)
        assert equal(
            method.after_training(client(played), down, up, new), up.w
        ) and not equal(up.w, new.theta)
        theta = copy.deepcopy(new.theta)
        for v in up.w.values():
            v.zero_()
        assert equal(new.theta, theta)
    # BatchNorm takes a bias before it away
    moving = played.server.w.keys() - {"base.conv1.bias"}
    at_home = [played.keep(k).theta[name] for k in (0, 1, 2, 3, 5) for name in moving]
    sent = [x for message in heard for up in message.up.values() for x in up.w.values()]
    assert not any(
        torch.equal(x, y) for x in at_home for y in sent if x.shape == y.shape
    )


def test_theta_starts_where_the_global_model_is() -> None:
    played = start(2)
    with torch_settings(torch.float64):
        other = Keep({k: v + 1 for k, v in played.keep(0).theta.items()})
        results = [
            PFedMe().local(client(played), Down(played.server.w), keep)
            for keep in (played.keep(0), other)
        ]
    assert equal(results[0], results[1])


def test_variances_survive_steps_beyond_the_mean() -> None:
    plan = Plan(lr=0.09, batch=10)  # eta lambda = 1.35
    played = run_small(PFedMe(beta=2.0), rounds=6, norm="batch", plan=plan)
    assert (
        float(played.server.w["base.norm1.running_var"].min()) > 0
        and played.exchange.traffic.lost == {}
    )


def test_without_pull_nothing_goes_to_the_server() -> None:
    played = run_small(PFedMe(lam=0.0), rounds=2)
    assert float(sqdist(played.server.w, played.runner.new(0))) < 1e-12
    assert PFedMe(lam=0.0).warnings() and not PFedMe().warnings()
