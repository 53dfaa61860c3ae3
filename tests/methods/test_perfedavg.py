"""Per-FedAvg: meta-steps against softmax regression worked out by hand."""

from __future__ import annotations

from typing import Literal

import pytest
import torch
from torch import Tensor

from fedtailor.client import Batch, Client
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, average
from fedtailor.methods.perfedavg import Down, PerFedAvg
from fedtailor.testing.small_world import SmallRun, digits, run_small, small
from fedtailor.training.optim import Plan
from helpers import equal, gap, overhear

ALPHA, BETA = 0.1, 0.05


def slope(w: Params, x: Tensor, y: Tensor) -> Params:
    """The gradient of softmax regression's cross entropy: X' (p - e_y) / n."""
    x = x.flatten(1)
    wrong = (
        torch.softmax(x @ w["head.weight"].T + w["head.bias"], -1) - torch.eye(10)[y]
    )
    return {"head.weight": wrong.T @ x / len(y), "head.bias": wrong.mean(0)}


def curve(w: Params, x: Tensor, v: Params) -> Params:
    """The Hessian of the same times v."""
    x = x.flatten(1)
    p = torch.softmax(x @ w["head.weight"].T + w["head.bias"], -1)
    z = x @ v["head.weight"].T + v["head.bias"]
    wrong = p * (z - (p * z).sum(-1, keepdim=True))
    return {"head.weight": wrong.T @ x / len(x), "head.bias": wrong.mean(0)}


def move(w: Params, g: Params, size: float) -> Params:
    return {k: w[k] - size * g[k] for k in w}


def regression(n: int = 60, batch: int = 10) -> SmallRun:
    """One client with softmax regression, before its second round."""
    plan = Plan(lr=BETA, batch=batch)
    world = digits(sizes=(n, n))
    return run_small(
        PerFedAvg(),
        rounds=1,
        federation=world,
        backbone=small("linear"),
        plan=plan,
        dtype=torch.float64,
    )


def client(played: SmallRun) -> Client:
    return played.runner.client(0, 2, Purpose.CALL, 2, 1)


def batches(c: Client, size: int) -> list[Batch]:
    """The batches of one epoch."""
    seen: list[Batch] = []
    c.each_batch(lambda carry, b: seen.append(b), None, size=size, epochs=1)
    return seen


@pytest.mark.parametrize("variant", ["fo", "hf"])
def test_meta_steps_by_hand(variant: Literal["fo", "hf"]) -> None:
    played, parts, delta = regression(), 2 if variant == "fo" else 3, 1e-4
    with torch_settings(torch.float64):
        w = exact = played.server.w
        seen = batches(client(played), parts * 10)
        assert len(seen) == 60 // (parts * 10)
        for b in seen:
            (x, y), (x1, y1), *more = zip(b.x.split(10), b.y.split(10), strict=True)
            g = slope(move(w, slope(w, x, y), ALPHA), x1, y1)
            true = slope(move(exact, slope(exact, x, y), ALPHA), x1, y1)
            if variant == "hf":
                x2, y2 = more[0]
                ahead, behind = (
                    slope(move(w, g, -delta), x2, y2),
                    slope(move(w, g, delta), x2, y2),
                )
                g = {k: g[k] - ALPHA * (ahead[k] - behind[k]) / (2 * delta) for k in g}
                bend = curve(exact, x2, true)
                true = move(true, bend, ALPHA)
            w, exact = move(w, g, BETA), move(exact, true, BETA)
        up, _ = PerFedAvg(variant, alpha=ALPHA, delta=delta).local(
            client(played), Down(played.server.w), None
        )
        assert gap(up.w, w) < 1e-9
        assert gap(up.w, exact) < 1e-7  # the true Hessian


def test_the_hessian_matters() -> None:
    played = regression()
    with torch_settings(torch.float64):
        down = Down(played.server.w)
        fo, hf = (
            PerFedAvg(v, alpha=ALPHA).local(client(played), down, None)[0]
            for v in ("fo", "hf")
        )
    assert gap(fo, hf) > 1e-4


@pytest.mark.parametrize("steps", [1, 3])
def test_the_personal_model_is_a_step_away(steps: int) -> None:
    played, w = regression(), None
    with torch_settings(torch.float64):
        w, c = played.server.w, client(played)
        for _ in range(steps):
            b = batches(c, 10)[0]
            w = move(w, slope(w, b.x, b.y), ALPHA)
        personal = PerFedAvg(alpha=ALPHA, steps=steps).personal(
            client(played), Down(played.server.w), None
        )
    assert gap(personal, w) < 1e-12 and gap(personal, played.server.w) > 1e-6


@pytest.mark.parametrize("n", [1, 2, 3])
@pytest.mark.parametrize("batching", ["fill", "keep"])
def test_the_smallest_clients_take_part(n: int, batching: str) -> None:
    for variant in ("fo", "hf"):
        plan = Plan(lr=0.05, batch=10, batching=batching)
        played = run_small(
            PerFedAvg(variant), rounds=2, federation=digits(sizes=(n, 12)), plan=plan
        )  # type: ignore[arg-type]
        assert played.exchange.traffic.lost == {}
        assert all(bool(torch.isfinite(v).all()) for v in played.server.w.values())


def test_momentum_is_the_experiments() -> None:
    plan = Plan(lr=0.05, batch=5, momentum=0.5, weight_decay=1e-3)
    one, many = (
        run_small(PerFedAvg("hf"), plan=plan, dtype=torch.float64, executor=e)
        for e in ("sequential", "vmap")
    )
    assert many.executor.notices() == [] and gap(one.server, many.server) < 1e-9
    assert (
        gap(
            one.server,
            run_small(
                PerFedAvg("hf"), plan=Plan(lr=0.05, batch=5), dtype=torch.float64
            ).server,
        )
        > 1e-4
    )


def test_all_clients_weigh_the_same() -> None:
    played, heard = overhear(PerFedAvg(), rounds=1)
    assert equal(
        played.server.w, average([heard[0].up[k].w for k in range(6)], torch.ones(6))
    )


def test_statistics_of_batchnorm_are_measured_in_meta_steps() -> None:
    played = run_small(PerFedAvg(), rounds=1, norm="batch")
    assert not torch.equal(played.server.w["base.norm1.running_mean"], torch.zeros(4))
