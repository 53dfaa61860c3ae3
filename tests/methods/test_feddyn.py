"""FedDyn: its corrections vanish with alpha, and lead to the optimum of all clients together."""

from __future__ import annotations

import pytest
import torch

from fedtailor.client import Batch, Client
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, average
from fedtailor.method import Uploads
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.feddyn import ClippedPull, Down, FedDyn, Keep, Up, recall
from fedtailor.testing.small_world import SIZES, SmallRun, digits, run_small
from fedtailor.training.optim import SGD, Plan
from helpers import equal, gap, overhear

ONES = torch.ones(6)
EVERYTHING = FedDyn(alpha=0.1, by_size=True, clip=1.0, deploy="mean")


def disagree(played: SmallRun) -> float:
    """How far h is from the mean of the gradients that the server knows of."""
    made, server = played.runner.method, played.server
    known = [
        recall(played.keep(k), made.send(server, k).heard)
        for k in range(6)
        if played.keep(k)
    ]
    return max(
        float((sum(g[name] for g in known) / 6 - h).abs().max())
        for name, h in server.h.items()
    )


def test_a_vanishing_regulariser_trains_as_fedavg_and_doubles_the_step() -> None:
    played, heard = overhear(FedDyn(alpha=1e-12), rounds=1, dtype=torch.float64)
    _, theirs = overhear(FedAvg(), rounds=1, dtype=torch.float64)
    assert max(gap(heard[0].up[k].w, theirs[0].up[k].w) for k in range(6)) < 1e-9
    first, mean = (
        heard[0].down[0].w,
        average([heard[0].up[k].w for k in range(6)], ONES),
    )
    assert gap(played.server.w, {k: 2 * mean[k] - first[k] for k in mean}) < 1e-9


def test_local_training_follows_the_regularised_risk() -> None:
    alpha, lr = 0.3, 0.05
    method = FedDyn(alpha=alpha)
    played = run_small(
        method, rounds=2, dtype=torch.float64, plan=Plan(lr=lr, epochs=2)
    )
    start, grad = played.server.w, played.keep(0).grad
    with torch_settings(torch.float64):
        c = played.runner.client(0, 3, Purpose.CALL, 3, 1)

        def step(w: Params, batch: object) -> Params:
            g = c.grad(c.loss, w, batch)  # type: ignore[arg-type]
            return {
                k: w[k] - lr * (g[k] - grad[k] + alpha * (w[k] - start[k])) for k in w
            }

        by_hand = c.each_batch(step, start)
        up, keep = method.local(
            played.runner.client(0, 3, Purpose.CALL, 3, 1),
            Down(start, torch.tensor(2)),
            Keep(grad, grad, torch.tensor(2)),
        )
    assert gap(up.w, by_hand) < 1e-12
    assert (
        gap(keep.grad, {k: grad[k] - alpha * (up.w[k] - start[k]) for k in grad})
        < 1e-12
    )
    assert max(float(g.abs().max()) for g in grad.values()) > 1e-3


@pytest.mark.parametrize("everybody", [True, False])
def test_exact_local_solutions_lead_to_the_common_optimum(everybody: bool) -> None:
    """f_k(w) = (w - a_k)' A_k (w - a_k) / 2: the optimum of the sum is no mean of local optima."""
    draw = torch.Generator().manual_seed(0)
    clients, size = 4, 3
    roots = torch.randn(clients, size, size, generator=draw, dtype=torch.float64)
    hessians = roots @ roots.mT + 0.5 * torch.eye(size, dtype=torch.float64)
    minima = torch.randn(clients, size, generator=draw, dtype=torch.float64)
    best = torch.linalg.solve(hessians.sum(0), (hessians @ minima[..., None]).sum(0))[
        :, 0
    ]
    eye = torch.eye(size, dtype=torch.float64)

    method = FedDyn(alpha=1.0)
    server = method.init(
        lambda i: {"w": torch.zeros(size, dtype=torch.float64)}, clients
    )
    grads = [{"w": torch.zeros(size, dtype=torch.float64)} for _ in range(clients)]
    for t in range(400):
        chosen = (
            list(range(clients))
            if everybody
            else [t % clients, (t * t + t + 1) % clients]
        )
        replies = []
        for k in sorted(set(chosen)):
            start = server.w["w"]
            right = hessians[k] @ minima[k] + grads[k]["w"] + method.alpha * start
            w = {"w": torch.linalg.solve(hessians[k] + method.alpha * eye, right)}
            grads[k] = method.follow(grads[k], w, server.w)
            replies.append((k, Up(w)))
        ids = [k for k, _ in replies]
        server = method.merge(
            server, Uploads(ids, torch.ones(len(ids)), [up for _, up in replies])
        )
    assert float((server.w["w"] - best).abs().max()) < 1e-9
    assert float((minima.mean(0) - best).abs().max()) > 0.1
    own = [hessians[k] @ (best - minima[k]) for k in range(clients)]
    assert (
        max(float((grads[k]["w"] - own[k]).abs().max()) for k in range(clients)) < 1e-8
    )


def test_batchnorm_statistics_are_averaged_and_nothing_else() -> None:
    played, heard = overhear(FedDyn(), rounds=2, norm="batch")
    mean = average([heard[-1].up[k].w for k in range(6)], ONES)
    statistics = [k for k in mean if "running" in k]
    assert len(statistics) == 2 and all(
        torch.equal(played.server.w[k], mean[k]) for k in statistics
    )
    assert not any(k in played.server.h or k in played.keep(0).grad for k in statistics)
    assert not torch.equal(played.server.w["head.weight"], mean["head.weight"])


def test_gradients_stay_at_home() -> None:
    played, heard = overhear(FedDyn())
    assert all(
        set(type(up)._fields) == {"w"} for sent in heard for up in sent.up.values()
    )
    uploads = [x for sent in heard for up in sent.up.values() for x in up.w.values()]
    kept = [g for k in range(6) for g in played.keep(k).grad.values()]
    assert not any(
        torch.equal(g, x) for g in kept for x in uploads if g.shape == x.shape
    )


# -------------------------------------------------------------------- what the authors' code
# does otherwise
def train_as_authors(
    c: Client, cloud: Params, moved: Params, alpha: float, norm: float
) -> Params:
    """Their train_feddyn_mdl: the linear terms in the loss, which is clipped, and the quadratic
    one as weight decay.
    """

    def step(w: Params, batch: Batch) -> Params:
        g = c.grad(c.loss, w, batch)
        leaves = {n: torch.zeros_like(v, requires_grad=True) for n, v in w.items()}
        for n, leaf in leaves.items():
            leaf.grad = g[n] + alpha * (moved[n] - cloud[n])
        torch.nn.utils.clip_grad_norm_(leaves.values(), norm)
        return {
            n: v - c.optimiser.lr * (leaves[n].grad + alpha * v) for n, v in w.items()
        }

    return c.each_batch(step, cloud)


def run_as_authors(
    played: SmallRun, rounds: int, alpha: float, by_size: bool, norm: float
) -> Params:
    """Their train_FedDyn: sums of moves in place of gradients."""
    cloud = played.runner.new(0)
    moved = [{n: torch.zeros_like(v) for n, v in cloud.items()} for _ in SIZES]
    for t in range(1, rounds + 1):
        models = []
        for k, size in enumerate(SIZES):
            mine = alpha / (size / sum(SIZES) * 6) if by_size else alpha
            models.append(
                train_as_authors(
                    played.runner.client(k, t, Purpose.CALL, t, 1),
                    cloud,
                    moved[k],
                    mine,
                    norm,
                )
            )
        moved = [
            {n: m[n] + w[n] - cloud[n] for n in cloud}
            for m, w in zip(moved, models, strict=True)
        ]
        cloud = {
            n: sum(w[n] for w in models) / 6 + sum(m[n] for m in moved) / 6
            for n in cloud
        }
    return cloud


@pytest.mark.parametrize(
    ("by_size", "clip"), [(False, None), (True, None), (False, 1.0), (True, 1.0)]
)
def test_options_make_it_the_authors_code(by_size: bool, clip: float | None) -> None:
    alpha, plan = 0.2, Plan(lr=0.05, batch=10, epochs=2)
    played = run_small(
        FedDyn(alpha=alpha, by_size=by_size, clip=clip),
        rounds=3,
        dtype=torch.float64,
        plan=plan,
    )
    with torch_settings(torch.float64):
        theirs = run_as_authors(played, 3, alpha, by_size, clip or 1e9)
    assert gap(played.server.w, theirs) < 1e-10
    plain = run_small(FedDyn(alpha=alpha), rounds=3, dtype=torch.float64, plan=plan)
    assert gap(plain.server.w, theirs) > 1e-3 or not (by_size or clip)


def test_alpha_by_size_is_alpha_where_all_are_of_one_size() -> None:
    world = digits(sizes=(20,) * 6)
    one, two = (
        run_small(FedDyn(by_size=b), federation=world, dtype=torch.float64)
        for b in (False, True)
    )
    assert equal(one.server.w, two.server.w) and all(
        equal(one.keep(k), two.keep(k)) for k in range(6)
    )
    assert two.server.sizes == dict.fromkeys(range(6), 20.0) and one.server.sizes == {}


def test_sizes_are_asked_for_once_and_only_where_they_count() -> None:
    _, heard = overhear(FedDyn(by_size=True), rounds=2)
    assert [len(type(next(iter(s.up.values())))._fields) for s in heard] == [0, 1, 1]
    assert {s.down[k].size for s in heard[1:] for k in range(6)} == {
        sum(SIZES) / 6
    } and heard[0].down[0].size is None
    _, silent = overhear(FedDyn(), rounds=2)
    assert len(silent) == 2 and all(set(s.down[0][2:]) == {None} for s in silent)


def test_a_size_whose_reply_got_lost_comes_with_the_first_upload() -> None:
    played, heard = overhear(FedDyn(by_size=True), rounds=4, drop=0.4)
    assert 0 < len(heard[0].up) < 6 and played.server.sizes == dict(
        enumerate(map(float, SIZES))
    )


def test_long_gradients_only_are_clipped() -> None:
    w = {"a": torch.tensor([3.0, 4.0])}
    g = {"a": torch.tensor([0.3, 0.4])}  # 0.5 long
    short = {"a": torch.tensor([0.06, 0.08])}
    assert gap(ClippedPull(SGD(1.0), w, 0.0, 1.0).shorten(w, g), g) < 1e-7
    assert gap(ClippedPull(SGD(1.0), w, 0.0, 0.1).shorten(w, g), short) < 1e-6
    held = ClippedPull(SGD(1.0), w, 0.1, 0.1)
    # nothing but alpha w is left, and that stays
    assert gap(held.shorten(w, g), g) < 1e-7
    plan = Plan(lr=0.05, momentum=0.5, weight_decay=1e-3)
    free, wide = (
        run_small(FedDyn(clip=clip), dtype=torch.float64, norm="batch", plan=plan)
        for clip in (None, 1e9)
    )
    assert gap(free.server, wide.server) < 1e-10


def test_the_mean_can_be_what_is_evaluated() -> None:
    played, heard = overhear(FedDyn(deploy="mean"), rounds=2, norm="batch")
    mean = average([heard[-1].up[k].w for k in range(6)], ONES)
    made, down = played.runner.method, played.runner.method.send(played.server, 0)
    assert equal(made.personal(played.runner.client(0, 2), down, played.keep(0)), mean)
    assert equal(made.shared(played.server), mean) and not equal(played.server.w, mean)
    plain = run_small(FedDyn(), rounds=2, norm="batch")
    assert equal(plain.server.w, played.server.w) and plain.server.mean is None
    # it is not sent for training
    assert plain.exchange.traffic == played.exchange.traffic
    assert equal(plain.runner.method.shared(plain.server), plain.server.w)


# -------------------------------------------------------------------- lost replies
@pytest.mark.parametrize("executor", ["sequential", "vmap"])
@pytest.mark.parametrize(
    "method", [FedDyn(alpha=0.1), EVERYTHING], ids=["paper", "options"]
)
def test_h_is_the_mean_gradient_whatever_got_lost(
    method: FedDyn, executor: str
) -> None:
    stale = 0
    for share in (1.0, 0.6):
        played = run_small(
            method,
            rounds=9,
            drop=0.3,
            share=share,
            norm="batch",
            dtype=torch.float64,
            executor=executor,
        )
        assert (
            disagree(played) < 1e-12
            and max(float(h.abs().max()) for h in played.server.h.values()) > 1e-3
        )
        stale += sum(
            int(played.keep(k).t) != played.server.heard.get(k, 0)
            for k in range(6)
            if played.keep(k)
        )
    assert stale > 0


def test_a_client_goes_back_as_often_as_it_must() -> None:
    """Two replies in a row get lost: the second time it goes on from where it went on the first
    time.
    """
    grads = [{"a": torch.full((2,), float(i))} for i in range(3)]
    heard, first = torch.tensor(4), Keep(grads[1], grads[0], torch.tensor(4))
    assert equal(recall(first, heard), grads[1])  # round 4 was heard
    lost = Keep(grads[2], recall(first, heard), torch.tensor(6))
    assert equal(recall(lost, heard), grads[1])
    again = Keep(grads[2], recall(lost, heard), torch.tensor(7))
    assert equal(recall(again, heard), grads[1]) and equal(
        recall(again, torch.tensor(7)), grads[2]
    )
