"""The accountants against published values and an exact formula."""

from __future__ import annotations

import math

import pytest
from scipy.optimize import brentq
from scipy.stats import norm

from fedtailor.core.errors import UserError
from fedtailor.maths import accounting
from fedtailor.maths.accounting import Step, merge_steps, solve_noise, spend


def exact_epsilon(noise: float, times: int, delta: float) -> float:
    """Of Gaussian mechanisms without sampling (Balle and Wang, ICML 2018, Theorem 8)."""
    mu = math.sqrt(times) / noise

    def excess(epsilon: float) -> float:
        first = norm.cdf(mu / 2 - epsilon / mu)
        second = math.exp(epsilon) * norm.cdf(-mu / 2 - epsilon / mu)
        return first - second - delta

    return float(brentq(excess, 0, 200))


@pytest.mark.parametrize(("noise", "times"), [(2.0, 1), (4.0, 10), (8.5, 200)])
def test_without_sampling_prv_is_exact_and_rdp_is_above(noise, times):
    exact = exact_epsilon(noise, times, 1e-5)
    steps = [Step(noise, 1.0, times)]
    assert exact <= spend(steps, 1e-5, "prv") <= exact + 0.03
    assert exact <= spend(steps, 1e-5, "rdp") <= 1.1 * exact


def classical_epsilon(q: float, noise: float, times: int, delta: float) -> float:
    """Renyi divergence turned into epsilon as Mironov 2017, Proposition 3, does."""
    from opacus.accountants.analysis.rdp import compute_rdp

    orders = [1 + x / 10 for x in range(1, 100)] + list(range(12, 64))
    rdp = compute_rdp(q=q, noise_multiplier=noise, steps=times, orders=orders)
    found = zip(orders, rdp, strict=True)
    return float(min(r - math.log(delta) / (a - 1) for a, r in found))


def test_published_values():
    """Abadi et al. 2016, section 3.2: q 0.01, sigma 4, 10,000 steps, delta 1e-5: 1.26.

    TensorFlow Privacy's tutorial: MNIST, batch 256, sigma 1.12, 60 epochs: 2.92.
    """
    assert classical_epsilon(0.01, 4, 10_000, 1e-5) == pytest.approx(1.26, abs=0.01)
    published = classical_epsilon(256 / 60_000, 1.12, 14_063, 1e-5)
    assert published == pytest.approx(2.92, abs=0.01)
    # ours convert more tightly, prv most of all, and never claim more
    steps = [Step(1.12, 256 / 60_000, 14_063)]
    assert spend(steps, 1e-5, "prv") < spend(steps, 1e-5, "rdp") < 2.92
    assert spend([Step(4, 0.01, 10_000)], 1e-5, "rdp") < 1.26


def test_noise_that_other_accountants_solve_for():
    """200 rounds, a tenth of the clients, epsilon 8.

    dp-accounting 0.6.0 gives noise 1.196 (rdp) and 1.130 (pld).
    """
    by_rdp = spend([Step(1.196, 0.1, 200)], 1e-5, "rdp")
    by_prv = spend([Step(1.130, 0.1, 200)], 1e-5, "prv")
    assert by_rdp == pytest.approx(8, abs=0.02)
    assert by_prv == pytest.approx(8, abs=0.03)


def test_without_opacus_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(accounting, "find_spec", lambda name: None)
    with pytest.raises(UserError, match=r"pip install 'fedtailor\[dp\]'"):
        accounting.check_accountant()


@pytest.mark.parametrize("accountant", ["rdp", "prv"])
@pytest.mark.parametrize("epsilon", [0.5, 8.0, 30.0])
def test_solved_noise_keeps_epsilon_and_no_less_would(epsilon, accountant):
    noise = solve_noise(epsilon, 1e-5, 1.0, 20, accountant)
    assert spend([Step(noise, 1.0, 20)], 1e-5, accountant) <= epsilon
    less = [Step(0.98 * noise, 1.0, 20)]
    assert spend(less, 1e-5, accountant) > epsilon


def test_steps_add_up_in_any_order():
    steps = [Step(2, 1.0), Step(3, 0.1), Step(2, 1.0)]
    assert merge_steps(steps) == [Step(2, 1.0, 2), Step(3, 0.1, 1)]
    assert spend(steps, 1e-5) == spend(steps[::-1], 1e-5)
    assert spend([], 1e-5) == 0
    assert spend([Step(0, 1.0)], 1e-5) == math.inf
