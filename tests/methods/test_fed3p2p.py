"""Fed3+2p: its laws, what crosses the border in each phase, and its ablations."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from scipy.stats import entropy
from torch import nn

from fedtailor.core.errors import Unsupported, UserError
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, average, part, rename, tensors
from fedtailor.executors import looks
from fedtailor.executors.scoring import score
from fedtailor.executors.visit import Visit, trains_like_local
from fedtailor.filters import Call, Filter
from fedtailor.filters.tap import Tap, Traffic
from fedtailor.maths.grouping import (
    Groups,
    extend_balanced_groups,
    extend_similar_groups,
    make_balanced_groups,
    measure_quality,
    suggest_group_count,
)
from fedtailor.method import Uploads
from fedtailor.methods.fed3p2p import (
    Down,
    Fed3p2p,
    Phase,
    Roster,
    Up,
    count_groups,
    find_type_a_groups,
    is_flat,
    last_round,
)
from fedtailor.methods.fedavg import FedAvg
from fedtailor.models.backbone import Backbone, fresh
from fedtailor.models.registry import build
from fedtailor.models.three_parts import name_filter, split_backbone
from fedtailor.testing.small_world import SIZES, SmallRun, digits, run_small, small
from fedtailor.training.optim import Plan
from helpers import equal, gap, overhear


class LoseReplies(Filter):
    """Loses every reply of which ``is_lost(function, t, k)`` says so."""

    def __init__(self, is_lost: Callable[[str, int, int], bool]) -> None:
        self.is_lost = is_lost

    def server_receives(self, call: Call, ups: Uploads[Any]) -> Uploads[Any]:
        return ups.of(
            k for k in ups.clients if not self.is_lost(call.function, call.t, k)
        )


def overhear_losing(
    method: Fed3p2p, is_lost: Callable[[str, int, int], bool], **options: Any
) -> tuple[SmallRun, list[Traffic]]:
    """A small run with lost replies, and the traffic that was not lost."""
    tap = Tap()
    run = run_small(method, filters=[tap, LoseReplies(is_lost)], **options)
    return run, tap.traffic


class FakeCohort:
    """What the beginning and the end of phase 1 look at."""

    def __init__(self, t: int, rounds: int = 9, clients: Sequence[int] = ()) -> None:
        self.t = t
        self.rounds = rounds
        self.clients = list(clients)
        self.rng = Rng.seed(0, Purpose.SERVER, t)


def is_training(call: Traffic) -> bool:
    return call.call.function.startswith("train_")


def trainings(heard: list[Traffic], phase: int) -> list[Traffic]:
    return [
        c
        for c in heard
        if is_training(c) and next(iter(c.down.values())).phase == phase
    ]


def personal(played: SmallRun, k: int) -> Params:
    """What client k would deploy after the last round."""
    down = played.runner.method.send(played.server, k)
    return looks.personal(played.runner, k, down, played.t)


def draw_counts(seed: int, clients: int) -> dict[int, torch.Tensor]:
    """Label counts of clients with few classes each."""
    rng = np.random.default_rng(seed)
    columns = [rng.multinomial(180, rng.dirichlet([0.1] * clients)) for _ in range(10)]
    rows = np.stack(columns, 1)
    return {k: torch.tensor(row, dtype=torch.float32) for k, row in enumerate(rows)}


# ---------------------------------------------------------------- phase 1
@pytest.mark.parametrize("norm", ["group", "batch"])
@pytest.mark.parametrize("how", [{"num_type_a": 6}, {"without": "coordinators"}])
def test_groups_of_one_are_fedavg_to_the_last_bit(
    how: dict[str, Any], norm: str
) -> None:
    options: dict[str, Any] = dict(
        norm=norm, plan=Plan(lr=0.05, lr_decay=0.9, momentum=0.9, batch=10)
    )
    for share in (1.0, 0.5):
        ours = run_small(Fed3p2p(phase1=3, **how), share=share, **options)
        theirs = run_small(FedAvg(), share=share, **options)
        assert equal(
            rename(ours.server.w, "filter", "base.fc1")
            | part(ours.server.w, "base", "head"),
            theirs.server.w,
        )


def test_one_group_is_a_chain_through_everybody() -> None:
    played, heard = overhear(Fed3p2p(num_type_a=1, phase1=2), rounds=2, norm="batch")
    steps, orders = trainings(heard, 1), []
    for t in (1, 2):
        chain = [c for c in steps if c.t == t]
        assert all(len(c.down) == 1 for c in chain)
        orders.append([next(iter(c.down)) for c in chain])
        for before, after in itertools.pairwise(chain):
            assert equal(
                next(iter(after.down.values())).w, next(iter(before.up.values())).w
            )
    assert (
        sorted(orders[0]) == sorted(orders[1]) == list(range(6))
        and orders[0] != orders[1]
    )
    # W(t+1) is the chain's end
    assert equal(played.server.w, steps[-1].up[orders[1][-1]].w)
    assert equal(next(iter(steps[6].down.values())).w, steps[5].up[orders[0][-1]].w)


def test_ends_of_chains_are_averaged_by_their_data() -> None:
    played, heard = overhear(Fed3p2p(num_type_a=2), rounds=1, dtype=torch.float64)
    groups = played.server.roster.a
    assert [len(g) for g in groups] == [3, 3] and sorted(groups[0] + groups[1]) == list(
        range(6)
    )
    calls = trainings(heard, 1)
    assert [len(c.down) for c in calls] == [
        2,
        2,
        2,
    ]  # the i-th clients of both chains train side by side
    ends = [
        next(calls[-1].up[k].w for k in group if k in calls[-1].up) for group in groups
    ]
    sizes = [sum(SIZES[k] for k in group) for group in groups]
    mean = {
        k: (sizes[0] * ends[0][k] + sizes[1] * ends[1][k]) / sum(sizes) for k in ends[0]
    }
    assert gap(played.server.w, mean) < 1e-12


def test_groups_mirror_everybody_and_counts_are_true() -> None:
    played, heard = overhear(Fed3p2p(num_type_a=2), rounds=1)
    federation = digits()
    true = {
        k: torch.bincount(federation.y[federation.train[k]], minlength=10).float()
        for k in range(6)
    }
    assert heard[0].call.function == "count" and equal(
        played.server.roster.counts, true
    )
    rough = run_small(
        Fed3p2p(num_type_a=2, grouping_a="random"), rounds=1
    ).server.roster.a
    assert (
        measure_quality(played.server.roster.a, true).kl_sum
        < measure_quality(rough, true).kl_sum
    )


def test_a_lost_reply_does_not_break_its_chain() -> None:
    """The next client starts from the last model that came back, and the lost one's data do not
    count.
    """
    lost = (0, 3)
    options: dict[str, Any] = dict(rounds=1, dtype=torch.float64)
    played, heard = overhear_losing(
        Fed3p2p(num_type_a=2),
        lambda name, t, k: name != "count" and k in lost,
        **options,
    )
    groups = played.server.roster.a
    home = {k: j for j, group in enumerate(groups) for k in group}
    model = dict.fromkeys((0, 1), heard[1].down[next(iter(heard[1].down))].w)
    for call in trainings(heard, 1):
        assert all(equal(down.w, model[home[k]]) for k, down in call.down.items())
        model |= {home[k]: up.w for k, up in call.up.items()}
    sizes = [float(sum(SIZES[k] for k in group if k not in lost)) for group in groups]
    assert equal(played.server.w, average([model[0], model[1]], sizes))
    assert {k for c in trainings(heard, 1) for k in c.up} == {1, 2, 4, 5}


def test_a_step_lost_by_all_chains_does_not_end_the_round() -> None:
    """With one chain every lost reply is a step without any."""
    played, heard = overhear_losing(
        Fed3p2p(num_type_a=1),
        lambda name, t, k: name != "count" and k not in (1, 4),
        rounds=1,
    )
    calls = trainings(heard, 1)
    came = [c for c in calls if c.up]
    assert len(calls) == 6 and len(came) == 2
    (middle,), (end,) = (list(c.up.values()) for c in came)
    assert equal(next(iter(came[1].down.values())).w, middle.w) and equal(
        played.server.w, end.w
    )


def test_a_round_without_replies_is_skipped() -> None:
    played = run_small(Fed3p2p(), rounds=2, drop=1.0)
    assert (
        equal(played.server.w, played.runner.new(0)) and played.server.phase.number == 1
    )
    assert played.server.roster.counts == {}


# ---------------------------------------------------------------- phase 2
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_phase_two_freezes_extractor_and_global_head(norm: str) -> None:
    first, last = (run_small(Fed3p2p(phase1=2), rounds=t, norm=norm) for t in (2, 5))
    assert first.server.phase.number == 1 and last.server.phase.number == 2
    assert equal(first.server.w, last.server.w)  # running statistics too
    assert equal(last.runner.method.shared(last.server), first.server.w)
    for k in range(6):
        assert equal(part(personal(last, k), "base"), part(first.server.w, "base"))


def test_groups_share_filters_and_nobody_shares_heads() -> None:
    played = run_small(Fed3p2p(phase1=1), rounds=3)
    models = {k: personal(played, k) for k in range(6)}
    groups = played.server.roster.b
    assert len(groups) == len(played.server.filters) == 3 and sorted(
        itertools.chain(*groups)
    ) == list(range(6))
    for j, group in enumerate(groups):
        for k in group:
            assert equal(part(models[k], "filter"), played.server.filters[j])
    for j in (1, 2):
        assert not torch.equal(
            played.server.filters[0]["filter.weight"],
            played.server.filters[j]["filter.weight"],
        )
    heads = [models[k]["head.weight"] for k in range(6)]
    assert all(not torch.equal(a, b) for i, a in enumerate(heads) for b in heads[:i])
    assert all(equal(part(models[k], "head"), played.keep(k).own) for k in range(6))


def test_filters_are_means_by_data_inside_their_groups() -> None:
    played, heard = overhear(
        Fed3p2p(phase1=1, num_type_b=2), rounds=2, dtype=torch.float64
    )
    (call,) = trainings(heard, 2)
    for group, found in zip(played.server.roster.b, played.server.filters, strict=True):
        size = sum(SIZES[k] for k in group)
        mean = {
            key: sum(SIZES[k] / size * call.up[k].w[key] for k in group)
            for key in found
        }
        assert gap(found, mean) < 1e-12


def test_personal_heads_never_go_up() -> None:
    played, heard = overhear(Fed3p2p(phase1=2), rounds=4, norm="batch")
    everything = {*played.server.w}
    assert all(
        set(up.w) == everything for c in trainings(heard, 1) for up in c.up.values()
    )
    assert all(
        set(up.w) == {"filter.weight", "filter.bias"}
        for c in trainings(heard, 2)
        for up in c.up.values()
    )
    sent = [x for c in heard for up in c.up.values() for x in tensors(up)]
    begun = run_small(Fed3p2p(phase1=2), rounds=2, norm="batch")
    for k in range(6):
        for own in (played.keep(k).own, begun.keep(k).own):
            for x in own.values():
                assert not any(x.shape == y.shape and torch.equal(x, y) for y in sent)


def test_phase_two_starts_with_new_filters_and_heads() -> None:
    _, heard = overhear(Fed3p2p(phase1=1), rounds=2)
    down = trainings(heard, 2)[0].down
    old = next(iter(trainings(heard, 1)[-1].up.values())).w["filter.weight"]
    starts = {id(x): x for x in (down[k].w["filter.weight"] for k in range(6))}.values()
    new = [
        x
        for i, x in enumerate(starts)
        if not any(torch.equal(x, y) for y in list(starts)[:i])
    ]
    assert len(new) == 3 and all((x - old).abs().mean() > 0.01 for x in new)
    bound = 1 / 64**0.5  # PyTorch's own rule for 64 inputs
    assert all(0.9 * bound < float(x.abs().max()) <= bound for x in new)


def test_without_reinit_phase_two_goes_on() -> None:
    played = run_small(Fed3p2p(phase1=2, reinit=False), rounds=2, norm="batch")
    method, server = played.runner.method, played.server
    with torch_settings():
        began = method.begin_phase_2(server, FakeCohort(3))
        for k in range(6):
            c, down, keep = played.runner.load_client(k, method.send(began, k), 3)
            assert equal(method.personal(c, down, keep), server.w)
            _, kept = method.train_filter_and_head(c, down, keep)
            assert equal(part(method.personal(c, down, kept), "head"), kept.own)
            assert not torch.equal(kept.own["head.weight"], server.w["head.weight"])


def test_the_learning_rate_starts_anew() -> None:
    """With a decay that kills training after the first round, both phases move in their first
    round only.
    """
    plan = Plan(lr=0.05, lr_decay=1e-9, batch=10)
    _, heard = overhear(Fed3p2p(phase1=2), rounds=4, plan=plan)
    moved = {}
    for call in filter(is_training, heard):
        for k, up in call.up.items():
            step = gap({key: call.down[k].w[key] for key in up.w}, up.w)
            moved[call.t] = max(moved.get(call.t, 0.0), step)
    assert moved[1] > 1e-3 < moved[3] and moved[2] < 1e-6 > moved[4]


def test_phase_two_trains_as_plain_pytorch_on_the_frozen_extractor() -> None:
    with torch_settings(torch.float64):
        plan = Plan(lr=0.1, momentum=0.9, weight_decay=1e-3, epochs=2, batch=10)
        played = run_small(
            Fed3p2p(phase1=2), rounds=2, dtype=torch.float64, norm="batch", plan=plan
        )
        method, runner = played.runner.method, played.runner
        down = method.send(method.begin_phase_2(played.server, FakeCohort(3)), 0)
        keep = method.first_keep(runner.client(0, 3, Purpose.JOIN), down)
        c = runner.client(0, 3, Purpose.CALL, 3, 1)
        up, kept = method.train_filter_and_head(c, down, keep)

        net = split_backbone(small(norm="batch")).to(torch.float64)
        net.load_state_dict(down.w | keep.own)
        net.eval()
        opt = torch.optim.SGD(
            [*net.filter.parameters(), *net.head.parameters()],
            0.1,
            momentum=0.9,
            weight_decay=1e-3,
        )

        def step(_: None, batch: Any) -> None:
            opt.zero_grad()
            nn.functional.cross_entropy(net(batch.x), batch.y).backward()
            opt.step()

        runner.client(0, 3, Purpose.CALL, 3, 1).each_batch(step, None)
        state = dict(net.state_dict())
        assert (
            gap(up.w, part(state, "filter")) < 1e-9
            and gap(kept.own, part(state, "head")) < 1e-9
        )


# ---------------------------------------------------------------- who takes part
def test_groups_take_part_whole_in_phase_one_and_clients_in_phase_two() -> None:
    played, heard = overhear(Fed3p2p(phase1=3), rounds=6, share=0.5)
    groups, drawn = played.server.roster.a, set()
    for t in range(1, 7):
        who = sorted(k for c in heard if c.t == t and is_training(c) for k in c.down)
        if t <= 3:
            assert who in [
                sorted(a + b) for a, b in itertools.combinations(groups, 2)
            ]  # two of three groups
        else:
            assert len(who) == 3
        drawn.add(tuple(who))
    assert len(drawn) > 3


def test_clients_can_be_drawn_one_by_one() -> None:
    """The chain goes over the members drawn; a group without any is left out."""
    played, heard = overhear(
        Fed3p2p(participation="clients", num_type_a=2, phase1=5), rounds=5, share=0.5
    )
    home = {k: j for j, group in enumerate(played.server.roster.a) for k in group}
    lengths = []
    for t in range(1, 6):
        calls = [c for c in heard if c.t == t and is_training(c)]
        drawn = [home[k] for c in calls for k in c.down]
        assert len(drawn) == 3 and len(calls) == max(drawn.count(0), drawn.count(1))
        lengths.append(len(calls))
    assert set(lengths) == {2, 3}


def test_groups_can_be_formed_anew_every_round() -> None:
    federation = digits(sizes=(12,) * 8)
    played, heard = overhear(
        Fed3p2p(participation="regroup", num_type_a=4, phase1=4),
        rounds=4,
        share=0.5,
        federation=federation,
    )
    met = set()
    for t in range(1, 5):
        calls = [c for c in heard if c.t == t and is_training(c)]
        assert [len(c.down) for c in calls] == [
            2,
            2,
        ]  # two chains of two, as long as those of all clients
        first, second = ({k: up.w for k, up in c.up.items()} for c in calls)
        for k, down in calls[1].down.items():
            met.add(frozenset((k, next(j for j in first if equal(first[j], down.w)))))
        assert len(second) == 2
    assert not met <= {frozenset(g) for g in played.server.roster.a}


def test_whose_counts_got_lost_is_asked_again() -> None:
    played, heard = overhear_losing(
        Fed3p2p(num_type_a=2, phase1=2),
        lambda name, t, k: name == "count" and (t, k) in ((0, 2), (0, 5), (1, 5)),
        rounds=2,
    )
    asked = [c for c in heard if c.call.function == "count"]
    assert [(c.t, sorted(c.down)) for c in asked] == [
        (0, list(range(6))),
        (1, [2, 5]),
        (2, [5]),
    ]
    # meanwhile it trains, on its own
    assert any(set(c.down) >= {5} for c in trainings(heard, 1) if c.t == 1)
    assert (
        sorted(itertools.chain(*played.server.roster.a))
        == sorted(played.server.roster.counts)
        == list(range(6))
    )


@pytest.mark.parametrize("phase1", [4, 1])
def test_a_late_client_joins_and_moves_nobody(phase1: int) -> None:
    before = run_small(
        Fed3p2p(phase1=phase1), rounds=4, until=1, late=True
    ).server.roster
    played, heard = overhear(Fed3p2p(phase1=phase1), rounds=4, late=True)
    after = played.server.roster
    assert 5 not in before.counts and 5 in after.counts
    assert [[k for k in g if k != 5] for g in after.a] == before.a
    assert [sorted(c.down) for c in heard if c.call.function == "count"] == [
        [0, 1, 2, 3, 4],
        [5],
    ]
    assert {k for c in heard if c.t > 1 for k in c.up} == set(range(6))


def test_a_late_client_in_phase_two_takes_its_nearest_groups_filter() -> None:
    played = run_small(Fed3p2p(phase1=1), rounds=4, until=2)
    method, roster = played.runner.method, played.server.roster
    twin = {6: roster.counts[3] * 2}  # looks exactly like client 3
    grown = method.add_clients(roster, twin, Rng.seed(0))
    assert (
        grown.b == extend_similar_groups(roster.b, grown.counts, [6])
        and sum(6 in g for g in grown.b) == 1
    )
    assert [[k for k in g if k != 6] for g in grown.b] == roster.b
    mine = method.send(played.server._replace(roster=grown), 6).w
    assert equal(
        part(mine, "filter"),
        played.server.filters[next(j for j, g in enumerate(grown.b) if 6 in g)],
    )


# ---------------------------------------------------------------- groups and phases over time
def test_there_are_as_many_groups_as_the_root_of_the_clients() -> None:
    for clients, groups in ((1, 1), (6, 3), (20, 5), (100, 10)):
        assert count_groups("num_type_a", None, clients) == groups
        assert count_groups("num_type_b", "silhouette", clients) == groups
    assert count_groups("num_type_a", 4, 20) == 4
    server = Fed3p2p(num_type_a=4, num_type_b=2).init(lambda i: {}, 20)
    assert server.roster == Roster([[], [], [], []], [], 2, {})
    assert Fed3p2p(without="filter").init(lambda i: {}, 20).roster.wanted == 0


@pytest.mark.parametrize("field", ["num_type_a", "num_type_b"])
def test_more_groups_than_clients_are_refused(field: str) -> None:
    with pytest.raises(
        UserError, match=f"{field}=7, but there are 6 clients: set 6 at most"
    ):
        Fed3p2p(**{field: 7}).init(lambda i: {}, 6)


def test_clients_are_added_as_they_answer() -> None:
    method = Fed3p2p(num_type_a=3, num_type_b=3)
    empty = method.init(lambda i: {}, 12).roster
    counts = draw_counts(11, 12)
    some = {k: counts[k] for k in range(2, 11)}
    first = method.add_clients(empty, some, Rng.seed(0))
    assert first.a == make_balanced_groups(some, 3, Rng.seed(0)) and first.b == []
    formed = first._replace(b=method.make_type_b_groups(first, Rng.seed(1)))
    late = method.add_clients(formed, {0: counts[0], 11: counts[11]}, Rng.seed(2))
    assert list(late.counts) == [0, *range(2, 12)]
    assert late.a == extend_balanced_groups(first.a, late.counts, [0, 11])
    assert late.b == extend_similar_groups(formed.b, late.counts, [0, 11])
    groups = find_type_a_groups(late, range(12))
    assert groups == sorted([*late.a, [1]])  # client 1 has not answered
    nothing_known = empty._replace(b=method.make_type_b_groups(empty, Rng.seed(1)))
    assert nothing_known.b == [[], [], []]
    assert method.add_clients(nothing_known, {5: counts[5]}, Rng.seed(1)).b == [
        [5],
        [],
        [],
    ]


def test_groups_formed_anew_are_like_all_clients() -> None:
    counts = draw_counts(12, 20)
    roster = Roster(make_balanced_groups(counts, 5, Rng.seed(0)), [], 5, counts)
    some = [1, 3, 4, 8, 9, 15, 17, 19]
    found = Fed3p2p().regroup(roster, FakeCohort(4, clients=some)).a
    assert sorted(map(len, found)) == [4, 4] and sorted(itertools.chain(*found)) == some
    total = torch.stack(list(counts.values())).sum(0)

    def objective(groups: Groups) -> float:
        joint = [torch.stack([counts[k] for k in group]).sum(0) for group in groups]
        return float(sum(entropy(n, total) for n in joint))

    halves = [list(half) for half in itertools.combinations(some, 4)]
    choices = [[half, [k for k in some if k not in half]] for half in halves]
    assert objective(found) == pytest.approx(min(map(objective, choices)), abs=1e-6)


def test_phase_one_ends_after_a_share_or_a_number_of_rounds() -> None:
    assert [last_round(0.5, t) for t in (1, 2, 3, 100)] == [1, 1, 2, 50]
    assert [last_round(x, 30) for x in (0, 0.1, 1, 7, 30)] == [0, 3, 1, 7, 30]


def test_a_curve_is_flat_when_two_windows_are_alike() -> None:
    assert not is_flat([0.1, 0.5, 0.5], 2, 0.01)
    assert not is_flat([0.1, 0.5, 0.5, 0.55], 2, 0.01)
    assert is_flat([0.1, 0.5, 0.55, 0.53, 0.53], 2, 0.01)


def replies(*scores: list[float] | None) -> list[Uploads[Up]]:
    """One call's uploads with these scores."""
    ups = [Up({}, None if score is None else torch.tensor(score)) for score in scores]
    return [Uploads(range(len(ups)), torch.ones(len(ups)), ups)]


def test_a_phase_advances_by_what_clients_report() -> None:
    method = Fed3p2p(switch="auto", window=1, threshold=0.1, phase1=9)
    scores = replies([3.0, 4.0], None, [1.0, 4.0])
    phase = method.advance_phase(Phase(1), scores, FakeCohort(1))
    assert phase == Phase(1, 0, False, (0.5,))
    assert method.advance_phase(phase, replies(None), FakeCohort(9)) == phase._replace(
        over=True
    )
    without_data = method.advance_phase(phase, replies([0.0, 0.0]), FakeCohort(2))
    assert without_data.curve == (0.5,)
    assert method.advance_phase(phase, replies([5.0, 10.0]), FakeCohort(2)).over
    fixed = Fed3p2p(phase1=9)
    assert not fixed.advance_phase(phase, replies(None), FakeCohort(2)).over
    assert fixed.advance_phase(phase, replies(None), FakeCohort(9)).over


# ---------------------------------------------------------------- the paper's future work
def test_phase_one_ends_when_validation_is_flat() -> None:
    flat = run_small(
        Fed3p2p(switch="auto", window=2, threshold=1.0, phase1=9), rounds=10
    )
    assert (
        flat.server.phase.number == 2
        and flat.server.phase.since == 4
        and len(flat.server.phase.curve) == 4
    )
    never = run_small(
        Fed3p2p(switch="auto", window=2, threshold=0.0, phase1=5),
        rounds=5,
        plan=Plan(lr=0.1, batch=10),
    )
    fixed = run_small(Fed3p2p(phase1=5), rounds=5, plan=Plan(lr=0.1, batch=10))
    assert equal(never.server.w, fixed.server.w) and fixed.server.phase.curve == ()


def test_the_curve_is_the_accuracy_of_the_models_received() -> None:
    played, heard = overhear(Fed3p2p(switch="auto"), rounds=2, norm="batch")
    federation, right, seen = digits(), 0, 0
    net = split_backbone(small(norm="batch")).eval()
    for call in trainings(heard, 1):
        for k, down in call.down.items():
            net.load_state_dict(down.w)
            x, y = federation.x[federation.val[k]], federation.y[federation.val[k]]
            right, seen = right + int((net(x).argmax(1) == y).sum()), seen + len(y)
    assert played.server.phase.curve == (right / seen,) and seen == 48


def test_counts_may_be_private() -> None:
    true = run_small(Fed3p2p(), rounds=1).server.roster.counts
    noisy = run_small(Fed3p2p(epsilon=0.5), rounds=1).server.roster.counts
    for k in range(6):
        assert torch.equal(noisy[k], noisy[k].round()) and float(noisy[k].min()) >= 0
        assert not torch.equal(noisy[k], true[k])
    assert equal(run_small(Fed3p2p(epsilon=1e6), rounds=1).server.roster.counts, true)
    with torch_settings(torch.float64):
        draws = torch.stack([Rng.seed(i).laplace(100) for i in range(200)]) / 0.5
        # the mean size of the noise is 1/epsilon
        assert float(draws.abs().mean()) == pytest.approx(2.0, rel=0.03)


# ---------------------------------------------------------------- ablations
def test_without_filter_coordinators_the_filter_is_frozen_or_private() -> None:
    frozen, heard = overhear(Fed3p2p(without="filter", phase1=2), rounds=4)
    assert all(up.w == {} for c in trainings(heard, 2) for up in c.up.values())
    assert len(frozen.server.roster.a) == 3 and frozen.server.filters == []
    for k in range(6):
        assert equal(
            part(personal(frozen, k), "base", "filter"),
            part(frozen.server.w, "base", "filter"),
        )
    private, heard = overhear(
        Fed3p2p(without="filter", filter_scope="private", phase1=2), rounds=4
    )
    assert all(up.w == {} for c in trainings(heard, 2) for up in c.up.values())
    assert equal(private.server.w, frozen.server.w)
    filters = [personal(private, k)["filter.weight"] for k in range(6)]
    assert all(
        not torch.equal(a, b) for i, a in enumerate(filters) for b in filters[:i]
    )


def test_without_coordinators_nobody_is_asked_for_labels() -> None:
    for without in ("coordinators", "filter, coordinators", "phases"):
        played, heard = overhear(Fed3p2p(without=without, phase1=2), rounds=3)
        assert all(map(is_training, heard)) and played.server.roster.counts == {}
    assert equal(
        run_small(Fed3p2p(without="coordinators", phase1=2)).server,
        run_small(Fed3p2p(without="filter,coordinators", phase1=2)).server,
    )


def test_without_phases_both_heads_train_at_once() -> None:
    with torch_settings(torch.float64):
        played = run_small(
            Fed3p2p(without="phases"), rounds=1, dtype=torch.float64, norm="batch"
        )
        method, runner = played.runner.method, played.runner
        down = Down(played.runner.new(0), 0, 0)
        keep = method.first_keep(runner.client(0, 1, Purpose.JOIN), down)
        up, kept = method.train_both_heads(
            runner.client(0, 1, Purpose.CALL, 1, 1), down, keep
        )

        net, own = (
            split_backbone(small(norm="batch")).to(torch.float64),
            nn.Linear(16, 10),
        )
        net.load_state_dict(down.w)
        own.load_state_dict({k.removeprefix("head."): v for k, v in keep.own.items()})
        net.train()
        opt = torch.optim.SGD([*net.parameters(), *own.parameters()], 0.05)

        def step(_: None, batch: Any) -> None:
            opt.zero_grad()
            f = net.rest(net.filter(net.base(batch.x)))
            loss = nn.functional.cross_entropy
            (loss(net.head(f), batch.y) + loss(own(f), batch.y)).backward()
            opt.step()

        runner.client(0, 1, Purpose.CALL, 1, 1).each_batch(step, None)
        assert (
            gap(up.w, {k: v for k, v in net.state_dict().items() if k in up.w}) < 1e-9
        )
        assert (
            gap(kept.own, {f"head.{k}": v for k, v in own.state_dict().items()}) < 1e-9
        )
        assert set(up.w) == set(down.w)


def test_personal_is_the_global_model_until_phase_two() -> None:
    played = run_small(Fed3p2p(phase1=3), rounds=3)
    assert all(equal(personal(played, k), played.server.w) for k in range(6))
    assert played.server.phase.over  # yet phase 2 begins only with the next round


@pytest.mark.parametrize(
    ("how", "rounds", "function"),
    [
        ({}, 1, "train_whole_model"),
        ({}, 3, "train_filter_and_head"),
        ({"without": "phases"}, 1, "train_both_heads"),
    ],
)
def test_every_phase_is_scored_right_after_its_training(
    how: dict[str, Any], rounds: int, function: str
) -> None:
    played = run_small(Fed3p2p(phase1=2, **how), rounds=rounds)
    method, runner = played.runner.method, played.runner
    down = method.send(played.server, 0)
    with torch_settings():
        c, down, keep = runner.load_client(0, down, rounds)
        learner = runner.client(0, rounds, Purpose.CALL, rounds, 9)
        up, kept = getattr(method, function)(learner, down, keep)
        w = method.after_training(c, down, up, kept)
        if function == "train_whole_model":
            assert equal(w, up.w)
        else:
            assert equal(w, down.w | up.w | kept.own)
        assert set(w) == set(played.server.w)
        wanted = score(method, c, w, runner.test_examples(0))
        reply = runner.visit(0, Visit(function, rounds, 9, down, after=True))
    assert trains_like_local(method, function)
    assert equal(reply.report.after.test, wanted.test)


# ---------------------------------------------------------------- the network
@pytest.mark.parametrize(
    ("spec", "shape", "filter_", "width"),
    [
        ("cnn", (3, 32, 32), "fc", (512, 1600)),
        ("convnet2", (1, 28, 28), "fc", (50, 1024)),
        ("convnet3", (3, 32, 32), "fc", (64, 1024)),
        ("lenet5", (3, 32, 32), "fc", (100, 120)),
        ("resnet18:cifar,50", (3, 16, 16), "fc", (50, 512)),
        ("resnet32", (3, 8, 8), "extra_fc", (64, 64)),
        ("har_cnn", (9, 128), "fc", (512, 1024)),
        ("mlp:20,12", (1, 8, 8), "fc", (12, 20)),
        ("mlp", (1, 8, 8), "extra_fc", (128, 128)),
    ],
)
def test_backbones_fall_into_three_parts(
    spec: str, shape: tuple[int, ...], filter_: str, width: tuple[int, int]
) -> None:
    backbone = build(spec, shape, 10)
    assert (
        name_filter(backbone) == filter_ == Fed3p2p().with_defaults_for(backbone).filter
    )
    parts = split_backbone(backbone)
    assert tuple(parts.filter.weight.shape) == width and list(parts.base.parameters())
    if filter_ == "fc":
        backbone.eval(), parts.eval()
        x = torch.rand(2, *shape)
        assert torch.equal(parts(x), backbone(x))
        assert sum(p.numel() for p in parts.parameters()) == sum(
            p.numel() for p in backbone.parameters()
        )
        # first values are those every other method gets
        if isinstance(backbone.head, nn.Linear):
            ours, theirs = fresh(parts, Rng.seed(1)), fresh(backbone, Rng.seed(1))
            assert all(
                torch.equal(a, b)
                for a, b in zip(ours.values(), theirs.values(), strict=True)
            )


def test_unsuitable_networks_are_refused() -> None:
    with pytest.raises(
        Unsupported, match="no layer before the filter to be the extractor"
    ):
        Fed3p2p().net(build("linear", (1, 8, 8), 10))
    with pytest.raises(Unsupported, match="set filter=extra_fc"):
        Fed3p2p(filter="fc").net(build("resnet32", (3, 8, 8), 10))
    odd = Backbone(
        nn.Sequential(nn.Flatten(), nn.Linear(64, 9), nn.BatchNorm1d(9)),
        nn.Linear(9, 10),
        features=9,
    )
    # what stands before the head is no linear layer
    assert name_filter(odd) == "extra_fc"


def test_an_added_filter_is_a_square_layer() -> None:
    played = run_small(Fed3p2p(filter="extra_fc", phase1=1), rounds=2)
    assert (
        played.server.w["filter.weight"].shape == (16, 16)
        and "base.fc1.weight" in played.server.w
    )


# ---------------------------------------------------------------- the whole
def test_personal_models_learn() -> None:
    options: dict[str, Any] = dict(
        rounds=20, federation=digits(sizes=(60,) * 8), plan=Plan(lr=0.05, batch=10)
    )
    first = run_small(Fed3p2p(), until=1, **options)
    phase1 = run_small(Fed3p2p(), until=10, since=first.save(), **options)
    phase2 = run_small(Fed3p2p(), since=phase1.save(), **options)
    found = [run.accuracy() for run in (first, phase1, phase2)]
    # personal models surpass the global one
    assert found[0] < 0.4 and found[1] > 0.7 and found[2] > found[1] + 0.03
    fedavg = run_small(FedAvg(), until=10, **options).accuracy()
    assert found[1] > fedavg + 0.1  # so do chains of mirrors the mean of all clients


def test_mistakes_are_told_in_a_line() -> None:
    with pytest.raises(
        UserError, match=r"to leave out named 'filtr'; did you mean filter\?"
    ):
        Fed3p2p(without="coordinators,filtr")
    with pytest.raises(UserError, match="num_type_b=7, but there are 6 clients"):
        run_small(Fed3p2p(num_type_b=7), rounds=1)
    assert run_small(Fed3p2p(phase1=0), rounds=1).server.phase.number == 2


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"phase1": 0}, "phase1=0: nothing trains Fed3+2p's extractor"),
        ({"num_type_b": 1}, "num_type_b=1: all clients share one filter"),
        (
            {"grouping_a": "random"},
            "grouping_a=random: Fed3+2p's Type-A groups do not mirror",
        ),
    ],
)
def test_values_that_switch_a_part_off_draw_a_warning(
    how: dict[str, Any], words: str
) -> None:
    (found,) = Fed3p2p(**how).warnings()
    assert found.startswith(words)
    assert Fed3p2p().warnings() == []
    without_them = {"num_type_b": 1, "grouping_a": "random", "without": "coordinators"}
    assert Fed3p2p(**without_them).warnings() == []


def test_an_ablation_leaves_out_those_before_it() -> None:
    parts = ("filter", "coordinators", "phases")
    for i, part_left_out in enumerate(parts):
        for method in (
            Fed3p2p(without=part_left_out),
            Fed3p2p(without={part_left_out}),
        ):
            assert [method.lacks(what) for what in parts] == [j <= i for j in range(3)]
    assert not any(map(Fed3p2p().lacks, parts))


def test_the_number_of_filters_may_follow_the_silhouette() -> None:
    played = run_small(Fed3p2p(num_type_b="silhouette", phase1=1), rounds=2)
    wanted = suggest_group_count(
        played.server.roster.counts, Rng.seed(0, Purpose.SERVER, 2)
    )
    assert len(played.server.filters) == len(played.server.roster.b) == wanted != 3


def test_a_run_tells_how_good_its_groups_are() -> None:
    played = run_small(Fed3p2p())
    method = played.runner.method
    a, phase, b = method.closing_remarks(played.server)
    assert phase == f"phase 2 began after round {played.server.phase.since}"
    groups = method.formed_groups(played.server)["Type-A groups"]
    assert sorted(k for group in groups for k in group) == list(range(6))
    roster = played.server.roster
    found = measure_quality(roster.a, roster.counts)
    assert (
        f"{found.kl_sum:.3f} in all, {found.kl_max:.3f} at most" in a
        and "Type-A groups of 2, 2, 2" in a
    )
    assert f"{measure_quality(roster.b, roster.counts).js_mean:.3f}" in b
    alone = run_small(Fed3p2p(without="coordinators"))
    assert alone.runner.method.closing_remarks(alone.server) == [
        f"phase 2 began after round {alone.server.phase.since}"
    ]
