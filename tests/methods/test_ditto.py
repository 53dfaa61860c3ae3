"""Ditto: with no pull its personal models are Local's, with a strong one they are near the global model."""

from __future__ import annotations

import pytest
import torch
from battery import (  # noqa: F401
    equal,
    overhear,
    test_copes_with_absent_clients_and_lost_replies,
    test_leaves_what_it_is_given_untouched,
    test_personal_models_learn,
    test_serves_a_client_never_seen,
    test_vectorised_clients_agree_with_single_ones,
    test_worker_processes_agree_to_the_last_bit,
)

from fedtailor.methods.ditto import Ditto
from fedtailor.methods.local import Local
from fedtailor.tree import sqdist, tensors
from fedtailor.trial import play


@pytest.fixture
def method() -> Ditto:
    return Ditto()


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_without_pull_personal_models_are_those_of_local(norm: str) -> None:
    ditto, local = play(Ditto(lam=0.0), norm=norm), play(Local(), norm=norm)
    assert all(equal(ditto.keep(k).v, local.keep(k).w) for k in range(6))
    assert Ditto(lam=0.0).doubts() and not Ditto().doubts()


def test_pull_holds_personal_models_near_the_global_one() -> None:
    distance = []
    for lam in (0.0, 1.0, 10.0):
        played, heard = overhear(Ditto(lam=lam), rounds=3)
        distance.append(sum(float(sqdist(played.keep(k).v, heard[-1].down[k].w)) for k in range(6)))
    assert distance[0] > 1.2 * distance[1] > 2 * distance[2]


def test_pull_leaves_the_global_model_alone() -> None:
    assert equal(play(Ditto(lam=0.1)).server, play(Ditto(lam=2.0)).server)


def test_personal_models_stay_at_home() -> None:
    played, heard = overhear(Ditto(), rounds=1, norm="batch")
    for k in (0, 1, 2, 3, 5):  # to a single example BatchNorm makes all images alike, and little moves at all
        sent = tensors(heard[0].up[k])
        assert not any(torch.equal(v, w) for v in tensors(played.keep(k)) for w in sent if v.shape == w.shape)
