"""CD2-pFed: its limits are FedAvg and local training, private channels stay at home, and nobody lacks a channel."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from fedtailor.core.errors import Unsupported
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params
from fedtailor.engine.exchange import Exchange
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.vectorized import Vectorized
from fedtailor.executors.visit import Reply
from fedtailor.executors.world import World
from fedtailor.method import Uploads
from fedtailor.methods.cd2pfed import CD2pFed, Down, Keep, Server, Up
from fedtailor.methods.fedavg import FedAvg
from fedtailor.models import build
from fedtailor.models.channels import Side, count_shared, draw_borders, overlay, split_parts
from fedtailor.storage.private_state import MemoryStore
from fedtailor.testing.small_world import SmallRun, digits, run_small, small
from fedtailor.training.optim import Plan
from helpers import words

HEAVY = Plan(lr=0.05, batch=10, epochs=2, momentum=0.9, weight_decay=5e-4)


class Call(NamedTuple):
    """A call of a trial, overheard."""

    t: int
    downs: dict[int, Down]
    ups: dict[int, Up]  # of all clients
    arrived: set[int]  # whose reply did not get lost


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    """Every call of the trials to come, in order."""
    heard: list[Call] = []
    call = Exchange.call

    def listen(
        self: Exchange, name: str, downs: dict[int, Any], t: int, number: int
    ) -> dict[int, tuple[int, Any]]:
        run, ups = self.executor.call, dict[int, Up]()

        def catch(*args: Any) -> dict[int, Reply]:
            replies = run(*args)
            ups.update({k: reply.up for k, reply in replies.items()})
            return replies

        with monkeypatch.context() as patch:
            patch.setattr(self.executor, "call", catch)
            arrived = call(self, name, downs, t, number)
        heard.append(Call(t, downs, ups, set(arrived)))
        return arrived

    monkeypatch.setattr(Exchange, "call", listen)
    return heard


def make_site(
    method: CD2pFed,
    *,
    rounds: int = 4,
    norm: str = "batch",
    bn: str = "average",
    plan: Plan = HEAVY,
) -> ClientRunner:
    return ClientRunner(
        World(method, small(norm=norm), digits(), plan, 0, rounds, bn, torch.get_default_dtype()),
        MemoryStore(),
    )


def start(method: CD2pFed, site: ClientRunner, rounds: int) -> Server:
    return method.init(site.new, 6)._replace(rounds=rounds)


def visit(
    method: CD2pFed, site: ClientRunner, server: Server, t: int, here: dict[int, bool]
) -> tuple[Server, Down]:
    """A round of the given clients, some of whose replies get lost (False)."""
    w = method.shared(server)
    server = method.arrange(server._replace(t=t, rounds=site.world.rounds), w, server.seen)
    down = method.arrange(server, w, {k: server.seen.get(k, 0) for k in here})
    sent = Down(down.w, down.turned)
    replies = {k: site.visit("local", k, sent, t, 1) for k in here}
    arrived = [k for k, came in here.items() if came]
    n = torch.tensor([float(replies[k].n) for k in arrived], dtype=torch.float64)
    return method.merge(server, Uploads(arrived, n, [replies[k].up for k in arrived])), sent


def cut(w: Params, method: CD2pFed, t: int, rounds: int) -> list[Params]:
    return split_parts(w, draw_borders(w, method.ratio(t, rounds)))


def equal(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def keeps(played: SmallRun) -> dict[int, Keep]:
    return {k: played.keep(k) for k in played.executor.store.clients()}


def trained(played: SmallRun, calls: list[Call], k: int) -> Params:
    """A client's whole model right after the last training: its own channels and those it sent."""
    return overlay(played.keep(k).w, calls[-1].ups[k].w)


def personal(played: SmallRun, k: int, t: int) -> Params:
    with torch_settings(played.runner.world.dtype):
        return dict(played.runner._personal(k, played.runner.method.send(played.server, k), t))


# -------------------------------------------------------------------- limits
@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize(
    ("method", "plan"),
    [
        (CD2pFed(p=0), Plan(lr=0.05, batch=10, epochs=2)),
        (CD2pFed(p=0, nesterov=False), HEAVY),
        (
            CD2pFed(p=0, nesterov=False, li=False, ta=False, cd=False, keep_private_momentum=False),
            HEAVY,
        ),
    ],
)
def test_without_private_channels_it_is_fedavg(method: CD2pFed, plan: Plan, norm: str) -> None:
    ours, theirs = (
        run_small(m, plan=plan, norm=norm, rounds=2, share=0.7) for m in (method, FedAvg())
    )
    assert equal(ours.server.w, theirs.server.w) and ours.server.turned == ours.server.old == {}
    assert list(ours.server.w) == list(theirs.server.w)
    assert (ours.exchange.traffic.bytes_up, ours.exchange.traffic.bytes_down) == (
        theirs.exchange.traffic.bytes_up,
        theirs.exchange.traffic.bytes_down,
    )
    for k in range(6):
        assert equal(personal(ours, k, 2), personal(theirs, k, 2))


def test_nesterov_is_the_difference_to_fedavg() -> None:
    assert not equal(
        run_small(CD2pFed(p=0), plan=HEAVY, rounds=1).server.w,
        run_small(FedAvg(), plan=HEAVY, rounds=1).server.w,
    )
    still = replace(HEAVY, momentum=0.0)
    assert equal(
        run_small(CD2pFed(p=0), plan=still, rounds=1).server.w,
        run_small(FedAvg(), plan=still, rounds=1).server.w,
    )


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_without_shared_channels_it_trains_locally(calls: list[Call], norm: str) -> None:
    method = CD2pFed(p=1, li=False, ta=False, nesterov=False)
    played = run_small(method, rounds=3, norm=norm, plan=HEAVY)
    assert played.exchange.traffic.bytes_up == 0 and played.exchange.traffic.lost == {}
    assert [up.w for call in calls for up in call.ups.values()] == [{}] * 18
    assert all(down.w == {} for call in calls for down in call.downs.values())
    assert all(down.turned == {} for call in calls for down in call.downs.values() if call.t > 1)
    first = played.runner.new()
    assert equal(method.shared(played.server), first)
    with torch_settings():
        for k in (0, 3):
            w = first
            for t in (1, 2, 3):
                c = played.runner.client(k, t, Purpose.CALL, t, 1)
                w = c.train(c.loss, w)
            assert equal(personal(played, k, 3), w)


def test_growing_to_one_ends_without_uploads(calls: list[Call]) -> None:
    run_small(CD2pFed(p=1), rounds=3)
    assert [all(up.w for up in call.ups.values()) for call in calls] == [True, True, False]
    assert all(up.w == {} for up in calls[-1].ups.values())


# -------------------------------------------------------------------- schedules and losses
def test_schedules() -> None:
    m = CD2pFed()
    assert [m.ratio(t, 50) for t in (0, 1, 25, 50)] == [0, 0.01, 0.25, 0.5]
    assert [replace(m, li=False).ratio(t, 50) for t in (0, 1, 50)] == [0, 0.5, 0.5]
    assert [m.smoothing(t, 50) for t in (5, 6, 50)] == [0.5] * 3
    assert (
        m.smoothing(1, 50) == pytest.approx(0.5 * math.exp(-3.2)) == pytest.approx(0.0204, abs=1e-4)
    )
    assert m.smoothing(0, 50) == pytest.approx(0.5 * math.exp(-5))
    assert replace(m, t0=0.0).smoothing(0, 50) == 0.5


def masked(w: Params, private: bool, at: dict[int, int]) -> Params:
    """Parameters of the small network with those of the other kind's channels set to zero."""

    def keep(n: int) -> Tensor:
        return ((torch.arange(n) >= at[n]) if private else (torch.arange(n) < at[n])).to(
            torch.get_default_dtype()
        )

    out = dict(w)
    for k in ("base.conv1.weight", "base.conv1.bias", "base.fc1.weight", "base.fc1.bias"):
        out[k] = w[k] * keep(len(w[k])).reshape(-1, *[1] * (w[k].dim() - 1))
    return out | {"head.weight": w["head.weight"] * keep(16)}


@pytest.mark.parametrize("detach", [False, True])
def test_one_step_descends_equation_five(calls: list[Call], detach: bool) -> None:
    plan = Plan(lr=0.1, batch=30)  # client 0 has 30 examples: one step
    method = CD2pFed(li=False, ta=False, p=0.4, lam=0.7, detach_teacher=detach)
    played = run_small(method, rounds=1, norm="none", plan=plan, dtype=torch.float64)
    with torch_settings(torch.float64):
        c, w = played.runner.client(0, 1, Purpose.CALL, 1, 1), played.runner.new()
        leaves = {k: v.clone().requires_grad_() for k, v in w.items()}
        stock = small(norm="none").double()
        at = {n: n - math.ceil(0.4 * n) for n in (4, 16)}
        local, shared = (
            functional_call(stock, masked(leaves, private, at), c.x).log_softmax(-1)
            for private in (True, False)
        )
        pairs = (
            ((local.detach(), shared), (shared.detach(), local))
            if detach
            else ((local, shared), (shared, local))
        )
        kl = [
            F.kl_div(pupil, teacher, reduction="batchmean", log_target=True)
            for teacher, pupil in pairs
        ]
        loss = F.cross_entropy(functional_call(stock, leaves, c.x), c.y) + 0.7 * (kl[0] + kl[1]) / 2
        slopes = torch.autograd.grad(loss, list(leaves.values()))
        for (k, v), g in zip(w.items(), slopes, strict=True):
            torch.testing.assert_close(
                trained(played, calls, 0)[k], v - 0.1 * g, rtol=1e-9, atol=1e-9
            )
            assert bool(g.any())


def test_temporal_average_holds_private_channels_back(calls: list[Call]) -> None:
    raw, held = (
        run_small(CD2pFed(li=False, ta=ta, t0=0.0, beta=0.3), rounds=1, norm="batch")
        for ta in (False, True)
    )
    for k in (0, 4):
        assert equal(calls[0].ups[k].w, calls[1].ups[k].w)  # shared channels are not averaged
        new, mixed, old = (
            cut(w, CD2pFed(li=False), 1, 1)[1]
            for w in (raw.keep(k).w, held.keep(k).w, raw.site.new())
        )
        for name in old:
            torch.testing.assert_close(mixed[name], old[name] + 0.3 * (new[name] - old[name]))
        assert not any(torch.equal(new[name], old[name]) for name in old if "weight" in name)


def test_an_average_of_the_new_alone_is_none() -> None:
    a, b = (
        run_small(m, plan=HEAVY, rounds=2) for m in (CD2pFed(beta=1.0, t0=0.0), CD2pFed(ta=False))
    )
    assert a.hash == b.hash


def test_the_average_is_taken_after_every_epoch(calls: list[Call]) -> None:
    method = CD2pFed(li=False, cd=False, beta=0.3, t0=0.0, nesterov=False)
    played = run_small(method, rounds=1, norm="none", plan=replace(HEAVY, epochs=3))
    with torch_settings():
        c, w, momentum = played.runner.client(2, 1, Purpose.CALL, 1, 1), played.runner.new(), None
        for _ in range(3):
            new, momentum = c.train_with_state(c.loss, w, epochs=1, state=momentum)
            for k, at in (
                ("base.conv1.weight", 2),
                ("base.conv1.bias", 2),
                ("base.fc1.weight", 8),
                ("base.fc1.bias", 8),
            ):
                new[k] = torch.cat([new[k][:at], torch.lerp(w[k][at:], new[k][at:], 0.3)])
            k = "head.weight"
            new[k] = torch.cat([new[k][:, :8], torch.lerp(w[k][:, 8:], new[k][:, 8:], 0.3)], 1)
            w = new
    assert equal(trained(played, calls, 2), w)


def test_eight_ablations_are_eight_methods() -> None:
    hashes = {}
    for li, ta, cd in itertools.product((False, True), repeat=3):
        hashes[li, ta, cd] = run_small(
            CD2pFed(li=li, ta=ta, cd=cd), rounds=2, federation=digits((12, 9))
        ).hash
    assert len(set(hashes.values())) == 8
    assert (
        hashes[True, True, False]
        == run_small(CD2pFed(lam=0), rounds=2, federation=digits((12, 9))).hash
    )


def test_distillation_makes_the_sides_agree(calls: list[Call]) -> None:
    def disagree(cd: bool) -> float:
        played = run_small(
            CD2pFed(cd=cd, li=False, ta=False), rounds=6, norm="batch", federation=digits((40, 40))
        )
        gaps = []
        with torch_settings():
            for k in (0, 1):
                c, w = played.runner.client(k, 6, 0), trained(played, calls, k)
                with played.runner.template.train([]):
                    a, b = (
                        c.model(w, c.x, Side(private, 0.5)).log_softmax(-1)
                        for private in (True, False)
                    )
                gaps.append(float(((a.exp() - b.exp()) * (a - b)).sum(-1).mean()))
        return sum(gaps)

    assert disagree(True) < 0.1 * disagree(False)


# -------------------------------------------------------------------- what travels
@pytest.mark.parametrize("executor", ["sequential", "vmap"])
def test_private_channels_never_go_up(calls: list[Call], executor: str) -> None:
    method = CD2pFed(p=0.8, keep_private_momentum=True)
    played = run_small(
        method, rounds=4, norm="batch", plan=HEAVY, dtype=torch.float64, drop=0.3, executor=executor
    )
    first = played.runner.new()
    assert len(calls) == 4 and played.exchange.traffic.lost
    for t, _, ups, _ in calls:
        shared, private = cut(first, method, t, 4)
        assert len(ups) == 6
        for up in ups.values():
            assert {k: v.shape for k, v in up.w.items()} == {k: v.shape for k, v in shared.items()}
            if executor == "sequential":
                assert all(v.untyped_storage().nbytes() == v.nbytes for v in up.w.values())
        assert private
    for k, up in calls[
        -1
    ].ups.items():  # no number of a private channel, or of a momentum, is among what went up
        keep = played.keep(k)
        sent = torch.cat([v.flatten() for v in up.w.values()])
        private = torch.cat([v.flatten() for v in cut(keep.w, method, 4, 4)[1].values()])
        momentum = torch.cat([v.flatten() for v in keep.momentum.values()])
        assert bool((private != 0).any()) and not any(
            v.any() for v in cut(keep.w, method, 4, 4)[0].values()
        )
        secrets = torch.cat([private, momentum])
        assert (secrets != 0).sum() > 1000 and not bool(
            torch.isin(secrets[secrets != 0], sent).any()
        )


def test_the_server_keeps_the_last_global_values() -> None:
    method, rounds = CD2pFed(), 4
    with torch_settings():
        site = make_site(method, rounds=rounds)
        server, wholes = start(method, site, rounds), [site.new()]
        for t in range(1, rounds + 1):
            server, _ = visit(method, site, server, t, dict.fromkeys(range(6), True))
            wholes.append(method.shared(server))
        for t in range(1, rounds + 1):
            shared, private = cut(wholes[t], method, t, rounds)
            before = cut(wholes[t - 1], method, t, rounds)
            assert equal(private, before[1]) and list(wholes[t]) == list(wholes[0])
            assert not any(torch.equal(shared[k], before[0][k]) for k in shared)


def test_what_goes_down_is_what_is_needed(calls: list[Call]) -> None:
    method, rounds = CD2pFed(), 4
    played = run_small(method, rounds=rounds)
    first = played.runner.new()
    for t, downs, _, _ in calls:
        down = downs[0]
        assert all(d is down for d in downs.values())
        for k, full in first.items():
            axis, size = (1, 16) if k == "head.weight" else (0, len(full))
            now, then = (
                size if k == "head.bias" else count_shared(size, method.ratio(u, rounds))
                for u in (t, t - 1)
            )
            assert down.w[k].shape[axis] == now
            assert (down.turned[k].shape[axis] if k in down.turned else 0) == then - now
    assert (
        played.server.turned == {}
    )  # all took part in the last round: an evaluation needs the shared channels alone
    assert equal(
        cut(method.shared(played.server), method, rounds, rounds)[0],
        method.send(played.server, 3).w,
    )
    news = method.send(played.server, 99)
    assert all(news.turned[k].shape == v.shape for k, v in cut(first, method, 4, 4)[1].items())


def test_the_slowest_of_the_cohort_says_what_goes_down(calls: list[Call]) -> None:
    method, rounds = CD2pFed(p=0.9), 10
    played = run_small(method, rounds=rounds, share=0.34, federation=digits((5, 5, 5, 5)), drop=0.2)
    seen, cheaper = dict.fromkeys(range(4), 0), 0
    for t, downs, _, arrived in calls:
        now, then, all_of_them = (
            count_shared(16, method.ratio(u, rounds))
            for u in (t, min(seen[k] for k in downs), min(seen.values()))
        )
        for down in downs.values():
            assert len(down.w["base.fc1.bias"]) == now
            assert (
                len(down.turned["base.fc1.bias"]) if "base.fc1.bias" in down.turned else 0
            ) == then - now
        cheaper += then < all_of_them
        seen |= dict.fromkeys(arrived, t)
    assert seen == played.server.seen and cheaper > 0 and played.exchange.traffic.lost
    sent = method.send(played.server, 0)
    held = len(sent.w["base.fc1.bias"]) + len(sent.turned.get("base.fc1.bias", []))
    assert held == count_shared(16, method.ratio(min(seen.values()), rounds))


@pytest.mark.parametrize("bn", ["average", "local"])
def test_who_was_away_takes_the_servers_copies(bn: str) -> None:
    """Client 0 takes part in 1 and 4; 1 always; 2 always, but its replies of 2 and 3 get lost; 3 comes in 4."""
    method, rounds = CD2pFed(p=0.8), 5
    with torch_settings():
        site = make_site(method, rounds=rounds, bn=bn)
        server, wholes = start(method, site, rounds), [site.new()]
        presence = {1: {0: True, 1: True, 2: True}, 2: {1: True, 2: False}, 3: {1: True, 2: False}}
        for t, here in presence.items():
            server, down = visit(method, site, server, t, here)
            wholes.append(method.shared(server))
            sizes = [count_shared(16, method.ratio(u, rounds)) for u in (t, 0 if t == 1 else 1)]
            assert (len(down.w["base.fc1.bias"]), len(down.turned["base.fc1.bias"])) == (
                sizes[0],
                sizes[1] - sizes[0],
            )
        assert server.seen == {0: 1, 1: 3, 2: 1, 3: 0, 4: 0, 5: 0}
        last_here = {0: 1, 1: 3, 2: 3, 3: 0}
        server = method.arrange(server._replace(t=4), method.shared(server), server.seen)
        for k, u in last_here.items():
            c, down, keep = site.load_client(k, method.send(server, k), 4)
            mine = method.personal(c, down, keep)
            new, own = (cut(w, method, u, rounds) for w in (mine, keep.w))
            assert equal(new[1], own[1]) and (u == 0) == (
                new[1] == {}
            )  # its own private channels, untouched
            theirs = cut(wholes[3], method, u, rounds)[0]
            if bn == "local" and u:  # statistics are the client's own, from first to last
                memory = {
                    name: v for name, v in (site.load(k) or ({}, {}))[1].items() if name in theirs
                }
                assert memory.keys() == {name for name in theirs if "running" in name}
                theirs = theirs | memory
            assert equal(new[0], theirs)
            site.visit("local", k, method.send(server, k), 4, 1)


def test_a_client_never_seen_before() -> None:
    method = CD2pFed()
    played = run_small(method, rounds=3, norm="batch", share=0.5)
    with torch_settings():
        c = played.runner.client(3, 3, Purpose.JOIN)
        for k in (99, 3):
            down = method.send(played.server, k)
            keep = method.first_keep(c, down)
            assert equal(method.personal(c, down, keep), method.shared(played.server))
            up, after = method.local(c, down, keep)
            assert {n: v.shape for n, v in up.w.items()} == {
                n: v.shape for n, v in played.server.w.items()
            }
            whole = method.after_training(c, down, up, after)
            assert equal(split_parts(whole, draw_borders(whole, 0.5))[0], up.w)
            assert equal(
                split_parts(whole, draw_borders(whole, 0.5))[1], cut(after.w, method, 3, 3)[1]
            )
            assert list(method.personal(c, down, after)) == list(played.runner.new())


def test_private_momentum_outlives_the_round_and_shared_momentum_does_not() -> None:
    method = CD2pFed(li=False, keep_private_momentum=True)
    kept, fresh = (
        run_small(m, rounds=2, plan=HEAVY, norm="batch") for m in (method, CD2pFed(li=False))
    )
    once = run_small(method, rounds=1, plan=HEAVY, norm="batch")
    assert equal(
        once.keep(0).w, run_small(CD2pFed(li=False), rounds=1, plan=HEAVY, norm="batch").keep(0).w
    )
    assert not equal(kept.keep(0).w, fresh.keep(0).w) and fresh.keep(0).momentum is None
    for name, x in once.keep(0).momentum.items():
        border = draw_borders(once.keep(0).w, 0.5)[name]
        shared, private = x.split([border.at, border.size - border.at], border.axis)
        assert not bool(shared.any()) and (border.at == border.size or bool(private.any()))


# -------------------------------------------------------------------- executors
@pytest.mark.parametrize(
    ("norm", "chance"),
    [("group", {}), ("batch", {}), ("batch", {"share": 0.5}), ("group", {"drop": 0.3})],
)
def test_vmap_agrees(norm: str, chance: dict[str, float]) -> None:
    method = CD2pFed(detach_teacher=not chance, keep_private_momentum="share" in chance)
    one, many = (
        run_small(
            method, rounds=3, plan=HEAVY, norm=norm, dtype=torch.float64, executor=e, **chance
        )  # type: ignore[arg-type]
        for e in ("sequential", "vmap")
    )
    assert many.executor.notices() == [] and one.server.seen == many.server.seen
    assert one.exchange.traffic == many.exchange.traffic and bool(one.exchange.traffic.lost) == (
        "drop" in chance
    )
    torch.testing.assert_close(many.server[:3], one.server[:3], rtol=1e-9, atol=1e-9)
    assert keeps(one).keys() == keeps(many).keys()
    for k, keep in keeps(one).items():
        torch.testing.assert_close(keeps(many)[k].w, keep.w, rtol=1e-9, atol=1e-9)
        torch.testing.assert_close(keeps(many)[k].at, keep.at)
        assert (keep.momentum is None) == ("share" not in chance)
        if keep.momentum is not None:
            torch.testing.assert_close(keeps(many)[k].momentum, keep.momentum, rtol=1e-9, atol=1e-9)
    assert isinstance(many.executor, Vectorized)
    with torch_settings(torch.float64):  # evaluations run side by side too, newcomers and all
        downs = {k: method.send(many.server, k) for k in range(6)}
        together = many.executor.call("@score", downs, 3, 0, lambda: None)
        assert many.executor.notices() == []
        for k, reply in together.items():
            alone = one.runner._score(k, method.send(one.server, k), 3)
            assert alone.diagnostics.keys() == {
                f"{part}/{side}" for part in ("train", "test") for side in ("private", "shared")
            }
            torch.testing.assert_close(reply.up, alone, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_vmap_agrees_in_residual_streams(norm: str) -> None:
    one, many = (
        run_small(
            CD2pFed(p=0.3),
            rounds=1,
            federation=digits((10, 6)),
            dtype=torch.float64,
            executor=e,
            backbone=build("resnet32", (1, 8, 8), 10, norm=norm),
        )
        for e in ("sequential", "vmap")
    )
    assert many.executor.notices() == [] and many.exchange.traffic.lost == {}
    torch.testing.assert_close(many.server[:3], one.server[:3], rtol=1e-9, atol=1e-9)
    for k in (0, 1):
        torch.testing.assert_close(many.keep(k).w, one.keep(k).w, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("norm", "chance"), [("batch", {"share": 0.5, "drop": 0.3}), ("group", {})]
)
def test_processes_agree(norm: str, chance: dict[str, float]) -> None:
    method = CD2pFed(keep_private_momentum=True)
    one, many = (
        run_small(method, rounds=3, plan=HEAVY, norm=norm, executor=e, **chance)  # type: ignore[arg-type]
        for e in ("sequential", "processes")
    )
    assert one.hash == many.hash and one.exchange.traffic == many.exchange.traffic


def test_processes_agree_when_nothing_travels() -> None:
    one, many = (
        run_small(CD2pFed(p=1, li=False), rounds=2, executor=e).hash
        for e in ("sequential", "processes")
    )
    assert one == many == run_small(CD2pFed(p=1, li=False, cd=False), rounds=2).hash


# -------------------------------------------------------------------- the rest
def test_it_learns() -> None:
    def accuracy(rounds: int) -> float:
        plan = Plan(lr=0.05, batch=10, momentum=0.9)
        played = run_small(
            CD2pFed(), rounds=rounds, federation=digits((60,) * 8), plan=plan, norm="none"
        )
        with torch_settings():
            scores = [
                played.runner._score(k, played.runner.method.send(played.server, k), rounds)
                for k in range(8)
            ]
        return sum(float(s.test.correct.sum()) for s in scores) / sum(
            float(s.test.n.sum()) for s in scores
        )

    first, last = accuracy(1), accuracy(12)
    assert last > 0.8 and last > first + 0.3


def test_words_are_split_by_the_channels_of_their_vectors(calls: list[Call]) -> None:
    assert equal(
        run_small(CD2pFed(p=0), **words()).server.w, run_small(FedAvg(), **words()).server.w
    )
    calls.clear()
    method, name = CD2pFed(p=0.8), "base.embedding.weight"
    played = run_small(method, rounds=4, share=0.7, **words())
    for t, _, ups, _ in calls:
        assert {up.w[name].shape for up in ups.values()} == {
            (17, count_shared(32, method.ratio(t, 4)))
        }
    for k in calls[-1].ups:
        own = played.keep(k).w[name]
        assert not own[:, :6].any() and own[:, 6:].any(0).all()
        assert not bool(torch.isin(own[own != 0], calls[-1].ups[k].w[name]).any())
    assert (
        run_small(method, rounds=4, share=0.7, executor="processes", **words()).hash == played.hash
    )
    one, two = (
        run_small(method, dtype=torch.float64, executor=e, **words())
        for e in ("sequential", "vmap")
    )
    assert two.executor.notices() == []
    torch.testing.assert_close(two.server[:3], one.server[:3], rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(
        [k.w for k in keeps(two).values()], [k.w for k in keeps(one).values()]
    )


def test_networks_without_hidden_layers_are_refused() -> None:
    with pytest.raises(Unsupported, match="hidden layers"):
        run_small(CD2pFed(), backbone=small("linear"))


def test_doubts() -> None:
    assert (
        CD2pFed().warnings() == [] and CD2pFed(lam=0, cd=False, beta=0, ta=False).warnings() == []
    )
    odd = {"p": (0.0, 1.0), "lam": (0.0,), "beta": (0.0, 1.0)}
    for name, values in odd.items():
        for value in values:
            (line,) = CD2pFed(**{name: value}).warnings()  # type: ignore[arg-type]
            assert line.startswith(f"{name}={value:g}:")
