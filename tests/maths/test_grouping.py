"""Groups by label counts: the solvers against brute force and against independent formulas."""

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
    draw_groups,
    extend_balanced_groups,
    extend_similar_groups,
    find_group,
    make_balanced_groups,
    make_similar_groups,
    measure_quality,
    suggest_group_count,
)
from fedtailor.maths.grouping.balanced_kl import count_ways, list_ways
from fedtailor.maths.grouping.divergence import kl, normalise_rows, pairwise_js
from fedtailor.maths.grouping.members import collect_groups, tabulate_counts
from fedtailor.maths.grouping.minsum_js import Problem, search_groups, silhouette

Dealt = dict[int, torch.Tensor]
DIGITS = np.bincount(load_digits().target)  # real images of every class


def deal(seed: int, clients: int, alpha: float = 0.1) -> Dealt:
    """The labels of the real digits, each class dealt to clients by a Dirichlet distribution."""
    rng = np.random.default_rng(seed)
    n = np.stack(
        [rng.multinomial(size, rng.dirichlet([alpha] * clients)) for size in DIGITS], 1
    )
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
            jensenshannon(a, b) ** 2
            for a, b in itertools.product(p, p)
            if not np.array_equal(a, b)
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
    return [
        g
        for g in partitions(clients, groups)
        if max(map(len, g)) - min(map(len, g)) <= 1
    ]


# ---------------------------------------------------------------- divergences
def test_divergences_are_scipys() -> None:
    _, n = tabulate_counts(deal(1, 12, alpha=0.5))
    all_counts = n.sum(0)
    assert kl(n, all_counts) == pytest.approx(
        [entropy(row, all_counts) for row in n], abs=1e-12
    )
    p = normalise_rows(n)
    wanted = [
        [jensenshannon(a, b) ** 2 if i != j else 0.0 for j, b in enumerate(p)]
        for i, a in enumerate(p)
    ]
    far = pairwise_js(p)
    assert far == pytest.approx(np.array(wanted), abs=1e-12)
    assert np.array_equal(far, far.T)


def test_disjoint_labels_are_log_two_apart_and_no_labels_count_as_average() -> None:
    n = np.array([[4.0, 0, 0], [0, 7, 0], [0, 0, 0]])
    far = pairwise_js(normalise_rows(n))
    assert far[0, 1] == pytest.approx(math.log(2), abs=1e-15)
    assert normalise_rows(n)[2] == pytest.approx([4 / 11, 7 / 11, 0])
    assert kl(n, n.sum(0))[2] == 0


# ---------------------------------------------------------------- balanced groups
@pytest.mark.parametrize("weights", ["uniform", "size"])
@pytest.mark.parametrize(
    ("clients", "groups", "cases"), [(8, 2, 20), (9, 3, 3), (7, 3, 6)]
)
def test_balanced_groups_are_optimal_where_all_can_be_tried(
    clients: int, groups: int, cases: int, weights: str
) -> None:
    choices = balanced(clients, groups)
    for seed in range(cases):
        counts = deal(seed, clients, alpha=0.1 if seed % 2 else 1.0)
        best = min(sum_kl(g, counts, weights) for g in choices)
        found = make_balanced_groups(counts, groups, Rng.seed(seed), weights=weights)
        assert sum_kl(found, counts, weights) == pytest.approx(best, abs=1e-9)


@pytest.mark.parametrize(
    ("clients", "groups"), [(8, 2), (9, 4), (7, 3), (5, 5), (6, 1), (11, 2)]
)
def test_all_ways_to_balance_are_known(clients: int, groups: int) -> None:
    ways = {
        tuple(map(tuple, collect_groups(list(range(clients)), np.array(w), groups)))
        for w in list_ways(clients, groups)
    }
    assert ways == {tuple(map(tuple, g)) for g in balanced(clients, groups)}
    assert (
        len(list(list_ways(clients, groups)))
        == len(ways)
        == count_ways(clients, groups)
    )


def test_local_search_finds_what_trying_all_finds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("fedtailor.maths.grouping.balanced_kl.FEW", 0)
    choices = balanced(9, 3)
    for seed in range(4):
        counts = deal(seed, 9, alpha=0.3)
        best = min(sum_kl(g, counts) for g in choices)
        assert sum_kl(
            make_balanced_groups(counts, 3, Rng.seed(seed)), counts
        ) == pytest.approx(best, abs=1e-9)


def test_balanced_groups_beat_greedy_and_random_groups() -> None:
    for seed in range(5):
        counts = deal(seed, 23)
        found = {
            how: make_balanced_groups(counts, 5, Rng.seed(seed), how=how)
            for how in ("balanced_kl", "greedy_astraea", "random")
        }
        for groups in found.values():
            assert sorted(itertools.chain(*groups)) == list(range(23))
            assert sorted(map(len, groups)) == [4, 4, 5, 5, 5]
        value = {how: sum_kl(groups, counts) for how, groups in found.items()}
        assert value["balanced_kl"] < value["greedy_astraea"] < value["random"]


def test_astraea_fills_one_group_after_the_other() -> None:
    counts = deal(3, 11)
    all_counts = rows(counts, list(range(11))).sum(0)
    left, wanted = list(range(11)), []
    for size in (4, 4, 3):
        group: list[int] = []
        for _ in range(size):
            near = min(
                left,
                key=lambda k: entropy(rows(counts, [*group, k]).sum(0), all_counts),
            )
            group.append(near)
            left.remove(near)
        wanted.append(sorted(group))
    assert make_balanced_groups(counts, 3, Rng.seed(0), how="greedy_astraea") == sorted(
        wanted
    )


def test_balanced_groups_depend_on_the_counts_alone() -> None:
    counts = deal(4, 12)
    found = make_balanced_groups(counts, 3, Rng.seed(5))
    assert found == make_balanced_groups(dict(reversed(counts.items())), 3, Rng.seed(5))
    first = make_balanced_groups(counts, 3, Rng.seed(1), how="random")
    assert (
        first
        == make_balanced_groups(counts, 3, Rng.seed(1), how="random")
        != make_balanced_groups(counts, 3, Rng.seed(2), how="random")
    )


def test_balanced_groups_of_few_or_no_clients() -> None:
    counts = deal(0, 3)
    assert make_balanced_groups(counts, 3, Rng.seed(0)) == [[0], [1], [2]]
    assert make_balanced_groups(counts, 5, Rng.seed(0)) == [[0], [1], [2], [], []]
    assert make_balanced_groups({}, 2, Rng.seed(0)) == [[], []]
    assert make_balanced_groups(counts, 1, Rng.seed(0)) == [[0, 1, 2]]


def test_clients_without_examples_are_grouped_too() -> None:
    counts = {k: torch.zeros(4) for k in range(6)}
    for weights in ("uniform", "size"):
        assert sorted(
            map(len, make_balanced_groups(counts, 2, Rng.seed(0), weights=weights))
        ) == [
            3,
            3,
        ]
    assert sorted(
        itertools.chain(*make_similar_groups(counts, 2, Rng.seed(0)))
    ) == list(range(6))


def test_an_unknown_solver_is_named() -> None:
    with pytest.raises(
        UserError, match=r"no grouping 'balanced'; did you mean balanced_kl\?"
    ):
        make_balanced_groups(deal(0, 4), 2, Rng.seed(0), how="balanced")


# ---------------------------------------------------------------- similar groups
@pytest.mark.parametrize("cost", ["sum", "mean"])
@pytest.mark.parametrize(("clients", "groups"), [(8, 2), (7, 3)])
def test_similar_groups_are_optimal_where_all_can_be_tried(
    clients: int, groups: int, cost: str
) -> None:
    for seed in range(8):
        counts = deal(seed, clients, alpha=0.1 if seed % 2 else 1.0)
        _, n = tabulate_counts(counts)
        far = pairwise_js(normalise_rows(n))
        per = [1.0 if cost == "sum" else 1 / size for size in range(1, clients + 1)]
        best = min(
            sum(far[np.ix_(g, g)].sum() * per[len(g) - 1] for g in p)
            for p in partitions(clients, groups)
        )
        found = make_similar_groups(counts, groups, Rng.seed(seed), cost=cost)
        assert sum_js(found, counts, cost) == pytest.approx(best, abs=1e-9)


def test_similar_groups_find_clients_with_the_same_classes() -> None:
    counts = {
        k: torch.eye(10)[3 * (k % 3)] * (5 + k) + torch.eye(10)[3 * (k % 3) + 1] * 7
        for k in range(12)
    }
    wanted = [[0, 3, 6, 9], [1, 4, 7, 10], [2, 5, 8, 11]]
    assert make_similar_groups(counts, 3, Rng.seed(0)) == wanted
    assert suggest_group_count(counts, Rng.seed(0)) == 3
    assert suggest_group_count(counts, Rng.seed(0), most=2) == 2


def test_twins_leave_no_group_empty() -> None:
    counts = {k: torch.tensor([1.0, 2.0]) for k in range(7)} | {
        7: torch.tensor([2.0, 1.0])
    }
    for groups in range(1, 9):
        found = make_similar_groups(counts, groups, Rng.seed(groups))
        assert len(found) == groups and all(found)
    assert make_similar_groups(counts, 9, Rng.seed(0))[-1] == []


def test_silhouette_is_sklearns() -> None:
    _, n = tabulate_counts(deal(6, 15))
    far = pairwise_js(normalise_rows(n))
    for groups in (2, 4, 7):
        labels = search_groups(Problem(far, groups), np.random.default_rng(0))
        wanted = silhouette_score(np.sqrt(far), labels, metric="precomputed")
        assert silhouette(np.sqrt(far), labels) == pytest.approx(wanted, abs=1e-12)


def test_suggestion_has_the_largest_silhouette() -> None:
    counts = deal(7, 11)
    _, n = tabulate_counts(counts)
    far = pairwise_js(normalise_rows(n))

    def score(groups: int) -> float:
        labels = np.empty(11, dtype=int)
        for j, group in enumerate(make_similar_groups(counts, groups, Rng.seed(1))):
            labels[group] = j
        return float(silhouette_score(np.sqrt(far), labels, metric="precomputed"))

    assert suggest_group_count(counts, Rng.seed(1)) == max(range(2, 7), key=score)
    assert suggest_group_count({k: counts[k] for k in range(2)}, Rng.seed(1)) == 1


def test_quality_tells_both_objectives() -> None:
    counts = deal(2, 9)
    groups = [[0, 1, 2, 3], [4], [5, 6, 7, 8], []]
    told = measure_quality(groups, counts)
    assert told.sizes == [4, 1, 4, 0]
    assert told.kl_sum == pytest.approx(sum_kl(groups, counts), abs=1e-12)
    assert told.js_sum == pytest.approx(sum_js(groups[:3], counts), abs=1e-12)
    assert told.js_mean == pytest.approx(sum_js(groups[:3], counts) / 24, abs=1e-12)
    assert told.kl_max == pytest.approx(
        max(sum_kl([g], counts) for g in groups[:3]), abs=1e-12
    )


# ---------------------------------------------------------------- new clients
def test_a_new_client_goes_where_balance_stays_best() -> None:
    counts = deal(8, 13)
    old = {k: counts[k] for k in range(12)}
    groups = make_balanced_groups(old, 3, Rng.seed(0))
    found = extend_balanced_groups(groups, counts, [12])
    choices = [
        [[*g, 12] if j == i else g for j, g in enumerate(groups)] for i in range(3)
    ]
    assert found == min(choices, key=lambda g: sum_kl(g, counts))


def test_new_clients_move_no_other_and_keep_sizes_even() -> None:
    counts = deal(9, 20)
    groups = make_balanced_groups({k: counts[k] for k in range(9)}, 4, Rng.seed(0))
    found = extend_balanced_groups(groups, counts, range(9, 20))
    assert sorted([k for k in g if k < 9] for g in found) == sorted(groups)
    assert sorted(map(len, found)) == [5, 5, 5, 5]
    assert extend_balanced_groups([[0], [], []], counts, [1, 2]) == [[0], [1], [2]]


def test_a_new_client_joins_its_nearest_group() -> None:
    counts = deal(10, 10)
    groups = make_similar_groups({k: counts[k] for k in range(9)}, 3, Rng.seed(0))
    found = extend_similar_groups(groups, counts, [9])

    def gap(group: list[int]) -> float:
        mine = counts[9].numpy()
        return float(
            np.mean([jensenshannon(mine, counts[k].numpy()) ** 2 for k in group])
        )

    near = min(range(3), key=lambda j: gap(groups[j]))
    assert found == [[*g, 9] if j == near else g for j, g in enumerate(groups)]
    assert extend_similar_groups([[], []], counts, [4]) == [[4], []]


# ---------------------------------------------------------------- members
def test_groups_can_be_drawn_whole() -> None:
    groups = make_balanced_groups(deal(12, 20), 5, Rng.seed(0))
    drawn = draw_groups(groups, 0.4, Rng.seed(3))
    inside = [g for g in groups if set(g) <= set(drawn)]
    assert len(inside) == 2 and sorted(itertools.chain(*inside)) == drawn
    assert len(draw_groups(groups, 0.01, Rng.seed(3))) == 4


def test_clients_without_a_group_belong_to_the_largest() -> None:
    groups = [[3], [1, 2, 5], [0, 4]]
    assert [find_group(groups, k) for k in (3, 4, 5, 99)] == [0, 2, 1, 1]


def test_empty_groups_come_last() -> None:
    assert collect_groups([4, 7, 9], np.array([2, 0, 2]), 4) == [[4, 9], [7], [], []]
