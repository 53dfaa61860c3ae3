"""CD2-pFed: its limits, FedAvg and local training, its losses, and which channels are sent."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from fedtailor.core.errors import Unsupported, UserError
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params
from fedtailor.engine.exchange import Exchange
from fedtailor.executors import looks
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.sequential import Sequential
from fedtailor.executors.visit import Visit
from fedtailor.executors.world import World
from fedtailor.filters import Call, Filter
from fedtailor.filters.local_buffers import LocalBuffers
from fedtailor.filters.tap import Tap, Traffic
from fedtailor.method import Cohort, Uploads
from fedtailor.methods import make
from fedtailor.methods.cd2pfed import (
    CD2pFed,
    Down,
    Keep,
    measure_statistics,
    score_sides,
)
from fedtailor.methods.fedavg import FedAvg
from fedtailor.models import build
from fedtailor.models.channels import (
    Side,
    count_shared,
    draw_borders,
    overlay_channels,
    split_channels,
)
from fedtailor.storage.private_state import MemoryStore
from fedtailor.testing.conformance import largest_gap
from fedtailor.testing.small_world import SmallRun, digits, run_small, small
from fedtailor.training.optim import Plan
from helpers import equal, overhear, words

HEAVY = Plan(lr=0.05, batch=10, epochs=2, momentum=0.9, weight_decay=5e-4)
NESTEROV = replace(HEAVY, nesterov=True)


class LoseReplies(Filter):
    """Loses the replies of some clients in some rounds."""

    def __init__(self, lost: set[tuple[int, int]]) -> None:
        self.lost = lost  # (round, client)

    def server_receives(self, call: Call, ups: Uploads[Any]) -> Uploads[Any]:
        return ups.of(k for k in ups.clients if (call.t, k) not in self.lost)


def cut(w: Params, method: CD2pFed, t: int, rounds: int) -> tuple[Params, Params]:
    return split_channels(w, draw_borders(w, method.ratio(t, rounds)))


def keeps(played: SmallRun) -> dict[int, Keep]:
    return {k: played.keep(k) for k in played.store.clients()}


def trained(played: SmallRun, calls: list[Traffic], k: int) -> Params:
    """A client's whole model right after the last training: its own channels and those it sent."""
    return overlay_channels(played.keep(k).w, calls[-1].up[k].w)


def personal(played: SmallRun, k: int, t: int) -> Params:
    with torch_settings(played.runner.world.dtype):
        return looks.personal(
            played.runner, k, played.runner.method.send(played.server, k), t
        )


# -------------------------------------------------------------------- limits
@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize(
    ("method", "plan"),
    [
        (CD2pFed(p=0), Plan(lr=0.05, batch=10, epochs=2)),
        (CD2pFed(p=0), HEAVY),
        (CD2pFed(p=0), NESTEROV),
        (
            CD2pFed(
                p=0,
                li=False,
                ta=False,
                cd=False,
                keep_private_momentum=False,
            ),
            HEAVY,
        ),
    ],
)
def test_without_private_channels_it_is_fedavg(
    method: CD2pFed, plan: Plan, norm: str
) -> None:
    ours, theirs = (
        run_small(m, plan=plan, norm=norm, rounds=2, share=0.7)
        for m in (method, FedAvg())
    )
    assert (
        equal(ours.server.w, theirs.server.w)
        and ours.server.turned == ours.server.old == {}
    )
    assert list(ours.server.w) == list(theirs.server.w)
    assert (ours.exchange.traffic.bytes_up, ours.exchange.traffic.bytes_down) == (
        theirs.exchange.traffic.bytes_up,
        theirs.exchange.traffic.bytes_down,
    )
    for k in range(6):
        assert equal(personal(ours, k, 2), personal(theirs, k, 2))


def test_nesterov_is_the_experiments_and_tells() -> None:
    heavy_ball, nesterov = (
        run_small(CD2pFed(), plan=plan, rounds=1).server.w for plan in (HEAVY, NESTEROV)
    )
    assert not equal(heavy_ball, nesterov)
    with pytest.raises(UserError, match=r"CD2pFed: 'nesterov' is now .*--nesterov$"):
        make(CD2pFed, {"nesterov": "true"})


@pytest.mark.parametrize("norm", ["group", "batch"])
def test_without_shared_channels_it_trains_locally(norm: str) -> None:
    method = CD2pFed(p=1, li=False, ta=False)
    played, calls = overhear(method, rounds=3, norm=norm, plan=HEAVY)
    assert played.exchange.traffic.bytes_up == 0 and played.exchange.traffic.lost == {}
    assert [up.w for call in calls for up in call.up.values()] == [{}] * 18
    assert all(down.w == {} for call in calls for down in call.down.values())
    assert all(
        down.turned == {} for call in calls for down in call.down.values() if call.t > 1
    )
    first = played.runner.new()
    assert equal(method.shared(played.server), first)
    with torch_settings():
        for k in (0, 3):
            w = first
            for t in (1, 2, 3):
                c = played.runner.client(k, t, Purpose.CALL, t, 1)
                w = c.train(c.loss, w)
            assert equal(personal(played, k, 3), w)


def test_growing_to_one_ends_without_uploads() -> None:
    _, calls = overhear(CD2pFed(p=1), rounds=3)
    assert [all(up.w for up in call.up.values()) for call in calls] == [
        True,
        True,
        False,
    ]
    assert all(up.w == {} for up in calls[-1].up.values())


# -------------------------------------------------------------------- schedules and losses
def test_schedules() -> None:
    m = CD2pFed()
    assert [m.ratio(t, 50) for t in (0, 1, 25, 50)] == [0, 0.01, 0.25, 0.5]
    assert [replace(m, li=False).ratio(t, 50) for t in (0, 1, 50)] == [0, 0.5, 0.5]
    assert [m.smoothing(t, 50) for t in (5, 6, 50)] == [0.5] * 3
    assert (
        m.smoothing(1, 50)
        == pytest.approx(0.5 * math.exp(-3.2))
        == pytest.approx(0.0204, abs=1e-4)
    )
    assert m.smoothing(0, 50) == pytest.approx(0.5 * math.exp(-5))
    assert replace(m, t0=0.0).smoothing(0, 50) == 0.5


def masked(w: Params, private: bool, at: dict[int, int]) -> Params:
    """Parameters of the small network with those of the other kind's channels set to zero."""

    def keep(n: int) -> Tensor:
        return (
            (torch.arange(n) >= at[n]) if private else (torch.arange(n) < at[n])
        ).to(torch.get_default_dtype())

    out = dict(w)
    for k in (
        "base.conv1.weight",
        "base.conv1.bias",
        "base.fc1.weight",
        "base.fc1.bias",
    ):
        out[k] = w[k] * keep(len(w[k])).reshape(-1, *[1] * (w[k].dim() - 1))
    return out | {"head.weight": w["head.weight"] * keep(16)}


@pytest.mark.parametrize("detach", [False, True])
def test_one_step_descends_equation_five(detach: bool) -> None:
    plan = Plan(lr=0.1, batch=30)  # client 0 has 30 examples: one step
    method = CD2pFed(li=False, ta=False, p=0.4, lam=0.7, detach_teacher=detach)
    played, calls = overhear(
        method, rounds=1, norm="none", plan=plan, dtype=torch.float64
    )
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
        loss = (
            F.cross_entropy(functional_call(stock, leaves, c.x), c.y)
            + 0.7 * (kl[0] + kl[1]) / 2
        )
        slopes = torch.autograd.grad(loss, list(leaves.values()))
        for (k, v), g in zip(w.items(), slopes, strict=True):
            torch.testing.assert_close(
                trained(played, calls, 0)[k], v - 0.1 * g, rtol=1e-9, atol=1e-9
            )
            assert bool(g.any())


def test_temporal_average_holds_private_channels_back() -> None:
    (raw, raw_calls), (held, held_calls) = (
        overhear(CD2pFed(li=False, ta=ta, t0=0.0, beta=0.3), rounds=1, norm="batch")
        for ta in (False, True)
    )
    for k in (0, 4):
        # shared channels are not averaged
        assert equal(raw_calls[0].up[k].w, held_calls[0].up[k].w)
        new, mixed, old = (
            cut(w, CD2pFed(li=False), 1, 1)[1]
            for w in (raw.keep(k).w, held.keep(k).w, raw.runner.new())
        )
        for name in old:
            torch.testing.assert_close(
                mixed[name], old[name] + 0.3 * (new[name] - old[name])
            )
        assert not any(
            torch.equal(new[name], old[name]) for name in old if "weight" in name
        )


def test_an_average_of_the_new_alone_is_none() -> None:
    a, b = (
        run_small(m, plan=HEAVY, rounds=2)
        for m in (CD2pFed(beta=1.0, t0=0.0), CD2pFed(ta=False))
    )
    assert a.hash == b.hash


def test_the_average_is_taken_after_every_epoch() -> None:
    method = CD2pFed(li=False, cd=False, beta=0.3, t0=0.0)
    played, calls = overhear(
        method, rounds=1, norm="none", plan=replace(HEAVY, epochs=3)
    )
    with torch_settings():
        c, w, momentum = (
            played.runner.client(2, 1, Purpose.CALL, 1, 1),
            played.runner.new(),
            None,
        )
        for _ in range(3):
            new, momentum = c.train_with_state(c.loss, w, epochs=1, state=momentum)
            for k, at in (
                ("base.conv1.weight", 2),
                ("base.conv1.bias", 2),
                ("base.fc1.weight", 8),
                ("base.fc1.bias", 8),
            ):
                new[k] = torch.cat(
                    [new[k][:at], torch.lerp(w[k][at:], new[k][at:], 0.3)]
                )
            k = "head.weight"
            new[k] = torch.cat(
                [new[k][:, :8], torch.lerp(w[k][:, 8:], new[k][:, 8:], 0.3)], 1
            )
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


def test_distillation_makes_the_sides_agree() -> None:
    def disagree(cd: bool) -> float:
        played, calls = overhear(
            CD2pFed(cd=cd, li=False, ta=False),
            rounds=6,
            norm="batch",
            federation=digits((40, 40)),
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
def test_private_channels_never_go_up(executor: str) -> None:
    method = CD2pFed(p=0.8, keep_private_momentum=True)
    played, calls = overhear(
        method,
        rounds=4,
        norm="batch",
        plan=HEAVY,
        dtype=torch.float64,
        executor=executor,
    )
    first = played.runner.new()
    assert len(calls) == 4
    for call in calls:
        shared, private = cut(first, method, call.t, 4)
        assert len(call.up) == 6
        for up in call.up.values():
            assert {k: v.shape for k, v in up.w.items()} == {
                k: v.shape for k, v in shared.items()
            }
        assert private
    # no number of a private channel, or of a momentum, is among what went up
    for k, up in calls[-1].up.items():
        keep = played.keep(k)
        sent = torch.cat([v.flatten() for v in up.w.values()])
        private = torch.cat(
            [v.flatten() for v in cut(keep.w, method, 4, 4)[1].values()]
        )
        momentum = torch.cat([v.flatten() for v in keep.momentum.values()])
        assert bool((private != 0).any()) and not any(
            v.any() for v in cut(keep.w, method, 4, 4)[0].values()
        )
        secrets = torch.cat([private, momentum])
        assert (secrets != 0).sum() > 1000 and not bool(
            torch.isin(secrets[secrets != 0], sent).any()
        )


def test_an_upload_carries_no_private_channel_in_its_memory() -> None:
    played = run_small(CD2pFed(p=0.8), rounds=2, norm="batch")
    method, runner = played.runner.method, played.runner
    with torch_settings():
        up = runner.visit(0, Visit("local", 2, 1, method.send(played.server, 0))).up
    assert up.w
    assert all(v.untyped_storage().nbytes() == v.nbytes for v in up.w.values())


def test_the_server_keeps_the_last_global_values() -> None:
    method, rounds = CD2pFed(), 4
    runs = [
        run_small(method, rounds=rounds, until=t, norm="batch", plan=HEAVY)
        for t in range(1, rounds + 1)
    ]
    wholes = [runs[0].runner.new(), *(method.shared(run.server) for run in runs)]
    for t in range(1, rounds + 1):
        shared, private = cut(wholes[t], method, t, rounds)
        before = cut(wholes[t - 1], method, t, rounds)
        assert equal(private, before[1]) and list(wholes[t]) == list(wholes[0])
        assert not any(torch.equal(shared[k], before[0][k]) for k in shared)


def test_what_goes_down_is_what_is_needed() -> None:
    method, rounds = CD2pFed(), 4
    played, calls = overhear(method, rounds=rounds)
    first = played.runner.new()
    for call in calls:
        t, down = call.t, call.down[0]
        assert all(d is down for d in call.down.values())
        for k, full in first.items():
            axis, size = (1, 16) if k == "head.weight" else (0, len(full))
            now, then = (
                size
                if k == "head.bias"
                else count_shared(size, method.ratio(u, rounds))
                for u in (t, t - 1)
            )
            assert down.w[k].shape[axis] == now
            assert (down.turned[k].shape[axis] if k in down.turned else 0) == then - now
    # all took part in the last round: an evaluation needs the shared channels alone
    assert played.server.turned == {}
    assert equal(
        cut(method.shared(played.server), method, rounds, rounds)[0],
        method.send(played.server, 3).w,
    )
    news = method.send(played.server, 99)
    assert all(
        news.turned[k].shape == v.shape for k, v in cut(first, method, 4, 4)[1].items()
    )


def test_the_slowest_of_the_cohort_decides_what_goes_down() -> None:
    method, rounds = CD2pFed(p=0.9), 10
    played, calls = overhear(
        method, rounds=rounds, share=0.34, federation=digits((5, 5, 5, 5)), drop=0.2
    )
    seen, cheaper = dict.fromkeys(range(4), 0), 0
    for call in calls:
        now, then, all_of_them = (
            count_shared(16, method.ratio(u, rounds))
            for u in (call.t, min(seen[k] for k in call.down), min(seen.values()))
        )
        for down in call.down.values():
            assert len(down.w["base.fc1.bias"]) == now
            assert (
                len(down.turned["base.fc1.bias"])
                if "base.fc1.bias" in down.turned
                else 0
            ) == then - now
        cheaper += then < all_of_them
        seen |= dict.fromkeys(call.up, call.t)
    assert seen == played.server.seen and cheaper > 0 and played.exchange.traffic.lost
    sent = method.send(played.server, 0)
    held = len(sent.w["base.fc1.bias"]) + len(sent.turned.get("base.fc1.bias", []))
    assert held == count_shared(16, method.ratio(min(seen.values()), rounds))


@pytest.mark.parametrize("bn", ["average", "local"])
def test_clients_that_were_away_take_the_servers_copies(bn: str) -> None:
    """Client 0 is there in round 1, 1 always, 2 always but two of its replies get lost, 3 never."""
    method, rounds = CD2pFed(p=0.8), 5
    tap, lose = Tap(), LoseReplies({(2, 2), (3, 2)})
    filters = [*([LocalBuffers()] if bn == "local" else []), tap, lose]
    with torch_settings():
        world = World(method, small(norm="batch"), digits(), HEAVY, 0, rounds, filters)
        runner = ClientRunner(world, MemoryStore())
        exchange = Exchange(method, Sequential(runner), runner.filters, 0, rounds)
        server = method.init(runner.new, 6)
        for t, clients in ((1, (0, 1, 2)), (2, (1, 2)), (3, (1, 2))):
            server = method.round(server, Cohort(exchange, clients, t))
            down = tap.traffic[-1].down[1]
            now, then = (
                count_shared(16, method.ratio(u, rounds)) for u in (t, min(t - 1, 1))
            )
            assert len(down.w["base.fc1.bias"]) == now
            assert len(down.turned["base.fc1.bias"]) == then - now
        assert server.seen == {0: 1, 1: 3, 2: 1, 3: 0, 4: 0, 5: 0}
        whole = method.shared(server)
        division = method.divide(server._replace(t=4), whole, since=0)
        sent = Down(division.shared, division.turned)
        last_here = {0: 1, 1: 3, 2: 3, 3: 0}
        for k, u in last_here.items():
            c, down, keep = runner.load_client(k, sent, 4)
            mine = method.personal(c, down, keep)
            new, own = (cut(w, method, u, rounds) for w in (mine, keep.w))
            assert equal(new[1], own[1])  # its own private channels, untouched
            assert (u == 0) == (new[1] == {})
            theirs = cut(whole, method, u, rounds)[0]
            # statistics are the client's own, from first to last
            if bn == "local" and u:
                buffers = runner.load(k).memories["buffers"]
                memory = {
                    name: value for name, value in buffers.items() if name in theirs
                }
                assert memory.keys() == {name for name in theirs if "running" in name}
                theirs = theirs | memory
            assert equal(new[0], theirs)
            assert runner.visit(k, Visit("local", 4, 1, sent)).up.w


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
            assert equal(split_channels(whole, draw_borders(whole, 0.5))[0], up.w)
            assert equal(
                split_channels(whole, draw_borders(whole, 0.5))[1],
                cut(after.w, method, 3, 3)[1],
            )
            assert list(method.personal(c, down, after)) == list(played.runner.new())


def test_private_momentum_outlives_the_round_and_shared_momentum_does_not() -> None:
    method = CD2pFed(li=False, keep_private_momentum=True)
    kept, fresh = (
        run_small(m, rounds=2, plan=HEAVY, norm="batch")
        for m in (method, CD2pFed(li=False))
    )
    once = run_small(method, rounds=1, plan=HEAVY, norm="batch")
    assert equal(
        once.keep(0).w,
        run_small(CD2pFed(li=False), rounds=1, plan=HEAVY, norm="batch").keep(0).w,
    )
    assert not equal(kept.keep(0).w, fresh.keep(0).w) and fresh.keep(0).momentum is None
    for name, x in once.keep(0).momentum.items():
        border = draw_borders(once.keep(0).w, 0.5)[name]
        sizes = [border.shared, border.size - border.shared]
        shared, private = x.split(sizes, border.axis)
        assert not bool(shared.any()) and (sizes[1] == 0 or bool(private.any()))


# -------------------------------------------------------------------- evaluation of sides
def test_statistics_of_sides_come_from_one_pass() -> None:
    net = small(norm="batch")
    site = ClientRunner(
        World(CD2pFed(), net, digits((20, 20)), Plan(batch=10), 0, 4),
        MemoryStore(),
    )
    c, w, p = site.client(0, 4, 6, 4), site.new(), 0.5
    buffers = measure_statistics(c, w, p)
    assert list(buffers) == ["base.norm1.running_mean", "base.norm1.running_var"]
    order = c.rng.fold(0).permutation(20)  # the two batches of an epoch
    for low, high in ((0, 2), (2, 4)):
        conv = w["base.conv1.weight"][low:high], w["base.conv1.bias"][low:high]
        batches = [
            torch.nn.functional.conv2d(c.x[at], *conv, padding=1)
            for at in order.split(10)
        ]
        mean = torch.stack([b.mean((0, 2, 3)) for b in batches]).mean(0)
        var = torch.stack([b.var((0, 2, 3)) for b in batches]).mean(0)
        torch.testing.assert_close(buffers["base.norm1.running_mean"][low:high], mean)
        torch.testing.assert_close(buffers["base.norm1.running_var"][low:high], var)
    hits = score_sides(c, w, p, c.x, c.y)
    for name, side in (("private", Side(True, p)), ("shared", Side(False, p))):
        assert torch.equal(
            hits[name] == 1, c.model(w | buffers, c.x, side).argmax(-1) == c.y
        )
    again = measure_statistics(c, w, p)
    # asking costs the client no randomness
    assert all(torch.equal(again[k], buffers[k]) for k in buffers)
    assert (
        measure_statistics(c, {k: v for k, v in w.items() if "running" not in k}, p)
        == {}
    )


# -------------------------------------------------------------------- executors
def test_private_momentum_is_the_same_in_all_executors() -> None:
    method = CD2pFed(keep_private_momentum=True)
    options: dict[str, Any] = {
        "plan": HEAVY,
        "norm": "batch",
        "share": 0.5,
        "drop": 0.3,
    }
    one, two = (
        run_small(method, executor=e, **options) for e in ("sequential", "processes")
    )
    assert one.hash == two.hash and one.exchange.traffic == two.exchange.traffic
    one, two = (
        run_small(method, executor=e, dtype=torch.float64, **options)
        for e in ("sequential", "vmap")
    )
    assert two.executor.notices() == [] and one.exchange.traffic == two.exchange.traffic
    assert all(keep.momentum for keep in keeps(one).values())
    assert largest_gap(one, two) < 1e-9


def test_vmap_scores_alike() -> None:
    """Clients that were away and new ones among them."""
    method = CD2pFed(detach_teacher=True)
    one, two = (
        run_small(method, share=0.5, norm="batch", dtype=torch.float64, executor=e)
        for e in ("sequential", "vmap")
    )
    alone, together = one.scores(), two.scores()
    assert two.executor.notices() == []
    for k in range(6):
        assert alone[k].diagnostics.keys() == {
            f"{part}/{side}"
            for part in ("train", "test")
            for side in ("private", "shared")
        }
        torch.testing.assert_close(together[k], alone[k], rtol=1e-9, atol=1e-9)


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


# -------------------------------------------------------------------- the rest
def test_words_are_split_by_the_channels_of_their_vectors() -> None:
    assert equal(
        run_small(CD2pFed(p=0), **words()).server.w,
        run_small(FedAvg(), **words()).server.w,
    )
    method, name = CD2pFed(p=0.8), "base.embedding.weight"
    played, calls = overhear(method, rounds=4, share=0.7, **words())
    for call in calls:
        assert {up.w[name].shape for up in call.up.values()} == {
            (17, count_shared(32, method.ratio(call.t, 4)))
        }
    for k in calls[-1].up:
        own = played.keep(k).w[name]
        assert not own[:, :6].any() and own[:, 6:].any(0).all()
        assert not bool(torch.isin(own[own != 0], calls[-1].up[k].w[name]).any())
    assert (
        run_small(method, rounds=4, share=0.7, executor="processes", **words()).hash
        == played.hash
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


def test_warnings() -> None:
    assert (
        CD2pFed().warnings() == []
        and CD2pFed(lam=0, cd=False, beta=0, ta=False).warnings() == []
    )
    odd = {"p": (0.0, 1.0), "lam": (0.0,), "beta": (0.0, 1.0)}
    for name, values in odd.items():
        for value in values:
            (line,) = CD2pFed(**{name: value}).warnings()  # type: ignore[arg-type]
            assert line.startswith(f"{name}={value:g}:")
