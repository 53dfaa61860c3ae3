"""Local: nobody sends anything, and nobody's model depends on anybody else."""

from __future__ import annotations

import dataclasses

from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.methods.local import Local
from fedtailor.testing.small_world import digits, run_small
from helpers import equal, overhear


def test_nothing_is_sent_after_a_common_beginning() -> None:
    played, heard = overhear(Local())
    assert played.exchange.traffic.bytes_up == 0
    assert all(
        sent.t == 0 or down == () for sent in heard for down in sent.down.values()
    )
    assert all(
        equal(sent.down[k], played.server.first) for sent in heard[:1] for k in range(6)
    )


def test_a_client_trains_as_if_there_were_no_other() -> None:
    federation = digits()
    stranger = dataclasses.replace(
        federation, train=[federation.train[0], *federation.train[:0:-1]]
    )
    assert equal(
        run_small(Local(), federation=federation).keep(0),
        run_small(Local(), federation=stranger).keep(0),
    )


def test_rounds_are_training_that_goes_on() -> None:
    played = run_small(Local(), rounds=2)
    with torch_settings():
        w = played.server.first
        for t in (1, 2):
            c = played.runner.client(0, t, Purpose.CALL, t, 1)
            w = c.train(c.loss, w)
    assert equal(w, played.keep(0).w)
