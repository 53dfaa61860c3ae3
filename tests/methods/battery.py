"""What every baseline must stand, whoever runs it: a test file imports these tests and gives a fixture ``method``."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch

from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import tensors
from fedtailor.executors.world import AnyMethod
from fedtailor.testing.small_world import digits, run_small
from helpers import UNKNOWN, equal, gap, overhear


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_vectorised_clients_agree_with_single_ones(method: AnyMethod, norm: str) -> None:
    one = run_small(method, rounds=2, norm=norm, dtype=torch.float64)
    many = run_small(method, rounds=2, norm=norm, dtype=torch.float64, executor="vmap")
    assert many.executor.notices() == []
    assert gap(one.server, many.server) < 1e-9
    assert max(gap(one.keep(k), many.keep(k)) for k in range(6)) < 1e-9


def test_worker_processes_agree_to_the_last_bit(method: AnyMethod) -> None:
    many = run_small(method, rounds=2, norm="batch", executor="processes")
    digest = many.hash
    many.executor.close()  # and with it goes the folder of private states
    assert digest == run_small(method, rounds=2, norm="batch").hash


@pytest.mark.parametrize("executor", ["sequential", "vmap"])
def test_copes_with_absent_clients_and_lost_replies(method: AnyMethod, executor: str) -> None:
    options: dict[str, Any] = dict(
        rounds=4, share=0.5, drop=0.3, norm="batch", dtype=torch.float64, executor=executor
    )
    played, heard = overhear(method, **options)
    rounds = [s for s in heard if s.t > 0]
    assert {len(s.down) for s in rounds} == {3} and min(len(s.up) for s in rounds) < 3
    assert all(
        why == "its reply got lost (--drop)" for why in played.exchange.traffic.lost.values()
    )
    assert all(bool(torch.isfinite(x).all()) for x in tensors(played.server))
    assert played.executor.notices() == []
    assert run_small(method, **options).hash == played.hash


def test_serves_a_client_never_seen(method: AnyMethod) -> None:
    played = run_small(method, rounds=2)
    made, site = played.runner.method, played.runner
    with torch_settings():
        down = made.send(played.server, UNKNOWN)
        keep = made.first_keep(site.client(0, 3, Purpose.JOIN), down)
        newcomer = made.personal(site.client(0, 3, Purpose.EVALUATE, 3), down, keep)
        up, kept = made.local(site.client(0, 3, Purpose.CALL, 3, 1), down, keep)
        personal = made.personal(site.client(0, 3, Purpose.EVALUATE, 3), down, kept)
        after = made.after_training(site.client(0, 3, Purpose.EVALUATE, 3), down, up, kept)
        for w in (newcomer, personal, after):
            logits = made.predict(site.client(0, 3), w, site.test_examples(0).x)
            assert logits.shape == (8, 10) and bool(torch.isfinite(logits).all())


def test_leaves_what_it_is_given_untouched(method: AnyMethod) -> None:
    played = run_small(method, rounds=1, norm="batch")
    made, site = played.runner.method, played.runner
    with torch_settings():
        down, keep = made.send(played.server, 0), played.keep(0)
        before = copy.deepcopy((down, keep))
        first = made.local(site.client(0, 2, Purpose.CALL, 2, 1), down, keep)
        made.personal(site.client(0, 2, Purpose.EVALUATE, 2), down, keep)
        assert equal((down, keep), before)
        assert equal(made.local(site.client(0, 2, Purpose.CALL, 2, 1), down, keep), first)


def test_personal_models_learn(method: AnyMethod) -> None:
    federation = digits(sizes=(40,) * 5)
    before, after = (
        run_small(method, rounds=t, federation=federation, norm="batch").accuracy() for t in (1, 15)
    )
    assert after > max(0.5, before + 0.1)
