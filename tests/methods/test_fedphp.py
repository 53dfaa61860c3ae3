"""FedPHP: without inheritance FedAvg, with it the old model's share grows round by round."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.client import Batch
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params
from fedtailor.maths.mmd import mmd
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedphp import Down, FedPHP
from fedtailor.testing.small_world import run_small
from helpers import equal, gap, overhear


@pytest.mark.parametrize("inherit", ["start", "end"])
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_without_inheritance_it_is_fedavg(inherit: str, norm: str) -> None:
    php, avg = (
        run_small(FedPHP(mu=0.0, lam=0.0, inherit=inherit), norm=norm),
        run_small(FedAvg(), norm=norm),
    )  # type: ignore[arg-type]
    assert equal(php.server, avg.server)
    if inherit == "start":
        c, down = php.runner.client(0, 3), Down(php.server.w)
        assert equal(php.runner.method.personal(c, down, php.keep(0)), avg.server.w)
    assert FedPHP(mu=0.0).warnings() and not FedPHP().warnings()


@pytest.mark.parametrize(("t", "share"), [(1, 0.2), (2, 0.4), (4, 0.8)])
def test_the_share_of_the_old_model_grows(t: int, share: float) -> None:
    played = run_small(FedPHP(mu=0.8), rounds=4, dtype=torch.float64)
    with torch_settings(torch.float64):
        c = played.runner.client(0, t, Purpose.EVALUATE, t)
        w, old = played.server.w, played.keep(0).old
        personal = FedPHP(mu=0.8).personal(c, Down(w), played.keep(0))
    assert gap(personal, {k: (1 - share) * w[k] + share * old[k] for k in w}) < 1e-12
    assert gap(w, old) > 1e-3 and FedPHP.depends_on_rounds


def test_inheriting_at_the_start_trains_the_mix() -> None:
    method = FedPHP(mu=0.8, lam=0.0)
    played = run_small(method, rounds=4)
    with torch_settings():
        c, down, keep = (
            played.runner.client(0, 3, Purpose.CALL, 3, 1),
            Down(played.server.w),
            played.keep(0),
        )
        up, new = method.local(c, down, keep)
        c = played.runner.client(0, 3, Purpose.CALL, 3, 1)
        by_hand = c.train(c.loss, method.mix(c, down.w, keep))
    assert equal(up.w, by_hand) and equal(new.old, by_hand)


def test_inheriting_at_the_end_mixes_what_was_trained() -> None:
    method = FedPHP(mu=0.8, lam=0.0, inherit="end")
    played, heard = overhear(method, rounds=4, dtype=torch.float64)
    with torch_settings(torch.float64):
        c, down, keep = (
            played.runner.client(0, 2, Purpose.CALL, 2, 1),
            Down(played.server.w),
            played.keep(0),
        )
        up, new = method.local(c, down, keep)
        c = played.runner.client(0, 2, Purpose.CALL, 2, 1)
        assert gap(up.w, c.train(c.loss, down.w)) == 0
    assert gap(new.old, {k: 0.6 * up.w[k] + 0.4 * keep.old[k] for k in up.w}) < 1e-12
    assert equal(method.personal(c, down, new), new.old)
    assert (
        equal(method.after_training(c, down, up, new), up.w)
        and gap(up.w, new.old) > 1e-3
    )
    uploads = [x for sent in heard for up in sent.up.values() for x in up.w.values()]
    inherited = [x for k in (0, 1, 2, 3, 5) for x in played.keep(k).old.values()]
    assert not any(
        torch.equal(x, y) for x in inherited for y in uploads if x.shape == y.shape
    )


@pytest.mark.parametrize("inherit", ["start", "end"])
def test_discrepancy_alone_keeps_features_near_the_teacher(inherit: str) -> None:
    played = run_small(FedPHP(), rounds=3)
    with torch_settings():
        down, keep = Down(played.server.w), played.keep(0)
        teacher = down.w if inherit == "start" else keep.old
        apart = []
        for lam in (0.0, 0.9):
            method = FedPHP(mu=0.9, lam=lam, inherit=inherit)  # type: ignore[arg-type]
            c = played.runner.client(0, 3, Purpose.CALL, 3, 1)
            up, _ = method.local(c, down, keep)
            apart.append(
                float(mmd(c.model.base(up.w, c.x), c.model.base(teacher, c.x)))
            )
    assert apart[1] < 0.9 * apart[0]


# -------------------------------------------------------------------- what the authors' code
# has instead
def authors_mmd(a: Tensor, b: Tensor) -> Tensor:
    """Five kernels whose bandwidths are multiples of the mean squared distance, pair by pair."""
    rows = torch.cat([a, b])
    distance = (rows[:, None] - rows[None]).square().sum(-1)
    mean = distance.detach().sum() / (len(rows) * (len(rows) - 1))
    kernel = sum(torch.exp(-distance / (mean * 2.0**i)) for i in (-2, -1, 0, 1, 2))
    n = len(a)
    return kernel[:n, :n].mean() + kernel[n:, n:].mean() - 2 * kernel[:n, n:].mean()


def authors_distillation(logits: Tensor, theirs: Tensor) -> Tensor:
    return -((theirs / 4).softmax(1) * logits.log_softmax(1)).sum(1).mean()


@pytest.mark.parametrize("inherit", ["start", "end"])
@pytest.mark.parametrize("near", ["relative", "distil"])
def test_closeness_can_be_that_of_the_authors_code(near: str, inherit: str) -> None:
    played = run_small(FedPHP(), rounds=3, dtype=torch.float64)
    down, keep = Down(played.server.w), played.keep(0)
    teacher = down.w if inherit == "start" else keep.old
    method = FedPHP(lam=0.7, near=near, inherit=inherit)  # type: ignore[arg-type]
    with torch_settings(torch.float64):
        c = played.runner.client(0, 3, Purpose.CALL, 3, 1)

        def loss(w: Params, batch: Batch) -> Tensor:
            h, theirs = c.model.base(w, batch.x), c.model.base(teacher, batch.x)
            logits = c.model.head(w, h)
            apart = (
                authors_distillation(logits, c.model.head(teacher, theirs))
                if near == "distil"
                else authors_mmd(h, theirs)
            )
            return 0.3 * F.cross_entropy(logits, batch.y) + 0.7 * apart

        by_hand = c.train(
            loss, method.mix(c, down.w, keep) if inherit == "start" else down.w
        )
        again = played.runner.client(0, 3, Purpose.CALL, 3, 1)
        up, _ = method.local(again, down, keep)
        plain, _ = FedPHP(lam=0.7, inherit=inherit).local(
            played.runner.client(0, 3, Purpose.CALL, 3, 1), down, keep
        )  # type: ignore[arg-type]
    assert gap(up.w, by_hand) < 1e-9 and gap(up.w, plain.w) > 1e-4


def test_relative_bandwidths_stand_a_batch_of_one_example() -> None:
    played = run_small(FedPHP(), rounds=1)
    c, method = played.runner.client(0, 1), FedPHP(near="relative")
    with torch_settings():
        x = c.x[:1].expand(10, -1, -1, -1)
        h = c.model.base(played.server.w, x)
        assert float(method.measure_gap(c, h, h, played.server.w, x)) == pytest.approx(
            0, abs=1e-4
        )
        far = method.measure_gap(c, h + Rng.seed(1).normal(16), h, played.server.w, x)
        assert torch.isfinite(far) and float(far) > 0.5


@pytest.mark.parametrize("inherit", ["start", "end"])
def test_mu_can_grow_with_the_rounds_a_client_took_part_in(inherit: str) -> None:
    method = FedPHP(mu=0.8, lam=0.0, turns=2, inherit=inherit)  # type: ignore[arg-type]
    played, heard = overhear(method, rounds=6, share=0.5, drop=0.2, dtype=torch.float64)
    times = {k: sum(k in sent.down for sent in heard) for k in range(6)}
    assert min(times.values()) < 2 < max(times.values())
    down = Down(played.server.w)
    for k in (k for k in range(6) if times[k]):
        keep = played.keep(k)
        assert float(keep.turns) == times[k]
        with torch_settings(torch.float64):
            share = 0.8 * min(1, times[k] / 2)
            mixed = method.mix(played.runner.client(k, 6), down.w, keep)
            assert (
                gap(
                    mixed,
                    {
                        n: (1 - share) * x + share * keep.old[n]
                        for n, x in down.w.items()
                    },
                )
                < 1e-12
            )
    with torch_settings(torch.float64):  # a first time inherits nothing: mu is 0
        c = played.runner.client(0, 6, Purpose.CALL, 6, 1)
        up, first = method.local(
            c, down, method.first_keep(c, Down({k: x + 1 for k, x in down.w.items()}))
        )
        c = played.runner.client(0, 6, Purpose.CALL, 6, 1)
        assert (
            equal(up.w, c.train(c.loss, down.w))
            and equal(first.old, up.w)
            and float(first.turns) == 1
        )
    assert run_small(FedPHP(), rounds=1).keep(0).turns is None


@pytest.mark.parametrize(
    "method_",
    [
        FedPHP(near="relative", turns=3),
        FedPHP(near="distil", turns=3, inherit="end"),
        FedPHP(near="distil"),
    ],
)
def test_options_agree_under_vmap(method_: FedPHP) -> None:
    one, many = (
        run_small(
            method_, rounds=4, share=0.7, norm="batch", dtype=torch.float64, executor=e
        )
        for e in ("sequential", "vmap")
    )
    assert many.executor.notices() == [] and gap(one.server, many.server) < 1e-9
    assert one.store.clients() == many.store.clients()
    assert max(gap(one.keep(k), many.keep(k)) for k in one.store.clients()) < 1e-9
