"""FedClust: clusters by final layers, once; one cluster is FedAvg; newcomers go by the same
distance.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.method import Cohort
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedclust import Down, FedClust, Server
from fedtailor.methods.local import Local
from fedtailor.testing.small_world import SmallRun, run_small, small
from fedtailor.training.optim import Plan
from helpers import gap, members, overhear, planted

PLAN = Plan(lr=0.1, batch=10)


def by_remainder(groups: int, clients: int = 8) -> set[frozenset[int]]:
    return members({k: k % groups for k in range(clients)})


@pytest.fixture(scope="module")
def played() -> SmallRun:
    return run_small(FedClust(), rounds=2, federation=planted(2), plan=PLAN)


# ---------------------------------------------------------------- clusters
def test_two_planted_groups_are_found_by_the_median(played: SmallRun) -> None:
    assert members(played.server.cluster) == by_remainder(2)
    assert played.runner.method.closing_remarks(played.server) == [
        "FedClust made 2 clusters of 4 and 4 clients"
    ]


def test_four_planted_groups_are_found_by_their_number() -> None:
    played = run_small(FedClust(clusters=4), rounds=1, federation=planted(4), plan=PLAN)
    assert members(played.server.cluster) == by_remainder(4)


def points(*at: float) -> Tensor:
    x = torch.tensor(at)
    return (x[:, None] - x[None]).abs()


def test_the_threshold_is_a_quantile_unless_it_or_the_number_is_given() -> None:
    d = points(0.0, 1.0, 5.0, 6.0, 20.0)  # distances 1 1 4 5 5 6 14 15 19 20
    assert FedClust().group(d) == [
        0,
        0,
        0,
        0,
        1,
    ]  # the median is 5.5, the pairs are 5 apart on average
    assert FedClust(quantile=0.2).group(d) == [0, 0, 1, 1, 2]  # 3.4
    assert FedClust(quantile=1.0).group(d) == [0, 0, 0, 0, 0]
    assert FedClust(threshold=0.5).group(d) == [0, 1, 2, 3, 4]
    assert FedClust(threshold=1.0).group(d) == [0, 0, 1, 1, 2]
    assert FedClust(threshold=1.0, clusters=2).group(d) == [0, 0, 0, 0, 1]
    assert FedClust(threshold=5.5, linkage="complete").group(d) == [0, 0, 1, 1, 2]
    assert FedClust().group(torch.zeros(1, 1)) == [0]


def test_only_final_layers_go_up_before_the_first_round() -> None:
    played, heard = overhear(
        FedClust(warmup=2), rounds=2, norm="batch", dtype=torch.float64
    )
    assert heard[0].t == 0
    ups = heard[0].up
    assert all(set(up.last) == {"head.weight", "head.bias"} for up in ups.values())
    site = played.runner
    with torch_settings(torch.float64):
        for k in (0, 3, 4):  # two epochs of plain training on the common first model
            c = site.client(k, 0, Purpose.CALL, 0, 1)
            w = c.train(c.loss, site.new(0), epochs=2)
            assert gap(ups[k].last, {n: w[n] for n in ups[k].last}) == 0.0
        first = site.new(0)
    assert [sent.call.function for sent in heard] == ["warm_up", "local", "local"]
    for sent in heard[:2]:  # the warm-up's models are thrown away
        assert all(gap(down.w, first) == 0.0 for down in sent.down.values())


def test_another_final_layer_can_be_named() -> None:
    assert FedClust().with_defaults_for(small()).layer == "head"
    played = run_small(FedClust(warmup=1, layer="base.fc1"), rounds=1)
    assert set(played.server.last[0]) == {"base.fc1.weight", "base.fc1.bias"}
    with pytest.raises(UserError, match=r"base\.fc1"):
        FedClust(layer="base.fc7").with_defaults_for(small())


# ---------------------------------------------------------------- training
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_one_cluster_is_fedavg_to_the_last_bit(norm: str) -> None:
    one, two = (
        run_small(m, norm=norm).server
        for m in (FedClust(clusters=1, warmup=1), FedAvg())
    )
    assert len(one.models) == 1 and all(
        torch.equal(one.models[0][k], two.w[k]) for k in two.w
    )
    assert (
        FedClust(clusters=1).warnings()
        and FedClust(quantile=0.0).warnings()
        and not FedClust().warnings()
    )


def test_clusters_of_one_train_alone() -> None:
    one, two = run_small(FedClust(clusters=6, warmup=1)), run_small(Local())
    for k in range(6):
        w = one.server.models[one.server.cluster[k]]
        assert all(torch.equal(w[name], v) for name, v in two.keep(k).w.items())


def test_a_clusters_model_is_its_members_mean_by_data() -> None:
    played, heard = overhear(
        FedClust(clusters=3, warmup=3), rounds=1, dtype=torch.float64
    )
    ups, cluster = heard[-1].up, played.server.cluster
    n = [len(i) for i in played.runner.world.federation.train]
    assert max(map(len, members(cluster))) > 1
    for j, w in enumerate(played.server.models):
        mine = [k for k in range(6) if cluster[k] == j]
        total = sum(n[k] for k in mine)
        mean = {name: sum(n[k] * ups[k].w[name] for k in mine) / total for name in w}
        assert gap(w, mean) < 1e-12


# ---------------------------------------------------------------- newcomers
def forget(server: Server, *clients: int) -> Server:
    return server._replace(
        cluster={i: j for i, j in server.cluster.items() if i not in clients},
        last={i: v for i, v in server.last.items() if i not in clients},
    )


def test_newcomers_join_the_nearest_cluster(played: SmallRun) -> None:
    method, server = played.runner.method, forget(played.server, 2, 7)
    with torch_settings():
        found = method.setup(server, Cohort(played.exchange, [2, 7], 2))
    assert found.cluster == played.server.cluster and found.models == server.models
    assert found.last.keys() == played.server.last.keys()


def test_a_late_newcomer_warms_up_at_the_first_rounds_learning_rate(
    played: SmallRun,
) -> None:
    fading = run_small(FedClust(warmup=1), rounds=1, plan=Plan(lr=0.1, lr_decay=0.5))
    method, site = fading.runner.method, fading.runner
    with torch_settings():
        down = Down(fading.server.first)
        early, late = (
            method.warm_up(site.client(0, t, Purpose.CALL, 0, 1), down, None)[0]
            for t in (0, 9)
        )
    assert (
        gap(early, late) == 0.0
        and gap(early.last, {n: down.w[n] for n in early.last}) > 0
    )


def test_one_whose_final_layer_got_lost_is_asked_again() -> None:
    played, heard = overhear(FedClust(), rounds=2, federation=planted(2), plan=PLAN)
    heard.clear()
    method, server = played.runner.method, forget(played.server, 4)
    with torch_settings():
        after = method.round(server, Cohort(played.exchange, [4, 6], 3))
    calls = [(sent.call.function, list(sent.up)) for sent in heard]
    assert calls == [("warm_up", [4]), ("local", [4, 6])]
    assert after.cluster == played.server.cluster


def test_a_client_never_seen_is_sent_the_largest_clusters_model(
    played: SmallRun,
) -> None:
    method = played.runner.method
    with torch_settings():
        first = method.init(played.runner.new, 8)
    assert method.send(first, 99).w is first.first
    server = forget(played.server, 1)
    assert method.send(server, 99).w is server.models[server.cluster[0]]


@pytest.mark.parametrize(
    "how", [{"share": 0.5}, {"drop": 0.5}, {"share": 0.5, "drop": 0.3, "late": True}]
)
def test_clients_with_a_final_layer_have_a_cluster(how: dict[str, Any]) -> None:
    played = run_small(FedClust(warmup=2), rounds=4, norm="batch", **how)
    assert played.server.last.keys() == played.server.cluster.keys()
