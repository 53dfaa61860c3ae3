"""FedClust: clusters by final layers, once; one cluster is FedAvg; newcomers go by the same distance."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Tree, tensors
from fedtailor.core.wire import decode, encode
from fedtailor.data.federation import Federation
from fedtailor.engine.exchange import Exchange
from fedtailor.method import Cohort
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedclust import Down, FedClust, Server
from fedtailor.methods.local import Local
from fedtailor.testing.small_world import SmallRun, digits, run_small, small
from fedtailor.training.optim import Plan

PLAN = Plan(lr=0.1, batch=10)


def planted(groups: int, clients: int = 8, n: int = 40) -> Federation:
    """Real digits, dealt evenly; client k reads them as group k % groups does: with its own shift of the labels."""
    f = digits(sizes=(n,) * clients, skew=False)
    y = f.y.clone()
    for k in range(clients):
        mine = torch.cat([f.train[k], f.val[k], f.test[k]])
        y[mine] = (f.y[mine] + k % groups * 10 // groups) % 10
    return replace(f, y=y)


def parts(cluster: dict[int, int]) -> set[frozenset[int]]:
    return {frozenset(k for k, j in cluster.items() if j == one) for one in cluster.values()}


def by_remainder(groups: int, clients: int = 8) -> set[frozenset[int]]:
    return parts({k: k % groups for k in range(clients)})


def gap(a: Tree, b: Tree) -> float:
    pairs = list(zip(tensors(a), tensors(b), strict=True))
    return max((float((x - y).abs().max()) for x, y in pairs if x.numel()), default=0.0)


def hear(
    monkeypatch: pytest.MonkeyPatch,
) -> list[tuple[str, int, dict[int, Tree], dict[int, Tree]]]:
    """What really goes over the wire from now on: function, round, downloads, uploads."""
    heard: list[tuple[str, int, dict[int, Tree], dict[int, Tree]]] = []
    call = Exchange.call

    def listen(self: Exchange, name: str, downs: dict[int, Tree], t: int, number: int) -> Any:
        replies = call(self, name, downs, t, number)
        heard.append((name, t, dict(downs), {k: up for k, (_, up) in replies.items()}))
        return replies

    monkeypatch.setattr(Exchange, "call", listen)
    return heard


@pytest.fixture(scope="module")
def played() -> SmallRun:
    return run_small(FedClust(), rounds=2, federation=planted(2), plan=PLAN)


# ---------------------------------------------------------------- clusters
def test_two_planted_groups_are_found_by_the_median(played: SmallRun) -> None:
    assert parts(played.server.cluster) == by_remainder(2)
    assert played.runner.method.closing_remarks(played.server) == [
        "FedClust made 2 clusters of 4 and 4 clients"
    ]


def test_four_planted_groups_are_found_by_their_number() -> None:
    played = run_small(FedClust(clusters=4), rounds=1, federation=planted(4), plan=PLAN)
    assert parts(played.server.cluster) == by_remainder(4)


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


def test_only_final_layers_go_up_before_the_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = hear(monkeypatch)
    played = run_small(FedClust(warmup=2), rounds=2, norm="batch", dtype=torch.float64)
    name, t, downs, ups = heard[0]
    assert (name, t) == ("warm_up", 0) and all(
        set(up.last) == {"head.weight", "head.bias"} for up in ups.values()
    )
    site = played.runner
    with torch_settings(torch.float64):
        for k in (0, 3, 4):  # two epochs of plain training on the common first model
            c = site.client(k, 0, Purpose.CALL, 0, 1)
            w = c.train(c.loss, site.new(0), epochs=2)
            assert gap(ups[k].last, {n: w[n] for n in ups[k].last}) == 0.0
        first = site.new(0)
    assert [name for name, *_ in heard] == ["warm_up", "local", "local"]
    for sent in (downs, heard[1][2]):  # the warm-up's models are thrown away
        assert all(gap(down.w, first) == 0.0 for down in sent.values())


def test_another_final_layer_can_be_named() -> None:
    assert FedClust().with_defaults_for(small()).layer == "head"
    played = run_small(FedClust(warmup=1, layer="base.fc1"), rounds=1)
    assert set(played.server.last[0]) == {"base.fc1.weight", "base.fc1.bias"}
    with pytest.raises(UserError, match=r"base\.fc1"):
        FedClust(layer="base.fc7").with_defaults_for(small())


# ---------------------------------------------------------------- training
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_one_cluster_is_fedavg_to_the_last_bit(norm: str) -> None:
    one, two = (run_small(m, norm=norm).server for m in (FedClust(clusters=1, warmup=1), FedAvg()))
    assert len(one.models) == 1 and all(torch.equal(one.models[0][k], two.w[k]) for k in two.w)
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


def test_a_clusters_model_is_its_members_mean_by_data(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = hear(monkeypatch)
    played = run_small(FedClust(clusters=3, warmup=3), rounds=1, dtype=torch.float64)
    ups, cluster = heard[-1][3], played.server.cluster
    n = [len(i) for i in played.runner.world.federation.train]
    assert max(map(len, parts(cluster))) > 1
    for j, w in enumerate(played.server.models):
        mine = [k for k in range(6) if cluster[k] == j]
        for name, v in w.items():
            assert (
                gap(v, sum(n[k] * ups[k].w[name] for k in mine) / sum(n[k] for k in mine)) < 1e-12
            )


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


def test_a_late_newcomer_warms_up_at_the_first_rounds_learning_rate(played: SmallRun) -> None:
    fading = run_small(FedClust(warmup=1), rounds=1, plan=Plan(lr=0.1, lr_decay=0.5))
    method, site = fading.site.method, fading.site
    with torch_settings():
        down = Down(fading.server.first)
        early, late = (
            method.warm_up(site.client(0, t, Purpose.CALL, 0, 1), down, None)[0] for t in (0, 9)
        )
    assert gap(early, late) == 0.0 and gap(early.last, {n: down.w[n] for n in early.last}) > 0


def test_one_whose_final_layer_got_lost_is_asked_again(
    played: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = hear(monkeypatch)
    method, server = played.runner.method, forget(played.server, 4)
    with torch_settings():
        after = method.round(server, Cohort(played.exchange, [4, 6], 3))
    assert [(name, list(ups)) for name, _, _, ups in heard] == [("warm_up", [4]), ("local", [4, 6])]
    assert after.cluster == played.server.cluster


def test_serves_a_client_never_seen(played: SmallRun) -> None:
    method, site = played.runner.method, played.runner
    with torch_settings():
        first = method.init(site.new, 8)
        assert method.send(first, 99).w is first.first
        server = forget(played.server, 1)
        down = method.send(server, 99)
        assert down.w is server.models[server.cluster[0]]  # the largest cluster's
        keep = method.first_keep(site.client(0, 3, Purpose.JOIN), down)
        up, keep = method.local(site.client(0, 3, Purpose.CALL, 3, 1), down, keep)
        w = method.personal(site.client(0, 3), down, keep)
        assert torch.isfinite(method.predict(site.client(0, 3), w, site.test_examples(0).x)).all()
        assert method.after_training(site.client(0, 3), down, up, keep) is up.w


# ---------------------------------------------------------------- executors, rough worlds, learning
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_vectorised_clients_agree(norm: str) -> None:
    options: dict[str, Any] = {"rounds": 2, "norm": norm, "dtype": torch.float64}
    one, many = (
        run_small(FedClust(warmup=3), **options),
        run_small(FedClust(warmup=3), executor="vmap", **options),
    )
    assert gap(one.server, many.server) < 1e-9 and one.server.cluster == many.server.cluster
    assert many.executor.notices() == []


def test_worker_processes_agree_to_the_last_bit() -> None:
    many = run_small(FedClust(warmup=3), rounds=2, norm="batch", executor="processes")
    digest = many.hash
    many.executor.close()
    assert digest == run_small(FedClust(warmup=3), rounds=2, norm="batch").hash


@pytest.mark.parametrize(
    "how", [{"share": 0.5}, {"drop": 0.5}, {"share": 0.5, "drop": 0.3, "late": True}]
)
def test_copes_with_absent_clients(how: dict[str, Any]) -> None:
    method = FedClust(warmup=2)
    played = run_small(method, rounds=4, norm="batch", **how)
    assert all(bool(torch.isfinite(x).all()) for x in tensors(played.server))
    assert played.server.last.keys() == played.server.cluster.keys()
    assert played.hash == run_small(method, rounds=4, norm="batch", **how).hash


def test_the_server_survives_a_checkpoint(played: SmallRun) -> None:
    again = decode(Server, encode(played.server))
    assert again.cluster == played.server.cluster and gap(again, played.server) == 0.0


def test_personal_models_learn() -> None:
    before, after = (
        run_small(FedClust(), rounds=t, federation=planted(2, 6), plan=PLAN) for t in (1, 12)
    )
    assert after.accuracy() > max(0.4, before.accuracy() + 0.2)
