"""FedEM: with one component FedAvg; E-step, M-step and means by hand; mixture weights stay at
home.
"""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional as F

from fedtailor.client import Batch
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, tensors
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedem import FedEM, Keep
from fedtailor.testing.small_world import SIZES, run_small
from fedtailor.training.optim import Plan
from helpers import UNKNOWN, gap, overhear, planted

PLAN = Plan(lr=0.2, batch=10)


# ---------------------------------------------------------------- laws
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_one_component_is_fedavg(norm: str) -> None:
    one, two = (run_small(m, norm=norm).server for m in (FedEM(m=1), FedAvg()))
    assert all(torch.equal(one.models[0][k], two.w[k]) for k in two.w)
    assert FedEM(m=1).warnings() and not FedEM().warnings()


def test_components_begin_unlike() -> None:
    server = FedEM(m=3).init(run_small(FedAvg(), rounds=1).runner.new, 6)
    weights = [w["head.weight"] for w in server.models]
    assert all(
        float((weights[i] - weights[j]).abs().max()) > 0.1
        for i, j in ((0, 1), (0, 2), (1, 2))
    )


def test_a_visit_is_the_papers_e_and_m_step() -> None:
    method = FedEM(m=2)
    played = run_small(method, rounds=1, dtype=torch.float64, plan=PLAN)
    site, models = played.runner, played.server.models
    pi = torch.tensor([0.3, 0.7], dtype=torch.float64)
    with torch_settings(torch.float64):
        up, keep = method.local(
            site.client(0, 2, Purpose.CALL, 2, 1),
            method.send(played.server, 0),
            Keep(pi),
        )
        c = site.client(0, 2, Purpose.CALL, 2, 1)
        likelihood = torch.stack(
            [c.model(w, c.x).softmax(-1)[torch.arange(c.n), c.y] for w in models], -1
        )
        q = pi * likelihood / (pi * likelihood).sum(-1, keepdim=True)
        assert gap(keep.pi, q.mean(0)) < 1e-12
        # the stream of batches goes on from component to component
        for m, w in enumerate(models):

            def loss(w: Params, batch: Batch, m: int = m) -> torch.Tensor:
                each = F.cross_entropy(c.model(w, batch.x), batch.y, reduction="none")
                return (q[batch.index, m] * each).sum() / len(batch.y)

            assert gap(up.models[m], c.train(loss, w)) < 1e-12


def test_absent_clients_count_with_the_old_model() -> None:
    played, heard = overhear(
        FedEM(m=2), rounds=1, share=0.5, drop=0.5, seed=1, dtype=torch.float64
    )
    downs, ups = heard[-1].down, heard[-1].up
    assert heard[-1].call.function == "local" and 0 < len(ups) < len(downs) == 3
    n = dict(enumerate(SIZES))
    everybody = sum(played.server.n.values())
    assert played.server.n == {k: n[k] for k in played.server.n} and set(ups) <= set(
        played.server.n
    )
    for m in range(2):
        old = next(iter(downs.values())).models[m]
        here = sum(n[k] for k in ups)
        for k, v in played.server.models[m].items():
            mean = (
                sum(n[i] * up.models[m][k] for i, up in ups.items())
                + (everybody - here) * old[k]
            )
            assert gap(v, mean / everybody) < 1e-12


def test_the_server_knows_all_numbers_of_examples_before_the_first_round() -> None:
    played, heard = overhear(FedEM(), rounds=1, share=0.2)
    assert played.server.n == dict(enumerate(SIZES))
    assert heard[0].call.function == "count" and heard[0].t == 0
    assert len(heard[0].up) == 6 and tensors(heard[0].up) == []


def test_predictions_are_mixtures_of_probabilities() -> None:
    played = run_small(FedEM(m=3), rounds=2, dtype=torch.float64)
    method, site, keep = played.runner.method, played.runner, played.keep(0)
    with torch_settings(torch.float64):
        c = site.client(0, 3)
        logits = method.predict(
            c, method.personal(c, method.send(played.server, 0), keep), c.x
        )
        mean = sum(
            p * c.model(w, c.x).softmax(-1)
            for p, w in zip(keep.pi, played.server.models, strict=True)
        )
        assert gap(logits.exp(), mean) < 1e-12


def test_a_component_of_weight_zero_is_harmless() -> None:
    played = run_small(FedEM(m=2), rounds=1)
    method, site = played.runner.method, played.runner
    with torch_settings():
        down, keep = method.send(played.server, 0), Keep(torch.tensor([1.0, 0.0]))
        up, kept = method.local(site.client(0, 2, Purpose.CALL, 2, 1), down, keep)
        assert kept.pi.tolist() == [1.0, 0.0]
        assert all(bool(torch.isfinite(x).all()) for x in tensors(up))
        # nobody's example is its business
        assert gap(up.models[1], down.models[1]) == 0.0
        logits = method.predict(
            site.client(0, 2),
            method.personal(site.client(0, 2), down, keep),
            site.test_examples(0).x,
        )
        assert torch.isfinite(logits).all()


def test_clients_of_a_kind_choose_the_same_component() -> None:
    played = run_small(FedEM(m=2), rounds=14, federation=planted(2, 6, 60), plan=PLAN)
    first = [float(played.keep(k).pi[0]) for k in range(6)]
    even, odd = first[::2], first[1::2]
    assert min(even) > max(odd) or max(even) < min(odd)
    assert abs(sum(even) - sum(odd)) / 3 > 0.3


# ---------------------------------------------------------------- privacy
def test_mixture_weights_never_go_up() -> None:
    played, heard = overhear(FedEM(), rounds=2)
    names = set(played.runner.new(0))
    for sent in heard[1:]:
        for up in sent.up.values():
            assert (
                up._fields == ("models",) and [set(w) for w in up.models] == [names] * 3
            )
    for k in range(6):
        pi = played.keep(k).pi
        assert float(pi.sum()) == pytest.approx(1.0) and float(pi.min()) >= 0
        assert float(pi.std()) > 0  # so that the next line says something
        sent = [x for call in heard for x in tensors(call.up.get(k))]
        assert sent and not any(
            x.shape == pi.shape and torch.equal(x, pi) for x in sent
        )


def test_a_client_begins_with_equal_weights() -> None:
    played = run_small(FedEM(m=2), rounds=1)
    method = played.runner.method
    down = method.send(played.server, UNKNOWN)
    keep = method.first_keep(played.runner.client(0, 2, Purpose.JOIN), down)
    assert keep.pi.tolist() == [0.5, 0.5]
