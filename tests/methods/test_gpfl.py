"""GPFL: its equations by hand, its ablations, and what it sends."""

from __future__ import annotations

import math
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.audit.algebra import recover_class_shares
from fedtailor.client import Batch, Client
from fedtailor.core.errors import UserError
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, tensors
from fedtailor.core.wire import size
from fedtailor.data import load_dataset
from fedtailor.data.federation import Federation
from fedtailor.executors import looks
from fedtailor.executors.visit import Look, Visit
from fedtailor.filters.tap import Traffic
from fedtailor.methods import make
from fedtailor.methods.fedper import FedPer
from fedtailor.methods.gpfl import GPFL, Down, Keep, Up, Valve
from fedtailor.models import Backbone, build
from fedtailor.testing.small_world import SmallRun, digits, run_small, small
from fedtailor.training.optim import Plan
from helpers import gap, overhear, words

ABLATIONS = ("pci", "cov", "mlg", "gce", "cov,gce")  # Table 6


@cache
def once(method: GPFL) -> SmallRun:
    """Three rounds, which many tests use."""
    return run_small(method)


def client(p: SmallRun, k: int, t: int = 4) -> Client:
    return p.runner.client(k, t, Purpose.CALL, t, 1)


def sent(p: SmallRun, k: int = 0) -> Any:
    return p.runner.method.send(p.server, k)


def personal(p: SmallRun, k: int) -> Params:
    return p.runner.method.personal(client(p, k), sent(p, k), p.keep(k))


def value(method: GPFL, p: SmallRun, k: int = 0, embed: Tensor | None = None) -> Tensor:
    """What client k's loss is on all its data before the first step."""
    c, down = client(p, k), sent(p, k)
    down = down if embed is None else down._replace(embed={"embed.weight": embed})
    found: list[Tensor] = []

    def look(loss: Callable[[Params, Batch], Tensor], w: Params, **_: Any) -> Params:
        found.append(loss(w, Batch(c.x, c.y, torch.arange(len(c.y)), Rng.seed(0))))
        return w

    c.train = look  # type: ignore[method-assign]
    method.with_defaults_for(small()).local(c, down, p.keep(k))
    return found[0]


def adjust(w: Params, f: Tensor, condition: Tensor) -> Tensor:
    """Eq. (3) and (4)."""
    gamma, beta = (
        F.layer_norm(
            F.relu(
                F.linear(
                    condition, w[f"valve.two.{i}.0.weight"], w[f"valve.two.{i}.0.bias"]
                )
            ),
            condition.shape,
            w[f"valve.two.{i}.2.weight"],
            w[f"valve.two.{i}.2.bias"],
        )
        for i in range(2)
    )
    return F.relu((gamma + 1) * f + beta)


# ---------------------------------------------------------------- the equations
def test_conditions_are_means_of_the_received_embeddings() -> None:
    with torch_settings(torch.float64):
        p = run_small(GPFL(), dtype=torch.float64)
        for k in range(6):
            c, embed = client(p, k), p.server.embed["embed.weight"]
            alpha = torch.bincount(c.y, minlength=10).double() / len(c.y)
            assert float(alpha.sum()) == pytest.approx(1.0)
            g, own = p.runner.method.conditions(c, sent(p), p.keep(k))
            torch.testing.assert_close(
                g, sum(embed[u] for u in range(10)) / 10, rtol=0, atol=1e-12
            )
            torch.testing.assert_close(
                own, sum(alpha[u] * embed[u] for u in range(10)), rtol=0, atol=1e-12
            )
            divided = replace(p.runner.method, divide_p=True).conditions(
                c, sent(p), p.keep(k)
            )
            torch.testing.assert_close(divided[1], own / 10, rtol=0, atol=1e-12)
            assert torch.equal(divided[0], g)


def test_both_routes_meet_where_classes_are_balanced() -> None:
    """f^G = f^P when p_i = g."""
    federation = digits((20,))
    y = federation.y
    rows = torch.cat([torch.nonzero(y == u).flatten()[:2] for u in range(10)])
    with torch_settings(torch.float64):
        p = run_small(
            GPFL(),
            dtype=torch.float64,
            federation=replace(federation, train=[rows]),
            rounds=1,
        )
        c = client(p, 0)
        g, own = p.runner.method.conditions(c, sent(p), p.keep(0))
        torch.testing.assert_close(g, own, rtol=0, atol=1e-14)
        f = c.model.base(p.server.base, c.x)
        routes = c.model.valve(p.server.valve, f, g, own)
        torch.testing.assert_close(*routes, rtol=0, atol=1e-12)
        assert (routes[0] - f).abs().max() > 1e-2


def test_inference_takes_the_personal_route() -> None:
    with torch_settings(torch.float64):
        p = run_small(GPFL(), dtype=torch.float64)
        c, w = client(p, 0), personal(p, 0)
        own = p.runner.method.conditions(c, sent(p), p.keep(0))[1]
        logits = F.linear(
            adjust(w, c.model.base(w, c.x), own), w["head.weight"], w["head.bias"]
        )
        torch.testing.assert_close(
            p.runner.method.predict(c, w, c.x), logits, rtol=0, atol=1e-12
        )


@pytest.mark.parametrize("reduction", ["batch_fro", "sample_mean"])
def test_local_training_is_gradient_descent_on_eq_11(reduction: Any) -> None:
    # client 3 has nine examples: every step sees them all
    plan = Plan(lr=0.1, epochs=3, batch=9, weight_decay=0.01)
    with torch_settings(torch.float64):
        method = GPFL(lam=0.2, mu=0.3, tau=0.5, mlg_reduction=reduction)
        p = run_small(method, dtype=torch.float64, plan=plan, rounds=2)
        c, down, keep = client(p, 3), sent(p), p.keep(3)
        up, kept = p.runner.method.local(c, down, keep)
        frozen = down.embed["embed.weight"]
        g, own = frozen.mean(0), frozen[c.y].mean(0)
        w = {
            k: v.clone().requires_grad_()
            for k, v in (down.base | down.valve | down.embed | keep.head).items()
        }
        for _ in range(3):
            f = c.model.base(w, c.x)
            loss = F.cross_entropy(
                F.linear(adjust(w, f, own), w["head.weight"], w["head.bias"]), c.y
            )
            f = adjust(w, f, g)
            cosine = F.cosine_similarity(f[:, None], w["embed.weight"][None], dim=-1)
            loss = loss - F.log_softmax(cosine / 0.5, -1)[torch.arange(9), c.y].mean()
            lengths = (f - frozen[c.y]).square().sum(-1)
            loss = loss + 0.2 * (
                lengths.sum().sqrt()
                if reduction == "batch_fro"
                else lengths.sqrt().mean()
            )
            for name, grad in zip(
                w, torch.autograd.grad(loss, list(w.values())), strict=True
            ):
                decay = 0.31 if name.startswith(("valve", "embed")) else 0.01
                w[name] = (
                    (w[name] - 0.1 * (grad + decay * w[name])).detach().requires_grad_()
                )
        got = up.base | up.valve | up.embed | kept.head
        torch.testing.assert_close(
            got, {k: v.detach() for k, v in w.items()}, rtol=0, atol=1e-9
        )


def test_norms_of_eq_11_are_an_option() -> None:
    """The printed penalty: a pull of length mu, however long V and C are."""
    plan = Plan(lr=0.1, epochs=3, batch=9)  # client 3 has nine examples
    mu = 0.3
    with torch_settings(torch.float64):
        method = GPFL(penalty="norm", mu=mu, lam=0.0)
        p = run_small(method, dtype=torch.float64, plan=plan, rounds=2)
        c, down, keep = client(p, 3), sent(p), p.keep(3)
        up, kept = p.method.local(c, down, keep)
        g, own = p.method.conditions(c, down, keep)
        start = down.base | down.valve | down.embed | keep.head
        w = {name: value.clone().requires_grad_() for name, value in start.items()}
        for _ in range(3):
            f = c.model.base(w, c.x)
            out = F.linear(adjust(w, f, own), w["head.weight"], w["head.bias"])
            cosine = F.cosine_similarity(
                adjust(w, f, g)[:, None], w["embed.weight"][None], dim=-1
            )
            valve = torch.cat([w[name].flatten() for name in down.valve])
            penalty = valve.norm() + w["embed.weight"].norm()
            loss = F.cross_entropy(out, c.y) + F.cross_entropy(cosine, c.y)
            loss = loss + mu * penalty
            gradients = torch.autograd.grad(loss, list(w.values()))
            for name, gradient in zip(w, gradients, strict=True):
                w[name] = (w[name] - 0.1 * gradient).detach().requires_grad_()
        got = up.base | up.valve | up.embed | kept.head
        wanted = {name: value.detach() for name, value in w.items()}
        torch.testing.assert_close(got, wanted, rtol=0, atol=1e-9)


def test_a_penalty_of_nothing_is_none() -> None:
    """Without V and C there is nothing to weigh."""
    method = GPFL(without="cov,gce")
    assert once(replace(method, penalty="norm")).hash == once(method).hash


def test_angle_level_guidance_starts_at_the_logarithm_of_the_classes() -> None:
    with torch_settings(torch.float64):
        p = run_small(GPFL(without="cov,mlg"), dtype=torch.float64, rounds=1)
        task = value(GPFL(without="cov,gce"), p)

        def guidance(**change: Any) -> float:
            draws = [Rng.seed(9, i).normal(10, 16) for i in range(20)]
            return float(
                sum(
                    value(GPFL(without="cov,mlg", **change), p, embed=d) - task
                    for d in draws
                )
                / 20
            )

        assert guidance() == pytest.approx(math.log(10), abs=0.15)
        assert guidance(tau=1e6) == pytest.approx(math.log(10), abs=1e-5)
        least = math.log(1 + 9 * math.exp(-2))  # cosines are in [-1, 1]
        assert guidance() > least


def test_server_takes_three_weighted_means() -> None:
    p, calls = overhear(GPFL(), rounds=1, dtype=torch.float64)
    n = torch.tensor(
        [float(len(i)) for i in p.runner.world.federation.train], dtype=torch.float64
    )
    for name in Up._fields:
        for key, mean in getattr(p.server, name).items():
            rows = torch.stack([getattr(calls[-1].up[k], name)[key] for k in range(6)])
            torch.testing.assert_close(
                mean, torch.tensordot(n / n.sum(), rows, 1), rtol=0, atol=1e-12
            )


def test_previous_local_conditions_lag_behind() -> None:
    method = GPFL(condition_source="previous_local")
    start, p = run_small(method, rounds=1, share=0.5), once(method)
    # has joined, never trained
    idle = next(k for k in range(6) if not start.keep(k).embed["embed.weight"].any())
    g, own = start.runner.method.conditions(
        client(start, idle), sent(start), start.keep(idle)
    )
    assert not g.any() and not own.any()
    mine = p.keep(0).embed["embed.weight"]
    assert not torch.equal(mine, p.server.embed["embed.weight"])
    g, _ = p.runner.method.conditions(client(p, 0), sent(p), p.keep(0))
    assert torch.equal(g, mine.mean(0))
    up, kept = p.runner.method.local(client(p, 0), sent(p), p.keep(0))
    assert torch.equal(kept.embed["embed.weight"], up.embed["embed.weight"])
    assert once(GPFL()).keep(0).embed == {}


def test_a_gap_of_zero_has_a_gradient_of_zero() -> None:
    """A client of one example, with its class's embedding as feature; also under vmap."""
    federation = replace(digits((1, 1)), train=[torch.tensor([0]), torch.tensor([1])])
    still, gone = GPFL(without="cov", lam=1.0, mu=0.0), GPFL(without="cov,mlg", mu=0.0)
    for reduction in ("batch_fro", "sample_mean"):
        for executor in ("sequential", "vmap"):
            runs = []
            for method in (replace(still, mlg_reduction=reduction), gone):
                p = run_small(
                    method,
                    federation=federation,
                    backbone=small("linear"),
                    rounds=1,
                    executor=executor,
                )
                embed = torch.ones(10, 64)
                embed[federation.y[:2]] = federation.x[:2].flatten(1)
                downs = {
                    k: sent(p)._replace(embed={"embed.weight": embed}) for k in range(2)
                }
                visits = {k: [Visit("local", 2, 1, down)] for k, down in downs.items()}
                runs.append(p.executor.run(visits, lambda k: None))
                assert p.executor.notices() == []
            for k in range(2):
                (here,), (there,) = runs[0][k], runs[1][k]
                assert not here.error
                a, b = here.up.embed["embed.weight"], there.up.embed["embed.weight"]
                assert torch.equal(a, b) and torch.isfinite(a).all()


def test_norm_is_safe_at_zero_inside_vmap() -> None:
    """The batch_fro norm of a zero gap among others."""
    gaps = torch.stack([torch.zeros(3, 4), torch.ones(3, 4)])
    slopes = torch.func.vmap(torch.func.grad(lambda x: x.norm()))(gaps)
    assert not slopes[0].any()
    torch.testing.assert_close(slopes[1], torch.full((3, 4), 12**-0.5))


# ---------------------------------------------------------------- sizes
def test_valve_and_embeddings_have_the_papers_sizes() -> None:
    with torch.device("meta"):
        assert sum(p.numel() for p in Valve(512).parameters()) == 527_360
        for classes, embeddings in ((100, 51_200), (200, 102_400)):
            net = GPFL().net(build("cnn", (3, 64, 64), classes))
            assert (
                sum(
                    p.numel()
                    for k, p in net.named_parameters()
                    if k.startswith("embed.")
                )
                == embeddings
            )


def test_traffic_is_extractor_valve_and_embeddings() -> None:
    p, (given, _, second) = overhear(GPFL(), rounds=2)
    base = sum(x.nbytes for k, x in p.runner.new(0).items() if k.startswith("base."))
    valve, embed = 2 * (16 * 16 + 3 * 16) * 4, 10 * 16 * 4
    assert size(second.down[0]) == size(second.up[0]) == base + valve + embed
    assert size(given.down[0]) == (16 * 10 + 10) * 4  # the first head, once
    assert size(given.up[0]) == 0


# ---------------------------------------------------------------- ablations of Table 6
@pytest.mark.parametrize("without", ABLATIONS)
def test_ablation_runs_and_differs(without: str) -> None:
    p = once(GPFL(without=without))
    assert not p.exchange.traffic.lost
    assert p.hash != once(GPFL()).hash
    assert looks.personal_score(p.runner, 0, sent(p), 3).test.n.sum() == 8
    assert ("embed.weight" in p.server.embed) == ("gce" not in without)
    assert bool(p.server.valve) == ("cov" not in without)


def test_without_pci_conditions_are_constants_common_to_all() -> None:
    p = once(GPFL(without="pci"))
    (g, own), (h, other) = (
        p.runner.method.conditions(client(p, k), sent(p), p.keep(k)) for k in (0, 1)
    )
    assert torch.equal(g, h) and torch.equal(own, other) and not torch.equal(g, own)
    assert value(GPFL(without="pci"), p, 0) != value(GPFL(), p, 0)


def test_without_cov_both_routes_are_the_features() -> None:
    p = once(GPFL(without="cov"))
    c, w = client(p, 0), personal(p, 0)
    logits = F.linear(c.model.base(w, c.x), w["head.weight"], w["head.bias"])
    assert torch.equal(p.runner.method.predict(c, w, c.x), logits)


def test_without_mlg_is_lambda_zero() -> None:
    assert once(GPFL(without="mlg")).hash == run_small(GPFL(lam=0.0)).hash


def upload_sizes(heard: Traffic) -> dict[int, int]:
    """Bytes of every upload of a call."""
    return {k: size(up) for k, up in heard.up.items()}


@pytest.mark.parametrize(("norm", "momentum"), [("group", 0.9), ("batch", 0.0)])
def test_without_cov_and_gce_it_is_fedper_bit_for_bit(
    norm: str, momentum: float
) -> None:
    options: dict[str, Any] = {
        "norm": norm,
        "plan": Plan(lr=0.05, batch=10, momentum=momentum),
        "share": 0.5,
    }
    fedper, theirs = overhear(FedPer(), **options)
    gpfl, ours = overhear(GPFL(without="cov, gce"), **options)
    assert [upload_sizes(heard) for heard in ours] == [
        upload_sizes(heard) for heard in theirs
    ]
    assert all(
        torch.equal(gpfl.server.base[k], v) for k, v in fedper.server.base.items()
    )
    for k in fedper.executor.store.clients():
        assert all(
            torch.equal(gpfl.keep(k).head[name], v)
            for name, v in fedper.keep(k).own.items()
        )


def test_an_idle_valve_takes_fedpers_first_step() -> None:
    """gamma = beta = 0 without guidance; the extractor ends with a ReLU, one more does nothing."""
    plan = Plan(lr=0.05, batch=50)
    with torch_settings(torch.float64):
        p = run_small(
            GPFL(without="gce", mu=0.0), dtype=torch.float64, rounds=1, plan=plan
        )
        q = run_small(FedPer(), dtype=torch.float64, rounds=1, plan=plan)
        idle = {k: torch.zeros_like(v) for k, v in p.server.valve.items()}
        for i in range(6):
            theirs = q.keep(i)
            up, kept = p.runner.method.local(
                client(p, i), Down(q.server.base, idle, {}), Keep(theirs.own, {}, {})
            )
            base, own = q.runner.method.local(
                client(q, i), q.runner.method.send(q.server, i), theirs
            )
            torch.testing.assert_close(up.base, base.base, rtol=0, atol=1e-12)
            torch.testing.assert_close(kept.head, own.own, rtol=0, atol=1e-12)


# ---------------------------------------------------------------- the border
def test_private_parts_are_in_no_upload() -> None:
    p, calls = overhear(GPFL())
    for k in range(6):
        down, up = calls[-1].down[k], calls[-1].up[k]
        assert type(up) is Up
        c = client(p, k)
        own = p.runner.method.conditions(c, down, p.keep(k))[1]
        private = [*p.keep(k).head.values(), own, c.counts, c.counts / c.counts.sum()]
        assert not any(
            a.shape == b.shape and torch.equal(a, b)
            for a in private
            for b in tensors(up)
        )
        assert all(
            name.startswith(("base.", "valve.", "embed."))
            for part in up
            for name in part
        )


def test_after_is_the_trained_model_under_the_received_conditions() -> None:
    p = once(GPFL())
    method, c, down = p.runner.method, client(p, 0), sent(p)
    up, keep = method.local(c, down, p.keep(0))
    w = method.after_training(c, down, up, keep)
    for part in (up.base, up.valve, keep.head):
        assert all(torch.equal(w[k], v) for k, v in part.items())
    assert torch.equal(w["p"], method.conditions(c, down, keep)[1])


def test_after_has_the_conditions_of_its_training() -> None:
    """With the C of the round before, training and the view ``after`` have the same p_i."""
    with torch_settings(torch.float64):
        p = run_small(GPFL(condition_source="previous_local"), dtype=torch.float64)
        c, down, before = client(p, 0), sent(p), p.keep(0)
        trained_with = p.method.conditions(c, down, before).p
        up, keep = p.method.local(c, down, before)
        after = p.method.after_training(c, down, up, keep)["p"]
        assert torch.equal(after, trained_with)
        assert gap(after, p.method.conditions(c, down, keep).p) > 1e-4
        assert torch.equal(keep.earlier["embed.weight"], before.embed["embed.weight"])
    assert once(GPFL()).keep(0).earlier == {}


# ---------------------------------------------------------------- what the upload reveals
@pytest.mark.parametrize("penalty", ["decay", "norm"])
def test_an_upload_reveals_the_shares_of_classes(penalty: Any) -> None:
    """alpha_i, which Sec. 3.3 calls private, to 1e-6 from one upload."""
    method = GPFL(penalty=penalty, mu=0.1)
    p, calls = overhear(method, rounds=2, dtype=torch.float64)
    heard = calls[-1]
    numbers_of_classes = set()
    for k in p.clients:  # each lacks a class
        counts = client(p, k).counts
        numbers_of_classes.add(int((counts > 0).sum()))
        shares = recover_class_shares(heard.down[k], heard.up[k])
        assert gap(shares, counts / counts.sum()) < 1e-6
    assert numbers_of_classes == {1, 3, 4}


def test_reveals_nothing_of_shares_without_personalised_conditions() -> None:
    p, calls = overhear(GPFL(without="pci"), rounds=1, dtype=torch.float64)
    shares = recover_class_shares(calls[-1].down[0], calls[-1].up[0])
    counts = client(p, 0).counts
    assert gap(shares, counts / counts.sum()) > 0.05


# ---------------------------------------------------------------- executors
def test_vmap_scores_alike() -> None:
    p = run_small(GPFL(), dtype=torch.float64, executor="vmap", rounds=2)
    with torch_settings(torch.float64):
        replies = p.exchange.look(Look.SCORE, {k: sent(p, k) for k in range(6)}, 3)
        assert p.executor.notices() == []
        for k in range(6):
            torch.testing.assert_close(
                replies[k].up.test,
                looks.personal_score(p.runner, k, sent(p, k), 3).test,
                rtol=0,
                atol=1e-9,
            )


def test_all_clients_start_from_one_head() -> None:
    p = run_small(GPFL(), rounds=1, share=0.2)
    idle = [
        k
        for k in range(6)
        if torch.equal(p.keep(k).head["head.weight"], p.runner.new(0)["head.weight"])
    ]
    assert len(idle) == 5


# ---------------------------------------------------------------- other backbones
def test_a_head_of_three_layers(real_data: Callable[[str], Path]) -> None:
    data = load_dataset("har", real_data("har"))
    assert data.owner is not None
    mine = [torch.nonzero(data.owner == k).flatten()[::5][:56] for k in range(3)]
    train, rest = [i[:40] for i in mine], [i[40:] for i in mine]
    half_a_second = data.x[:, :, :28].contiguous()
    federation = Federation(
        "har", "signal", half_a_second, data.y, data.classes, train, rest, rest
    )
    p = run_small(
        GPFL(),
        federation=federation,
        backbone=build("har_cnn", (9, 28), 6),
        rounds=2,
        plan=Plan(lr=0.01),
    )
    assert not p.exchange.traffic.lost
    assert (p.runner.method.lam, p.runner.method.mu) == (0.01, 1.0)
    assert [k for k in p.keep(0).head if k.endswith("weight")] == [
        f"head.fc{i}.weight" for i in (1, 2, 3)
    ]
    assert p.server.embed["embed.weight"].shape == (6, 64)


@pytest.mark.parametrize("kind", ["fasttext", "linear"])
def test_words_and_a_head_alone(kind: str) -> None:
    p = run_small(
        GPFL(), **(words() if kind == "fasttext" else {"backbone": small("linear")})
    )
    assert not p.exchange.traffic.lost
    assert torch.isfinite(
        p.runner.method.predict(client(p, 0), personal(p, 0), client(p, 0).x)
    ).all()


# ---------------------------------------------------------------- settings
@pytest.mark.parametrize(
    ("kind", "lam", "mu"),
    [
        ("cnn", 0.01, 0.1),
        ("amazon_mlp", 0.01, 0.1),
        ("har_cnn", 0.01, 1.0),
        ("resnet18", 1e-4, 0.0),
        ("fasttext", 1e-4, 0.0),
        ("resnet32", 1e-4, 0.0),
        ("lenet5", 0.01, 0.1),
        ("", 0.01, 0.1),
    ],
)
def test_constants_by_backbone(kind: str, lam: float, mu: float) -> None:
    backbone = Backbone(nn.Flatten(), nn.Linear(4, 2), features=4, kind=kind)
    assert (
        GPFL().with_defaults_for(backbone).lam,
        GPFL().with_defaults_for(backbone).mu,
    ) == (
        lam,
        mu,
    )
    given = GPFL(lam=0.0, mu=0.5).with_defaults_for(backbone)
    assert (given.lam, given.mu) == (0.0, 0.5)


def test_mistakes_are_refused_and_oddities_warned_of() -> None:
    with pytest.raises(
        UserError, match=r"^no part to leave out named 'gcv'; did you mean .*\?$"
    ):
        GPFL(without="gcv")
    assert GPFL().with_defaults_for(small()).warnings() == []
    assert "lam=0" in GPFL(lam=0.0).warnings()[0]
    assert "FedPer" in GPFL(without="gce,cov").warnings()[0]


def test_parts_to_leave_out_are_a_set() -> None:
    assert (
        GPFL(without="gce, cov")
        == GPFL(without="cov,gce")
        == make(GPFL, {"without": "gce,cov"})
    )
    assert GPFL(without="mlg").without == {"mlg"}


def test_no_compiler_is_loaded() -> None:
    """Values drawn on the meta device would load all of torch's: three seconds in every process."""
    code = """
import sys
from fedtailor.methods.gpfl import GPFL
from fedtailor.testing.small_world import run_small
run_small(GPFL(), rounds=1)
print("torch._dynamo" in sys.modules)
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "False"
