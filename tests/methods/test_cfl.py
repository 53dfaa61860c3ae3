"""CFL: FedAvg until it splits; splits find planted groups, map ids right and use cached updates."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import tensors
from fedtailor.core.wire import decode, encode
from fedtailor.filters.tap import Traffic
from fedtailor.method import Cohort, Uploads
from fedtailor.methods import make
from fedtailor.methods.cfl import CFL, Server, Up
from fedtailor.methods.fedavg import FedAvg
from fedtailor.testing.small_world import SmallRun, digits, run_small, small
from fedtailor.training.optim import Plan
from helpers import equal, gap, members, overhear, planted

PLAN = Plan(lr=0.1, batch=10)
# splits whenever a cluster has more than two members
EAGER = CFL(eps1=1e9, eps2=0.0, first=0)


def by_remainder(groups: int, clients: int = 8) -> set[frozenset[int]]:
    return members({k: k % groups for k in range(clients)})


def is_pure(cluster: dict[int, int], groups: int) -> bool:
    return all(len({k % groups for k in clients}) == 1 for clients in members(cluster))


def upload(moves: dict[int, Tensor], server: Server) -> Uploads[Up]:
    """Clients whose updates are the given vectors, in a model with a single parameter."""
    replies = [
        Up({"w": server.models[server.cluster[k]]["w"] + v}) for k, v in moves.items()
    ]
    return Uploads(list(moves), torch.ones(len(moves), dtype=torch.float64), replies)


def empty(clients: int, size: int) -> Server:
    server = EAGER.init(lambda _: {"w": torch.zeros(size)}, clients)
    return server._replace(cluster=dict.fromkeys(range(clients), 0), t=1)


# ---------------------------------------------------------------- laws
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_without_a_split_it_is_fedavg_to_the_last_bit(norm: str) -> None:
    federation = digits(sizes=(24,) * 6)
    one, two = (
        run_small(m, norm=norm, federation=federation).server for m in (CFL(), FedAvg())
    )
    assert not one.splits and len(one.models) == 1
    assert one.models[0].keys() == two.w.keys()
    assert all(torch.equal(one.models[0][k], two.w[k]) for k in two.w)


def test_members_count_alike_however_much_data_they_have() -> None:
    played, heard = overhear(CFL(), rounds=1, dtype=torch.float64)
    (w,) = played.server.models
    mean = {name: sum(up.w[name] for up in heard[0].up.values()) / 6 for name in w}
    assert gap(w, mean) < 1e-12


def test_nested_splits_map_ids_right() -> None:
    """Four planted groups of three, two and two of them nearer: after the first split places
    are no longer ids.
    """
    far = torch.eye(6)
    centre = [
        far[0] + 0.6 * far[1],
        far[2] + 0.6 * far[3],
        far[0] - 0.6 * far[1],
        far[2] - 0.6 * far[3],
    ]
    moves = {k: centre[k % 4] + 0.01 * far[5] * k for k in range(12)}
    server = EAGER.merge(empty(12, 6), upload(moves, empty(12, 6)))
    assert members(server.cluster) == {
        frozenset(range(0, 12, 2)),
        frozenset(range(1, 12, 2)),
    }
    server = EAGER.merge(server, upload(moves, server))
    assert members(server.cluster) == by_remainder(4, 12)
    # a cluster's model is the start plus its own members' mean updates
    for k in range(12):
        first = [moves[i] for i in range(12) if i % 2 == k % 2]
        second = [moves[i] for i in range(12) if i % 4 == k % 4]
        expected = torch.stack(first).mean(0) + torch.stack(second).mean(0)
        assert torch.allclose(
            server.models[server.cluster[k]]["w"], expected, atol=1e-6
        )


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_splits_recover_planted_groups_of_real_clients(share: float) -> None:
    """Half of the clients a round: the split needs the others' cached updates."""
    played = run_small(
        replace(EAGER, first=4), rounds=9, federation=planted(4), plan=PLAN, share=share
    )
    assert members(played.server.cluster) == by_remainder(4)
    assert len(played.server.models) == 4 and len(played.server.splits) == 3
    assert played.runner.method.closing_remarks(played.server) == [
        "CFL ended with 4 clusters of 2, 2, 2 and 2 clients"
    ]


def test_a_split_gives_better_models_than_none() -> None:
    federation = planted(2)
    split, whole = (
        run_small(m, rounds=12, federation=federation, plan=PLAN)
        for m in (replace(EAGER, first=3), CFL())
    )
    assert is_pure(split.server.cluster, 2) and not whole.server.splits
    assert split.accuracy() > whole.accuracy() + 0.1


# ---------------------------------------------------------------- when it splits
def updates(sent: Traffic) -> dict[int, Tensor]:
    """What clients sent minus what they were sent, as vectors."""
    found = {}
    for k, up in sent.up.items():
        down = sent.down[k]
        found[k] = torch.cat([(up.w[name] - down.w[name]).flatten() for name in up.w])
    return found


def test_cached_updates_are_each_clients_last() -> None:
    played, heard = overhear(CFL(), rounds=4, share=0.5, drop=0.3, dtype=torch.float64)
    last: dict[int, Tensor] = {}
    for sent in heard:
        last |= updates(sent)
    assert played.server.dw.keys() == last.keys()
    assert all(torch.equal(played.server.dw[k], last[k]) for k in last)


def test_statistics_of_batchnorm_are_no_part_of_an_update() -> None:
    server = run_small(CFL(), rounds=1, norm="batch").server
    trained = sum(p.numel() for p in small("cnn", "batch").parameters())
    assert {len(v) for v in server.dw.values()} == {trained}
    assert sum(v.numel() for v in server.models[0].values()) == trained + 8


@pytest.mark.parametrize(
    ("method", "splits"),
    [
        (CFL(eps1=0.5, eps2=0.9, first=0), True),
        (CFL(eps1=0.3, eps2=0.9, first=0), False),  # the mean still moves
        (CFL(eps1=0.5, eps2=1.1, first=0), False),  # nobody moves enough
        (CFL(eps1=0.5, eps2=0.9, first=1), False),  # too early
        (CFL(eps1=0.5, eps2=0.9, first=0, gamma=0.99), True),  # sqrt((1 + 1) / 2) = 1
        (CFL(eps1=0.5, eps2=0.9, first=0, gamma=1.0), False),
    ],
)
def test_a_cluster_splits_when_it_stands_still_and_a_member_moves(
    method: CFL, splits: bool
) -> None:
    e = torch.eye(3)
    # mean 1/3, largest 1
    server = method.merge(
        empty(3, 3), upload({0: e[0], 1: -e[0], 2: e[0]}, empty(3, 3))
    )
    assert server.norms.tolist() == pytest.approx([1 / 3, 1.0])
    assert members(server.cluster) == (
        {frozenset({0, 2}), frozenset({1})} if splits else {frozenset({0, 1, 2})}
    )


def test_two_members_are_never_parted() -> None:
    e = torch.eye(3)
    assert not EAGER.merge(empty(2, 3), upload({0: e[0], 1: -e[0]}, empty(2, 3))).splits


def test_relative_thresholds_are_multiples_of_the_first_rounds_largest_mean_update() -> (
    None
):
    method = CFL(thresholds="relative", eps1=1.2, eps2=0.5, first=3)
    played, heard = overhear(
        method, rounds=5, federation=planted(2), plan=PLAN, dtype=torch.float64
    )
    norms = []
    for sent in heard[:3]:
        moves = torch.stack(list(updates(sent).values()))
        norms.append(float(moves.mean(0).norm()))
    assert [sent.t for sent in heard[:4]] == [1, 2, 3, 4]
    assert float(played.server.largest) == pytest.approx(max(norms), abs=1e-12)
    assert played.runner.method.limits(played.server) == pytest.approx(
        (1.2 * max(norms), 0.5 * max(norms))
    )
    assert played.server.splits and is_pure(played.server.cluster, 2)


def test_thresholds_not_given_are_the_authors() -> None:
    backbone = small()
    assert CFL().with_defaults_for(backbone) == CFL(eps1=0.4, eps2=1.6)
    assert CFL(thresholds="relative", eps2=0.7).with_defaults_for(backbone) == CFL(
        0.1, 0.7, "relative"
    )
    assert (
        CFL(eps1=0.0).warnings() and CFL(gamma=1.0).warnings() and not CFL().warnings()
    )
    with pytest.raises(Exception, match="gamma=2"):
        make(CFL, {"gamma": 2})


def test_a_run_that_never_splits_says_so_with_its_norms() -> None:
    played = run_small(CFL(), rounds=2)
    (remark,) = played.runner.method.closing_remarks(played.server)
    assert (
        remark.startswith("CFL never split")
        and "eps1, 0.4" in remark
        and "eps2, 1.6" in remark
    )
    assert f"{float(played.server.norms[0]):.3g}" in remark
    assert played.runner.method.closing_remarks(EAGER.init(played.runner.new, 6)) == []


# ---------------------------------------------------------------- newcomers
def forget(server: Server, k: int) -> Server:
    return server._replace(
        cluster={i: j for i, j in server.cluster.items() if i != k},
        dw={i: v for i, v in server.dw.items() if i != k},
    )


@pytest.fixture(scope="module")
def parted() -> SmallRun:
    return run_small(
        replace(EAGER, first=3), rounds=6, federation=planted(4), plan=PLAN
    )


@pytest.mark.parametrize("k", [0, 3, 5, 6])
def test_a_newcomer_walks_down_the_tree_to_its_group(parted: SmallRun, k: int) -> None:
    method, server = parted.runner.method, forget(parted.server, k)
    with torch_settings():
        placed = method.setup(server, Cohort(parted.exchange, [k], 6))
        assert placed.cluster == parted.server.cluster
        # or when it first takes part
        again = method.round(server, Cohort(parted.exchange, [k], 7))
        assert again.cluster == parted.server.cluster and k in again.dw


def test_a_newcomer_whose_reply_is_lost_is_asked_again(
    parted: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    method, server = parted.runner.method, forget(parted.server, 5)
    monkeypatch.setattr(parted.exchange, "drop", 1.0)
    with torch_settings():
        assert (
            method.setup(server, Cohort(parted.exchange, [5], 6)).cluster
            == server.cluster
        )


def test_a_member_never_heard_of_does_not_hinder_a_split() -> None:
    e = torch.eye(3)
    server = empty(4, 3)
    server = EAGER.merge(server, upload({0: e[0], 1: -e[0], 2: e[0]}, server))
    assert set(server.cluster) == {0, 1, 2}  # client 3 will walk the tree


def test_serves_a_client_never_seen(parted: SmallRun) -> None:
    method, site = parted.runner.method, parted.runner
    with torch_settings():
        down = method.send(parted.server, 99)
        keep = method.first_keep(site.client(0, 7, Purpose.JOIN), down)
        up, keep = method.local(site.client(0, 7, Purpose.CALL, 7, 1), down, keep)
        w = method.personal(site.client(0, 7), down, keep)
        assert torch.isfinite(
            method.predict(site.client(0, 7), w, site.test_examples(0).x)
        ).all()
        assert method.after_training(site.client(0, 7), down, up, keep) is up.w


# ---------------------------------------------------------------- executors and rough worlds,
# with splits
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_vectorised_clients_agree(norm: str) -> None:
    options: dict[str, Any] = {
        "rounds": 3,
        "norm": norm,
        "dtype": torch.float64,
        "plan": PLAN,
    }
    one, many = (
        run_small(EAGER, **options),
        run_small(EAGER, executor="vmap", **options),
    )
    assert many.executor.notices() == [] and one.server.splits
    assert one.server.cluster == many.server.cluster
    assert gap(one.server, many.server) < 1e-9


def test_worker_processes_agree_to_the_last_bit() -> None:
    many = run_small(EAGER, norm="batch", executor="processes")
    digest = many.hash
    many.executor.close()
    assert digest == run_small(EAGER, norm="batch").hash


@pytest.mark.parametrize(
    "how", [{"share": 0.5}, {"drop": 0.3}, {"share": 0.5, "drop": 0.3, "late": True}]
)
def test_copes_with_absent_clients(how: dict[str, Any]) -> None:
    played = run_small(replace(EAGER, first=2), rounds=5, norm="batch", **how)
    assert played.server.splits
    assert all(bool(torch.isfinite(x).all()) for x in tensors(played.server))
    assert (
        played.hash
        == run_small(replace(EAGER, first=2), rounds=5, norm="batch", **how).hash
    )


def test_the_server_survives_a_checkpoint(parted: SmallRun) -> None:
    again = decode(Server, encode(parted.server))
    assert (
        again.cluster == parted.server.cluster
        and again.dw.keys() == parted.server.dw.keys()
    )
    assert [s[:2] for s in again.splits] == [s[:2] for s in parted.server.splits]
    assert equal(again, parted.server)
