"""What every baseline must stand, whoever runs it: a test file imports these tests and gives a fixture ``method``."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple
from unittest.mock import patch

import pytest
import torch
from torch import Tensor

from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import settings
from fedtailor.core.tree import Tree, tensors
from fedtailor.core.wire import encode
from fedtailor.data.sets.digits import read_digits
from fedtailor.engine.exchange import Exchange
from fedtailor.executors.site import AnyMethod
from fedtailor.models import build
from fedtailor.testing.small_world import Played, digits, play

UNKNOWN = 99  # a client that no server has heard of


class Sent(NamedTuple):
    """What one call brought back."""

    t: int
    down: dict[int, Tree]
    up: dict[int, Tree]


def words() -> dict[str, Any]:
    """For ``play``: the grey levels of digits, read as words, and a network that reads them."""
    x = torch.tensor(read_digits()[0], dtype=torch.int64)
    return {
        "federation": replace(digits(), kind="text", x=x),
        "backbone": build("fasttext", (64,), 10, vocabulary=17),
    }


def overhear(method: AnyMethod, **options: Any) -> tuple[Played, list[Sent]]:
    """Play, and what really went over the wire meanwhile."""
    heard: list[Sent] = []
    call = Exchange.call

    def listen(
        self: Exchange, name: str, downs: dict[int, Tree], t: int, number: int
    ) -> Mapping[int, Any]:
        replies = call(self, name, downs, t, number)
        heard.append(
            Sent(t, copy.deepcopy(downs), copy.deepcopy({k: up for k, (_, up) in replies.items()}))
        )
        return replies

    with patch.object(Exchange, "call", listen):
        return play(method, **options), heard


def names(tree: Tree) -> set[str]:
    """The parameters in a message, whatever field holds them."""
    return {
        path.split("/", 1)[-1] for path, value in encode(tree).items() if isinstance(value, Tensor)
    }


def gap(a: Tree, b: Tree) -> float:
    """The largest difference between two trees of the same shape."""
    a, b = encode(a), encode(b)
    assert a.keys() == b.keys()
    pairs = [(x, b[k]) for k, x in a.items() if isinstance(x, Tensor)]
    return max((float((x - y).abs().max()) for x, y in pairs if x.numel()), default=0.0)


def equal(a: Tree, b: Tree) -> bool:
    """Whether two trees are the same to the last bit."""
    a, b = encode(a), encode(b)
    return a.keys() == b.keys() and all(
        torch.equal(x, b[k]) if isinstance(x, Tensor) else x == b[k] for k, x in a.items()
    )


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_vectorised_clients_agree_with_single_ones(method: AnyMethod, norm: str) -> None:
    one = play(method, rounds=2, norm=norm, dtype=torch.float64)
    many = play(method, rounds=2, norm=norm, dtype=torch.float64, executor="vmap")
    assert many.executor.notices() == []
    assert gap(one.server, many.server) < 1e-9
    assert max(gap(one.keep(k), many.keep(k)) for k in range(6)) < 1e-9


def test_worker_processes_agree_to_the_last_bit(method: AnyMethod) -> None:
    many = play(method, rounds=2, norm="batch", executor="processes")
    digest = many.hash
    many.executor.close()  # and with it goes the folder of private states
    assert digest == play(method, rounds=2, norm="batch").hash


@pytest.mark.parametrize("executor", ["sequential", "vmap"])
def test_copes_with_absent_clients_and_lost_replies(method: AnyMethod, executor: str) -> None:
    options: dict[str, Any] = dict(
        rounds=4, share=0.5, drop=0.3, norm="batch", dtype=torch.float64, executor=executor
    )
    played, heard = overhear(method, **options)
    rounds = [s for s in heard if s.t > 0]
    assert {len(s.down) for s in rounds} == {3} and min(len(s.up) for s in rounds) < 3
    assert all(why == "its reply got lost (--drop)" for why in played.exchange.ledger.lost.values())
    assert all(bool(torch.isfinite(x).all()) for x in tensors(played.server))
    assert played.executor.notices() == []
    assert play(method, **options).hash == played.hash


def test_serves_a_client_never_seen(method: AnyMethod) -> None:
    played = play(method, rounds=2)
    made, site = played.site.method, played.site
    with settings():
        down = made.send(played.server, UNKNOWN)
        keep = made.join(site.client(0, 3, Purpose.JOIN), down)
        newcomer = made.personal(site.client(0, 3, Purpose.EVALUATE, 3), down, keep)
        up, kept = made.local(site.client(0, 3, Purpose.CALL, 3, 1), down, keep)
        personal = made.personal(site.client(0, 3, Purpose.EVALUATE, 3), down, kept)
        after = made.after(site.client(0, 3, Purpose.EVALUATE, 3), down, up, kept)
        for w in (newcomer, personal, after):
            logits = made.predict(site.client(0, 3), w, site.test(0).x)
            assert logits.shape == (8, 10) and bool(torch.isfinite(logits).all())


def test_leaves_what_it_is_given_untouched(method: AnyMethod) -> None:
    played = play(method, rounds=1, norm="batch")
    made, site = played.site.method, played.site
    with settings():
        down, keep = made.send(played.server, 0), played.keep(0)
        before = copy.deepcopy((down, keep))
        first = made.local(site.client(0, 2, Purpose.CALL, 2, 1), down, keep)
        made.personal(site.client(0, 2, Purpose.EVALUATE, 2), down, keep)
        assert equal((down, keep), before)
        assert equal(made.local(site.client(0, 2, Purpose.CALL, 2, 1), down, keep), first)


def test_personal_models_learn(method: AnyMethod) -> None:
    federation = digits(sizes=(40,) * 5)
    before, after = (
        play(method, rounds=t, federation=federation, norm="batch").accuracy() for t in (1, 15)
    )
    assert after > max(0.5, before + 0.1)
