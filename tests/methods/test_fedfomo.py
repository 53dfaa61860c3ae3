"""FedFomo: mixtures by validation loss; what is sent to whom; clients without validation data."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, tensors
from fedtailor.core.wire import encode
from fedtailor.data.federation import Federation
from fedtailor.method import Cohort, Uploads
from fedtailor.methods.fedfomo import FedFomo, Server, Up, mix
from fedtailor.methods.local import Local
from fedtailor.testing.small_world import digits, run_small
from fedtailor.training.optim import Plan
from helpers import UNKNOWN, equal, gap, overhear, planted

PLAN = Plan(lr=0.1, batch=10)


def without_validation(f: Federation, *clients: int) -> Federation:
    return replace(f, val=[v[:0] if k in clients else v for k, v in enumerate(f.val)])


def model(*values: float) -> Params:
    return {"w": torch.tensor(values, dtype=torch.float64)}


def known(clients: int, affinity: dict[int, list[float]] | None = None) -> Server:
    """A server that has heard of so many clients."""
    rows = {k: torch.tensor(row) for k, row in (affinity or {}).items()}
    return Server(model(0.0), {k: model(float(k)) for k in range(clients)}, rows, {}, 0)


# ---------------------------------------------------------------- mixing
def test_weights_are_non_negative_and_sum_to_one() -> None:
    own, others = model(0.0, 0.0), [model(1.0, 0.0), model(0.0, 1.0), model(5.0, 5.0)]
    mixed = mix(own, others, torch.tensor([0.3, 0.1, -2.0], dtype=torch.float64))
    # own has no share left, the harmful one none either
    assert mixed["w"].tolist() == pytest.approx([0.75, 0.25])
    one = mix(
        model(7.0, 7.0), others, torch.tensor([1e-9, 0.0, 0.0], dtype=torch.float64)
    )
    assert one["w"].tolist() == pytest.approx([1.0, 0.0])


@pytest.mark.parametrize("gain", [[0.0, 0.0], [-1.0, -0.5]])
def test_without_positive_weights_the_own_model_stays(gain: list[float]) -> None:
    own = {"w": Rng.seed(1).normal(5)}
    others = [{"w": Rng.seed(2).normal(5)}, {"w": Rng.seed(3).normal(5)}]
    assert torch.equal(mix(own, others, torch.tensor(gain))["w"], own["w"])
    assert mix(own, [], torch.zeros(0)) is own


def test_gains_are_the_papers_and_decide_where_training_starts() -> None:
    method = FedFomo(m=3)
    played = run_small(
        method, rounds=3, federation=planted(2, 6), dtype=torch.float64, norm="batch"
    )
    site = played.runner
    with torch_settings(torch.float64):
        downs = {k: method.send(played.server, k) for k in range(6)}
        k = next(
            k
            for k in downs
            if bool((method.weigh(site.client(k, 4), downs[k]) > 0).any())
        )
        c, down = site.client(k, 4, Purpose.CALL, 4, 1), downs[k]
        up, _ = method.local(c, down, None)

        def val(w: Params) -> Tensor:
            return F.cross_entropy(c.model(w, c.val.x), c.val.y)

        def trained(w: Params) -> Tensor:
            return torch.cat([v.flatten() for k, v in w.items() if "running" not in k])

        gains = [
            (val(down.own) - val(w)) / (trained(w) - trained(down.own)).norm()
            for w in down.others
        ]
        assert len(gains) == 3 and gap(up.gain, torch.stack(gains)) < 1e-12
        weight = torch.stack(gains).clamp(min=0)
        assert float(weight.sum()) > 0
        weight = weight / weight.sum()
        start = {
            n: v + sum(a * (w[n] - v) for a, w in zip(weight, down.others, strict=True))
            for n, v in down.own.items()
        }
        again = site.client(k, 4, Purpose.CALL, 4, 1)
        assert gap(up.own, again.train(again.loss, start)) < 1e-12


# ---------------------------------------------------------------- choosing
def test_the_best_by_affinity_are_sent() -> None:
    method = FedFomo(m=2, epsilon=0.0)
    server = known(5, {0: [0.0, -1.0, 3.0, 0.5, 2.0]})
    assert method.choose(server, 0, 1, Rng.seed(1)) == [2, 4]
    assert [float(w["w"]) for w in method.send(server, 0).others] == [2.0, 4.0]


def test_equal_affinities_are_chosen_in_random_order() -> None:
    method = FedFomo(m=1, epsilon=0.0)
    chosen = [method.choose(known(5), 0, 1, Rng.seed(i))[0] for i in range(100)]
    assert set(chosen) == {1, 2, 3, 4} and all(
        10 < chosen.count(j) < 40 for j in (1, 2, 3, 4)
    )


@pytest.mark.parametrize(("t", "share"), [(1, 0.3), (4, 0.15), (7, 0.0), (30, 0.0)])
def test_exploration_fades(t: int, share: float) -> None:
    """With affinity for client 1 alone, another one comes in its place only by exploration (in
    9 of 10 draws).
    """
    method, server = FedFomo(m=1), known(11, {0: [0.0, 5.0]})
    missed = (
        sum(method.choose(server, 0, t, Rng.seed(t, i)) != [1] for i in range(600))
        / 600
    )
    assert missed == pytest.approx(0.9 * share, abs=0.05)
    assert missed > 0 or share == 0


def test_nobody_is_sent_its_own_model_or_one_twice() -> None:
    method = FedFomo(m=4, epsilon=1.0, decay=0.0)
    for i in range(30):
        chosen = method.choose(known(7, {2: [1.0, 0.0, 9.0]}), 2, 1, Rng.seed(i))
        assert len(set(chosen)) == 4 and 2 not in chosen


def test_few_models_are_sent_where_there_are_few() -> None:
    assert FedFomo().choose(known(0), 0, 1, Rng.seed(0)) == []
    assert len(FedFomo().choose(known(3), 0, 1, Rng.seed(0))) == 2
    # as many as anybody's, so that clients can be stacked
    assert len(FedFomo().choose(known(3), 99, 1, Rng.seed(0))) == 2


def test_what_was_chosen_is_what_was_sent() -> None:
    played, heard = overhear(FedFomo(m=2), rounds=3)
    last: dict[int, Params] = {}
    for sent in heard:
        for k, down in sent.down.items():
            assert len(down.others) == (0 if sent.t == 1 else 2)
            owners = [
                next(j for j, w in last.items() if equal(w, one)) for one in down.others
            ]
            assert k not in owners and len(set(owners)) == len(owners)
        last |= {k: up.own for k, up in sent.up.items()}
    assert played.server.chosen == {}
    assert equal(played.server.w, last)


def test_sending_is_deterministic() -> None:
    played = run_small(FedFomo(), rounds=2)
    method = played.runner.method
    assert all(
        encode(method.send(played.server, k)).keys()
        == encode(method.send(played.server, k)).keys()
        for k in (0, 99)
    )
    assert gap(method.send(played.server, 0), method.send(played.server, 0)) == 0.0


def test_affinities_add_up() -> None:
    method = FedFomo(m=2)
    server = known(4, {1: [0.5]})._replace(chosen={1: [0, 3], 2: [1, 0]})
    replies = [
        Up(model(1.0), torch.tensor([0.25, -1.0])),
        Up(model(2.0), torch.tensor([2.0, 1.0])),
    ]
    server = method.merge(
        server, Uploads([1, 2], torch.ones(2, dtype=torch.float64), replies)
    )
    assert server.affinity[1].tolist() == [0.75, 0.0, 0.0, -1.0] and server.affinity[
        2
    ].tolist() == [1.0, 2.0]
    assert server.mixed == 2 and set(server.affinity) == {1, 2}


def test_clients_of_a_kind_find_each_other() -> None:
    played = run_small(
        FedFomo(m=3, epsilon=1.0, decay=0.0),
        rounds=8,
        federation=planted(2, 6),
        plan=PLAN,
    )
    alike, unlike = [], []
    for k, row in played.server.affinity.items():
        for j, liking in enumerate(row.tolist()):
            if j != k:
                (alike if j % 2 == k % 2 else unlike).append(liking)
    assert sum(alike) / len(alike) > sum(unlike) / len(unlike) + 0.1
    assert played.runner.method.closing_remarks(played.server) == []


# ---------------------------------------------------------------- validation data
@pytest.mark.parametrize("executor", ["sequential", "vmap"])
def test_clients_without_validation_data_train_alone(executor: str) -> None:
    federation = without_validation(digits(), 0, 2, 4)
    options: dict[str, Any] = {
        "rounds": 3,
        "federation": federation,
        "dtype": torch.float64,
        "executor": executor,
    }
    played, alone = run_small(FedFomo(), **options), run_small(Local(), **options)
    assert played.executor.notices() == [] and not played.exchange.traffic.lost
    for k in (0, 2, 4):
        assert gap(played.server.w[k], alone.keep(k).w) < 1e-9
        assert played.server.affinity[k].abs().max() == 0
    assert max(gap(played.server.w[k], alone.keep(k).w) for k in (1, 3, 5)) > 1e-3


def test_nobodys_validation_data_is_local_training_and_is_remarked() -> None:
    federation = without_validation(digits(), *range(6))
    for executor in ("sequential", "vmap"):
        played = run_small(
            FedFomo(), rounds=2, federation=federation, executor=executor
        )
        assert played.executor.notices() == []
        assert all(bool(torch.isfinite(x).all()) for x in tensors(played.server))
    (remark,) = played.runner.method.closing_remarks(played.server)
    assert "trained alone" in remark


# ---------------------------------------------------------------- rough worlds
@pytest.mark.parametrize("executor", ["sequential", "vmap"])
def test_known_and_unknown_clients_are_evaluated_side_by_side(executor: str) -> None:
    how: dict[str, Any] = {
        "rounds": 5,
        "share": 0.5,
        "drop": 0.3,
        "norm": "batch",
        "late": True,
        "executor": executor,
    }
    played = run_small(FedFomo(m=2), **how)
    played.scores()
    assert played.executor.notices() == []


def test_a_client_never_seen_is_sent_the_first_model_and_others() -> None:
    played = run_small(FedFomo(m=2), rounds=2)
    method = played.runner.method
    down = method.send(played.server, UNKNOWN)
    assert down.own is played.server.first and len(down.others) == 2
    with torch_settings():
        after = method.round(played.server, Cohort(played.exchange, [0, 3], 3))
    assert set(after.w) == set(range(6))
