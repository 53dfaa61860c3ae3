"""FedPHP: without inheritance FedAvg, with it the old model's share grows round by round."""

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
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedphp import Down, FedPHP
from fedtailor.mmd import mmd
from fedtailor.rng import Purpose
from fedtailor.trial import play


@pytest.fixture
def method() -> FedPHP:
    return FedPHP(inherit="end", mu=0.5)


@pytest.mark.parametrize("inherit", ["start", "end"])
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_without_inheritance_it_is_fedavg(inherit: str, norm: str) -> None:
    php, avg = play(FedPHP(mu=0.0, lam=0.0, inherit=inherit), norm=norm), play(FedAvg(), norm=norm)  # type: ignore[arg-type]
    assert equal(php.server, avg.server)
    if inherit == "start":
        c, down = php.site.client(0, 3), Down(php.server.w)
        assert equal(php.site.method.personal(c, down, php.keep(0)), avg.server.w)
    assert FedPHP(mu=0.0).doubts() and not FedPHP().doubts()


@pytest.mark.parametrize(("t", "share"), [(1, 0.2), (2, 0.4), (4, 0.8)])
def test_the_share_of_the_old_model_grows(t: int, share: float) -> None:
    played = play(FedPHP(mu=0.8), rounds=4, dtype=torch.float64)
    with settings(torch.float64):
        c = played.site.client(0, t, Purpose.EVALUATE, t)
        w, old = played.server.w, played.keep(0).old
        personal = FedPHP(mu=0.8).personal(c, Down(w), played.keep(0))
    assert gap(personal, {k: (1 - share) * w[k] + share * old[k] for k in w}) < 1e-12
    assert gap(w, old) > 1e-3 and FedPHP.reads_rounds


def test_inheriting_at_the_start_trains_the_mix() -> None:
    method = FedPHP(mu=0.8, lam=0.0)
    played = play(method, rounds=4)
    with settings():
        c, down, keep = played.site.client(0, 3, Purpose.CALL, 3, 1), Down(played.server.w), played.keep(0)
        up, new = method.local(c, down, keep)
        c = played.site.client(0, 3, Purpose.CALL, 3, 1)
        by_hand = c.train(c.loss, method.mix(c, down.w, keep.old))
    assert equal(up.w, by_hand) and equal(new.old, by_hand)


def test_inheriting_at_the_end_mixes_what_was_trained() -> None:
    method = FedPHP(mu=0.8, lam=0.0, inherit="end")
    played, heard = overhear(method, rounds=4, dtype=torch.float64)
    with settings(torch.float64):
        c, down, keep = played.site.client(0, 2, Purpose.CALL, 2, 1), Down(played.server.w), played.keep(0)
        up, new = method.local(c, down, keep)
        c = played.site.client(0, 2, Purpose.CALL, 2, 1)
        assert gap(up.w, c.train(c.loss, down.w)) == 0
    assert gap(new.old, {k: 0.6 * up.w[k] + 0.4 * keep.old[k] for k in up.w}) < 1e-12
    assert equal(method.personal(c, down, new), new.old)
    uploads = [x for sent in heard for up in sent.up.values() for x in up.w.values()]
    inherited = [x for k in (0, 1, 2, 3, 5) for x in played.keep(k).old.values()]
    assert not any(torch.equal(x, y) for x in inherited for y in uploads if x.shape == y.shape)


@pytest.mark.parametrize("inherit", ["start", "end"])
def test_discrepancy_alone_keeps_features_near_the_teacher(inherit: str) -> None:
    played = play(FedPHP(), rounds=3)
    with settings():
        down, keep = Down(played.server.w), played.keep(0)
        teacher = down.w if inherit == "start" else keep.old
        apart = []
        for lam in (0.0, 0.9):
            method = FedPHP(mu=0.9, lam=lam, inherit=inherit)  # type: ignore[arg-type]
            c = played.site.client(0, 3, Purpose.CALL, 3, 1)
            up, _ = method.local(c, down, keep)
            apart.append(float(mmd(c.model.base(up.w, c.x), c.model.base(teacher, c.x))))
    assert apart[1] < 0.9 * apart[0]
