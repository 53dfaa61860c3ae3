"""FedCP: its equations by hand, its ablations, and what it sends."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from experiments.studies.fedcp_lambda import choose, read_record
from fedtailor.core.errors import Unsupported, UserError
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, part, rename, tensors
from fedtailor.core.wire import size
from fedtailor.data import load_dataset
from fedtailor.data.federation import Federation
from fedtailor.executors import looks
from fedtailor.executors.visit import Look
from fedtailor.filters.tap import Tap, Traffic
from fedtailor.maths.mmd import mmd
from fedtailor.methods import make
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedcp import (
    LAM_OF_OTHERS,
    Down,
    FedCP,
    Up,
    derive_vector,
    make_policy,
)
from fedtailor.methods.fedper import FedPer
from fedtailor.models import Backbone, build
from fedtailor.testing.conformance import largest_gap
from fedtailor.testing.small_world import SmallRun, digits, run_small, small
from fedtailor.training.optim import Plan
from helpers import equal, gap, overhear, words

# Table 1
ABLATIONS = (
    "cs",
    "ss",
    "cs,ss",
    "gfm",
    "cpn",
    "cpn,gfm",
    "cpn,gh",
    "cpn,gfm,gh",
)


@cache
def once(method: FedCP) -> SmallRun:
    """Three rounds, which many tests use."""
    return run_small(method)


def client(p: SmallRun, k: int, t: int = 4) -> Any:
    return p.runner.client(k, t, Purpose.CALL, t, 1)


def sent(p: SmallRun, k: int) -> Down:
    down: Down = p.runner.method.send(p.server, k)
    return down


def personal(p: SmallRun, k: int) -> Params:
    return p.runner.method.personal(
        client(p, k), p.runner.method.send(p.server, k), p.keep(k)
    )


def forward_by_hand(
    w: Params, x: Tensor, extract: Callable[[Params, Tensor], Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Eq. (2) to (5) for a head of one layer: logits, h, s."""
    h = extract(w, x)
    v = w["head.weight"].sum(0) if "v" not in w else w["v"]
    a = F.linear(v / v.norm() * h, w["policy.0.weight"], w["policy.0.bias"])
    a = F.relu(
        F.layer_norm(a, a.shape[-1:], w["policy.1.weight"], w["policy.1.bias"])
    ).reshape(len(x), 2, -1)
    r, s = a[:, 0].exp() / a.exp().sum(1), a[:, 1].exp() / a.exp().sum(1)
    torch.testing.assert_close(r + s, torch.ones_like(s))
    out_r = F.linear(r * h, w["shared.weight"], w["shared.bias"])
    return out_r + F.linear(s * h, w["head.weight"], w["head.bias"]), h, s


# ---------------------------------------------------------------- the equations
def test_forward_is_the_papers() -> None:
    with torch_settings(torch.float64):
        p = run_small(FedCP(), dtype=torch.float64)
        c, w = client(p, 0), personal(p, 0)
        logits, _, s = forward_by_hand(w, c.x, c.model.base)
        torch.testing.assert_close(
            p.runner.method.predict(c, w, c.x), logits, rtol=0, atol=1e-12
        )
        torch.testing.assert_close(
            p.runner.method.diagnostics(c, w, c.x, c.y)["PIR"],
            s.mean(-1),
            rtol=0,
            atol=1e-12,
        )


def test_local_training_is_gradient_descent_on_eq_8() -> None:
    # client 3 has nine examples: every step sees them all
    plan = Plan(lr=0.1, epochs=3, batch=9)
    with torch_settings(torch.float64):
        p = run_small(FedCP(lam=2.0), dtype=torch.float64, plan=plan, rounds=2)
        c, down, keep = client(p, 3), sent(p, 3), p.keep(3)
        up, kept = p.runner.method.local(c, down, keep)
        frozen = c.model.base(down.base, c.x)
        trained = {
            k: v.clone().requires_grad_()
            for k, v in (down.base | down.policy | keep.head).items()
        }
        v = keep.head["head.weight"].sum(0)
        for _ in range(3):
            logits, h, _ = forward_by_hand(
                {**down.shared, **trained, "v": v}, c.x, c.model.base
            )
            loss = F.cross_entropy(logits, c.y) + 2.0 * mmd(h, frozen)
            grads = torch.autograd.grad(loss, list(trained.values()))
            trained = {
                k: (x - 0.1 * g).detach().requires_grad_()
                for (k, x), g in zip(trained.items(), grads, strict=True)
            }
        wanted = {k: x.detach() for k, x in trained.items()}
        torch.testing.assert_close(
            up.base | up.policy | kept.head, wanted, rtol=0, atol=1e-9
        )
        blend = {
            k: (x + wanted[k.replace("shared", "head")]) / 2
            for k, x in down.shared.items()
        }  # Eq. (6)
        torch.testing.assert_close(up.shared, blend, rtol=0, atol=1e-9)
        torch.testing.assert_close(kept.v, v / v.norm(), rtol=0, atol=1e-12)
        assert (
            max(float((wanted[k] - keep.head[k]).abs().max()) for k in keep.head) > 1e-4
        )  # it did train


def test_the_mmd_counts_and_gfm_leaves_it_out() -> None:
    assert once(FedCP(without="gfm")).hash == run_small(FedCP(lam=0.0)).hash
    assert once(FedCP()).hash != once(FedCP(without="gfm")).hash


def test_server_takes_three_weighted_means() -> None:
    p, (_, heard) = overhear(FedCP(), rounds=1, dtype=torch.float64)
    n = torch.tensor(
        [float(len(i)) for i in p.runner.world.federation.train], dtype=torch.float64
    )
    ups = [heard.up[k] for k in range(6)]
    for name in Up._fields:
        for key, value in getattr(p.server, name).items():
            rows = torch.stack([getattr(u, name)[key] for u in ups])
            torch.testing.assert_close(
                value, torch.tensordot(n / n.sum(), rows, 1), rtol=0, atol=1e-12
            )


@pytest.mark.parametrize("without", ["", "cpn,gh"])
def test_all_clients_start_from_the_first_global_head(without: str) -> None:
    """Algorithm 1, line 1, also where clients are first selected in a later round."""
    tap = Tap()
    p = run_small(FedCP(without=without), rounds=4, share=0.3, filters=[tap])
    w = p.runner.new(0)
    given, *calls = tap.traffic
    assert set(given.down) == set(range(6))
    for down in given.down.values():
        assert equal(down, part(w, "head"))
    idle = set(range(6)).difference(*(heard.up for heard in calls))
    assert idle
    assert len(set().union(*(heard.up for heard in calls[1:])) - set(calls[0].up)) > 0
    for k in idle:
        assert equal(p.keep(k).head, part(w, "head"))
    if not without:
        known = p.server.shared["shared.weight"]
        assert not torch.equal(known, w["head.weight"])


def test_a_client_first_selected_later_trains_the_first_head() -> None:
    p, calls = overhear(FedCP(), rounds=2, late=True)
    k = p.clients[-1]
    (heard,) = (heard for heard in calls if k in heard.down and heard.up[k])
    down = heard.down[k]
    first = part(p.runner.new(0), "head")
    assert gap(rename(down.shared, "shared", "head"), first) > 1e-3
    c = client(p, k, 2)
    up, keep = p.method.local(c, down, p.method.keep_given(c, first))
    assert equal(up, heard.up[k])
    assert equal(keep, p.keep(k))


# ---------------------------------------------------------------- the client's vector
def test_vector_is_the_column_sums_of_the_product() -> None:
    one = nn.Linear(5, 3)
    v = one.weight.detach().sum(0)
    torch.testing.assert_close(derive_vector(one.state_dict()), v / v.norm())
    three = nn.Sequential(
        nn.Linear(7, 6), nn.ReLU(), nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4)
    ).double()
    product = (
        three[4].weight.detach() @ three[2].weight.detach() @ three[0].weight.detach()
    )
    v = product.sum(0)
    torch.testing.assert_close(derive_vector(three.state_dict()), v / v.norm())


@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_training_does_not_change_the_vector(momentum: float) -> None:
    """The paper's flaw: rows of a one-layer head keep their sum, so that v_i is v_0 everywhere."""
    plan = Plan(lr=0.1, epochs=3, batch=10, momentum=momentum)
    with torch_settings(torch.float64):
        p = run_small(FedCP(), dtype=torch.float64, plan=plan)
        first = part(p.runner.new(0), "head")
        for k in p.clients:
            head = p.keep(k).head
            moved = (head["head.weight"] - first["head.weight"]).norm()
            assert moved > 0.05 * first["head.weight"].norm()
            torch.testing.assert_close(
                head["head.weight"].sum(0),
                first["head.weight"].sum(0),
                rtol=0,
                atol=1e-12,
            )
            assert gap(p.keep(k).v, derive_vector(first)) < 1e-12


def test_weight_decay_shortens_the_vector_only() -> None:
    plan = Plan(lr=0.1, epochs=2, batch=10, weight_decay=0.05)
    with torch_settings(torch.float64):
        p = run_small(FedCP(), dtype=torch.float64, plan=plan)
        first = part(p.runner.new(0), "head")
        for k in p.clients:
            head = p.keep(k).head
            shorter = head["head.weight"].sum(0).norm()
            assert shorter < 0.99 * first["head.weight"].sum(0).norm()
            assert gap(derive_vector(head), derive_vector(first)) < 1e-12


@pytest.mark.parametrize("vector", ["class_weighted", "norms"])
def test_other_vectors_tell_clients_apart(vector: Any) -> None:
    with torch_settings(torch.float64):
        p = run_small(FedCP(vector=vector), dtype=torch.float64)
        vectors = [p.keep(k).v for k in p.clients]
        for k in p.clients:
            assert float(vectors[k].norm()) == pytest.approx(1.0)
            for other in range(k):
                assert gap(vectors[k], vectors[other]) > 1e-4
        head = p.keep(0).head["head.weight"]
        shares = torch.bincount(client(p, 0).y, minlength=10).double()
        by_hand = {"class_weighted": shares @ head, "norms": head.norm(dim=0)}[vector]
        fresh = replace(p.method, vector_time="fresh")
        v = fresh.personal(client(p, 0), sent(p, 0), p.keep(0))["v"]
        assert gap(v, by_hand / by_hand.norm()) < 1e-12


def test_vectors_of_heads_of_several_layers() -> None:
    three = nn.Sequential(nn.Linear(7, 6), nn.Linear(6, 5), nn.Linear(5, 4)).double()
    product = three[2].weight @ three[1].weight @ three[0].weight
    shares = torch.tensor([0.5, 0.5, 0.0, 0.0]).double()
    by_hand = {"class_weighted": shares @ product, "norms": product.norm(dim=0)}
    for kind, v in by_hand.items():
        found = derive_vector(three.state_dict(), kind, shares)  # type: ignore[arg-type]
        assert gap(found, v.detach() / v.detach().norm()) < 1e-12


def test_vector_of_the_last_training_or_of_today() -> None:
    """Told apart by a vector that training changes."""
    with torch_settings(torch.float64):
        latest = run_small(FedCP(vector="norms"), dtype=torch.float64)
        fresh = run_small(
            FedCP(vector="norms", vector_time="fresh"), dtype=torch.float64
        )
        assert latest.hash == fresh.hash  # training never knows the difference
        v, now = personal(latest, 0)["v"], personal(fresh, 0)["v"]
        assert torch.equal(v, latest.keep(0).v)
        assert torch.equal(now, derive_vector(fresh.keep(0).head, "norms"))
        assert gap(v, now) > 1e-4
        before = run_small(FedCP(vector="norms"), rounds=2, dtype=torch.float64)
        # the head as the third round found it
        assert torch.equal(v, derive_vector(before.keep(0).head, "norms"))


def test_earlier_names_of_the_vectors_time_are_refused() -> None:
    with pytest.raises(
        UserError, match="FedCP: 'vector=fresh' is now vector_time=fresh"
    ):
        make(FedCP, {"vector": "fresh"})
    assert make(FedCP, {"vector": "norms"}) == FedCP(vector="norms")


# ---------------------------------------------------------------- sizes
@pytest.mark.parametrize(
    ("depth", "parameters"),
    [(1, 527_360), (2, 790_016), (3, 1_052_672), (4, 1_315_328)],
)
def test_policy_has_the_papers_size(depth: int, parameters: int) -> None:
    with torch.device("meta"):
        assert (
            sum(p.numel() for p in make_policy(512, depth).parameters()) == parameters
        )


@pytest.mark.parametrize(
    ("model", "million", "share"), [("cnn", 5.695, 9.25), ("resnet18", 11.279, 4.67)]
)
def test_overhead_is_the_papers(model: str, million: float, share: float) -> None:
    with torch.device("meta"):
        backbone = build(model, (3, 64, 64), 200)
    plain = sum(p.numel() for p in backbone.parameters())
    policy = sum(
        p.numel()
        for k, p in FedCP().net(backbone).named_parameters()
        if k.startswith("policy.")
    )
    assert round(plain / 1e6, 3) == million
    # the paper divides rounded numbers
    assert 100 * policy / plain == pytest.approx(share, abs=0.02)


def test_traffic_is_fedavgs_plus_the_policy() -> None:
    p, (theirs,) = overhear(FedAvg(), rounds=1)
    _, (given, ours) = overhear(FedCP(), rounds=1)
    down, up = ours.down[0], ours.up[0]
    assert size(given.down[0]) == size(part(p.runner.new(0), "head"))  # once
    assert size(given.up[0]) == 0
    assert size(up) == size(down) == size(theirs.up[0]) + size(down.policy)


@pytest.mark.parametrize(
    ("norm", "kind"),
    [("layer", nn.LayerNorm), ("batch", nn.BatchNorm1d), ("group", nn.GroupNorm)],
)
def test_policy_designs(norm: str, kind: type[nn.Module]) -> None:
    net = make_policy(8, 2, norm, "sigmoid")
    assert [type(m) for m in net] == [
        nn.Linear,
        nn.Sigmoid,
        nn.Linear,
        kind,
        nn.Sigmoid,
        nn.Unflatten,
    ]
    assert net(torch.zeros(3, 8)).shape == (3, 2, 8)
    if isinstance(net[3], nn.GroupNorm):
        assert net[3].num_groups == 2


@pytest.mark.parametrize("norm", ["layer", "batch", "group"])
@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("noisy", [False, True])
def test_the_two_shares_of_a_feature_add_up_to_one(
    norm: Any, depth: int, noisy: bool
) -> None:
    """With heads of ones, both heads together give what the features give alone."""
    with torch_settings(torch.float64):
        p = run_small(FedCP(norm=norm, depth=depth), dtype=torch.float64, rounds=1)
        c, w = client(p, 0), personal(p, 0)
        one, none = torch.ones_like(w["head.weight"]), torch.zeros_like(w["head.bias"])
        w |= {
            "head.weight": one,
            "shared.weight": one,
            "head.bias": none,
            "shared.bias": none,
        }
        logits, h, s = c.model(w, c.x, w["v"], c.rng if noisy else None)
        torch.testing.assert_close(
            logits, h.sum(-1, keepdim=True).expand_as(logits), rtol=0, atol=1e-12
        )
        assert bool((s > 0).all()) and bool((s < 1).all()) and float(s.std()) > 1e-3


# ---------------------------------------------------------------- ablations of Table 1
@pytest.mark.parametrize("without", ABLATIONS)
def test_ablation_runs_and_differs(without: str) -> None:
    p = once(FedCP(without=without))
    assert not p.exchange.traffic.lost
    assert p.hash != once(FedCP()).hash
    assert looks.personal_score(p.runner, 0, p.server, 3).test.n.sum() == 8


def test_no_two_ablations_are_the_same() -> None:
    assert (
        len({once(FedCP(without=x)).hash for x in ("", *ABLATIONS)})
        == len(ABLATIONS) + 1
    )


def shares(p: SmallRun, k: int, w: Params) -> Tensor:
    """s of client k's examples under the model w."""
    c = client(p, k)
    s: Tensor = c.model(w, c.x, w["v"], None)[2]
    return s


def test_context_without_its_parts() -> None:
    """What s depends on; by client it never does, as all have the same v_i (see above)."""
    told = FedCP(vector="class_weighted")
    with torch_settings(torch.float64):
        for without, by_client, by_sample in (
            ("", True, True),
            ("cs", False, True),
            ("ss", True, False),
            ("cs,ss", False, False),
        ):
            for method, has_client in ((told, by_client), (FedCP(), False)):
                chosen = replace(method, without=without)
                p = run_small(chosen, dtype=torch.float64, rounds=2)
                w = personal(p, 0)
                s = shares(p, 0, w)
                assert (s.std(0).max() > 1e-6) == by_sample
                # the same policy and extractor, another client's head and vector
                other = personal(p, 1)
                assert gap(w["policy.0.weight"], other["policy.0.weight"]) == 0
                distance = gap(s, shares(p, 0, other))
                assert (distance > 1e-6) == has_client
                assert has_client or distance < 1e-12


def test_the_random_vector_is_one_for_all_clients() -> None:
    none = once(FedCP(without="cs,ss"))
    assert torch.equal(none.keep(0).v, none.keep(1).v)
    assert none.keep(0).v.norm() == pytest.approx(1.0)
    assert not torch.equal(
        run_small(FedCP(without="cs,ss"), seed=1, rounds=1).keep(0).v, none.keep(0).v
    )


@pytest.mark.parametrize("without", ["cpn", "cpn,gh"])
def test_heads_without_a_policy(without: str) -> None:
    p = once(FedCP(without=without))
    c, w = client(p, 0), personal(p, 0)
    h = c.model.base(w, c.x)
    wanted = F.linear(h, w["head.weight"], w["head.bias"])
    if without == "cpn":
        # no factor of a half
        wanted = F.linear(h, w["shared.weight"], w["shared.bias"]) + wanted
    assert torch.equal(p.runner.method.predict(c, w, c.x), wanted)
    assert p.runner.method.diagnostics(c, w, c.x, c.y) == {}
    assert not p.server.policy


def upload_sizes(heard: Traffic) -> dict[int, int]:
    """Bytes of every upload of a call."""
    return {k: size(up) for k, up in heard.up.items()}


@pytest.mark.parametrize(("norm", "momentum"), [("group", 0.9), ("batch", 0.0)])
def test_without_everything_it_is_fedper_bit_for_bit(
    norm: str, momentum: float
) -> None:
    options: dict[str, Any] = {
        "norm": norm,
        "plan": Plan(lr=0.05, batch=10, momentum=momentum),
        "share": 0.5,
    }
    fedper, theirs = overhear(FedPer(), **options)
    fedcp, ours = overhear(FedCP(without="cpn, gfm, gh"), **options)
    assert [upload_sizes(heard) for heard in ours] == [
        upload_sizes(heard) for heard in theirs
    ]
    assert [size(heard.down[k]) for heard in ours for k in heard.down] == [
        size(heard.down[k]) for heard in theirs for k in heard.down
    ]
    assert all(
        torch.equal(fedcp.server.base[k], v) for k, v in fedper.server.base.items()
    )
    clients = fedcp.executor.store.clients()
    assert len(clients) >= 3
    for k in clients:
        assert all(
            torch.equal(fedcp.keep(k).head[name], v)
            for name, v in fedper.keep(k).own.items()
        )


def test_with_the_gate_forced_it_is_fedper_but_for_the_global_bias() -> None:
    """s = 1, r = 0, lambda = 0."""
    with torch_settings(torch.float64):
        p = run_small(FedCP(lam=0.0), dtype=torch.float64, rounds=1)
        q = run_small(FedPer(), dtype=torch.float64, rounds=1)
        k = len(p.keep(0).v)
        away = {key: torch.zeros_like(x) for key, x in p.server.policy.items()}
        away["policy.1.bias"] = torch.cat([torch.zeros(k), torch.full((k,), 200.0)])
        quiet = p.server.shared | {
            "shared.bias": torch.zeros_like(p.server.shared["shared.bias"])
        }
        down = Down(q.server.base, quiet, away)
        for i in range(6):
            theirs = q.keep(i)
            up, kept = p.runner.method.local(
                client(p, i), down, p.keep(i)._replace(head=theirs.own)
            )
            base, own = q.runner.method.local(
                client(q, i), q.runner.method.send(q.server, i), theirs
            )
            torch.testing.assert_close(up.base, base.base, rtol=0, atol=1e-9)
            torch.testing.assert_close(kept.head, own.own, rtol=0, atol=1e-9)


# ---------------------------------------------------------------- the gate
def test_gumbel_noise_in_training_or_always() -> None:
    soft, noisy, always = (
        once(FedCP(gate=g)) for g in ("softmax", "gumbel", "gumbel_always")
    )
    assert noisy.hash != soft.hash
    assert noisy.hash == always.hash  # they differ at inference only
    c, w = client(noisy, 0), personal(noisy, 0)
    calm = soft.runner.method.predict(c, w, c.x)
    assert torch.equal(noisy.runner.method.predict(c, w, c.x), calm)
    shaken = always.runner.method.predict(c, w, c.x)
    assert not torch.allclose(shaken, calm, atol=1e-4)
    # the stream's, not chance's
    assert torch.equal(always.runner.method.predict(c, w, c.x), shaken)
    later = client(always, 0, 5)
    assert not torch.equal(always.runner.method.predict(later, w, c.x), shaken)
    s = always.runner.method.diagnostics(c, w, c.x, c.y)["PIR"]
    assert ((s > 0) & (s < 1)).all()


# ---------------------------------------------------------------- diagnostics
def test_diagnostics_are_the_ratio_and_the_distribution_of_s() -> None:
    p = once(FedCP())
    w, score = personal(p, 0), looks.personal_score(p.runner, 0, p.server, 3)
    for name, examples in (
        ("train", client(p, 0).data),
        ("test", p.runner.test_examples(0)),
    ):
        s = client(p, 0).model(w, examples.x, w["v"], None)[2]
        assert score.diagnostics[f"{name}/PIR"] == pytest.approx(
            float(s.mean()), abs=1e-6
        )
        counts, _ = np.histogram(
            s.numpy().astype(np.float64), bins=20, range=(0.0, 1.0)
        )
        torch.testing.assert_close(
            score.diagnostics[f"{name}/s"], torch.tensor(counts / s.numel()).float()
        )
    ones = p.runner.method.diagnostics(
        client(p, 0),
        {**w, "policy.1.bias": w["policy.1.bias"] + torch.arange(32) * 9},
        *ends(p),
    )
    # shares of exactly 1 have a bin too
    torch.testing.assert_close(ones["s"].sum(-1), torch.ones(30))


def ends(p: SmallRun) -> tuple[Tensor, Tensor]:
    c = client(p, 0)
    return c.x, c.y


# ---------------------------------------------------------------- the border
def test_eq_6_hides_nothing() -> None:
    p, calls = overhear(FedCP(), share=0.5)
    rounds = [heard for heard in calls if heard.t]
    last = {k: heard for heard in rounds for k in heard.up}
    assert len(last) >= 3
    for k, heard in last.items():
        down, up = heard.down[k], heard.up[k]  # all that the server needs
        for name, head in p.keep(k).head.items():
            known = name.replace("head", "shared")
            torch.testing.assert_close(
                2 * up.shared[known] - down.shared[known], head, rtol=0, atol=1e-6
            )


@pytest.mark.parametrize("method", [FedCP(), FedCP(without="cpn,gfm,gh")])
def test_private_parts_are_in_no_upload(method: FedCP) -> None:
    p, calls = overhear(method)
    for k in range(6):
        up = calls[-1].up[k]
        assert type(up) is Up
        private = [*p.keep(k).head.values(), p.keep(k).v]
        sent = tensors(up)
        assert not any(
            a.shape == b.shape and torch.equal(a, b) for a in private for b in sent
        )
        assert all(
            name.startswith(("base.", "shared.", "policy."))
            for part in up
            for name in part
        )


def test_first_values_never_change() -> None:
    method = FedCP(without="cpn,gh,cs,ss")
    one = run_small(method, rounds=1)
    three = run_small(method)
    assert one.server.first.keys() == {"head.weight", "head.bias", "v"}
    assert equal(one.server.first, three.server.first)


def test_after_is_the_trained_model_under_the_old_global_head() -> None:
    p = once(FedCP())
    method, c, down = p.runner.method, client(p, 0), sent(p, 0)
    up, keep = method.local(c, down, p.keep(0))
    w = method.after_training(c, down, up, keep)
    for values in (up.base, up.policy, keep.head, down.shared):
        assert all(torch.equal(w[k], v) for k, v in values.items())
    assert torch.equal(w["v"], derive_vector(p.keep(0).head))


# ---------------------------------------------------------------- executors
def test_vmap_agrees_on_a_policy_with_batchnorm() -> None:
    """Without the client of one example: BatchNorm blows up the rounding of a variance of zero."""
    runs = [
        run_small(
            FedCP(norm="batch"),
            rounds=2,
            dtype=torch.float64,
            federation=digits((30, 17, 24, 9)),
            executor=e,
        )
        for e in ("sequential", "vmap")
    ]
    assert runs[1].executor.notices() == []
    assert largest_gap(*runs) < 1e-9


@pytest.mark.parametrize("gate", ["softmax", "gumbel_always"])
def test_vmap_scores_alike(gate: Any) -> None:
    p = run_small(FedCP(gate=gate), dtype=torch.float64, executor="vmap")
    with torch_settings(torch.float64):
        downs = {k: p.runner.method.send(p.server, k) for k in range(6)}
        replies = p.exchange.look(Look.SCORE, downs, 3)
        assert p.executor.notices() == []
        for k in range(6):
            for name, value in looks.personal_score(
                p.runner, k, downs[k], 3
            ).diagnostics.items():
                torch.testing.assert_close(
                    replies[k].up.diagnostics[name], value, rtol=0, atol=1e-9
                )


# ---------------------------------------------------------------- other backbones
def motions(folder: Path) -> Federation:
    """Three real subjects, forty windows each, the first half second of them."""
    data = load_dataset("har", folder)
    assert data.owner is not None
    mine = [torch.nonzero(data.owner == k).flatten()[::5][:56] for k in range(3)]
    train, rest = [i[:40] for i in mine], [i[40:] for i in mine]
    return Federation(
        "har",
        "signal",
        data.x[:, :, :28].contiguous(),
        data.y,
        data.classes,
        train,
        rest,
        rest,
    )


def test_a_head_of_three_layers(real_data: Callable[[str], Path]) -> None:
    federation = motions(real_data("har"))
    runs = [
        run_small(
            FedCP(lam=1.0),
            federation=federation,
            backbone=build("har_cnn", (9, 28), 6),
            rounds=2,
            dtype=torch.float64,
            executor=e,
        )
        for e in ("sequential", "vmap")
    ]
    assert not runs[0].exchange.traffic.lost
    assert runs[1].executor.notices() == []
    assert largest_gap(*runs) < 1e-9
    head = runs[0].keep(0).head
    assert [k for k in head if k.endswith("weight")] == [
        "head.fc1.weight",
        "head.fc2.weight",
        "head.fc3.weight",
    ]
    product = (
        head["head.fc3.weight"] @ head["head.fc2.weight"] @ head["head.fc1.weight"]
    )
    torch.testing.assert_close(
        derive_vector(head), F.normalize(product.sum(0), dim=0), rtol=0, atol=1e-12
    )


@pytest.mark.parametrize("kind", ["fasttext", "linear"])
def test_words_and_a_head_alone(kind: str) -> None:
    p = run_small(
        FedCP(), **(words() if kind == "fasttext" else {"backbone": small("linear")})
    )
    assert not p.exchange.traffic.lost
    assert torch.isfinite(
        p.runner.method.predict(client(p, 0), personal(p, 0), client(p, 0).x)
    ).all()


# ---------------------------------------------------------------- settings
@pytest.mark.parametrize(
    ("kind", "features", "lam"),
    [
        ("cnn", 512, 5.0),
        ("resnet18", 512, 1.0),
        ("fasttext", 32, 1.0),
        ("har_cnn", 1664, 0.1),
        ("lenet5", 100, 0.1),
        ("lenet_mgda", 50, 0.1),
        ("convnet2", 50, 0.1),
        ("cnn", 64, 0.1),
        ("resnet34", 512, 0.1),
        ("mlp", 128, 0.1),
        ("", 512, 0.1),
    ],
)
def test_lambda_by_backbone(kind: str, features: int, lam: float) -> None:
    backbone = Backbone(
        nn.Flatten(), nn.Linear(features, 2), features=features, kind=kind
    )
    assert FedCP().with_defaults_for(backbone).lam == lam
    assert FedCP(lam=0.0).with_defaults_for(backbone).lam == 0.0


def test_lambda_of_other_networks_is_what_the_study_chose() -> None:
    assert choose(read_record()) == LAM_OF_OTHERS


def test_mistakes_are_refused_by_name() -> None:
    with pytest.raises(
        UserError, match=r"^no part to leave out named 'gfn'; did you mean gfm.*\?$"
    ):
        FedCP(without="cpn,gfn")
    with pytest.raises(
        UserError,
        match="without='gh': FedCP's policy needs both heads, so write 'cpn,gh'",
    ):
        FedCP(without="gh").with_defaults_for(small())
    apart = nn.ModuleDict({"a": nn.Linear(4, 3), "b": nn.Linear(4, 3)})
    with pytest.raises(Unsupported, match="linear layers must follow one another"):
        FedCP().net(Backbone(nn.Flatten(), apart, features=4, last="head.b"))


def test_warnings() -> None:
    assert FedCP().with_defaults_for(small()).warnings() == []
    assert "lam=0" in FedCP(lam=0.0).warnings()[0]
    assert "FedPer" in FedCP(without="cpn,gfm,gh").warnings()[0]


def test_parts_to_leave_out_are_a_set() -> None:
    assert (
        FedCP(without="gh, cpn")
        == FedCP(without="cpn,gh")
        == make(FedCP, {"without": "gh,cpn"})
    )
    assert FedCP(without="cpn,gh").without == {"cpn", "gh"}
    assert FedCP().without == frozenset()
