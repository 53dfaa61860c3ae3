"""Groups by label counts: the solvers against brute force and against independent formulas, and groups over time."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from scipy.spatial.distance import jensenshannon
from scipy.stats import entropy
from sklearn.datasets import load_digits
from sklearn.metrics import silhouette_score

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Rng
from fedtailor.maths.grouping import (
    Groups,
    Phase,
    Roster,
    advance,
    assess,
    draw_groups,
    enrol,
    extend_lookalikes,
    extend_mirrors,
    find_group,
    form_lookalikes,
    group_lookalikes,
    group_mirrors,
    is_flat,
    last_round,
    list_mirrors,
    open_roster,
    remirror,
    suggest_groups,
)
from fedtailor.maths.grouping.balanced_kl import _count_ways, _list_ways
from fedtailor.maths.grouping.divergence import gather, js, kl, normalise_rows, tabulate
from fedtailor.maths.grouping.minsum_js import cluster, silhouette

Dealt = dict[int, torch.Tensor]
DIGITS = np.bincount(load_digits().target)  # real images of every class


def deal(seed: int, clients: int, alpha: float = 0.1) -> Dealt:
    """The labels of the real digits, each class dealt to clients by a Dirichlet distribution."""
    rng = np.random.default_rng(seed)
    n = np.stack([rng.multinomial(size, rng.dirichlet([alpha] * clients)) for size in DIGITS], 1)
    return {k: torch.tensor(row, dtype=torch.float32) for k, row in enumerate(n)}


def rows(counts: Dealt, group: list[int]) -> np.ndarray:
    return np.stack([counts[k].numpy().astype(float) for k in group])


def sum_kl(groups: Groups, counts: Dealt, weights: str = "uniform") -> float:
    """Eq. (5), written down once more."""
    n = rows(counts, sorted(counts))
    q, total = n.sum(0) / n.sum(), 0.0
    for group in groups:
        joint = n[group].sum(0)
        p = joint[joint > 0] / max(joint.sum(), 1)
        far = float((p * np.log(p / q[joint > 0])).sum())
        total += far * (joint.sum() / n.sum() if weights == "size" else 1.0)
    return total


def sum_js(groups: Groups, counts: Dealt, cost: str = "sum") -> float:
    """Eq. (10), written down once more."""
    total = 0.0
    for group in groups:
        p = rows(counts, group)
        pairs = sum(
            jensenshannon(a, b) ** 2 for a, b in itertools.product(p, p) if not np.array_equal(a, b)
        )
        total += pairs / (len(group) if cost == "mean" else 1)
    return total


def partitions(clients: int, groups: int) -> Iterator[Groups]:
    """All ways to put clients into so many groups, none empty."""

    def go(k: int, out: Groups) -> Iterator[Groups]:
        if k == clients:
            if len(out) == groups:
                yield [list(g) for g in out]
            return
        for g in out:
            g.append(k)
            yield from go(k + 1, out)
            g.pop()
        if len(out) < groups:
            yield from go(k + 1, [*out, [k]])

    return go(0, [])


def balanced(clients: int, groups: int) -> list[Groups]:
    return [g for g in partitions(clients, groups) if max(map(len, g)) - min(map(len, g)) <= 1]


# ---------------------------------------------------------------- divergences
def test_divergences_are_scipys() -> None:
    _, n = tabulate(deal(1, 12, alpha=0.5))
    everybody = n.sum(0)
    assert kl(n, everybody) == pytest.approx([entropy(row, everybody) for row in n], abs=1e-12)
    p = normalise_rows(n)
    wanted = [
        [jensenshannon(a, b) ** 2 if i != j else 0.0 for j, b in enumerate(p)]
        for i, a in enumerate(p)
    ]
    far = js(p)
    assert far == pytest.approx(np.array(wanted), abs=1e-12)
    assert np.array_equal(far, far.T)


def test_disjoint_labels_are_log_two_apart_and_no_labels_are_like_everybody() -> None:
    n = np.array([[4.0, 0, 0], [0, 7, 0], [0, 0, 0]])
    far = js(normalise_rows(n))
    assert far[0, 1] == pytest.approx(math.log(2), abs=1e-15)
    assert normalise_rows(n)[2] == pytest.approx([4 / 11, 7 / 11, 0])
    assert kl(n, n.sum(0))[2] == 0


# ---------------------------------------------------------------- mirrors
@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize(("clients", "groups", "cases"), [(8, 2, 20), (9, 3, 3), (7, 3, 6)])
def test_mirrors_are_optimal_where_all_can_be_tried(
    clients: int, groups: int, cases: int, weights: str
) -> None:
    choices = balanced(clients, groups)
    for seed in range(cases):
        counts = deal(seed, clients, alpha=0.1 if seed % 2 else 1.0)
        best = min(sum_kl(g, counts, weights) for g in choices)
        found = group_mirrors(counts, groups, Rng.seed(seed), weights=weights)
        assert sum_kl(found, counts, weights) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize(("clients", "groups"), [(8, 2), (9, 4), (7, 3), (5, 5), (6, 1), (11, 2)])
def test_all_ways_to_balance_are_known(clients: int, groups: int) -> None:
    ways = {
        tuple(map(tuple, gather(list(range(clients)), np.array(w), groups)))
        for w in _list_ways(clients, groups)
    }
    assert ways == {tuple(map(tuple, g)) for g in balanced(clients, groups)}
    assert len(list(_list_ways(clients, groups))) == len(ways) == _count_ways(clients, groups)


def test_local_search_finds_what_trying_all_finds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedtailor.maths.grouping.balanced_kl.FEW", 0)
    choices = balanced(9, 3)
    for seed in range(4):
        counts = deal(seed, 9, alpha=0.3)
        best = min(sum_kl(g, counts) for g in choices)
        assert sum_kl(group_mirrors(counts, 3, Rng.seed(seed)), counts) == pytest.approx(
            best, abs=1e-9
        )


def test_mirrors_beat_greedy_and_random_groups() -> None:
    for seed in range(5):
        counts = deal(seed, 23)
        found = {
            how: group_mirrors(counts, 5, Rng.seed(seed), how=how)
            for how in ("balanced_kl", "greedy_astraea", "random")
        }
        for groups in found.values():
            assert sorted(itertools.chain(*groups)) == list(range(23))
            assert sorted(map(len, groups)) == [4, 4, 5, 5, 5]
        value = {how: sum_kl(groups, counts) for how, groups in found.items()}
        assert value["balanced_kl"] < value["greedy_astraea"] < value["random"]


def test_astraea_fills_one_group_after_the_other() -> None:
    counts = deal(3, 11)
    everybody = rows(counts, list(range(11))).sum(0)
    left, wanted = list(range(11)), []
    for size in (4, 4, 3):
        group: list[int] = []
        for _ in range(size):
            near = min(left, key=lambda k: entropy(rows(counts, [*group, k]).sum(0), everybody))
            group.append(near)
            left.remove(near)
        wanted.append(sorted(group))
    assert group_mirrors(counts, 3, Rng.seed(0), how="greedy_astraea") == sorted(wanted)


def test_mirrors_depend_on_the_counts_alone() -> None:
    counts = deal(4, 12)
    found = group_mirrors(counts, 3, Rng.seed(5))
    assert found == group_mirrors(dict(reversed(counts.items())), 3, Rng.seed(5))
    first = group_mirrors(counts, 3, Rng.seed(1), how="random")
    assert (
        first
        == group_mirrors(counts, 3, Rng.seed(1), how="random")
        != group_mirrors(counts, 3, Rng.seed(2), how="random")
    )


def test_mirrors_of_few_or_no_clients() -> None:
    counts = deal(0, 3)
    assert group_mirrors(counts, 3, Rng.seed(0)) == [[0], [1], [2]]
    assert group_mirrors(counts, 5, Rng.seed(0)) == [[0], [1], [2], [], []]
    assert group_mirrors({}, 2, Rng.seed(0)) == [[], []]
    assert group_mirrors(counts, 1, Rng.seed(0)) == [[0, 1, 2]]


def test_clients_without_examples_are_grouped_too() -> None:
    counts = {k: torch.zeros(4) for k in range(6)}
    for weights in ("uniform", "size"):
        assert sorted(map(len, group_mirrors(counts, 2, Rng.seed(0), weights=weights))) == [3, 3]
    assert sorted(itertools.chain(*group_lookalikes(counts, 2, Rng.seed(0)))) == list(range(6))


def test_an_unknown_solver_is_named() -> None:
    with pytest.raises(UserError, match=r"no grouping 'balanced'; did you mean balanced_kl\?"):
        group_mirrors(deal(0, 4), 2, Rng.seed(0), how="balanced")


# ---------------------------------------------------------------- look-alikes
@pytest.mark.parametrize("cost", ["sum", "mean"])
@pytest.mark.parametrize(("clients", "groups"), [(8, 2), (7, 3)])
def test_lookalikes_are_optimal_where_all_can_be_tried(
    clients: int, groups: int, cost: str
) -> None:
    for seed in range(8):
        counts = deal(seed, clients, alpha=0.1 if seed % 2 else 1.0)
        _, n = tabulate(counts)
        far = js(normalise_rows(n))
        per = [1.0 if cost == "sum" else 1 / size for size in range(1, clients + 1)]
        best = min(
            sum(far[np.ix_(g, g)].sum() * per[len(g) - 1] for g in p)
            for p in partitions(clients, groups)
        )
        found = group_lookalikes(counts, groups, Rng.seed(seed), cost=cost)
        assert sum_js(found, counts, cost) == pytest.approx(best, abs=1e-9)


def test_lookalikes_find_clients_with_the_same_classes() -> None:
    counts = {
        k: torch.eye(10)[3 * (k % 3)] * (5 + k) + torch.eye(10)[3 * (k % 3) + 1] * 7
        for k in range(12)
    }
    wanted = [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    assert group_lookalikes(counts, 3, Rng.seed(0)) == wanted
    assert suggest_groups(counts, Rng.seed(0)) == 3
    assert suggest_groups(counts, Rng.seed(0), most=2) == 2


def test_twins_leave_no_group_empty() -> None:
    counts = {k: torch.tensor([1.0, 2.0]) for k in range(7)} | {7: torch.tensor([2.0, 1.0])}
    for groups in range(1, 9):
        found = group_lookalikes(counts, groups, Rng.seed(groups))
        assert len(found) == groups and all(found)
    assert group_lookalikes(counts, 9, Rng.seed(0))[-1] == []


def test_silhouette_is_sklearns() -> None:
    _, n = tabulate(deal(6, 15))
    far = js(normalise_rows(n))
    for groups in (2, 4, 7):
        labels = cluster(far, groups, np.random.default_rng(0))
        wanted = silhouette_score(np.sqrt(far), labels, metric="precomputed")
        assert silhouette(np.sqrt(far), labels) == pytest.approx(wanted, abs=1e-12)


def test_suggestion_has_the_largest_silhouette() -> None:
    counts = deal(7, 11)
    _, n = tabulate(counts)
    far = js(normalise_rows(n))

    def score(groups: int) -> float:
        labels = np.empty(11, dtype=int)
        for j, group in enumerate(group_lookalikes(counts, groups, Rng.seed(1))):
            labels[group] = j
        return float(silhouette_score(np.sqrt(far), labels, metric="precomputed"))

    assert suggest_groups(counts, Rng.seed(1)) == max(range(2, 7), key=score)
    assert suggest_groups({k: counts[k] for k in range(2)}, Rng.seed(1)) == 1


def test_quality_tells_both_objectives() -> None:
    counts = deal(2, 9)
    groups = [[0, 1, 2, 3], [4], [5, 6, 7, 8], []]
    told = assess(groups, counts)
    assert told.sizes == [4, 1, 4, 0]
    assert told.kl_sum == pytest.approx(sum_kl(groups, counts), abs=1e-12)
    assert told.js_sum == pytest.approx(sum_js(groups[:3], counts), abs=1e-12)
    assert told.js_mean == pytest.approx(sum_js(groups[:3], counts) / 24, abs=1e-12)
    assert told.kl_max == pytest.approx(max(sum_kl([g], counts) for g in groups[:3]), abs=1e-12)


# ---------------------------------------------------------------- newcomers
def test_a_newcomer_goes_where_the_mirrors_stay_best() -> None:
    counts = deal(8, 13)
    old = {k: counts[k] for k in range(12)}
    groups = group_mirrors(old, 3, Rng.seed(0))
    found = extend_mirrors(groups, counts, [12])
    choices = [[[*g, 12] if j == i else g for j, g in enumerate(groups)] for i in range(3)]
    assert found == min(choices, key=lambda g: sum_kl(g, counts))


def test_newcomers_disturb_nobody_and_keep_sizes_even() -> None:
    counts = deal(9, 20)
    groups = group_mirrors({k: counts[k] for k in range(9)}, 4, Rng.seed(0))
    found = extend_mirrors(groups, counts, range(9, 20))
    assert sorted([k for k in g if k < 9] for g in found) == sorted(groups)
    assert sorted(map(len, found)) == [5, 5, 5, 5]
    assert extend_mirrors([[0], [], []], counts, [1, 2]) == [[0], [1], [2]]


def test_a_newcomer_joins_its_nearest_lookalikes() -> None:
    counts = deal(10, 10)
    groups = group_lookalikes({k: counts[k] for k in range(9)}, 3, Rng.seed(0))
    found = extend_lookalikes(groups, counts, [9])

    def gap(group: list[int]) -> float:
        mine = counts[9].numpy()
        return float(np.mean([jensenshannon(mine, counts[k].numpy()) ** 2 for k in group]))

    near = min(range(3), key=lambda j: gap(groups[j]))
    assert found == [[*g, 9] if j == near else g for j, g in enumerate(groups)]
    assert extend_lookalikes([[], []], counts, [4]) == [[4], []]


# ---------------------------------------------------------------- a roster
def test_there_are_as_many_groups_as_the_root_of_the_clients() -> None:
    for clients, groups in ((1, 1), (6, 3), (20, 5), (100, 10)):
        roster = open_roster(None, None, clients)
        assert len(roster.a) == roster.wanted == groups
    assert open_roster(4, 2, 20)[::2] == ([[], [], [], []], 2)


@pytest.mark.parametrize("field", ["num_type_a", "num_type_b"])
def test_more_groups_than_clients_are_refused(field: str) -> None:
    with pytest.raises(UserError, match=f"{field}=7, but there are 6 clients: set 6 at most"):
        open_roster(*((7, None) if field == "num_type_a" else (None, 7)), 6)


def test_clients_are_enrolled_as_they_answer() -> None:
    counts, options = deal(11, 12), {"how": "balanced_kl", "weights": "uniform"}
    first = enrol(
        open_roster(3, 3, 12), {k: counts[k] for k in range(2, 11)}, Rng.seed(0), **options
    )
    assert (
        first.a == group_mirrors({k: counts[k] for k in range(2, 11)}, 3, Rng.seed(0))
        and first.b == []
    )
    formed = form_lookalikes(first, Rng.seed(1))
    late = enrol(formed, {0: counts[0], 11: counts[11]}, Rng.seed(2), **options)
    assert list(late.counts) == [0, *range(2, 12)]
    assert late.a == extend_mirrors(first.a, late.counts, [0, 11])
    assert late.b == extend_lookalikes(formed.b, late.counts, [0, 11])
    assert list_mirrors(late, range(12)) == sorted([*late.a, [1]])  # client 1 has not answered
    nobody = form_lookalikes(open_roster(3, 3, 12), Rng.seed(1))
    assert nobody.b == [[], [], []]
    assert enrol(nobody, {5: counts[5]}, Rng.seed(1), **options).b == [[5], [], []]


def test_groups_can_be_drawn_whole_or_formed_anew() -> None:
    counts = deal(12, 20)
    roster = Roster(group_mirrors(counts, 5, Rng.seed(0)), [], 5, counts)
    drawn = draw_groups(roster.a, 0.4, Rng.seed(3))
    inside = [g for g in roster.a if set(g) <= set(drawn)]
    assert len(inside) == 2 and sorted(itertools.chain(*inside)) == drawn
    assert len(draw_groups(roster.a, 0.01, Rng.seed(3))) == 4
    some = [1, 3, 4, 8, 9, 15, 17, 19]
    again = remirror(roster, some, Rng.seed(4), how="balanced_kl", weights="uniform")
    assert sorted(map(len, again.a)) == [4, 4] and sorted(itertools.chain(*again.a)) == some
    everybody = rows(counts, list(range(20))).sum(0)

    def value(groups: Groups) -> float:  # like all clients, not like those drawn
        return float(sum(entropy(rows(counts, g).sum(0), everybody) for g in groups))

    best = min(value([[some[i] for i in g] for g in p]) for p in balanced(8, 2))
    assert value(again.a) == pytest.approx(best, abs=1e-9)


def test_strangers_belong_to_the_largest_group() -> None:
    groups = [[3], [1, 2, 5], [0, 4]]
    assert [find_group(groups, k) for k in (3, 4, 5, 99)] == [0, 2, 1, 1]


# ---------------------------------------------------------------- phases
def test_a_phase_ends_after_a_share_or_a_number_of_rounds() -> None:
    assert [last_round(0.5, t) for t in (1, 2, 3, 100)] == [1, 1, 2, 50]
    assert [last_round(x, 30) for x in (0, 0.1, 1, 7, 30)] == [0, 3, 1, 7, 30]


def test_a_curve_is_flat_when_two_windows_are_alike() -> None:
    assert not is_flat([0.1, 0.5, 0.5], 2, 0.01)
    assert not is_flat([0.1, 0.5, 0.5, 0.55], 2, 0.01)
    assert is_flat([0.1, 0.5, 0.55, 0.53, 0.53], 2, 0.01)


def test_a_phase_advances_by_what_clients_report() -> None:
    phase = advance(Phase(1), [torch.tensor([3.0, 4.0]), None, torch.tensor([1.0, 4.0])], 1, 9)
    assert phase == Phase(1, 0, False, (0.5,))
    assert advance(phase, [], 9, 9) == Phase(1, 0, True, (0.5,))
    assert advance(phase, [torch.zeros(2)], 2, 9, (1, 0.1)).curve == (
        0.5,
    )  # nobody has validation data
    assert advance(phase, [torch.tensor([5.0, 10.0])], 2, 9, (1, 0.1)).over
    assert not advance(phase, [torch.tensor([5.0, 10.0])], 2, 9).over
