"""PACFL: clusters by angles between data, once; one cluster is FedAvg; newcomers go by the same angles."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from torch import nn

from fedtailor.core.errors import Unsupported
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Tree, tensors
from fedtailor.core.wire import decode, encode
from fedtailor.data.federation import Federation
from fedtailor.engine.exchange import Exchange
from fedtailor.maths.clustering import measure_angles
from fedtailor.method import Cohort
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.local import Local
from fedtailor.methods.pacfl import PACFL, Ask, Server
from fedtailor.models.backbone import Backbone
from fedtailor.testing.small_world import SmallRun, digits, run_small
from fedtailor.training.optim import Plan

PLAN = Plan(lr=0.1, batch=10)


def disjoint(clients: int = 8, n: int = 60) -> Federation:
    """Real digits: clients with even numbers have 0 to 4, the others 5 to 9."""
    f = digits(sizes=(n,) * clients, skew=False)
    order = Rng.seed(5).permutation(len(f.y))
    halves = [order[f.y[order] < 5], order[f.y[order] >= 5]]
    train, val, test = [], [], []
    for k in range(clients):
        mine = halves[k % 2][k // 2 * (n + 16) :]
        train.append(mine[:n])
        val.append(mine[n : n + 8])
        test.append(mine[n + 8 : n + 16])
    return replace(f, train=train, val=val, test=test)


def parts(cluster: dict[int, int]) -> set[frozenset[int]]:
    return {frozenset(k for k, j in cluster.items() if j == one) for one in cluster.values()}


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


TWO = {frozenset(range(0, 8, 2)), frozenset(range(1, 8, 2))}


@pytest.fixture(scope="module")
def played() -> SmallRun:
    return run_small(PACFL(beta=3.0), rounds=2, federation=disjoint(), plan=PLAN)


# ---------------------------------------------------------------- clusters
def test_two_disjoint_groups_of_labels_are_parted(played: SmallRun) -> None:
    assert parts(played.server.cluster) == TWO
    assert played.runner.method.closing_remarks(played.server) == [
        "PACFL made 2 clusters of 4 and 4 clients"
    ]


@pytest.mark.parametrize("angle", ["smallest", "entries", "sum"])
@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
def test_every_measure_parts_them_at_some_beta(played: SmallRun, angle: Any, linkage: Any) -> None:
    bases = [played.server.basis[k] for k in range(8)]
    d = measure_angles(bases, bases, angle)
    same = torch.tensor([[i % 2 == j % 2 and i != j for j in range(8)] for i in range(8)])
    cross = torch.tensor([[i % 2 != j % 2 for j in range(8)] for i in range(8)])
    assert float(d[same].max()) < float(d[cross].min())
    beta = float(d[same].max() + d[cross].min()) / 2
    method = PACFL(beta=beta, angle=angle, linkage=linkage)
    with torch_settings():
        server = method.setup(
            method.init(played.runner.new, 8), Cohort(played.exchange, range(8), 0)
        )
    assert parts(server.cluster) == TWO


def test_the_angle_is_the_exact_smallest_one(played: SmallRun) -> None:
    """Checked against another implementation, from the raw pixels on."""
    f = played.runner.world.federation

    def directions(k: int) -> np.ndarray:
        x, y = f.x[f.train[k]].double().flatten(1) + 1, f.y[f.train[k]]
        classes = [
            np.linalg.svd(x[y == c].numpy().T, full_matrices=False)[0][:, :3]
            for c in y.unique().tolist()
        ]
        return np.concatenate(classes, 1)

    for i, j in ((0, 1), (2, 6), (3, 5)):
        exact = np.degrees(subspace_angles(directions(i), directions(j)).min())
        found = measure_angles([played.server.basis[i]], [played.server.basis[j]])
        assert float(found) == pytest.approx(exact, abs=1e-3)  # directions travel in float32


def test_what_goes_up_is_p_directions_of_every_class_and_no_example(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = hear(monkeypatch)
    federation = disjoint()
    played = run_small(PACFL(p=2), rounds=1, federation=federation)
    name, t, downs, ups = heard[0]
    assert (name, t) == ("span", 0) and tensors(downs) == []
    for k, up in ups.items():
        assert up._fields == ("basis",) and up.basis.shape == (
            10,
            64,
        )  # five classes, two directions each
        assert torch.allclose(up.basis.norm(dim=1), torch.ones(10), atol=1e-5)
        x = federation.x[federation.train[k]].flatten(1)
        assert float((up.basis[:, None] - x[None]).abs().amax(-1).min()) > 0.1
    assert [name for name, *_ in heard[1:]] == ["local"]  # once and for all
    assert played.server.basis.keys() == played.server.cluster.keys()


def test_the_cap_bounds_what_is_looked_at_and_small_classes_have_few_directions() -> None:
    played = run_small(PACFL(cap=2, p=3), rounds=1)
    federation = played.runner.world.federation
    for k in range(6):
        counts = federation.y[federation.train[k]].bincount()
        assert len(played.server.basis[k]) == int(counts.clamp(max=2).sum())


# ---------------------------------------------------------------- training
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_one_cluster_is_fedavg_to_the_last_bit(norm: str) -> None:
    one, two = (run_small(m, norm=norm).server for m in (PACFL(beta=90.0), FedAvg()))
    assert len(one.models) == 1 and all(torch.equal(one.models[0][k], two.w[k]) for k in two.w)
    assert PACFL(beta=90.0).warnings() and PACFL(beta=0.0).warnings() and not PACFL().warnings()


def test_clusters_of_one_train_alone() -> None:
    one, two = run_small(PACFL(beta=0.0)), run_small(Local())
    assert len(one.server.models) == 6
    for k in range(6):
        w = one.server.models[one.server.cluster[k]]
        assert all(torch.equal(w[name], v) for name, v in two.keep(k).w.items())


def test_clusters_do_not_mix(played: SmallRun, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = hear(monkeypatch)
    again = run_small(
        PACFL(beta=3.0), rounds=1, federation=disjoint(), plan=PLAN, dtype=torch.float64
    )
    ups = heard[-1][3]
    for k in range(8):
        mean = {n: sum(ups[i].w[n] for i in range(k % 2, 8, 2)) / 4 for n in ups[k].w}
        assert gap(again.server.models[again.server.cluster[k]], mean) < 1e-12


def test_a_network_of_words_is_refused() -> None:
    words = Backbone(nn.EmbeddingBag(50, 4), nn.Linear(4, 2), features=4)
    with pytest.raises(Unsupported, match="ids of words"):
        PACFL().net(words)


# ---------------------------------------------------------------- newcomers
def forget(server: Server, *clients: int) -> Server:
    return server._replace(
        cluster={i: j for i, j in server.cluster.items() if i not in clients},
        basis={i: v for i, v in server.basis.items() if i not in clients},
    )


def test_newcomers_join_the_nearest_cluster(played: SmallRun) -> None:
    method, server = played.runner.method, forget(played.server, 2, 7)
    with torch_settings():
        found = method.setup(server, Cohort(played.exchange, [2, 7], 2))
    assert found.cluster == played.server.cluster and found.models == server.models


def test_a_newcomer_far_from_all_founds_a_cluster(played: SmallRun) -> None:
    method, server = played.runner.method, forget(played.server, *range(1, 8, 2))
    with torch_settings():
        found = method.setup(server, Cohort(played.exchange, [1, 3, 5, 7], 2))
    assert parts(found.cluster) == TWO and len(found.models) == 3
    assert found.models[2] is server.first


def test_one_whose_signature_got_lost_is_asked_again(
    played: SmallRun, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = hear(monkeypatch)
    method, server = played.runner.method, forget(played.server, 4)
    with torch_settings():
        after = method.round(server, Cohort(played.exchange, [4, 6], 3))
    assert [(name, list(ups)) for name, _, _, ups in heard] == [("span", [4]), ("local", [4, 6])]
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
        assert method.after_training(site.client(0, 3), down, up, keep) is up.w
        w = method.personal(site.client(0, 3), down, keep)
        assert torch.isfinite(method.predict(site.client(0, 3), w, site.test_examples(0).x)).all()
        signature, _ = method.span(site.client(0, 3), Ask(), None)
        assert torch.equal(signature.basis, played.server.basis[0])


# ---------------------------------------------------------------- executors, rough worlds, learning
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_vectorised_clients_agree(norm: str) -> None:
    options: dict[str, Any] = {"rounds": 2, "norm": norm, "dtype": torch.float64}
    one, many = run_small(PACFL(), **options), run_small(PACFL(), executor="vmap", **options)
    assert gap(one.server, many.server) < 1e-9 and one.server.cluster == many.server.cluster
    assert many.executor.notices() == [
        "vmap: 'span' runs one client at a time, because it is marked one_by_one"
    ]


def test_worker_processes_agree_to_the_last_bit() -> None:
    many = run_small(PACFL(), rounds=2, norm="batch", executor="processes")
    digest = many.hash
    many.executor.close()
    assert digest == run_small(PACFL(), rounds=2, norm="batch").hash


@pytest.mark.parametrize(
    "how", [{"share": 0.5}, {"drop": 0.5}, {"share": 0.5, "drop": 0.3, "late": True}]
)
def test_copes_with_absent_clients(how: dict[str, Any]) -> None:
    played = run_small(PACFL(), rounds=4, norm="batch", **how)
    assert all(bool(torch.isfinite(x).all()) for x in tensors(played.server))
    assert set(played.server.cluster.values()) <= set(range(len(played.server.models)))
    assert played.hash == run_small(PACFL(), rounds=4, norm="batch", **how).hash


def test_the_server_survives_a_checkpoint(played: SmallRun) -> None:
    again = decode(Server, encode(played.server))
    assert again.cluster == played.server.cluster and gap(again, played.server) == 0.0


def test_personal_models_learn() -> None:
    before, after = (
        run_small(PACFL(beta=3.0), rounds=t, federation=disjoint(), plan=PLAN) for t in (1, 12)
    )
    assert after.accuracy() > max(0.6, before.accuracy() + 0.2)
