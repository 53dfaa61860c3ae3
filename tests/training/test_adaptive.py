"""Optimisers against PyTorch's, schedules, and states that are kept."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import fedtailor
from fedtailor.core.errors import UserError
from fedtailor.training.optim import OPTIMISERS, SGD, Plan, add_weight_decay
from fedtailor.training.schedule import parse_schedule

THEIRS: dict[str, Any] = {
    "sgd": torch.optim.SGD,
    "adam": torch.optim.Adam,
    "adamw": torch.optim.AdamW,
    "rmsprop": torch.optim.RMSprop,
    "adagrad": torch.optim.Adagrad,
}
SMALL: dict[str, Any] = {"clients": 4, "limit": 240, "rounds": 4}


def run(method: str = "fedavg", **options: Any) -> dict[str, Any]:
    return fedtailor.run(method, "digits", **{**SMALL, **options})


# ---------------------------------------------------------------- steps
@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
@pytest.mark.parametrize("name", THEIRS)
def test_steps_are_pytorchs(name: str, weight_decay: float) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.randn(5, 3, generator=generator, dtype=torch.float64)
    gradients = torch.randn(6, 5, 3, generator=generator, dtype=torch.float64)
    theirs = start.clone().requires_grad_()
    optimiser = THEIRS[name]([theirs], lr=0.05, weight_decay=weight_decay)
    ours = OPTIMISERS[name](Plan(weight_decay=weight_decay), 0.05)
    w = {"a": start}
    state = ours.init(w)
    for gradient in gradients:
        theirs.grad = gradient.clone()
        optimiser.step()
        w, state = ours.step(w, {"a": gradient}, state)
    torch.testing.assert_close(w["a"], theirs.detach(), rtol=1e-10, atol=1e-12)


PAIRS = [("adam", "ditto"), ("rmsprop", "fedavg"), ("adamw", "gpfl")]
PAIRS += [("adagrad", "fedavg"), ("momentum", "fedavg")]


@pytest.mark.parametrize(("name", "method"), PAIRS)
def test_vmap_and_sequential_agree(name: str, method: str) -> None:
    options: dict[str, Any] = {"optimizer": name, "rounds": 1, "dtype": "float64"}
    one = run(method, executor="sequential", **options)
    other = run(method, executor="vmap", **options)
    assert one["measures"] == pytest.approx(other["measures"], rel=1e-6)


def test_a_step_that_is_overridden_is_used() -> None:
    class Still(SGD):
        def step(self, w: Any, gradient: Any, state: Any) -> Any:
            return dict(w), state

    from fedtailor.training.fast_steps import step_in_place

    w = {"a": torch.ones(2)}
    step_in_place(Still(1.0), w, {"a": torch.ones(2)}, None)
    assert torch.equal(w["a"], torch.ones(2))
    step_in_place(add_weight_decay(Still(1.0), 1.0), w, {"a": torch.ones(2)}, None)
    assert torch.equal(w["a"], torch.ones(2))


def test_adam_learns_where_its_default_rate_is_its_own() -> None:
    result = run(optimizer="adam", partition="iid", rounds=8)
    assert result["accuracy"]["last"] > 2 * run(lr=1e-9)["accuracy"]["last"]


def test_both_spellings_and_unknown_names() -> None:
    assert run(optimizer="adam")["hash"] == run(optimiser="adam")["hash"]
    with pytest.raises(UserError, match="did you mean"):
        run(optimizer="adamm")


# ---------------------------------------------------------------- schedules
def test_schedules() -> None:
    step = parse_schedule("step:10:0.5")
    assert [step.at(t, 50) for t in (0, 9, 10, 25)] == [1.0, 1.0, 0.5, 0.25]
    cosine = parse_schedule("cosine:0.1")
    assert cosine.at(0, 10) == 1.0
    assert cosine.at(5, 10) == pytest.approx(0.55)
    assert cosine.at(10, 10) == pytest.approx(0.1)
    warm = parse_schedule("constant", warmup=4)
    assert [warm.at(t, 9) for t in (0, 1, 3, 4)] == [0.25, 0.5, 1.0, 1.0]
    tensor = cosine.at(torch.tensor(5.0), torch.tensor(10.0))
    assert float(tensor) == pytest.approx(0.55)


@pytest.mark.parametrize(
    "text", ["cosin", "step", "step:0:0.5", "cosine:2", "step:x:1"]
)
def test_wrong_schedules_are_one_line(text: str) -> None:
    with pytest.raises(UserError, match="schedule"):
        run(schedule=text)


def test_a_schedule_within_rounds_is_alike_in_all_executors() -> None:
    options: dict[str, Any] = {
        "schedule": "cosine",
        "schedule_over": "steps",
        "warmup": 2,
        "clip_gradient": 0.5,
        "rounds": 2,
        "dtype": "float64",
    }
    one = run(executor="sequential", **options)
    other = run(executor="vmap", **options)
    assert one["measures"] == pytest.approx(other["measures"], rel=1e-6)
    assert one["hash"] != run(executor="sequential", rounds=2, dtype="float64")["hash"]


def test_clipped_gradients_move_less() -> None:
    free = run(rounds=2, executor="sequential", dtype="float64")
    clipped = run(rounds=2, executor="sequential", dtype="float64", clip_gradient=1e-6)
    loose = run(rounds=2, executor="sequential", dtype="float64", clip_gradient=1e6)
    still = run(rounds=2, executor="sequential", dtype="float64", lr=1e-9)
    assert clipped["measures"] == pytest.approx(still["measures"], rel=1e-4)
    assert loose["measures"] == pytest.approx(free["measures"], rel=1e-6)
    assert free["measures"]["loss"] < still["measures"]["loss"]


# ---------------------------------------------------------------- kept states
KEEP: dict[str, Any] = {"optimizer": "adam", "optimizer_state": "keep"}


@pytest.mark.parametrize(
    "method", ["ditto", pytest.param("fedavg", marks=pytest.mark.slow)]
)
def test_kept_states_are_alike_in_all_executors(method: str) -> None:
    options: dict[str, Any] = {**KEEP, "participation": "0.5"}
    one = run(method, executor="sequential", **options)
    processes = run(method, executor="processes", workers=2, **options)
    assert one["hash"] == processes["hash"]
    double: dict[str, Any] = {**options, "dtype": "float64", "rounds": 3}
    exact = run(method, executor="sequential", **double)
    vmap = run(method, executor="vmap", **double)
    assert exact["measures"] == pytest.approx(vmap["measures"], rel=1e-6)


def test_kept_states_matter_and_are_not_sent() -> None:
    kept = run(executor="sequential", **KEEP)
    reset = run(executor="sequential", optimizer="adam")
    assert kept["hash"] != reset["hash"]
    assert kept["bytes"] == reset["bytes"]


def test_resume_goes_on_bit_for_bit(tmp_path: Any) -> None:
    options: dict[str, Any] = {
        **KEEP,
        "server_optimizer": "adam",
        "checkpoint_every": 1,
        "executor": "sequential",
    }
    whole = run("ditto", **options)
    run("ditto", out=tmp_path / "r", **{**options, "rounds": 2})
    (tmp_path / "r" / "result.json").unlink()
    resumed = run("ditto", out=tmp_path / "r", resume=True, **options)
    assert resumed["hash"] == whole["hash"]
    assert resumed["measures"] == whole["measures"]


# ---------------------------------------------------------------- at the server
def test_server_sgd_of_rate_one_is_the_mean() -> None:
    plain = run("fedper", dtype="float64")
    same = run("fedper", dtype="float64", server_optimizer="sgd")
    assert same["measures"] == pytest.approx(plain["measures"], rel=1e-6)


BENEATH = [("fedavg", "momentum"), ("fedper", "adam"), ("ditto", "yogi")]
BENEATH += [("fedrep", "adagrad")]


@pytest.mark.parametrize(("method", "kind"), BENEATH)
def test_server_optimisers_run_beneath_methods_that_average(
    method: str, kind: str
) -> None:
    result = run(method, server_optimizer=kind, rounds=2)
    assert result["accuracy"]["last"] > 0
    assert result["hash"] != run(method, rounds=2)["hash"]


@pytest.mark.parametrize("method", ["local", "fedamp", "fedfomo"])
def test_methods_that_do_not_average_refuse_them(method: str) -> None:
    with pytest.raises(UserError, match="server_optimizer=adam"):
        run(method, server_optimizer="adam")


def test_server_adam_is_algorithm_2() -> None:
    from fedtailor.filters.by_option.server_optimiser import ServerRule

    rule = ServerRule("adam", lr=0.1, momentum=0.9, tau=1e-3)
    state: dict[str, torch.Tensor] = {}
    m = torch.zeros(3, dtype=torch.float64)
    v = torch.full((3,), 1e-6, dtype=torch.float64)
    for t in range(4):
        delta = torch.tensor([0.1, -0.2, 0.3 * t], dtype=torch.float64)
        moved, state = rule.step(delta, state)
        m = 0.9 * m + 0.1 * delta
        v = 0.99 * v + 0.01 * delta**2
        torch.testing.assert_close(moved, 0.1 * m / (v.sqrt() + 1e-3))
