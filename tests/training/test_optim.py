"""Optimisers round like torch's own, in place or not."""

import pytest
import torch
from torch.nn import functional as F

from fedtailor.core.rng import Rng
from fedtailor.training.optim import SGD, Groups, Plan

SETTINGS = [
    {},
    {"momentum": 0.9},
    {"momentum": 0.9, "nesterov": True},
    {"weight_decay": 0.01},
    {"momentum": 0.5, "weight_decay": 0.1},
]


@pytest.mark.parametrize("how", SETTINGS)
def test_sgd_equals_torch_bit_for_bit(how):
    w = {"a": Rng.seed(1).normal(5, 3), "b": Rng.seed(2).normal(7)}
    theirs = {k: v.clone().requires_grad_() for k, v in w.items()}
    judge = torch.optim.SGD(theirs.values(), lr=0.05, **how)
    opt = SGD(0.05, **how)
    pure, state = dict(w), opt.init(w)
    placed = {k: v.clone() for k, v in w.items()}
    moments = opt.init(placed)
    for step in range(6):
        g = {k: Rng.seed(3, step, i).normal(*v.shape) for i, (k, v) in enumerate(w.items())}
        for k in w:
            theirs[k].grad = g[k].clone()
        judge.step()
        pure, state = opt.step(pure, g, state)
        opt.step_(placed, dict(g), moments)
        for k in w:
            assert torch.equal(pure[k], theirs[k]) and torch.equal(placed[k], theirs[k])


@pytest.mark.parametrize("how", SETTINGS)
def test_a_pull_is_the_gradient_of_a_squared_distance(how):
    w = {"a": Rng.seed(1).normal(5, 3).double(), "b": Rng.seed(2).normal(7).double()}
    centre = {k: Rng.seed(9, i).normal(*v.shape).double() for i, (k, v) in enumerate(w.items())}
    theirs = {k: v.clone().requires_grad_() for k, v in w.items()}
    judge = torch.optim.SGD(theirs.values(), lr=0.05, **how)
    opt = SGD(0.05, **how).towards(centre, 0.7)
    pure, state = dict(w), opt.init(w)
    placed = {k: v.clone() for k, v in w.items()}
    moments = opt.init(placed)
    for step in range(6):
        g = {
            k: Rng.seed(3, step, i).normal(*v.shape).double() for i, (k, v) in enumerate(w.items())
        }
        judge.zero_grad()
        sum(
            (theirs[k] * g[k]).sum() + 0.7 / 2 * (theirs[k] - centre[k]).square().sum() for k in w
        ).backward()
        judge.step()
        pure, state = opt.step(pure, g, state)
        opt.step_(placed, dict(g), moments)
        for k in w:
            assert torch.equal(pure[k], placed[k]) and torch.allclose(
                pure[k], theirs[k], rtol=0, atol=1e-14
            )


@pytest.mark.parametrize("how", SETTINGS)
def test_no_pull_is_sgd_bit_for_bit(how):
    w, g, centre = ({"a": Rng.seed(i).normal(5, 3)} for i in range(3))
    plain = SGD(0.05, **how)
    pulled = plain.towards(centre, 0.0)
    want, _ = plain.step(w, g, plain.init(w))
    got, _ = pulled.step(w, g, pulled.init(w))
    placed = {k: v.clone() for k, v in w.items()}
    pulled.step_(placed, dict(g), pulled.init(placed))
    assert torch.equal(got["a"], want["a"]) and torch.equal(placed["a"], want["a"])


@pytest.mark.parametrize("how", SETTINGS)
def test_a_pull_takes_sparse_gradients(how):
    w, centre = ({"a": Rng.seed(i).normal(5, 3)} for i in range(2))
    table = w["a"].clone().requires_grad_()
    (g,) = torch.autograd.grad(
        F.embedding(torch.tensor([1, 3, 1]), table, sparse=True).square().sum(), table
    )
    assert g.is_sparse
    opt = SGD(0.05, **how).towards(centre, 0.7)
    want, _ = opt.step(w, {"a": g.to_dense()}, opt.init(w))
    placed = {k: v.clone() for k, v in w.items()}
    opt.step_(placed, {"a": g}, opt.init(placed))
    assert torch.allclose(
        placed["a"], want["a"], rtol=0, atol=1e-6
    )  # a row named twice is added to twice


def test_groups_treat_parts_differently():
    w = {"a.x": torch.ones(2), "b.x": torch.ones(2)}
    g = {k: torch.ones(2) for k in w}
    opt = Groups({"a": SGD(0.1), "b": SGD(0.5, momentum=0.9)})
    new, _ = opt.step(w, g, opt.init(w))
    placed = {k: v.clone() for k, v in w.items()}
    opt.step_(placed, dict(g), opt.init(w))
    assert new["a.x"].tolist() == pytest.approx([0.9] * 2) and new["b.x"].tolist() == [0.5] * 2
    assert all(torch.equal(new[k], placed[k]) for k in w)


def test_the_learning_rate_decays_per_round():
    plan = Plan(lr=0.1, lr_decay=0.5)
    assert [plan.optimiser(t).lr for t in (1, 2, 3)] == [0.1, 0.05, 0.025]


@pytest.mark.parametrize(
    ("batching", "n", "steps"), [("fill", 25, 3), ("drop", 25, 2), ("drop", 4, 1), ("keep", 25, 3)]
)
def test_batches_per_epoch(batching, n, steps):
    plan = Plan(batch=10, batching=batching)
    assert plan.steps(n, 10) == steps == int(plan.steps(torch.tensor(n), 10))
