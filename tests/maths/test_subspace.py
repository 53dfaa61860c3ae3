"""A layer with few, fixed inputs, trained in their span, is the layer trained whole."""

from collections.abc import Callable

import pytest
import torch
from torch.nn import functional as F

from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params
from fedtailor.maths.subspace import Span, train_in_span
from fedtailor.training.optim import SGD

HIGH, WIDE = 7, 12


def draw(*shape: int, seed: int = 0) -> torch.Tensor:
    return Rng.seed(seed).normal(*shape).double()


def descend(w: Params, inputs: torch.Tensor, opt: SGD, steps: int = 5) -> Params:
    """Steps on a loss that is not quadratic, with a bias that trains too."""
    state = opt.init(w)
    for i in range(steps):
        leaves = {k: v.detach().clone().requires_grad_() for k, v in w.items()}
        out = F.linear(inputs, leaves["a.weight"], leaves["a.bias"])
        loss = (out.tanh() * draw(*out.shape, seed=9 + i)).sum()
        grads = torch.autograd.grad(
            loss, list(leaves.values()), allow_unused=True, materialize_grads=True
        )
        w, state = opt.step(w, dict(zip(leaves, grads, strict=True)), state)
    return w


INPUTS = {
    "two": draw(2, WIDE, seed=1),
    "one": draw(1, WIDE, seed=1),
    "equal": draw(1, WIDE, seed=1).repeat(2, 1),
    "zero": torch.zeros(2, WIDE, dtype=torch.float64),
    "more than there are columns": draw(WIDE + 3, WIDE, seed=1),
}
HOW = [
    {},
    {"weight_decay": 0.5},
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 0.5, "nesterov": True},
]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("name", INPUTS)
def test_training_in_the_span_is_training(name: str, how: dict[str, float]) -> None:
    inputs, opt = INPUTS[name], SGD(0.1, **how)
    w = {"a.weight": draw(HIGH, WIDE), "a.bias": draw(HIGH, seed=2)}
    span = Span(*inputs)
    restricted = span.restrict("a", w)
    assert restricted["a.weight"].shape == (HIGH, min(len(inputs), WIDE))
    got = span.extend("a", w, descend(restricted, torch.stack(span.coordinates), opt))
    want = descend(w, inputs, opt)
    assert set(got) == set(want)
    for k in want:
        torch.testing.assert_close(got[k], want[k], rtol=0, atol=1e-12)
        assert not torch.equal(got[k], w[k]) or (
            name == "zero" and k == "a.weight" and "weight_decay" not in how
        )


def test_nothing_trained_is_nothing_changed() -> None:
    w = {"a.weight": draw(HIGH, WIDE)}
    span = Span(*INPUTS["two"])
    torch.testing.assert_close(
        span.extend("a", w, span.restrict("a", w)), w, rtol=0, atol=1e-14
    )


def test_other_parts_train_as_ever_and_the_loss_is_given_coordinates() -> None:
    """A whole training with a frozen layer behind the part, beside the same with whole matrices."""
    inputs, opt = INPUTS["two"], SGD(0.1, momentum=0.9, weight_decay=0.5)
    w = {"a.weight": draw(HIGH, WIDE), "b.weight": draw(3, HIGH, seed=2)}

    def loss(w: Params, batch: torch.Tensor, *rows: torch.Tensor) -> torch.Tensor:
        hidden = torch.stack(rows) @ w["a.weight"].mT
        return ((hidden.tanh() @ w["b.weight"].mT) * batch).sum()

    def train(
        loss: Callable[[Params, torch.Tensor], torch.Tensor], w: Params
    ) -> Params:
        state = opt.init(w)
        for i in range(4):
            slopes = torch.func.grad(loss)(w, draw(2, 3, seed=20 + i))
            w, state = opt.step(w, slopes, state)
        return w

    got = train_in_span(train, loss, w, "a", inputs.unbind())
    want = train(lambda w, batch: loss(w, batch, *inputs), w)
    assert list(got) == list(w)
    torch.testing.assert_close(got, want, rtol=0, atol=1e-12)
    assert not torch.equal(got["b.weight"], w["b.weight"])


def test_outputs_are_the_same_and_many_clients_run_as_one() -> None:
    inputs, weight = draw(3, 2, WIDE, seed=4), draw(HIGH, WIDE)

    def run(rows: torch.Tensor) -> torch.Tensor:
        span = Span(*rows.unbind())
        return F.linear(
            torch.stack(span.coordinates),
            span.restrict("a", {"a.weight": weight})["a.weight"],
        )

    torch.testing.assert_close(
        torch.func.vmap(run)(inputs), inputs @ weight.mT, rtol=0, atol=1e-12
    )
