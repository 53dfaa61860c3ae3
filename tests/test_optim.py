"""Optimisers round like torch's own, in place or not."""

import pytest
import torch

from fedtailor.optim import SGD, Groups, Plan
from fedtailor.rng import Rng

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
    assert [plan.sgd(t).lr for t in (1, 2, 3)] == [0.1, 0.05, 0.025]


@pytest.mark.parametrize(
    ("batching", "n", "steps"), [("fill", 25, 3), ("drop", 25, 2), ("drop", 4, 1), ("keep", 25, 3)]
)
def test_batches_per_epoch(batching, n, steps):
    plan = Plan(batch=10, batching=batching)
    assert plan.steps(n, 10) == steps == int(plan.steps(torch.tensor(n), 10))
