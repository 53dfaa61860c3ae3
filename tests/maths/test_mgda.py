"""MGDA's weights: closed form, optimality against other solvers, the simplex, solved tasks."""

from __future__ import annotations

import itertools
import math
from typing import get_args

import numpy as np
import pytest
import torch
from scipy.optimize import minimize
from torch import Tensor
from torch.func import vmap
from torch.nn import functional as F

from fedtailor.core.rng import Rng
from fedtailor.maths.mgda import GradNorm, balance, head_gram, lift, min_norm, normalise

MANY = 2000  # steps after which the solver has long arrived


def draw(seed: int, *shape: int) -> Tensor:
    return Rng.seed(seed).normal(*shape).double()


def gram_of(gradients: Tensor) -> Tensor:
    return gradients @ gradients.T


def all_active(gram: Tensor) -> Tensor:
    return torch.ones(len(gram), dtype=torch.bool)


def norm(alpha: Tensor, gram: Tensor) -> float:
    return float(alpha @ gram @ alpha)


def frank_wolfe(gram: Tensor, steps: int) -> Tensor:
    """The original form: towards one corner, all other weights shrink."""
    alpha = torch.eye(len(gram), dtype=gram.dtype)[0]
    for _ in range(steps):
        corner = torch.eye(len(gram), dtype=gram.dtype)[int((gram @ alpha).argmin())]
        share = balance(
            alpha @ gram @ alpha, corner @ gram @ corner, alpha @ gram @ corner
        )
        alpha = share * alpha + (1 - share) * corner
    return alpha


CASES = [
    (3, 5, 0.0),
    (4, 4, 0.5),
    (6, 3, 0.0),
    (10, 40, 0.2),
    (10, 12, 0.0),
    (20, 100, 0.1),
]


def case(tasks: int, width: int, common: float, seed: int = 1) -> Tensor:
    """Gradients of very different lengths, with something in common."""
    lengths = torch.logspace(-1, 1, tasks, dtype=torch.float64)
    return (draw(seed, tasks, width) + common * draw(seed + 1, width)) * lengths[
        :, None
    ]


# ---------------------------------------------------------------- the optimum
@pytest.mark.parametrize("seed", range(8))
def test_two_tasks_have_a_closed_form_and_frank_wolfe_finds_it(seed: int) -> None:
    a, b = draw(seed, 7), draw(seed + 100, 7) * 3.0 + (seed % 3) * draw(seed, 7)
    gram = gram_of(torch.stack([a, b]))
    share = min(max(float((b - a) @ b / (b - a).square().sum()), 0.0), 1.0)
    expected = torch.tensor([share, 1 - share], dtype=torch.float64)
    torch.testing.assert_close(
        min_norm(gram, all_active(gram), 0), expected, rtol=0, atol=1e-12
    )
    torch.testing.assert_close(frank_wolfe(gram, 50), expected, rtol=0, atol=1e-9)
    # a third task that is not active changes nothing
    third = gram_of(torch.stack([a, b, draw(5, 7)]))
    alone = min_norm(third, torch.tensor([True, True, False]), 50)
    torch.testing.assert_close(
        alone, torch.cat([expected, expected.new_zeros(1)]), rtol=0, atol=1e-9
    )


@pytest.mark.parametrize(("tasks", "width", "common"), CASES)
def test_weights_are_the_optimum_of_a_general_solver(
    tasks: int, width: int, common: float
) -> None:
    gram = gram_of(case(tasks, width, common))
    alpha = min_norm(gram, all_active(gram), MANY)
    m = gram.numpy() / float(gram.diagonal().min())
    found = minimize(
        lambda a: a @ m @ a,
        np.full(tasks, 1 / tasks),
        jac=lambda a: 2 * m @ a,
        bounds=[(0, 1)] * tasks,
        constraints={
            "type": "eq",
            "fun": lambda a: a.sum() - 1,
            "jac": lambda a: np.ones_like(a),
        },
        options={"ftol": 1e-15, "maxiter": 1000},
    )
    ours = float(alpha.numpy() @ m @ alpha.numpy())
    assert ours <= found.fun + 1e-8
    # no task can do better than the mixture: the optimum's own criterion
    slope = gram @ alpha
    assert float(slope.min()) >= norm(alpha, gram) - 1e-9 * float(gram.diagonal().max())


def test_weights_of_three_tasks_are_the_best_of_a_fine_grid() -> None:
    for seed in range(5):
        gram = gram_of(draw(seed, 3, 4))
        grid = (
            torch.tensor(
                [(i, j, 60 - i - j) for i in range(61) for j in range(61 - i)],
                dtype=torch.float64,
            )
            / 60
        )
        best = float(((grid @ gram) * grid).sum(1).min())
        ours = norm(min_norm(gram, all_active(gram), MANY), gram)
        assert best - 0.02 * float(gram.diagonal().max()) <= ours <= best + 1e-12


@pytest.mark.parametrize(("tasks", "width", "common"), CASES)
def test_two_steps_a_task_come_near_and_nearer_than_hundreds_of_the_original_form(
    tasks: int, width: int, common: float
) -> None:
    gram = normalise(
        gram_of(case(tasks, width, common)),
        torch.ones(tasks, dtype=torch.float64),
        "l2",
    )
    few, many = (
        norm(a, gram)
        for a in (min_norm(gram, all_active(gram), 2 * tasks), frank_wolfe(gram, 250))
    )
    assert few <= norm(min_norm(gram, all_active(gram), MANY), gram) + 0.01
    assert few <= many or tasks < 10


# ---------------------------------------------------------------- its laws
@pytest.mark.parametrize("seed", range(10))
@pytest.mark.parametrize("steps", [0, 3, 40])
def test_weights_lie_on_the_simplex_and_shorten(seed: int, steps: int) -> None:
    tasks = 2 + seed
    gradients = case(tasks, 3 + 2 * seed, 0.3, seed)
    active = torch.arange(tasks) % 3 != 1
    gram = gram_of(gradients)
    alpha = min_norm(gram, active, steps)
    assert (alpha >= 0).all() and float(alpha.sum()) == pytest.approx(1.0, abs=1e-12)
    assert (alpha[~active] == 0).all()
    shortest = float(gradients[active].norm(dim=1).min())
    assert float((alpha @ gradients).norm()) <= shortest * (1 + 1e-12)


def test_steps_only_shorten_and_the_solver_stands_still_where_it_has_arrived() -> None:
    gram = gram_of(draw(3, 8, 20))
    norms = [norm(min_norm(gram, all_active(gram), s), gram) for s in range(60)]
    assert all(b <= a + 1e-15 for a, b in itertools.pairwise(norms))
    assert torch.equal(
        min_norm(gram, all_active(gram), 400), min_norm(gram, all_active(gram), MANY)
    )


def test_a_solved_task_gets_all_the_weight_unless_it_is_not_active() -> None:
    gradients = draw(4, 4, 6)
    gradients[2] = 0
    gram = gram_of(gradients)
    corner = torch.eye(4, dtype=torch.float64)[2]
    for how in get_args(get_args(GradNorm)[0]):
        alpha = min_norm(
            normalise(gram, torch.ones(4, dtype=torch.float64), how),
            all_active(gram),
            20,
        )
        torch.testing.assert_close(alpha, corner, rtol=0, atol=1e-12)
    alpha = min_norm(gram, torch.tensor([True, True, False, True]), 200)
    assert alpha[2] == 0 and norm(alpha, gram) > 0


def test_opposite_gradients_cancel_and_equal_ones_share() -> None:
    g = draw(6, 5)
    opposite = gram_of(torch.stack([g, -g, draw(7, 5)]))
    assert norm(
        min_norm(opposite, all_active(opposite), 20), opposite
    ) == pytest.approx(0, abs=1e-12)
    equal = gram_of(torch.stack([g, g, g]))
    alpha = min_norm(equal, all_active(equal), 20)
    assert float(alpha.sum()) == pytest.approx(1) and norm(
        alpha, equal
    ) == pytest.approx(float(g @ g))


def test_a_single_task_weighs_one_exactly() -> None:
    assert torch.equal(
        min_norm(torch.tensor([[0.3]]), torch.tensor([True]), 5), torch.ones(1)
    )
    alone = min_norm(
        gram_of(draw(8, 4, 5)), torch.tensor([False, False, True, False]), 10
    )
    assert torch.equal(alone, torch.eye(4, dtype=torch.float64)[2])


def test_many_problems_at_once_are_solved_like_single_ones() -> None:
    gradients = draw(9, 12, 7, 15)
    grams = gradients @ gradients.mT
    active = draw(10, 12, 7) > -0.5
    active[:, 0] = True
    together = vmap(lambda m, a: min_norm(m, a, 14))(grams, active)
    for i in range(12):
        torch.testing.assert_close(
            together[i], min_norm(grams[i], active[i], 14), rtol=0, atol=1e-12
        )


# ---------------------------------------------------------------- gradients and weights
def test_gram_of_linear_heads_is_that_of_their_gradients() -> None:
    z, weight = draw(11, 8, 5).requires_grad_(), draw(12, 4, 5)
    y = (draw(13, 8, 4) > 0).double()
    task = torch.tensor([0, 1, 1, 2])  # one task has two logits
    logits = z @ weight.T
    terms = F.binary_cross_entropy_with_logits(logits, y, reduction="none").mean(0)
    losses = [terms[task == t].sum() for t in range(3)]
    gradients = torch.stack(
        [
            torch.autograd.grad(loss, z, retain_graph=True)[0].flatten()
            for loss in losses
        ]
    )
    error = (logits.detach().sigmoid() - y) / len(y)
    torch.testing.assert_close(
        head_gram(weight, error, task, 3), gram_of(gradients), rtol=0, atol=1e-14
    )


def test_normalised_gradients_have_the_lengths_they_should() -> None:
    gradients = case(4, 6, 0.1)
    loss = torch.tensor([0.5, 2.0, 1.0, 4.0], dtype=torch.float64)
    gram, length = gram_of(gradients), gradients.norm(dim=1)
    for how, size in {
        "none": torch.ones(4),
        None: torch.ones(4),
        "l2": length,
        "loss": loss,
    }.items():
        expected = gram_of(gradients / size[:, None])
        torch.testing.assert_close(
            normalise(gram, loss, how), expected, rtol=1e-12, atol=0
        )
    expected = gram_of(gradients / (loss * length)[:, None])
    torch.testing.assert_close(
        normalise(gram, loss, "loss+"), expected, rtol=1e-12, atol=0
    )


def test_only_weights_of_the_gradients_themselves_make_no_task_worse() -> None:
    """A long and a short gradient: with l2 both weigh the same, and the short one's task loses."""
    long, short = torch.tensor([[10.0, 0.0], [-0.5, 0.75**0.5]]).double()
    gradients = torch.stack([long, short])
    gram = gram_of(gradients)
    active = all_active(gram)
    plain = min_norm(gram, active, MANY)
    # how much each task gains by a small step against the sum
    assert (gradients @ (plain @ gradients) > 0).all()
    unit = min_norm(normalise(gram, torch.ones(2).double(), "l2"), active, MANY)
    torch.testing.assert_close(unit, torch.tensor([0.5, 0.5]).double())
    gains = gradients @ (unit @ gradients)
    assert gains[0] > 0 > gains[1]


def test_normalising_vanished_gradients_gives_zeros_in_single_precision() -> None:
    gradients = draw(14, 3, 4).float()
    gradients[1] = 0
    for how in ("l2", "loss", "loss+"):
        gram = normalise(gram_of(gradients), torch.tensor([1.0, 0.0, 1.0]), how)
        assert torch.isfinite(gram).all() and (gram[1] == 0).all()


@pytest.mark.parametrize("least", [0.0, 0.05, 0.25, 1 / 3, 1.0])
def test_a_floor_keeps_weights_on_the_simplex(least: float) -> None:
    alpha = torch.tensor([0.0, 0.9, 0.0, 0.1], dtype=torch.float64)
    active = torch.tensor([True, True, False, True])
    lifted = lift(alpha, active, least)
    assert float(lifted.sum()) == pytest.approx(1, abs=1e-12) and lifted[2] == 0
    assert float(lifted[active].min()) >= min(least, 1 / 3) - 1e-12
    assert torch.equal(lifted, alpha) == (least == 0)
    if least >= 1 / 3:
        assert all(math.isclose(v, 1 / 3) for v in lifted[active].tolist())
