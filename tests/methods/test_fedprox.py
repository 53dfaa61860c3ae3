"""FedProx: without pull FedAvg, with it the gradient has one more term."""

from __future__ import annotations

import pytest
import torch

from fedtailor.client import Batch
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, sqdist
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedprox import Down, FedProx
from fedtailor.testing.small_world import run_small
from fedtailor.training.optim import Plan
from helpers import gap, overhear


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_without_pull_it_is_fedavg(norm: str) -> None:
    assert (
        run_small(FedProx(mu=0.0), norm=norm).hash
        == run_small(FedAvg(), norm=norm).hash
    )
    assert (
        run_small(FedProx(mu=0.1), norm=norm).hash
        != run_small(FedAvg(), norm=norm).hash
    )
    assert FedProx(mu=0.0).warnings() and not FedProx().warnings()


def test_a_step_adds_mu_times_the_way_from_the_global_model() -> None:
    played = run_small(
        FedProx(), rounds=1, plan=Plan(lr=0.05, epochs=2), dtype=torch.float64
    )
    mu, lr, start = 0.7, 0.05, played.server.w
    with torch_settings(torch.float64):
        c = played.runner.client(0, 2, Purpose.CALL, 2, 1)

        def step(w: Params, batch: Batch) -> Params:
            g = c.grad(c.loss, w, batch)
            return {k: w[k] - lr * (g[k] + mu * (w[k] - start[k])) for k in w}

        by_hand = c.each_batch(step, start)
        up, _ = FedProx(mu=mu).local(
            played.runner.client(0, 2, Purpose.CALL, 2, 1), Down(start), None
        )
        assert gap(up.w, by_hand) < 1e-12
        assert float(sqdist(up.w, start)) > 0


def test_the_stronger_the_pull_the_nearer_local_models_stay() -> None:
    way = []
    for mu in (0.0, 1.0, 10.0):
        _, heard = overhear(FedProx(mu=mu), rounds=1)
        way.append(
            sum(float(sqdist(heard[0].up[k].w, heard[0].down[k].w)) for k in range(6))
        )
    assert way[0] > way[1] > way[2]
