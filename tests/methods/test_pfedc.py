"""pFedC: who shares which heads, what MGDA does to training, one task is FedAvg, Theorem 1."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, Tree, sqdist, tmap
from fedtailor.core.wire import encode
from fedtailor.data.federation import Federation
from fedtailor.engine.exchange import Exchange, find_outliers
from fedtailor.engine.upload_checks import UploadChecker
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.sequential import Sequential
from fedtailor.executors.vectorized import Vectorized
from fedtailor.executors.visit import Visit
from fedtailor.executors.world import World
from fedtailor.filters import Call, Filter
from fedtailor.filters.local_buffers import LocalBuffers
from fedtailor.maths.mgda import min_norm
from fedtailor.method import Cohort, Uploads
from fedtailor.methods import make, pfedc
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.pfedc import (
    Down,
    Entry,
    Keep,
    PFedC,
    RoundSums,
    Server,
    Up,
    align,
    drop_outdated,
    fold_oldest,
)
from fedtailor.models.backbone import Backbone
from fedtailor.models.registry import build
from fedtailor.storage.private_state import MemoryStore
from fedtailor.testing.conformance import largest_gap
from fedtailor.testing.method_card import describe_method
from fedtailor.testing.small_world import SmallRun, digits, run_small, small
from fedtailor.training.optim import SGD, Plan
from helpers import gap, overhear


# ---------------------------------------------------------------- helpers
def same(a: Params, b: Params) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def classes_of(played: SmallRun, k: int) -> set[int]:
    f = played.runner.world.federation
    return set(f.y[f.train[k]].tolist())


def personal(played: SmallRun, k: int) -> Params:
    """The model that client k would deploy."""
    with torch_settings(played.runner.world.dtype):
        c, down, keep = played.runner.load_client(
            k, played.runner.method.send(played.server, k), played.t
        )
        return dict(played.runner.method.personal(c, down, keep))


def heads_of(played: SmallRun, k: int) -> Params:
    """All heads of client k, from the two fields in which it keeps them."""
    keep = played.keep(k)
    return {name: keep.own[name] + keep.other[name] for name in keep.own}


def pairs(*classes: tuple[int, ...], each: int = 10, shift: float = 0.0) -> Federation:
    """A client for every tuple, with so many digits of each of its classes, all of length one."""
    raw = load_digits()
    x, y = torch.tensor(raw.data), torch.tensor(raw.target)
    x = (x / x.norm(dim=1, keepdim=True) - shift).to(torch.get_default_dtype())
    rows = {c: iter((y == c).nonzero()[:, 0].tolist()) for c in range(10)}
    deal = [
        [
            torch.tensor([next(rows[c]) for c in mine for _ in range(n)])
            for mine in classes
        ]
        for n in (each, 2, 5)
    ]
    return Federation(
        "digits", "table", x, y, 1 + max(max(mine) for mine in classes), *deal
    )


def linear(classes: int) -> Backbone:
    return Backbone(nn.Flatten(), nn.Linear(64, classes), features=64, kind="linear")


def shallow(classes: int) -> Backbone:
    return Backbone(
        nn.Sequential(nn.Linear(64, 16), nn.ReLU()), nn.Linear(16, classes), features=16
    )


# ---------------------------------------------------------------- networks
@pytest.mark.parametrize(
    ("kind", "shape", "classes"), [("har_cnn", (9, 128), 6), ("cnn", (1, 8, 8), 10)]
)
def test_runs_on_networks_whose_head_has_several_layers(
    kind: str, shape: tuple[int, ...], classes: int
) -> None:
    x, y = Rng.seed(1).normal(40, *shape), torch.arange(40) % classes
    rows = [
        [torch.arange(20 * k + a, 20 * k + b) for k in range(2)]
        for a, b in ((0, 12), (12, 16), (16, 20))
    ]
    kind_of_data = "signal" if len(shape) == 2 else "image"
    federation = Federation("drawn", kind_of_data, x, y, classes, *rows)  # type: ignore[arg-type]
    options: dict[str, Any] = dict(
        rounds=1, federation=federation, plan=Plan(lr=0.05, batch=6)
    )
    played = run_small(PFedC(), backbone=build(kind, shape, classes), **options)
    assert not played.exchange.traffic.lost
    assert (
        set(played.server.first) == {"head.weight", "head.bias"}
        and len(played.server.base) >= 6
    )
    start = played.runner.new(0)
    assert any(
        not torch.equal(played.server.base[k], start[k]) for k in played.server.base
    )


# ---------------------------------------------------------------- one task
@pytest.mark.parametrize(
    ("method", "options"),
    [
        (PFedC(tasks=1), {"norm": "batch"}),
        (
            PFedC(groups="consecutive:1", pos_weight=True),
            {"share": 0.5, "drop": 0.3, "rounds": 5},
        ),
        (
            PFedC(tasks=1),
            {
                "plan": Plan(
                    lr=0.05, batch=10, epochs=2, momentum=0.9, weight_decay=0.01
                )
            },
        ),
        (
            PFedC(tasks=1, task_scope="all"),
            {"executor": "vmap", "dtype": torch.float64},
        ),
    ],
)
def test_one_task_is_fedavg_to_the_last_bit(
    method: PFedC, options: dict[str, Any]
) -> None:
    ours, fedavg = run_small(method, **options), run_small(FedAvg(), **options)
    assert same(ours.server.base, fedavg.server.w)
    assert same(personal(ours, 2), fedavg.server.w)
    hits = [
        [s.test.correct.tolist() for s in p.scores().values()] for p in (ours, fedavg)
    ]
    assert hits[0] == hits[1]


# ---------------------------------------------------------------- who shares what
@pytest.mark.parametrize("head_agg", ["uniform", "weighted", "class_count"])
def test_owners_get_the_mean_of_owners_and_others_keep_theirs(head_agg: Any) -> None:
    played, heard = overhear(
        PFedC(head_agg=head_agg), rounds=2, dtype=torch.float64, norm="batch"
    )
    ups, f = heard[-1].up, played.runner.world.federation
    own = {k: classes_of(played, k) for k in range(6)}
    for k in range(6):
        w, kept = personal(played, k), heads_of(played, k)
        for c in range(10):
            owners = [n for n in range(6) if c in own[n]]
            weight = {
                "uniform": [1.0] * len(owners),
                "weighted": [len(f.train[n]) for n in owners],
                "class_count": [int((f.y[f.train[n]] == c).sum()) for n in owners],
            }[head_agg]
            for name in ("head.weight", "head.bias"):
                if k not in owners:
                    assert torch.equal(w[name][c], kept[name][c]) and torch.equal(
                        kept[name][c], played.server.first[name][c]
                    )
                    continue
                trained = [heads_of(played, n)[name][c] for n in owners]
                mean = sum(p * v for p, v in zip(weight, trained, strict=True)) / sum(
                    weight
                )
                torch.testing.assert_close(w[name][c], mean, rtol=0, atol=1e-12)
                # owners have equal heads
                assert torch.equal(w[name][c], personal(played, owners[0])[name][c])
    assert all(
        up.weight.gt(0).nonzero()[:, 0].tolist() == sorted(own[k])
        for k, up in ups.items()
    )
    sizes = torch.tensor([float(len(i)) for i in f.train])
    for name, value in played.server.base.items():  # Eq. (6)
        mean = (
            sum(n * up.base[name] for n, up in zip(sizes, ups.values(), strict=True))
            / sizes.sum()
        )
        torch.testing.assert_close(value, mean, rtol=0, atol=1e-12)


@pytest.mark.parametrize(
    "method",
    [
        PFedC(),
        PFedC(task_scope="all"),
        PFedC(
            groups="consecutive:4",
            task_target="membership",
            task_scope="all",
            alpha_min=0.1,
        ),
    ],
)
def test_heads_of_tasks_a_client_lacks_never_go_up(method: PFedC) -> None:
    played, heard = overhear(method, rounds=3)
    tasks = played.runner.method.make_tasks(10)
    for call in heard:
        if call.call.function != "local":
            continue
        for k, up in call.up.items():
            present = (
                tasks.count_examples(
                    F.one_hot(torch.tensor(sorted(classes_of(played, k))), 10)
                    .sum(0)
                    .float()
                )
                > 0
            )
            assert 0 < int(present.sum()) < len(present)
            for value in up.heads.values():
                lacking = ~align(tasks.rows(present), value).expand_as(value)
                assert (value[lacking] == 0).all() and (value[~lacking] != 0).any()
            assert not any(
                value.shape == w.shape and torch.equal(value, w)
                for value in played.keep(k).other.values()
                for w in up.heads.values()
            )
            assert set(up.base) == set(call.down[k].base)
    moved = [sqdist(heads_of(played, k), played.server.first) > 0 for k in range(6)]
    assert all(moved)


@pytest.mark.parametrize("weight_decay", [0.0, 0.1])
def test_heads_of_tasks_a_client_lacks_stay_as_they_are(weight_decay: float) -> None:
    plan = Plan(lr=0.1, batch=10, momentum=0.9, weight_decay=weight_decay)
    alone, everything = (
        run_small(PFedC(task_scope=s), plan=plan) for s in ("present", "all")
    )
    for k in range(6):
        lacking = sorted(set(range(10)) - classes_of(alone, k))
        for name in ("head.weight", "head.bias"):
            first = alone.server.first[name][lacking]
            assert torch.equal(heads_of(alone, k)[name][lacking], first)
            assert not torch.equal(heads_of(everything, k)[name][lacking], first)


def test_clients_with_disjoint_tasks_share_only_the_representation() -> None:
    federation = pairs((0, 1), (2, 3), (4, 5), (6, 7), each=30)
    plan = Plan(lr=0.5, batch=10)
    early, late = (
        run_small(
            PFedC(),
            rounds=t,
            federation=federation,
            backbone=shallow(8),
            plan=plan,
            executor="vmap",
        )
        for t in (1, 15)
    )
    assert late.accuracy() > max(0.9, early.accuracy())
    owners = late.server.sums[0].weight
    assert len(late.server.sums) == 1 and owners.tolist() == [1.0] * 8
    for k in range(4):
        mine = [2 * k, 2 * k + 1]
        for name, value in personal(late, k).items():
            if name.startswith("head."):
                # no other client has them
                assert torch.equal(value, heads_of(late, k)[name])
                assert torch.equal(value[mine], late.server.sums[0].heads[name][mine])
            else:
                assert torch.equal(value, late.server.base[name])


# ---------------------------------------------------------------- what the server keeps
def upload(k: int, t: int, tasks: set[int], count: int) -> Up:
    """What client k sends in round t: heads by which it can be told."""
    weight = torch.tensor([float(c in tasks) for c in range(count)])
    values = weight * (1 + torch.arange(count)) * (100 * t + k)
    return Up(
        {"base.weight": torch.tensor([float(t)])},
        {"head.weight": values[:, None]},
        weight,
    )


def replay(
    method: PFedC, rounds: int, clients: int, share: int
) -> tuple[list[Server], list[dict[int, Tensor]]]:
    """Rounds with few clients: the server after each, and every task's true newest mean."""
    count = method.tasks
    assert count is not None
    own = {k: {k % count, (3 * k + 1) % count} for k in range(clients)}
    blank = {"base.weight": torch.zeros(1), "head.weight": torch.zeros(count, 1)}
    server, known = method.init(lambda _: blank, clients), dict[int, Tensor]()
    servers, truth = [], []
    for t in range(1, rounds + 1):
        chosen = sorted(Rng.seed(t).permutation(clients)[:share].tolist())
        ups = [upload(k, t, own[k], count) for k in chosen]
        server = method.merge(
            server, Uploads(chosen, torch.ones(share, dtype=torch.float64), ups)
        )
        for c in set().union(*(own[k] for k in chosen)):
            trained = [
                u.heads["head.weight"][c]
                for k, u in zip(chosen, ups, strict=True)
                if c in own[k]
            ]
            known = known | {c: torch.stack(trained).mean(0)}
        servers.append(server)
        truth.append(known)
    return servers, truth


def newest(server: Server, count: int) -> dict[int, Tensor]:
    """Every task's newest mean, as a client makes it out that has all tasks."""
    rows = torch.arange(count).repeat(2)[:, None].float()
    federation = Federation(
        "all",
        "table",
        rows,
        rows[:, 0].long(),
        count,
        [torch.arange(count)],
        [torch.arange(1)],
        [torch.arange(1)],
    )
    backbone = Backbone(
        nn.Linear(1, 1, bias=False), nn.Linear(1, count, bias=False), features=1
    )
    method = PFedC(tasks=count, distribute="all")
    site = ClientRunner(
        World(method, backbone, federation, Plan(), 0, 1), MemoryStore()
    )
    unknown = {"head.weight": torch.full((count, 1), torch.nan)}
    nothing = Keep(unknown, unknown)
    w = method.personal(site.client(0, 1), method.send(server, 0), nothing)[
        "head.weight"
    ]
    return {c: v for c, v in enumerate(w) if not v.isnan()}


def test_the_server_keeps_heads_of_tasks_that_no_selected_client_has() -> None:
    servers, truth = replay(PFedC(tasks=9), rounds=40, clients=12, share=2)
    assert len(truth[0]) < 9 == len(truth[-1])
    for server, known in zip(servers, truth, strict=True):
        (means,) = server.sums
        assert set(means.weight.nonzero()[:, 0].tolist()) == known.keys()
        for c, mean in known.items():
            assert torch.allclose(means.heads["head.weight"][c], mean)


def test_a_server_that_cannot_read_heads_keeps_sums_until_they_are_outdated() -> None:
    method = PFedC(memory=100, tasks=9, distribute="all")
    servers, truth = replay(method, rounds=40, clients=12, share=2)
    for server, known in zip(servers, truth, strict=True):
        found = newest(server, 9)
        assert found.keys() == known.keys()
        assert all(torch.allclose(found[c], known[c]) for c in known)
        assert len(server.sums) <= 12  # each entry has a client not heard since
    assert max(len(s.sums) for s in servers) > 3


def test_a_short_memory_adds_the_oldest_up_and_forgets_no_task() -> None:
    method = PFedC(memory=2, tasks=9, distribute="all")
    servers, truth = replay(method, rounds=40, clients=12, share=2)
    assert max(len(s.sums) for s in servers) == 3
    for server, known in zip(servers, truth, strict=True):
        found = newest(server, 9)
        assert found.keys() == known.keys()
        recent = {
            c for sums in server.sums[:2] for c in sums.weight.nonzero()[:, 0].tolist()
        }
        assert recent and all(torch.allclose(found[c], known[c]) for c in recent)


def entry(value: float, *senders: int) -> Entry:
    sums = RoundSums({"head.weight": torch.tensor([[value]])}, torch.ones(1))
    return Entry(sums, frozenset(senders))


def test_sums_are_dropped_when_all_their_clients_were_heard_again() -> None:
    history = [
        entry(1, 0, 1),
        entry(2, 1),
        entry(3, 1, 2),
        entry(4, 0, 2),
        entry(5, 3),
        entry(6),
    ]
    kept = drop_outdated(history)
    assert [sorted(e.senders) for e in kept] == [[0, 1], [1, 2], [3]]


def test_the_oldest_sums_are_folded_into_one() -> None:
    history = [entry(1, 0), entry(2, 1), entry(3, 2), entry(4, 3, 1)]
    assert fold_oldest(history, 3) == history
    newest, folded = fold_oldest(history, 1)
    assert newest == history[0] and folded.senders == {1, 2, 3}
    assert (
        float(folded.sums.heads["head.weight"]) == 9 and float(folded.sums.weight) == 3
    )


@pytest.mark.parametrize("distribute", ["own", "all"])
def test_an_owner_that_has_gone_leaves_its_head_behind(distribute: Any) -> None:
    federation = pairs((0, 1), (1, 2), (2, 3), (3, 1))  # client 0 alone has class 0
    backbone = shallow(4)
    method = PFedC(memory=2, distribute=distribute).with_defaults_for(backbone)
    with torch_settings():
        world = World(method, backbone, federation, Plan(lr=0.1, batch=5), 0, 12)
        runner = ClientRunner(world, MemoryStore())
        exchange = Exchange(method, Sequential(runner), runner.filters, 0, 12)
        server = method.round(method.init(runner.new, 4), Cohort(exchange, [0], 1))
        left = runner.load(0).keep.own["head.weight"][0]
        for t in range(2, 12):
            server = method.round(server, Cohort(exchange, [1 + t % 3], t))
        c = runner.client(0, 12, Purpose.JOIN)
        # whoever has class 0, as the server may or may not know
        down = method.send(server, 77 if distribute == "all" else 0)
        assert len(down.sums) <= 3
        newcomer = method.personal(c, down, method.first_keep(c, down))
    assert torch.equal(newcomer["head.weight"][0], left)


def test_if_all_clients_take_part_one_sum_is_enough() -> None:
    method = PFedC(distribute="all")
    assert [len(run_small(method, rounds=t).server.sums) for t in (1, 4)] == [1, 1]
    assert len(run_small(method, rounds=6, share=0.34).server.sums) > 1


# ---------------------------------------------------------------- sums of what cannot be read
class Opaque:
    """A tensor that can be added to others and multiplied by known numbers, and nothing else."""

    def __init__(self, value: Tensor) -> None:
        self._value = value

    def __add__(self, other: Opaque) -> Opaque:
        return Opaque(self._value + other._value)

    def __rmul__(self, known: float) -> Opaque:
        assert isinstance(known, float)
        return Opaque(known * self._value)


def reveal(tree: Tree, noise: float = 0.0) -> Tree:
    return tmap(lambda x: x._value + noise if isinstance(x, Opaque) else x, tree)


class HideHeads(Filter):
    """Hides heads and weights from the server; clients get their sums with a little noise."""

    def server_receives(self, call: Call, ups: Uploads[Up]) -> Uploads[Up]:
        return ups.map(
            lambda up: Up(up.base, tmap(Opaque, up.heads), Opaque(up.weight))
        )

    def server_sends(self, call: Call, downs: dict[int, Down]) -> dict[int, Down]:
        return {k: reveal(down, noise=1e-9) for k, down in downs.items()}


@pytest.mark.parametrize(
    ("head_agg", "memory"),
    [("uniform", 8), ("uniform", 1), ("weighted", 8), ("class_count", 1)],
)
def test_the_server_adds_heads_up_without_reading_them(
    head_agg: Any, memory: int
) -> None:
    method = PFedC(head_agg=head_agg, memory=memory, distribute="all")
    options: dict[str, Any] = {"rounds": 5, "share": 0.5, "dtype": torch.float64}
    plain = run_small(method, **options)
    hidden = run_small(method, filters=[HideHeads()], **options)
    assert isinstance(hidden.server.sums[0].weight, Opaque)
    assert len(hidden.server.sums) == len(plain.server.sums) > 1
    assert hidden.server.senders == plain.server.senders
    assert gap(reveal(hidden.server), plain.server) < 1e-6
    assert all(gap(hidden.keep(k), plain.keep(k)) < 1e-6 for k in range(6))


# ---------------------------------------------------------------- what a client is sent
@pytest.mark.parametrize(
    "method",
    [
        PFedC(),
        PFedC(task_scope="all", head_agg="weighted"),
        PFedC(groups="consecutive:4"),
    ],
)
def test_a_client_is_sent_the_heads_of_its_own_tasks_alone(method: PFedC) -> None:
    """Algorithm 1, line 8; no other value of another client's head is in the message."""
    options: dict[str, Any] = {"rounds": 5, "share": 0.5, "late": True}
    played, heard = overhear(method, **options)
    tasks = played.runner.method.make_tasks(10)
    received = dict.fromkeys(range(6), False)
    for call in heard:
        for k, down in call.down.items():
            counts = played.runner.client(k, 1).counts
            is_own = tasks.rows(tasks.count_examples(counts) > 0)
            (mine,) = down.sums
            assert set(mine.weight[~is_own].tolist()) == {0.0}
            for name, value in mine.heads.items():
                assert not value[~is_own].any()
                assert torch.equal(down.first[name], played.server.first[name])
            received[k] |= bool(mine.weight.any())
    assert sum(received.values()) > 3
    assert played.server.sums[0].weight.all()


def test_all_heads_go_to_all_clients_where_the_server_must_not_know() -> None:
    """And the results are the same: a client takes only what it owns."""
    options: dict[str, Any] = {"rounds": 3, "dtype": torch.float64}
    alone = run_small(PFedC(), **options)
    hidden, heard = overhear(PFedC(distribute="all"), **options)
    assert [call.call.function for call in heard] == ["local"] * 3
    assert hidden.server.owned == {}
    assert heard[-1].down[0].sums[0].weight.all()
    for k in range(6):
        assert gap(hidden.keep(k), alone.keep(k)) < 1e-12
    assert gap(hidden.server.base, alone.server.base) < 1e-12


def test_who_could_not_tell_its_tasks_is_asked_again() -> None:
    class Mute(Filter):
        """Answers before the first round get lost."""

        def server_receives(self, call: Call, ups: Uploads[Any]) -> Uploads[Any]:
            if call.t == 0:
                return Uploads([], ups.n[:0], [])
            return ups

    told = run_small(PFedC(), rounds=2)
    mute = run_small(PFedC(), rounds=2, filters=[Mute()])
    assert mute.server.owned.keys() == set(range(6))
    for k, owned in told.server.owned.items():
        assert torch.equal(mute.server.owned[k].rows, owned.rows)
        assert set(owned.rows.nonzero()[:, 0].tolist()) == classes_of(told, k)
        assert int(owned.tasks) == len(classes_of(told, k))


def test_what_a_client_does_not_tell_its_upload_says() -> None:
    """Where a site does not allow the question, heads reach its clients a round later."""

    class Deaf(Filter):
        """No answer ever arrives."""

        def server_receives(self, call: Call, ups: Uploads[Any]) -> Uploads[Any]:
            if call.function == "tell_tasks":
                return Uploads([], ups.n[:0], [])
            return ups

    told = run_small(PFedC(), rounds=2)
    deaf = run_small(PFedC(), rounds=2, filters=[Deaf()])
    for k, owned in told.server.owned.items():
        assert torch.equal(deaf.server.owned[k].rows, owned.rows)
        assert int(deaf.server.owned[k].tasks) == 0
        own = means_sent_to(deaf, k)
        assert torch.equal(own.weight > 0, owned.rows > 0)
    assert deaf.runner.method.closing_remarks(deaf.server) == []


def means_sent_to(played: SmallRun, k: int) -> RoundSums:
    """The means that client k is sent next."""
    down: Down = played.runner.method.send(played.server, k)
    return down.sums[0]


def test_a_wrong_answer_about_tasks_is_refused() -> None:
    played = run_small(PFedC(), rounds=1)
    method = played.runner.method
    downs = {0: method.greet(played.server, 0)}
    assert downs[0].base == {}
    checker = UploadChecker(method, "tell_tasks", 1)
    right = played.server.owned[0]
    assert checker.check({0: right}, downs)[0].fault == ""
    short = right._replace(rows=right.rows[:3])
    assert "rows" in checker.check({0: short}, downs)[0].fault


def test_clients_of_a_single_task_are_told_at_the_end() -> None:
    played = run_small(PFedC(), rounds=1, federation=pairs((0, 1), (2,), (0, 3)))
    (remark,) = played.runner.method.closing_remarks(played.server)
    assert remark.startswith("clients with a single task: 1 of 3 (1); ")
    played = run_small(PFedC(), rounds=1, federation=pairs((0, 1), (0, 2)))
    assert played.runner.method.closing_remarks(played.server) == []


def test_show_tells_what_the_server_learns_and_what_normalisation_does() -> None:
    card = describe_method(PFedC)
    text = " ".join(card.text.split())
    assert "pi_i in clear" in text
    assert "all lambda_c are about 1 / T" in text
    assert "need not be a direction in which no task gets worse" in text
    assert "no guarantee of common descent" in {h.name: h.doc for h in card.hyper}[
        "grad_norm"
    ].replace("with ", "")
    assert [field.name for field in card.keep] == ["other"]
    assert [field.name for field in card.also_sent] == ["own"]
    (owned,) = [field for field in card.server if field.name == "owned"]
    assert owned.doc.startswith("pi_i in clear")


# ---------------------------------------------------------------- MGDA in training
def one_step(**fields: Any) -> tuple[Params, Params]:
    """How client 0 moves phi and its heads in a single step from the first values."""
    backbone = shallow(4)
    method = PFedC(**fields).with_defaults_for(backbone)
    with torch_settings(torch.float64):
        federation = pairs((0, 1, 2), (2, 3))
        world = World(
            method,
            backbone,
            federation,
            Plan(lr=0.1, batch=30),
            0,
            1,
            dtype=torch.float64,
        )
        site = ClientRunner(world, MemoryStore())
        server = method.init(site.new, 2)
        c = site.client(0, 1, Purpose.CALL, 1, 1)
        down = method.send(server, 0)
        up, keep = method.local(c, down, method.first_keep(c, down))
        base = {name: up.base[name] - value for name, value in server.base.items()}
        heads = {
            name: keep.own[name][:3] - value[:3] for name, value in server.first.items()
        }
    return base, heads


def test_heads_take_full_steps_and_the_representation_the_weighted_one() -> None:
    """Equal weights, lambda_c = 1/3, so that every factor is known."""
    fixed = {"alpha_min": 1.0}
    base, heads = one_step(**fixed)
    small_base, small_heads = one_step(head_step="lambda", **fixed)
    large_base, large_heads = one_step(lambda_sum="tasks", **fixed)
    both_base, both_heads = one_step(head_step="lambda", lambda_sum="tasks", **fixed)
    assert gap(base, small_base) < 1e-15
    assert gap(heads, tmap(lambda x: 3 * x, small_heads)) < 1e-14
    assert gap(large_base, tmap(lambda x: 3 * x, base)) < 1e-14
    assert gap(large_heads, heads) < 1e-15
    assert gap(both_base, large_base) < 1e-15
    assert gap(both_heads, heads) < 1e-14


def test_the_loss_is_that_of_equation_three_whatever_steps_heads_take() -> None:
    played = run_small(PFedC(), rounds=1)
    method = played.runner.method
    c = played.next_client(0)
    w = personal(played, 0)
    _, examples = method.survey(c)
    batch = next(c._batches_of(1))
    losses = [
        replace(method, head_step=step).make_loss(c, examples > 0)
        for step in ("full", "lambda")
    ]
    full, weighted = (loss(w, batch) for loss in losses)
    torch.testing.assert_close(full, weighted)


def test_gradients_of_unit_length_make_mgda_nearly_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With l2 all tasks weigh about the same: pFedC's docstring says so."""
    seen: list[float] = []

    def listen(gram: Tensor, active: Tensor, steps: int) -> Tensor:
        lam = min_norm(gram, active, steps)
        tasks = int(active.sum())
        if tasks > 1:
            seen.append(float(1 / lam.square().sum()) / tasks)
        return lam

    monkeypatch.setattr(pfedc, "min_norm", listen)
    share = {}
    for norm in ("l2", "none"):
        seen.clear()
        run_small(PFedC(grad_norm=norm), rounds=12, plan=Plan(lr=0.2, batch=10))
        late = seen[len(seen) // 2 :]
        share[norm] = sum(late) / len(late)
    assert share["l2"] > 0.9 > share["none"] + 0.1


def test_as_algorithm_one_returns_it() -> None:
    """The model after training is what the client trained, before any mean."""
    played = run_small(PFedC(), rounds=2)
    method = played.runner.method
    c, down, keep = played.next_visit(0)
    up, kept = method.local(played.next_client(0), down, keep)
    w = method.after_training(c, down, up, kept)
    is_own = played.server.owned[0].rows > 0
    for name, value in up.heads.items():
        assert torch.equal(w[name][is_own], value[is_own])
        assert torch.equal(w[name][~is_own], played.server.first[name][~is_own])
    assert same({name: w[name] for name in up.base}, up.base)
    assert not same(w, method.personal(c, down, keep))


def solved_task(scope: Any, **fields: Any) -> float:
    """How far phi moves in a round when the heads of absent tasks have nothing left to learn."""
    federation = pairs((0, 1), (2, 3))
    backbone = shallow(4)
    method = PFedC(task_scope=scope, **fields).with_defaults_for(backbone)
    with torch_settings(torch.float64):
        world = World(
            method,
            backbone,
            replace(federation, x=federation.x.double()),
            Plan(lr=0.1, batch=10),
            0,
            1,
        )
        site = ClientRunner(world, MemoryStore())
        server = method.init(site.new, 2)
        first = dict(server.first)
        first["head.bias"] = torch.tensor([0.0, 0.0, -800.0, -800.0])
        down = Down(server.base, first, server.sums)
        c = site.client(0, 1, Purpose.CALL, 1, 1)
        up, _ = method.local(c, down, method.keep_heads(c, first))
        return float(sqdist(up.base, server.base))


def test_a_solved_task_stops_the_representation_unless_it_is_left_out() -> None:
    for norm in ("none", "l2", "loss", "loss+"):
        assert solved_task("all", grad_norm=norm) == 0
        assert solved_task("present", grad_norm=norm) > 1e-6
    assert solved_task("all", alpha_min=0.1) > 1e-6  # a floor helps too


def test_weights_follow_the_choice_of_normalisation_and_floor() -> None:
    heads = [
        encode(run_small(PFedC(grad_norm=n), rounds=1).server)
        for n in ("none", "l2", "loss", "loss+")
    ]
    for i, one in enumerate(heads):
        assert all(
            any(not torch.equal(one[k], two[k]) for k in one if "head" in k)
            for two in heads[:i]
        )
    none, absent = (
        run_small(PFedC(grad_norm=n), rounds=1).hash for n in ("none", None)
    )
    assert none == absent
    equal, other = (
        run_small(PFedC(alpha_min=1.0, grad_norm=n), rounds=1, dtype=torch.float64)
        for n in ("none", "l2")
    )
    assert gap(equal.server, other.server) < 1e-12


def test_one_task_present_gets_the_plain_gradient() -> None:
    """A client of a single class trains its one head as binary logistic regression does."""
    federation = pairs((0,), (1,))
    with torch_settings(torch.float64):
        federation = replace(federation, x=federation.x.double())
    plan = Plan(lr=0.3, batch=10)
    played = run_small(
        PFedC(),
        rounds=1,
        federation=federation,
        backbone=linear(2),
        plan=plan,
        dtype=torch.float64,
    )
    x = federation.x[federation.train[0]]
    w, b = (
        played.server.first[f"head.{n}"][0].clone().requires_grad_()
        for n in ("weight", "bias")
    )
    F.binary_cross_entropy_with_logits(
        x @ w + b, torch.ones(10, dtype=torch.float64)
    ).backward()
    kept = played.keep(0).own
    torch.testing.assert_close(
        kept["head.weight"][0], w.detach() - 0.3 * w.grad, rtol=0, atol=1e-12
    )
    torch.testing.assert_close(
        kept["head.bias"][0], b.detach() - 0.3 * b.grad, rtol=0, atol=1e-12
    )


# ---------------------------------------------------------------- statistics that stay at home
def test_statistics_that_stay_at_home_come_back_unscaled() -> None:
    backbone, federation = small(norm="batch"), digits()
    method = PFedC().with_defaults_for(backbone)
    with torch_settings():
        world = World(
            method, backbone, federation, Plan(lr=0.05), 0, 2, [LocalBuffers()]
        )
        site = ClientRunner(world, MemoryStore())
        server = method.init(site.new, 6)
        down = method.send(server, 0)
        replies = {k: site.visit(k, Visit("local", 1, 1, down)) for k in (0, 1, 5)}
        assert not any(
            "running" in name for r in replies.values() for name in r.up.base
        )
        n = torch.tensor([float(r.n) for r in replies.values()], dtype=torch.float64)
        server = method.merge(
            server, Uploads(list(replies), n, [r.up for r in replies.values()])
        )
        for k in replies:
            c, down, keep = site.load_client(k, method.send(server, k), 2)
            w = method.personal(c, down, keep)
            h = c.model.base.conv1(w, c.x)
            drift = (w["base.norm1.running_mean"] - h.mean((0, 2, 3))).abs().max()
            assert 0 < float(w["base.norm1.running_var"].max()) < 3 and float(drift) < 1
            remembered = site.load(k).memories["buffers"]["base.norm1.running_mean"]
            assert torch.equal(w["base.norm1.running_mean"], remembered)


# ---------------------------------------------------------------- what comes of it
@pytest.mark.parametrize(
    "method",
    [
        PFedC(tasks=3, pos_weight=True),
        PFedC(
            groups="consecutive:4",
            task_target="membership",
            task_scope="all",
            alpha_min=0.1,
        ),
    ],
)
def test_clients_side_by_side_train_and_score_like_single_ones(method: PFedC) -> None:
    one, many = (
        run_small(method, rounds=2, dtype=torch.float64, executor=e)
        for e in ("sequential", "vmap")
    )
    alone, together = one.scores(), many.scores()
    assert many.executor.notices() == []
    assert largest_gap(one, many) < 1e-9
    assert max(gap(alone[k], together[k]) for k in range(6)) < 1e-9


def test_accuracies_are_recorded_by_name() -> None:
    played = run_small(
        PFedC(),
        rounds=8,
        federation=digits(sizes=(40,) * 4),
        plan=Plan(lr=0.3, batch=10),
    )
    for score in played.scores().values():
        names = {k.split("/")[1] for k in score.diagnostics}
        assert names == {
            "acc_multiclass",
            "acc_group",
            "acc_task_all",
            "acc_task_present",
            "acc_task_balanced",
            "acc_task_all_floor",
            "acc_task_present_floor",
            "acc_task_balanced_floor",
        }
        assert float(score.diagnostics["test/acc_multiclass"]) == pytest.approx(
            float(score.test.correct.sum() / score.test.n.sum())
        )
        assert float(score.diagnostics["test/acc_task_all_floor"]) == pytest.approx(0.9)
        assert all(0 <= float(v) <= 1 for v in score.diagnostics.values())
        assert torch.isfinite(score.test.loss)


def test_settings_have_defaults_and_odd_ones_warnings() -> None:
    ten = small()
    assert (
        PFedC().with_defaults_for(ten).tasks == 10
        and PFedC(groups="consecutive:3").with_defaults_for(ten).tasks == 3
    )
    assert PFedC(tasks=4).with_defaults_for(ten).with_defaults_for(ten).tasks == 4
    assert PFedC().with_defaults_for(ten).warnings() == []
    for odd in (
        PFedC(tasks=1),
        PFedC(task_scope="all"),
        PFedC(tasks=5, alpha_min=0.2),
        PFedC(task_target="membership"),
        PFedC(distribute="all"),
    ):
        assert len(odd.warnings()) == 1
    assert make(PFedC, {"grad_norm": "none", "tasks": "5"}) == PFedC(
        grad_norm=None, tasks=5
    )  # as the command line has it


# ---------------------------------------------------------------- Theorem 1
MU = 0.2  # strong convexity: the weight decay
# of half a logistic loss on inputs (x, 1) with |x| = 1: 1/2 * 1/4 * 2
SMOOTH = MU + 0.25
EPOCH = 4  # E, local steps a round


@dataclass(frozen=True)
class Diminishing(Plan):
    """Steps of 2 / (mu (gamma + t)), where t counts all local steps; or all like the first."""

    fixed: bool = False

    def optimiser(self, t: int, steps: int | Tensor = 1) -> SGD:
        gamma = max(8 * SMOOTH / MU, EPOCH)
        return SGD(
            2 / (MU * (gamma + (1 if self.fixed else EPOCH * (t - 1) + 1))),
            weight_decay=MU,
        )


def objective(w: Tensor, x: Tensor, y: Tensor) -> Tensor:
    """What a task's owners minimise: half its loss (two tasks weigh the same), and the decay."""
    return F.binary_cross_entropy_with_logits(x @ w, y) / 2 + MU / 2 * w.square().sum()


def minimise(x: Tensor, y: Tensor) -> Tensor:
    """The exact minimum, by Newton's method."""
    w = torch.zeros(x.shape[1])
    for _ in range(30):
        g = torch.func.grad(objective)(w, x, y)
        w = w - torch.linalg.solve(torch.func.hessian(objective)(w, x, y), g)
    assert float(torch.func.grad(objective)(w, x, y).norm()) < 1e-12
    return objective(w, x, y)


def follow(rounds: int, fixed: bool) -> Tensor:
    """By round, the gap to the optimum, summed over the tasks of four clients of two classes."""
    backbone = linear(4)
    # lambda_c fixed, as the theorem has it
    method = PFedC(alpha_min=1.0, solver_steps=1, head_step="lambda")
    method = method.with_defaults_for(backbone)
    federation = pairs((0, 1), (1, 2), (2, 3), (3, 0))
    problems = []
    for c in range(4):
        at = torch.cat(
            [i for i in federation.train if bool((federation.y[i] == c).any())]
        )
        x, y = (
            torch.cat([federation.x[at], torch.ones(len(at), 1)], 1),
            (federation.y[at] == c).to(torch.float64),
        )
        problems.append((x, y, minimise(x, y)))
    world = World(
        method,
        backbone,
        federation,
        Diminishing(batch=5, fixed=fixed),
        0,
        rounds,
        dtype=torch.float64,
    )
    runner = ClientRunner(world, MemoryStore())
    exchange = Exchange(method, Vectorized(runner, 4), runner.filters, 0, rounds)
    server, gaps = method.init(runner.new, 4), []
    for t in range(1, rounds + 1):
        server = method.round(server, Cohort(exchange, range(4), t))
        sums: RoundSums = server.sums[0]
        assert sums.weight.tolist() == [1.0] * 4
        heads = torch.cat(
            [sums.heads["head.weight"], sums.heads["head.bias"][:, None]], 1
        )
        gaps.append(
            sum(
                objective(w, x, y) - best
                for w, (x, y, best) in zip(heads, problems, strict=True)
            )
        )
    return torch.stack(gaps)  # type: ignore[arg-type]


def slope(gaps: Tensor, since: int) -> float:
    """Of the logarithm of the gap over that of the round."""
    t = torch.arange(since, len(gaps) + 1).to(gaps.dtype).log()
    t = t - t.mean()
    return float((t * gaps[since - 1 :].log()).sum() / t.square().sum())


def test_on_strongly_convex_losses_the_gap_falls_as_the_theorem_says() -> None:
    with torch_settings(torch.float64):
        falling, stuck = follow(80, fixed=False), follow(30, fixed=True)
    assert (falling > 0).all() and slope(falling, 8) <= -0.8
    assert slope(stuck, 8) > -0.8  # without the theorem's step size it does not


@pytest.mark.parametrize("how", ["uniform", "weighted", "class_count"])
def test_a_large_client_is_no_outlier(how: Any) -> None:
    """It sends its heads times its weight, which grows with its data; only a lie is refused."""
    played = run_small(
        PFedC(head_agg=how), rounds=2, federation=digits(sizes=(900, 4, 4, 4))
    )
    assert played.exchange.traffic.lost == {}
    method, runner = played.runner.method, played.runner
    downs = {k: method.send(played.server, k) for k in range(4)}
    ups = {
        k: runner.visit(k, Visit("local", 3, 1, down)).up for k, down in downs.items()
    }
    ups[2] = ups[2]._replace(base={k: v + 100 for k, v in ups[2].base.items()})
    checked = UploadChecker(method, "local", 3).check(ups, downs)
    assert set(find_outliers({k: up.distance for k, up in checked.items()})) == {2}
    ups[3] = ups[3]._replace(weight=ups[3].weight[:5])
    assert "weight" in UploadChecker(method, "local", 3).check(ups, downs)[3].fault


def test_one_forward_of_the_representation_a_step() -> None:
    """MGDA-UB: the weights of ten tasks come from the heads' gradients, not from ten passes."""
    passes = []

    class Counting(nn.Flatten):
        def forward(self, x: Tensor) -> Tensor:
            passes.append(len(x))
            return super().forward(x)

    played = run_small(
        PFedC(),
        rounds=1,
        backbone=Backbone(Counting(), nn.Linear(64, 10), features=64, kind="linear"),
    )
    passes.clear()
    c = played.runner.client(0, 2, Purpose.CALL, 2, 1)
    played.runner.method.local(
        c, played.runner.method.send(played.server, 0), played.keep(0)
    )
    assert len(passes) == c.steps(1) == 3
