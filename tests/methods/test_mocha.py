"""MOCHA: the dual climbs, the duality gap closes, relations are the best there are, and duals
stay at home.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest
import torch
from sklearn.svm import LinearSVC
from torch import Tensor

from fedtailor.core.errors import Unsupported
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.tensors import onehot
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import tensors
from fedtailor.maths.sdca import bound_together, climb, combine, relate, sum_up
from fedtailor.methods.mocha import Mocha, list_inputs, pack, unpack
from fedtailor.testing.small_world import SmallRun, digits, run_small, small
from fedtailor.training.optim import Plan
from helpers import UNKNOWN, equal, overhear


def draw(seed: int, *shape: int) -> Tensor:
    return Rng.seed(seed).normal(*shape).double()


def known(played: SmallRun, k: int) -> Tensor:
    """The duals of client k that the server knows of."""
    keep = played.keep(k)
    alpha: Tensor = keep.new if keep.t == played.server.heard.get(k) else keep.old
    return alpha


def data_of(played: SmallRun, k: int) -> tuple[Tensor, Tensor]:
    """Inputs with a constant, and labels of +-1."""
    with torch_settings(torch.float64):
        c = played.runner.client(k, 1)
        return list_inputs(c, played.server.zero), 2 * onehot(c.y, c.classes) - 1


def measure(played: SmallRun) -> tuple[float, float]:
    """Primal and dual objective, from the clients' own data and duals."""
    lam, sigma, clients = (
        played.runner.method.lam,
        played.server.sigma,
        sorted(played.server.heard),
    )
    v, w = (
        played.server.v.flatten(1),
        torch.stack(
            [pack(played.runner.method.send(played.server, k).w) for k in clients]
        ),
    )
    loss = gain = 0.0
    for i, k in enumerate(clients):
        x, y = data_of(played, k)
        loss += float((1 - y * (x @ w[i].T)).clamp(min=0).sum(1).mean())
        gain += float((known(played, k) * y).sum(1).mean())
    flat = w.flatten(1)
    size = float(torch.trace(flat.T @ torch.linalg.solve(sigma, flat)))
    return loss + lam / 2 * size, gain - float(torch.trace(v.T @ sigma @ v)) / (2 * lam)


# -------------------------------------------------------------------- the laws
def test_the_dual_climbs_and_the_gap_closes() -> None:
    """Between updates of Omega every round gains, whatever the others do at the same time."""
    start = run_small(Mocha(every=3), rounds=40, until=4, dtype=torch.float64)
    assert float(start.server.sigma[0, 1]) != 0  # the clients are related by now
    made = Mocha(every=1000)  # and stay related like that
    gaps, duals = [], []
    for t in (4, 5, 6, 8, 10, 20, 40):
        played = (
            start
            if t == 4
            else run_small(
                made, rounds=40, until=t, since=start.save(), dtype=torch.float64
            )
        )
        primal, dual = measure(played)
        gaps.append(primal - dual)
        duals.append(dual)
    assert all(b > a for a, b in pairwise(duals)), duals
    assert min(gaps) > -1e-9 and gaps[-1] < 0.02 * gaps[0] and gaps[-1] < 0.05, gaps


def test_the_gap_closes_while_omega_changes() -> None:
    gaps = []
    for rounds in (5, 25, 80):
        primal, dual = measure(
            run_small(Mocha(every=5), rounds=rounds, dtype=torch.float64)
        )
        gaps.append(primal - dual)
    assert min(gaps) > -1e-9 and all(b < a / 2 for a, b in pairwise(gaps)), gaps


def test_one_client_alone_is_a_support_vector_machine() -> None:
    """Omega is 1 then, and the minimum that of the textbook's solver."""
    played = run_small(
        Mocha(lam=0.05, fraction=5.0, every=1000),
        rounds=60,
        federation=digits(sizes=(40,)),
        dtype=torch.float64,
    )
    x, y = data_of(played, 0)
    w = pack(played.runner.method.send(played.server, 0).w)
    theirs = LinearSVC(
        loss="hinge",
        C=1 / (0.05 * len(x)),
        fit_intercept=False,
        tol=1e-8,
        max_iter=1_000_000,
    )
    for c in range(10):
        if (y[:, c] > 0).any():
            theirs.fit(x.numpy(), y[:, c].numpy())
            assert torch.allclose(w[c], torch.from_numpy(theirs.coef_[0]), atol=2e-3)


def test_steps_of_coordinate_ascent_never_lose() -> None:
    x, w = draw(1, 20, 5), draw(2, 3, 5)
    y = draw(3, 20, 3).sign()

    def value(alpha: Tensor) -> float:  # a task's own share of the dual
        v = sum_up(alpha, x)
        return float(
            (alpha * y).sum() / 20 - (w * v).sum() - 0.7 / 2 * v.square().sum()
        )

    alpha = torch.zeros(20, 3, dtype=torch.float64)
    before, values = alpha, [value(alpha)]
    for i in Rng.seed(4).permutation(20).repeat(3):
        new = climb(x, y, before, w + 0.7 * sum_up(before, x), 0.7, i[None])
        assert torch.equal(new[torch.arange(20) != i], before[torch.arange(20) != i])
        before = new
        values.append(value(new))
    assert (
        all(b >= a - 1e-12 for a, b in pairwise(values))
        and values[-1] > values[0] + 0.1
    )
    assert ((before * y >= 0) & (before * y <= 1)).all()
    whole = climb(x, y, alpha, w, 0.7, Rng.seed(4).permutation(20).repeat(3))
    assert torch.allclose(whole, before) and not alpha.any()


def test_relations_are_the_best_there_are() -> None:
    w = draw(1, 5, 3, 4)
    sigma, flat = relate(w), w.flatten(1)

    def size(sigma: Tensor) -> float:
        return float(torch.trace(flat.T @ torch.linalg.solve(sigma, flat)))

    assert float(sigma.trace()) == pytest.approx(1) and torch.allclose(sigma, sigma.T)
    assert size(sigma) == pytest.approx(
        float(torch.linalg.matrix_norm(flat, "nuc")) ** 2
    )
    for i in range(20):
        root = torch.linalg.cholesky(sigma) + 0.05 * draw(i, 5, 5)
        other = root @ root.T
        assert size(other / other.trace()) > size(sigma)
    # a task without a model is not cut off
    poor = relate(torch.cat([w, torch.zeros(1, 3, 4)]))
    assert float(torch.linalg.eigvalsh(poor).min()) > 0


def test_tasks_that_step_together_are_held_back_enough() -> None:
    for seed in range(10):
        sigma = relate(draw(seed, 6, 2, 3))
        rho = bound_together(sigma)
        for i in range(20):
            v = draw(100 + i, 6, 4)
            alone = (sigma.diagonal() * v.square().sum(1)).sum()
            assert float(torch.trace(v.T @ sigma @ v)) <= rho * float(alone) + 1e-12
    assert bound_together(torch.eye(4) / 4) == 1.0


def models(played: SmallRun) -> Tensor:
    """W, one a row, of the clients heard of."""
    return torch.stack(
        [
            pack(played.runner.method.send(played.server, k).w)
            for k in sorted(played.server.heard)
        ]
    )


def test_models_can_be_carried_on_when_omega_changes() -> None:
    """The authors' update: W changes by the new Sigma times what is new in V, and only by that."""
    one, two = Mocha(every=2, carry=True, lam=0.3), Mocha(every=2, lam=0.3)
    options: dict[str, Any] = dict(rounds=7, dtype=torch.float64)
    before = run_small(one, **options, until=1)
    assert torch.allclose(
        models(before), combine(before.server.sigma, before.server.v, 0.3)
    )
    for t in range(2, 8):
        after = run_small(one, **options, until=t)
        change = combine(after.server.sigma, after.server.v - before.server.v, 0.3)
        assert torch.allclose(models(after), models(before) + change, atol=1e-12)
        before = after
    assert not torch.allclose(
        models(after), combine(after.server.sigma, after.server.v, 0.3), atol=1e-3
    )
    anew = run_small(two, **options)
    assert anew.server.rest is None
    assert torch.allclose(models(anew), combine(anew.server.sigma, anew.server.v, 0.3))


def test_carried_models_stand_a_rough_world() -> None:
    options: dict[str, Any] = dict(
        rounds=9, share=0.5, drop=0.3, late=True, dtype=torch.float64
    )
    method = Mocha(every=2, carry=True)
    played = run_small(method, **options)
    assert len(played.server.heard) > 3 and all(
        bool(torch.isfinite(x).all()) for x in tensors(played.server)
    )
    down = played.runner.method.send(played.server, UNKNOWN)
    assert torch.allclose(pack(down.w), models(played).mean(0))
    assert (
        run_small(
            method, **options, since=run_small(method, **options, until=5).save()
        ).hash
        == played.hash
    )
    federation = digits(sizes=(40,) * 5)
    assert run_small(method, rounds=15, federation=federation).accuracy() > 0.5


# -------------------------------------------------------------------- the method
def test_models_belong_to_the_duals_the_server_knows_of() -> None:
    """Also where replies got lost: their steps have never been."""
    options: dict[str, Any] = dict(rounds=9, share=0.6, drop=0.3, dtype=torch.float64)
    played = run_small(Mocha(every=4), **options)
    stale = 0
    for i, k in enumerate(sorted(played.server.heard)):
        x, _ = data_of(played, k)
        assert torch.allclose(
            sum_up(known(played, k), x), played.server.v[i], atol=1e-12
        )
        stale += played.keep(k).t != played.server.heard[k]
    assert stale > 0
    primal, dual = measure(played)
    assert primal > dual
    assert run_small(Mocha(every=4), **options).hash == played.hash
    assert all(
        why == "its reply got lost (--drop)"
        for why in played.exchange.traffic.lost.values()
    )


def test_duals_and_data_stay_at_home() -> None:
    played, heard = overhear(Mocha(), rounds=3)
    for call in heard:
        for k, up in call.up.items():
            assert up._fields == ("v",) and up.v.shape == (10, 65)
            mine = [*tensors(played.keep(k)), *data_of(played, k)]
            assert not any(
                x.shape == y.shape and torch.equal(x, y)
                for x in tensors(up)
                for y in mine
            )
    assert played.keep(3).new.shape == (9, 10) and played.keep(5).new.shape == (40, 10)


def test_clients_not_heard_of_predict_by_the_mean_and_train_from_nothing() -> None:
    played = run_small(
        Mocha(every=2), rounds=4, late=True, dtype=torch.float64, share=0.5
    )
    made, server = played.runner.method, played.server
    absent = [k for k in range(6) if k not in server.heard] + [UNKNOWN]
    mean = torch.stack(
        [pack(made.send(server, k).w) for k in sorted(server.heard)]
    ).mean(0)
    for k in absent:
        down = made.send(server, k)
        assert (
            torch.allclose(pack(down.w), mean)
            and down.heard == 0
            and down.pull == pytest.approx(1 / 6)
        )
        assert not made.own(down).any()
    assert float(server.sigma.trace()) == pytest.approx(len(server.heard) / 6)
    assert (
        equal(made.send(made.init(played.runner.new, 6), 0).w, server.zero)
        and not pack(server.zero).any()
    )


def test_predictions_are_the_highest_of_the_scores_one_against_the_rest() -> None:
    played = run_small(Mocha(), rounds=5)
    made, site = played.runner.method, played.runner
    with torch_settings():
        down = made.send(played.server, 0)
        w, x = (
            pack(made.personal(site.client(0, 6), down, played.keep(0))),
            site.test_examples(0).x,
        )
        scores = torch.cat([x.flatten(1), torch.ones(len(x), 1)], 1) @ w.T
        assert torch.allclose(
            made.predict(site.client(0, 6), down.w, x), scores, atol=1e-5
        )
    assert equal(unpack(pack(down.w), down.w), down.w)


def test_the_model_after_training_has_moved_by_the_clients_own_steps() -> None:
    played = run_small(Mocha(every=2), rounds=3, dtype=torch.float64)
    made, site = played.runner.method, played.runner
    with torch_settings(torch.float64):
        down, keep, c = (
            made.send(played.server, 2),
            played.keep(2),
            site.client(2, 4, Purpose.CALL, 4, 1),
        )
        up, kept = made.local(c, down, keep)
        moved = pack(made.after_training(c, down, up, kept)) - pack(down.w)
    assert (
        torch.allclose(moved, down.pull * (up.v - played.server.v[2]))
        and moved.abs().max() > 1e-4
    )


def test_related_clients_help_each_other() -> None:
    """Few examples each, of all digits: alone they know too little."""
    federation = digits(sizes=(12,) * 10, skew=False)
    alone, together = (
        run_small(
            Mocha(lam=0.1, every=e),
            rounds=20,
            federation=federation,
            plan=Plan(epochs=2),
        )
        for e in (1000, 2)
    )
    assert together.accuracy() > alone.accuracy() + 0.05
    assert (
        alone.server.sigma.count_nonzero() == 10
        and together.server.sigma.count_nonzero() == 100
    )
    assert Mocha(every=1000).closing_remarks(alone.server) and not Mocha(
        every=2
    ).closing_remarks(together.server)


def test_clients_run_one_by_one_under_vmap_with_the_same_results() -> None:
    one, many = (
        run_small(Mocha(every=2), rounds=4, executor=e) for e in ("sequential", "vmap")
    )
    assert one.hash == many.hash
    assert many.executor.notices() == [
        "vmap: 'local' runs one client at a time, because it is marked one_by_one"
    ]


def test_networks_that_are_not_linear_are_refused() -> None:
    with pytest.raises(Unsupported, match="linear models only; use --model linear"):
        Mocha().net(small())
    assert Mocha().net(small("linear")) is not None
