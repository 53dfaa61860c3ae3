"""Ditto: with no pull its personal models are Local's, with a strong one they are near the
global model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import pytest
import torch

from fedtailor.client import Batch, Client
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, average, sqdist, tensors
from fedtailor.methods import ditto
from fedtailor.methods.ditto import LAMS, Ditto, Down, Keep
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.local import Local
from fedtailor.testing.small_world import SIZES, SmallRun, digits, run_small
from fedtailor.training.optim import Plan
from helpers import equal, gap, overhear

LAM, LR = 0.7, 0.05
Choice = Literal["round", "batch"]


def start(**options: object) -> SmallRun:
    """Before the third round."""
    return run_small(
        Ditto(), rounds=2, dtype=torch.float64, plan=Plan(lr=LR, batch=10), **options
    )  # type: ignore[arg-type]


def client(played: SmallRun, k: int = 0) -> Client:
    return played.runner.client(k, 3, Purpose.CALL, 3, 1)


def step_by_hand(c: Client, v: Params, batch: Batch, w: Params, lam: float) -> Params:
    """v - lr (grad F(v) + lambda (v - w))"""
    g = c.grad(c.loss, v, batch)
    return {n: v[n] - LR * (g[n] + lam * (v[n] - w[n])) for n in v}


def judge(c: Client, v: Params) -> float:
    return float(torch.nn.functional.cross_entropy(c.model(v, c.val.x), c.val.y))


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_without_pull_personal_models_are_those_of_local(norm: str) -> None:
    ditto, local = run_small(Ditto(lam=0.0), norm=norm), run_small(Local(), norm=norm)
    assert all(equal(ditto.keep(k).v, local.keep(k).w) for k in range(6))
    assert Ditto(lam=0.0).warnings() and not Ditto().warnings()


def test_pull_holds_personal_models_near_the_global_one() -> None:
    distance = []
    for lam in (0.0, 1.0, 10.0):
        played, heard = overhear(Ditto(lam=lam), rounds=3)
        distance.append(
            sum(float(sqdist(played.keep(k).v, heard[-1].down[k].w)) for k in range(6))
        )
    assert distance[0] > 1.2 * distance[1] > 2 * distance[2]


def test_pull_leaves_the_global_model_alone() -> None:
    assert equal(run_small(Ditto(lam=0.1)).server, run_small(Ditto(lam=2.0)).server)


def test_personal_models_stay_at_home() -> None:
    played, heard = overhear(Ditto(), rounds=1, norm="batch")
    for k in (
        0,
        1,
        2,
        3,
        5,
    ):  # to a single example BatchNorm makes all images alike, and little moves at all
        sent = tensors(heard[0].up[k])
        assert not any(
            torch.equal(v, w)
            for v in tensors(played.keep(k))
            for w in sent
            if v.shape == w.shape
        )


def test_the_personal_model_takes_these_steps() -> None:
    played = start()
    with torch_settings(torch.float64):
        c, w, v = client(played), played.server.w, played.keep(0).v
        by_hand = c.each_batch(lambda v, b: step_by_hand(c, v, b, w, LAM), v)
        up, keep = Ditto(lam=LAM).local(client(played), Down(w), Keep(v))
        twice = c.each_batch(lambda v, b: step_by_hand(c, v, b, w, 2 * LAM), v)
    assert gap(keep.v, by_hand) < 1e-12 and gap(keep.v, twice) > 1e-4
    assert gap(v, w) > 1e-2 and not equal(up.w, w)


def test_personal_epochs_are_those_of_the_personal_model() -> None:
    played, train = start(), FedAvg().local
    with torch_settings(torch.float64):
        c, down, keep = client(played), Down(played.server.w), played.keep(0)
        by_hand = c.each_batch(
            lambda v, b: step_by_hand(c, v, b, down.w, LAM), keep.v, epochs=3
        )
        theirs, _ = train(c, down, None)  # goes on with the fourth epoch's batches  # type: ignore[arg-type]
        up, new = Ditto(lam=LAM, personal_epochs=3).local(client(played), down, keep)
        same = Ditto(lam=LAM, personal_epochs=1).local(client(played), down, keep)
        assert equal(same, Ditto(lam=LAM).local(client(played), down, keep))
    assert gap(new.v, by_hand) < 1e-12 and equal(up.w, theirs.w)


def test_the_server_takes_the_mean_by_data() -> None:
    played, heard = overhear(Ditto(), rounds=1)
    ups = [heard[0].up[k].w for k in range(6)]
    assert equal(played.server.w, average(ups, torch.tensor(SIZES)))
    assert not equal(played.server.w, average(ups, torch.ones(6)))


# -------------------------------------------------------------------- what the authors' code
# can do otherwise
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_interleaved_models_train_on_the_same_batches(norm: str) -> None:
    """The personal model as ever, the global one as in FedAvg."""
    plan = Plan(lr=LR, epochs=2, momentum=0.5, weight_decay=1e-3)
    one, two, three = (
        run_small(m, norm=norm, rounds=1, plan=plan)
        for m in (Ditto(), Ditto(interleave=True), FedAvg())
    )
    assert all(equal(one.keep(k), two.keep(k)) for k in range(6))
    assert equal(two.server.w, three.server.w) and not equal(
        one.server.w, three.server.w
    )
    assert (
        Ditto(interleave=True, personal_epochs=2).warnings()
        and not Ditto(interleave=True).warnings()
    )


def test_the_lambda_chosen_is_the_best_on_the_validation_data() -> None:
    played, chosen = start(federation=digits(sizes=(40,) * 6)), set()
    with torch_settings(torch.float64):
        for k in range(6):
            down, keep = Down(played.server.w), played.keep(k)
            if k % 2:  # a model worth being pulled to
                c = client(played, k)
                down = Down(c.train(c.loss, keep.v, epochs=30))
            made = [
                Ditto(lam=lam, personal_epochs=3).local(client(played, k), down, keep)
                for lam in LAMS
            ]
            losses = [judge(client(played, k), one.v) for _, one in made]
            best = losses.index(min(losses))
            up, new = Ditto(choose="round", personal_epochs=3).local(
                client(played, k), down, keep
            )
            assert equal(new, made[best][1]) and equal(up, made[best][0])
            chosen.add(best)
    assert len(chosen) > 1


@pytest.mark.parametrize("interleave", [False, True])
def test_lambda_can_be_chosen_at_every_batch(interleave: bool) -> None:
    played, chosen = start(federation=digits(sizes=(40,) * 6)), set()
    with torch_settings(torch.float64):
        down = Down(played.server.w)
        for k in range(6):
            c, keep = client(played, k), played.keep(k)

            def step(v: Params, batch: Batch, c: Client = c) -> Params:
                tried = [step_by_hand(c, v, batch, down.w, lam) for lam in LAMS]
                losses = [judge(c, one) for one in tried]
                chosen.add(losses.index(min(losses)))
                return tried[losses.index(min(losses))]

            v = c.each_batch(step, keep.v)
            _, new = Ditto(choose="batch", interleave=interleave).local(
                client(played, k), down, keep
            )
            assert gap(new.v, v) < 1e-12
    assert len(chosen) > 1


@pytest.mark.parametrize("choose", ["round", "batch"])
def test_with_one_lambda_there_is_nothing_to_choose(
    choose: Choice, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ditto, "LAMS", (LAM, LAM, LAM))
    plan = Plan(lr=LR, epochs=2, momentum=0.5, weight_decay=1e-3)
    one, two = (
        run_small(m, plan=plan, norm="batch")
        for m in (Ditto(lam=LAM), Ditto(choose=choose))
    )
    assert one.hash == two.hash


@pytest.mark.parametrize("choose", ["round", "batch"])
@pytest.mark.parametrize("held", [0, 3])
def test_with_few_validation_examples_lambda_is_the_usual_one(
    choose: Choice, held: int
) -> None:
    world = digits()
    world = replace(
        world, val=[v[:held] if k != 1 else v for k, v in enumerate(world.val)]
    )
    plan, free = Plan(lr=LR, epochs=3), []
    for executor in ("sequential", "vmap"):
        options = {
            "federation": world,
            "dtype": torch.float64,
            "plan": plan,
            "executor": executor,
        }
        one, two = (run_small(m, **options) for m in (Ditto(), Ditto(choose=choose)))  # type: ignore[arg-type]
        assert (
            max(gap(one.keep(k), two.keep(k)) for k in range(6) if k != 1) < 1e-12
            and two.executor.notices() == []
        )
        assert (
            gap(one.server, two.server) < 1e-12 and gap(one.keep(1), two.keep(1)) > 1e-6
        )
        free.append(two.keep(1))
    assert gap(*free) < 1e-9


def test_equals_go_to_the_first_and_what_diverged_to_nobody() -> None:
    with torch_settings():
        played = run_small(Ditto(), rounds=1)
        c, w = client(played), played.server.w
        bad = {n: torch.full_like(v, torch.nan) for n, v in w.items()}
        marks = [torch.tensor(float(i)) for i in range(3)]
        assert ditto.find_best(c, list(zip([w, w, w], marks, strict=True)))[1] == 0
        assert ditto.find_best(c, list(zip([bad, w, w], marks, strict=True)))[1] == 1
