"""Optimisers round like torch's own, and their forms in place give the same bits."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch.nn import functional as F

from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, Tree, tmap
from fedtailor.training.fast_steps import step_in_place
from fedtailor.training.optim import (
    SGD,
    Groups,
    Optimiser,
    Plan,
    add_weight_decay,
    clip,
    pull,
)
from helpers import Adam, differences, gap

STEPS = 6
SETTINGS = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"weight_decay": 0.01},
    {"momentum": 0.5, "weight_decay": 0.1},
]


class Doubled(SGD):
    """Derives from a known optimiser, and takes steps twice as long."""

    def step(self, w: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        return super().step(w, tmap(lambda g: 2 * g, gradient), state)


def some_params(dtype: torch.dtype = torch.float32) -> Params:
    return {
        "a.x": Rng.seed(1).normal(5, 3).to(dtype),
        "b.x": Rng.seed(2).normal(7).to(dtype),
    }


def some_gradient(w: Params, step: int) -> Params:
    return {
        name: Rng.seed(3, step, i).normal(*value.shape).to(value.dtype)
        for i, (name, value) in enumerate(w.items())
    }


def some_centre(w: Params) -> Params:
    return some_gradient(w, 99)


def take_steps(optimiser: Optimiser, w: Params) -> Params:
    """Several steps that leave ``w`` as it is."""
    state = optimiser.init(w)
    for step in range(STEPS):
        w, state = optimiser.step(w, some_gradient(w, step), state)
    return w


def take_steps_in_place(optimiser: Optimiser, w: Params) -> Params:
    """The same steps, in the forms that write into a copy of ``w``."""
    w = tmap(torch.clone, w)
    addresses = {name: value.data_ptr() for name, value in w.items()}
    state = optimiser.init(w)
    for step in range(STEPS):
        state = step_in_place(optimiser, w, some_gradient(w, step), state)
    assert {name: value.data_ptr() for name, value in w.items()} == addresses
    return w


def take_torch_steps(w: Params, pull_to: Params | None = None, **how: object) -> Params:
    """The same steps with torch.optim.SGD, on a loss with a squared distance if asked for."""
    theirs = {name: value.clone().requires_grad_() for name, value in w.items()}
    reference = torch.optim.SGD(theirs.values(), lr=0.05, **how)
    for step in range(STEPS):
        gradient = some_gradient(w, step)
        reference.zero_grad()
        for name, value in theirs.items():
            loss = (value * gradient[name]).sum()
            if pull_to is not None:
                loss = loss + 0.7 / 2 * (value - pull_to[name]).square().sum()
            loss.backward()
        reference.step()
    return tmap(torch.Tensor.detach, theirs)


# ---------------------------------------------------------------- against torch
@pytest.mark.parametrize("how", SETTINGS)
def test_sgd_equals_torch_bit_for_bit(how):
    w = some_params()
    theirs = take_torch_steps(w, **how)
    assert differences(take_steps(SGD(0.05, **how), w), theirs) == []
    assert differences(take_steps_in_place(SGD(0.05, **how), w), theirs) == []


@pytest.mark.parametrize("how", SETTINGS)
def test_a_pull_is_the_gradient_of_a_squared_distance(how):
    w = some_params(torch.float64)
    centre = some_centre(w)
    ours = take_steps(pull(SGD(0.05, **how), centre, 0.7), w)
    assert gap(ours, take_torch_steps(w, centre, **how)) < 1e-14


def test_clipping_is_torchs():
    w = some_params(torch.float64)
    gradient = some_gradient(w, 0)
    parameters = [value.clone().requires_grad_() for value in w.values()]
    for parameter, g in zip(parameters, gradient.values(), strict=True):
        parameter.grad = g.clone()
    length = float(torch.nn.utils.clip_grad_norm_(parameters, 1.5))
    assert length > 1.5
    clipped, _ = clip(SGD(0.05), 1.5).step(w, gradient, None)
    for parameter, (name, value) in zip(parameters, w.items(), strict=True):
        assert torch.allclose(
            clipped[name], value - 0.05 * parameter.grad, rtol=0, atol=1e-12
        )


def test_short_gradients_are_not_clipped():
    w = some_params()
    assert (
        differences(take_steps(clip(SGD(0.05), 1e9), w), take_steps(SGD(0.05), w)) == []
    )


# ---------------------------------------------------------------- in place
def optimisers(w: Params) -> dict[str, Optimiser]:
    """Known and unknown optimisers, alone and wrapped."""
    centre = some_centre(w)
    found: dict[str, Optimiser] = {}
    for how in SETTINGS:
        name = ", ".join(how) or "plain"
        sgd = SGD(0.05, **how)
        found[name] = sgd
        found[f"pulled, {name}"] = pull(sgd, centre, 0.7)
        found[f"clipped, {name}"] = clip(sgd, 1.0)
        found[f"pulled twice, {name}"] = pull(pull(sgd, centre, 0.7), w, 0.1)
        found[f"in a group, {name}"] = Groups({"a": sgd})
    found["two groups"] = Groups(
        {"a": SGD(0.1), "b": pull(SGD(0.5, momentum=0.9), centre, 0.7)}
    )
    found["unknown"] = Adam(0.01)
    found["unknown, pulled"] = pull(Adam(0.01), centre, 0.7)
    found["unknown, clipped"] = clip(Adam(0.01), 1.0)
    found["unknown, with decay"] = add_weight_decay(Adam(0.01), 0.1)
    found["unknown, in a group"] = Groups({"a": Adam(0.01), "b": SGD(0.1)})
    found["derived"] = Doubled(0.05)
    found["derived, pulled"] = pull(Doubled(0.05), centre, 0.7)
    return found


@pytest.mark.parametrize("name", optimisers(some_params()))
def test_in_place_gives_the_same_bits(name):
    w = some_params()
    optimiser = optimisers(w)[name]
    pure = w | take_steps(Frozen(optimiser), w)
    assert differences(take_steps_in_place(optimiser, w), pure) == []


@dataclass(frozen=True)
class Frozen:
    """An optimiser whose step also gives the parameters that it does not train."""

    inner: Optimiser

    def init(self, w: Params) -> Tree:
        return self.inner.init(w)

    def step(self, w: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        new, state = self.inner.step(w, gradient, state)
        return w | new, state


@pytest.mark.parametrize("name", optimisers(some_params()))
def test_sparse_gradients_train_like_dense_ones(name):
    w = {"a.x": Rng.seed(1).normal(5, 3)}
    optimiser = optimisers(w)[name]
    table = w["a.x"].clone().requires_grad_()
    words = F.embedding(torch.tensor([1, 3, 1]), table, sparse=True)
    (gradient,) = torch.autograd.grad(words.square().sum(), table)
    assert gradient.is_sparse
    dense, _ = optimiser.step(w, {"a.x": gradient.to_dense()}, optimiser.init(w))
    placed = tmap(torch.clone, w)
    step_in_place(optimiser, placed, {"a.x": gradient}, optimiser.init(placed))
    assert gap(placed, dense) < 1e-6  # a row that occurs twice is added to twice


# ---------------------------------------------------------------- wrappers
@pytest.mark.parametrize("how", SETTINGS)
def test_a_pull_of_strength_zero_is_sgd_bit_for_bit(how):
    w = some_params()
    pulled = pull(SGD(0.05, **how), some_centre(w), 0.0)
    plain = take_steps(SGD(0.05, **how), w)
    assert differences(take_steps(pulled, w), plain) == []
    assert differences(take_steps_in_place(pulled, w), plain) == []


def test_a_pull_moves_an_unknown_optimiser_by_the_whole_gradient():
    w = some_params(torch.float64)
    centre = some_centre(w)
    gradient = some_gradient(w, 0)
    pulled, _ = pull(Adam(0.01), centre, 0.7).step(w, gradient, Adam(0.01).init(w))
    whole = {name: g + 0.7 * (w[name] - centre[name]) for name, g in gradient.items()}
    by_hand, _ = Adam(0.01).step(w, whole, Adam(0.01).init(w))
    assert gap(pulled, by_hand) < 1e-14


def test_groups_treat_submodules_differently():
    w = {"a.x": torch.ones(2), "b.x": torch.ones(2), "c.x": torch.ones(2)}
    gradient = tmap(torch.ones_like, w)
    optimiser = Groups({"a": SGD(0.1), "b": SGD(0.5, momentum=0.9)})
    new, state = optimiser.step(w, gradient, optimiser.init(w))
    assert new.keys() == {"a.x", "b.x"}  # the rest stays frozen
    assert new["a.x"].tolist() == pytest.approx([0.9] * 2)
    assert new["b.x"].tolist() == [0.5] * 2
    assert state["a"] is None
    assert state["b"]["b.x"].tolist() == [1.0] * 2


@pytest.mark.parametrize("how", SETTINGS)
def test_added_weight_decay_is_weight_decay(how):
    w = some_params(torch.float64)
    optimiser = SGD(0.05, **how)
    more = add_weight_decay(optimiser, 0.2)
    assert more == SGD(
        0.05, **{**how, "weight_decay": how.get("weight_decay", 0.0) + 0.2}
    )
    by_pull = pull(optimiser, tmap(torch.zeros_like, w), 0.2)
    assert gap(take_steps(more, w), take_steps(by_pull, w)) < 1e-13


def test_weight_decay_is_added_to_an_unknown_optimiser():
    w = some_params(torch.float64)
    by_pull = pull(Adam(0.01), tmap(torch.zeros_like, w), 0.2)
    assert (
        gap(take_steps(add_weight_decay(Adam(0.01), 0.2), w), take_steps(by_pull, w))
        < 1e-13
    )


@pytest.mark.parametrize("how", [{}, {"weight_decay": 0.01}])
def test_nesterov_of_a_plan_is_torchs(how):
    plan = Plan(lr=0.05, momentum=0.9, nesterov=True, **how)
    w = some_params(torch.float64)
    theirs = take_torch_steps(w, momentum=0.9, nesterov=True, **how)
    heavy_ball = take_torch_steps(w, momentum=0.9, **how)
    for steps in (take_steps, take_steps_in_place):
        ours = steps(plan.optimiser(1), w)
        assert gap(ours, theirs) < 1e-12
        assert gap(ours, heavy_ball) > 1e-3


# ---------------------------------------------------------------- the experiment's plan
def test_the_learning_rate_decays_per_round():
    plan = Plan(lr=0.1, lr_decay=0.5, momentum=0.9, weight_decay=0.01)
    assert [plan.lr_in_round(t) for t in (1, 2, 3)] == [0.1, 0.05, 0.025]
    assert plan.optimiser(3) == SGD(0.025, momentum=0.9, weight_decay=0.01)


@pytest.mark.parametrize(
    ("batching", "n", "steps"),
    [("fill", 25, 3), ("drop", 25, 2), ("drop", 4, 1), ("keep", 25, 3)],
)
def test_batches_per_epoch(batching, n, steps):
    plan = Plan(batch=10, batching=batching)
    assert plan.steps(n, 10) == steps
    assert int(plan.steps(torch.tensor(n), 10)) == steps
