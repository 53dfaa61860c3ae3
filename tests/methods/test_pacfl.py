"""PACFL: clusters by angles between data, once; one cluster is FedAvg; newcomers go by the same
angles.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from torch import nn

from fedtailor.core.errors import Unsupported
from fedtailor.core.rng import Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import tensors
from fedtailor.data.federation import Federation
from fedtailor.maths.clustering import measure_angles
from fedtailor.method import Cohort
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.local import Local
from fedtailor.methods.pacfl import PACFL, Server
from fedtailor.models.backbone import Backbone
from fedtailor.testing.small_world import SmallRun, digits, run_small
from fedtailor.training.optim import Plan
from helpers import gap, members, overhear

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


TWO = {frozenset(range(0, 8, 2)), frozenset(range(1, 8, 2))}


@pytest.fixture(scope="module")
def played() -> SmallRun:
    return run_small(PACFL(beta=3.0), rounds=2, federation=disjoint(), plan=PLAN)


# ---------------------------------------------------------------- clusters
def test_two_disjoint_groups_of_labels_are_parted(played: SmallRun) -> None:
    assert members(played.server.cluster) == TWO
    assert played.runner.method.closing_remarks(played.server) == [
        "PACFL made 2 clusters of 4 and 4 clients"
    ]


@pytest.mark.parametrize("angle", ["smallest", "entries", "sum"])
@pytest.mark.parametrize("linkage", ["average", "complete", "single"])
def test_every_measure_parts_them_at_some_beta(
    played: SmallRun, angle: Any, linkage: Any
) -> None:
    bases = [played.server.basis[k] for k in range(8)]
    d = measure_angles(bases, bases, angle)
    same = torch.tensor(
        [[i % 2 == j % 2 and i != j for j in range(8)] for i in range(8)]
    )
    cross = torch.tensor([[i % 2 != j % 2 for j in range(8)] for i in range(8)])
    assert float(d[same].max()) < float(d[cross].min())
    beta = float(d[same].max() + d[cross].min()) / 2
    method = PACFL(beta=beta, angle=angle, linkage=linkage)
    with torch_settings():
        server = method.setup(
            method.init(played.runner.new, 8), Cohort(played.exchange, range(8), 0)
        )
    assert members(server.cluster) == TWO


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
        # directions travel in float32
        assert float(found) == pytest.approx(exact, abs=1e-3)


def test_what_goes_up_is_p_directions_of_every_class_and_no_example() -> None:
    federation = disjoint()
    played, heard = overhear(PACFL(p=2), rounds=1, federation=federation)
    assert heard[0].t == 0 and tensors(heard[0].down) == []
    for k, up in heard[0].up.items():
        assert up._fields == ("basis",)
        assert up.basis.shape == (10, 64)  # five classes, two directions each
        assert torch.allclose(up.basis.norm(dim=1), torch.ones(10), atol=1e-5)
        x = federation.x[federation.train[k]].flatten(1)
        assert float((up.basis[:, None] - x[None]).abs().amax(-1).min()) > 0.1
    assert [sent.call.function for sent in heard] == [
        "span",
        "local",
    ]  # once and for all
    assert played.server.basis.keys() == played.server.cluster.keys()


def test_the_cap_bounds_what_is_looked_at_and_small_classes_have_few_directions() -> (
    None
):
    played = run_small(PACFL(cap=2, p=3), rounds=1)
    federation = played.runner.world.federation
    for k in range(6):
        counts = federation.y[federation.train[k]].bincount()
        assert len(played.server.basis[k]) == int(counts.clamp(max=2).sum())


# ---------------------------------------------------------------- training
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_one_cluster_is_fedavg_to_the_last_bit(norm: str) -> None:
    one, two = (run_small(m, norm=norm).server for m in (PACFL(beta=90.0), FedAvg()))
    assert len(one.models) == 1 and all(
        torch.equal(one.models[0][k], two.w[k]) for k in two.w
    )
    assert (
        PACFL(beta=90.0).warnings()
        and PACFL(beta=0.0).warnings()
        and not PACFL().warnings()
    )


def test_clusters_of_one_train_alone() -> None:
    one, two = run_small(PACFL(beta=0.0)), run_small(Local())
    assert len(one.server.models) == 6
    for k in range(6):
        w = one.server.models[one.server.cluster[k]]
        assert all(torch.equal(w[name], v) for name, v in two.keep(k).w.items())


def test_clusters_do_not_mix() -> None:
    played, heard = overhear(
        PACFL(beta=3.0), rounds=1, federation=disjoint(), plan=PLAN, dtype=torch.float64
    )
    ups = heard[-1].up
    for k in range(8):
        mean = {n: sum(ups[i].w[n] for i in range(k % 2, 8, 2)) / 4 for n in ups[k].w}
        assert gap(played.server.models[played.server.cluster[k]], mean) < 1e-12


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
    assert members(found.cluster) == TWO and len(found.models) == 3
    assert found.models[2] is server.first


def test_one_whose_signature_got_lost_is_asked_again() -> None:
    played, heard = overhear(
        PACFL(beta=3.0), rounds=2, federation=disjoint(), plan=PLAN
    )
    heard.clear()
    method, server = played.runner.method, forget(played.server, 4)
    with torch_settings():
        after = method.round(server, Cohort(played.exchange, [4, 6], 3))
    calls = [(sent.call.function, list(sent.up)) for sent in heard]
    assert calls == [("span", [4]), ("local", [4, 6])]
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


# ---------------------------------------------------------------- executors and rough worlds
def test_directions_are_found_one_client_at_a_time() -> None:
    many = run_small(PACFL(), rounds=2, executor="vmap")
    assert many.executor.notices() == [
        "vmap: 'span' runs one client at a time, because it is marked one_by_one"
    ]


@pytest.mark.parametrize(
    "how", [{"share": 0.5}, {"drop": 0.5}, {"share": 0.5, "drop": 0.3, "late": True}]
)
def test_every_cluster_has_a_model(how: dict[str, Any]) -> None:
    server = run_small(PACFL(), rounds=4, norm="batch", **how).server
    assert set(server.cluster.values()) <= set(range(len(server.models)))
