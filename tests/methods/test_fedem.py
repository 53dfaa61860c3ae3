"""FedEM: with one component FedAvg; E-step, M-step and means by hand; mixture weights stay at home."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from fedtailor.client import Batch
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, Tree, tensors
from fedtailor.data.federation import Federation
from fedtailor.engine.exchange import Exchange
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedem import FedEM, Keep
from fedtailor.testing.small_world import SIZES, digits, run_small
from fedtailor.training.optim import Plan

PLAN = Plan(lr=0.2, batch=10)


def planted(clients: int = 6, n: int = 60) -> Federation:
    """Real digits, dealt evenly; clients with odd numbers read them with shifted labels."""
    f = digits(sizes=(n,) * clients, skew=False)
    y = f.y.clone()
    for k in range(1, clients, 2):
        mine = torch.cat([f.train[k], f.val[k], f.test[k]])
        y[mine] = (f.y[mine] + 5) % 10
    return replace(f, y=y)


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
        float((weights[i] - weights[j]).abs().max()) > 0.1 for i, j in ((0, 1), (0, 2), (1, 2))
    )


def test_a_visit_is_the_papers_e_and_m_step() -> None:
    method = FedEM(m=2)
    played = run_small(method, rounds=1, dtype=torch.float64, plan=PLAN)
    site, models = played.runner, played.server.models
    pi = torch.tensor([0.3, 0.7], dtype=torch.float64)
    with torch_settings(torch.float64):
        up, keep = method.local(
            site.client(0, 2, Purpose.CALL, 2, 1), method.send(played.server, 0), Keep(pi)
        )
        c = site.client(0, 2, Purpose.CALL, 2, 1)
        likelihood = torch.stack(
            [c.model(w, c.x).softmax(-1)[torch.arange(c.n), c.y] for w in models], -1
        )
        q = pi * likelihood / (pi * likelihood).sum(-1, keepdim=True)
        assert gap(keep.pi, q.mean(0)) < 1e-12
        for m, w in enumerate(models):  # the stream of batches goes on from component to component

            def loss(w: Params, batch: Batch, m: int = m) -> torch.Tensor:
                each = F.cross_entropy(c.model(w, batch.x), batch.y, reduction="none")
                return (q[batch.index, m] * each).sum() / len(batch.y)

            assert gap(up.models[m], c.train(loss, w)) < 1e-12


def test_absent_clients_count_with_the_old_model(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = hear(monkeypatch)
    played = run_small(FedEM(m=2), rounds=1, share=0.5, drop=0.5, seed=1, dtype=torch.float64)
    name, _, downs, ups = heard[-1]
    assert name == "local" and 0 < len(ups) < len(downs) == 3
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
                sum(n[i] * up.models[m][k] for i, up in ups.items()) + (everybody - here) * old[k]
            )
            assert gap(v, mean / everybody) < 1e-12


def test_the_server_knows_all_numbers_of_examples_before_the_first_round(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    heard = hear(monkeypatch)
    played = run_small(FedEM(), rounds=1, share=0.2)
    assert played.server.n == dict(enumerate(SIZES))
    name, t, _, ups = heard[0]
    assert (name, t, len(ups)) == ("count", 0, 6) and tensors(ups) == []


def test_predictions_are_mixtures_of_probabilities() -> None:
    played = run_small(FedEM(m=3), rounds=2, dtype=torch.float64)
    method, site, keep = played.runner.method, played.runner, played.keep(0)
    with torch_settings(torch.float64):
        c = site.client(0, 3)
        logits = method.predict(c, method.personal(c, method.send(played.server, 0), keep), c.x)
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
        assert gap(up.models[1], down.models[1]) == 0.0  # nobody's example is its business
        logits = method.predict(
            site.client(0, 2),
            method.personal(site.client(0, 2), down, keep),
            site.test_examples(0).x,
        )
        assert torch.isfinite(logits).all()


def test_clients_of_a_kind_choose_the_same_component() -> None:
    played = run_small(FedEM(m=2), rounds=14, federation=planted(), plan=PLAN)
    first = [float(played.keep(k).pi[0]) for k in range(6)]
    even, odd = first[::2], first[1::2]
    assert min(even) > max(odd) or max(even) < min(odd)
    assert abs(sum(even) - sum(odd)) / 3 > 0.3


# ---------------------------------------------------------------- privacy, executors, rough worlds
def test_mixture_weights_never_go_up(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = hear(monkeypatch)
    played = run_small(FedEM(), rounds=2)
    names = set(played.runner.new(0))
    for name, _, _, ups in heard:
        for up in ups.values():
            if name == "local":
                assert up._fields == ("models",) and [set(w) for w in up.models] == [names] * 3
    for k in range(6):
        pi = played.keep(k).pi
        assert float(pi.sum()) == pytest.approx(1.0) and float(pi.min()) >= 0
        assert float(pi.std()) > 0  # so that the next line says something
        sent = [x for _, _, _, ups in heard for x in tensors(ups.get(k))]
        assert sent and not any(x.shape == pi.shape and torch.equal(x, pi) for x in sent)


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_vectorised_clients_agree(norm: str) -> None:
    options: dict[str, Any] = {"rounds": 2, "norm": norm, "dtype": torch.float64}
    one, many = run_small(FedEM(m=2), **options), run_small(FedEM(m=2), executor="vmap", **options)
    assert many.executor.notices() == []
    assert gap(one.server, many.server) < 1e-9
    assert max(gap(one.keep(k), many.keep(k)) for k in range(6)) < 1e-9


def test_worker_processes_agree_to_the_last_bit() -> None:
    many = run_small(FedEM(m=2), rounds=2, norm="batch", executor="processes")
    digest = many.hash
    many.executor.close()
    assert digest == run_small(FedEM(m=2), rounds=2, norm="batch").hash


def test_copes_with_absent_clients() -> None:
    how: dict[str, Any] = {"rounds": 4, "share": 0.5, "drop": 0.3, "norm": "batch", "late": True}
    played = run_small(FedEM(m=2), **how)
    assert all(bool(torch.isfinite(x).all()) for x in tensors(played.server))
    assert (
        set(played.server.n) <= set(range(6)) and played.hash == run_small(FedEM(m=2), **how).hash
    )


def test_serves_a_client_never_seen() -> None:
    played = run_small(FedEM(m=2), rounds=1)
    method, site = played.runner.method, played.runner
    with torch_settings():
        down = method.send(played.server, 99)
        keep = method.first_keep(site.client(0, 2, Purpose.JOIN), down)
        assert keep.pi.tolist() == [0.5, 0.5]
        up, kept = method.local(site.client(0, 2, Purpose.CALL, 2, 1), down, keep)
        for w in (
            method.personal(site.client(0, 2), down, keep),
            method.after_training(site.client(0, 2), down, up, kept),
        ):
            assert torch.isfinite(
                method.predict(site.client(0, 2), w, site.test_examples(0).x)
            ).all()


def test_personal_models_learn() -> None:
    federation = digits(sizes=(40,) * 5)
    before, after = (
        run_small(FedEM(), rounds=t, federation=federation, plan=PLAN) for t in (1, 12)
    )
    assert after.accuracy() > max(0.5, before.accuracy() + 0.2)
