"""FedDyn: its corrections vanish with alpha, and lead to the optimum of all clients together."""

from __future__ import annotations

import pytest
import torch
from battery import (  # noqa: F401
    equal,
    gap,
    names,
    overhear,
    test_copes_with_absent_clients_and_lost_replies,
    test_leaves_what_it_is_given_untouched,
    test_personal_models_learn,
    test_serves_a_client_never_seen,
    test_vectorised_clients_agree_with_single_ones,
    test_worker_processes_agree_to_the_last_bit,
)

from fedtailor.arithmetic import settings
from fedtailor.method import Uploads
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.feddyn import Down, FedDyn, Keep, Up
from fedtailor.optim import Plan
from fedtailor.rng import Purpose
from fedtailor.tree import Params, average
from fedtailor.trial import play

ONES = torch.ones(6)


@pytest.fixture
def method() -> FedDyn:
    return FedDyn(alpha=0.1)


def test_a_vanishing_regulariser_trains_as_fedavg_and_doubles_the_step() -> None:
    played, heard = overhear(FedDyn(alpha=1e-12), rounds=1, dtype=torch.float64)
    _, theirs = overhear(FedAvg(), rounds=1, dtype=torch.float64)
    assert max(gap(heard[0].up[k].w, theirs[0].up[k].w) for k in range(6)) < 1e-9
    first, mean = heard[0].down[0].w, average([heard[0].up[k].w for k in range(6)], ONES)
    assert gap(played.server.w, {k: 2 * mean[k] - first[k] for k in mean}) < 1e-9


def test_local_training_follows_the_regularised_risk() -> None:
    alpha, lr = 0.3, 0.05
    method = FedDyn(alpha=alpha)
    played = play(method, rounds=2, dtype=torch.float64, plan=Plan(lr=lr, epochs=2))
    start, grad = played.server.w, played.keep(0).grad
    with settings(torch.float64):
        c = played.site.client(0, 3, Purpose.CALL, 3, 1)

        def step(w: Params, batch: object) -> Params:
            g = c.grad(c.loss, w, batch)  # type: ignore[arg-type]
            return {k: w[k] - lr * (g[k] - grad[k] + alpha * (w[k] - start[k])) for k in w}

        by_hand = c.each_batch(step, start)
        up, keep = method.local(played.site.client(0, 3, Purpose.CALL, 3, 1), Down(start), Keep(grad))
    assert gap(up.w, by_hand) < 1e-12
    assert gap(keep.grad, {k: grad[k] - alpha * (up.w[k] - start[k]) for k in grad}) < 1e-12
    assert max(float(g.abs().max()) for g in grad.values()) > 1e-3


@pytest.mark.parametrize("everybody", [True, False])
def test_exact_local_solutions_lead_to_the_common_optimum(everybody: bool) -> None:
    """f_k(w) = (w - a_k)' A_k (w - a_k) / 2: the optimum of the sum is no mean of local optima."""
    draw = torch.Generator().manual_seed(0)
    clients, size = 4, 3
    roots = torch.randn(clients, size, size, generator=draw, dtype=torch.float64)
    hessians = roots @ roots.mT + 0.5 * torch.eye(size, dtype=torch.float64)
    minima = torch.randn(clients, size, generator=draw, dtype=torch.float64)
    best = torch.linalg.solve(hessians.sum(0), (hessians @ minima[..., None]).sum(0))[:, 0]
    eye = torch.eye(size, dtype=torch.float64)

    method = FedDyn(alpha=1.0)
    server = method.init(lambda i: {"w": torch.zeros(size, dtype=torch.float64)}, clients)
    grads = [{"w": torch.zeros(size, dtype=torch.float64)} for _ in range(clients)]
    for t in range(400):
        chosen = list(range(clients)) if everybody else [t % clients, (t * t + t + 1) % clients]
        replies = []
        for k in sorted(set(chosen)):
            start = server.w["w"]
            right = hessians[k] @ minima[k] + grads[k]["w"] + method.alpha * start
            w = {"w": torch.linalg.solve(hessians[k] + method.alpha * eye, right)}
            grads[k] = method.follow(grads[k], w, server.w)
            replies.append((k, Up(w)))
        ids = [k for k, _ in replies]
        server = method.merge(server, Uploads(ids, torch.ones(len(ids)), [up for _, up in replies]))
    assert float((server.w["w"] - best).abs().max()) < 1e-9
    assert float((minima.mean(0) - best).abs().max()) > 0.1
    own = [hessians[k] @ (best - minima[k]) for k in range(clients)]
    assert max(float((grads[k]["w"] - own[k]).abs().max()) for k in range(clients)) < 1e-8


def test_batchnorm_statistics_are_averaged_and_nothing_else() -> None:
    played, heard = overhear(FedDyn(), rounds=2, norm="batch")
    mean = average([heard[-1].up[k].w for k in range(6)], ONES)
    statistics = [k for k in mean if "running" in k]
    assert len(statistics) == 2 and all(torch.equal(played.server.w[k], mean[k]) for k in statistics)
    assert not any(k in played.server.h or k in played.keep(0).grad for k in statistics)
    assert not torch.equal(played.server.w["head.weight"], mean["head.weight"])


def test_gradients_stay_at_home() -> None:
    played, heard = overhear(FedDyn())
    assert all(set(type(up)._fields) == {"w"} for sent in heard for up in sent.up.values())
    uploads = [x for sent in heard for up in sent.up.values() for x in up.w.values()]
    kept = [g for k in range(6) for g in played.keep(k).grad.values()]
    assert not any(torch.equal(g, x) for g in kept for x in uploads if g.shape == x.shape)
