"""The small federation of the tests, and runs in it."""

from __future__ import annotations

import pytest
import torch

from fedtailor.core.tree import average
from fedtailor.methods.ditto import Ditto
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedper import FedPer
from fedtailor.methods.mocha import Mocha
from fedtailor.testing.session import Session
from fedtailor.testing.small_world import HELD_OUT, SIZES, digits, run_small, small
from helpers import differences, gap, overhear


# ---------------------------------------------------------------- data and networks
@pytest.mark.parametrize("skew", [True, False])
def test_clients_have_the_given_sizes(skew):
    federation = digits(skew=skew)
    assert [len(index) for index in federation.train] == list(SIZES)
    assert {len(index) for index in federation.val} == {HELD_OUT}
    assert {len(index) for index in federation.test} == {HELD_OUT}
    for k in range(6):
        mine = torch.cat([federation.train[k], federation.val[k], federation.test[k]])
        assert len(mine.unique()) == len(mine)


def test_skewed_clients_see_few_classes():
    skewed = digits((40,) * 6)
    even = digits((40,) * 6, skew=False)
    for k in range(6):
        assert len(skewed.y[skewed.train[k]].unique()) < len(
            even.y[even.train[k]].unique()
        )


def test_fewer_classes():
    federation = digits((20, 20), classes=3)
    assert federation.classes == 3
    assert int(federation.y[torch.cat(federation.train)].max()) == 2


@pytest.mark.parametrize("norm", ["group", "batch", "none"])
def test_networks_are_small(norm):
    network = small(norm=norm)
    assert sum(p.numel() for p in network.parameters()) < 2000
    assert any(True for _ in network.buffers()) == (norm == "batch")
    assert network(torch.zeros(2, 1, 8, 8)).shape == (2, 10)


def test_a_method_gets_the_network_it_asks_for():
    run = run_small(Mocha(), rounds=1)
    assert run.runner.world.backbone.kind == "linear"


# ---------------------------------------------------------------- runs
def test_a_run_by_hand():
    run, heard = overhear(FedAvg(), rounds=1)
    uploads = [up.w for up in heard[0].up.values()]
    assert gap(run.server.w, average(uploads, SIZES)) < 1e-6
    assert run.t == 1


def test_half_of_the_clients():
    _, heard = overhear(FedAvg(), share=0.5)
    assert [len(call.down) for call in heard] == [3, 3, 3]
    assert len({tuple(call.down) for call in heard}) > 1


def test_a_late_joiner():
    _, heard = overhear(FedPer(), late=True, rounds=2)
    visits = [(call.t, call.call.function, list(call.down)) for call in heard]
    assert visits == [
        (0, "receive", [0, 1, 2, 3, 4]),
        (1, "local", [0, 1, 2, 3, 4]),
        (1, "receive", [5]),
        (2, "local", [0, 1, 2, 3, 4, 5]),
    ]


def test_a_run_in_two_parts():
    whole = run_small(Ditto(), rounds=4, norm="batch")
    half = run_small(Ditto(), rounds=4, norm="batch", until=3)
    assert half.t == 3
    rest = run_small(Ditto(), rounds=4, norm="batch", since=half.save())
    assert rest.t == 4
    assert rest.hash == whole.hash
    assert half.hash != whole.hash


def test_a_hash_depends_on_private_states():
    run = run_small(Ditto(), rounds=1)
    before = run.hash
    state = run.store.get(2)
    run.store.put(2, {path: x + 1 for path, x in state.items()})
    assert run.hash != before


def test_a_client_that_cannot_be_evaluated_is_an_error():
    run = run_small(FedAvg(), rounds=1)
    run.server = run.server._replace(w={})
    with pytest.raises(RuntimeError, match="client 0 cannot be evaluated: KeyError"):
        run.scores()


def test_the_next_visit_is_that_of_the_next_round():
    half = run_small(Ditto(), rounds=2, until=1)
    _, whole = overhear(Ditto(), rounds=2)
    _, down, keep = half.next_visit(3)
    up, _ = half.method.local(half.next_client(3), down, keep)
    assert differences(up, whole[1].up[3]) == []


# ---------------------------------------------------------------- sessions
def test_a_run_that_was_made_is_not_made_again():
    session = Session(FedAvg())
    one = session.run(rounds=1, norm="batch")
    assert session.run(norm="batch", rounds=1) is one
    assert session.run(rounds=1, norm="group") is not one
    assert session.try_out(block=2, rounds=1, norm="batch").run is not one
    assert not session.drew_globally


def test_a_session_hears_traffic_and_notices():
    tried = Session(Mocha()).try_out(block=2, rounds=1)
    assert [call.t for call in tried.traffic][-1] == 1
    assert all(notice.endswith("it is marked one_by_one") for notice in tried.notices)
    assert tried.notices


def test_processes_give_the_same_hash():
    session = Session(Ditto())
    assert session.hash_in_processes(rounds=1) == session.run(rounds=1).hash
