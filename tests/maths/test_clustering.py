"""Groups are the right ones, and angles are exact."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.linalg import subspace_angles
from sklearn.cluster import AgglomerativeClustering
from torch import Tensor

from fedtailor.core.rng import Rng
from fedtailor.maths.clustering import (
    agglomerate,
    bisect,
    compare_directions,
    find_directions,
    find_largest,
    find_nearest,
    flatten,
    measure_angles,
    tell_sizes,
)


def draw(*shape: int, seed: int = 0) -> Tensor:
    return Rng.seed(seed).normal(*shape).double()


def distances(points: Tensor) -> Tensor:
    return torch.cdist(points, points, compute_mode="donot_use_mm_for_euclid_dist")


def partition(labels: list[int]) -> set[frozenset[int]]:
    return {
        frozenset(i for i, other in enumerate(labels) if other == label)
        for label in labels
    }


# ---------------------------------------------------------------- groups
@pytest.mark.parametrize("linkage", ["single", "complete", "average"])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_groups_are_those_of_another_implementation(linkage: str, seed: int) -> None:
    d = distances(draw(15, 3, seed=seed))
    for count in (1, 2, 5, 15):
        other = AgglomerativeClustering(
            count, metric="precomputed", linkage=linkage
        ).fit_predict(d.numpy())
        assert partition(agglomerate(d, linkage, count=count)) == partition(
            other.tolist()
        )
    for threshold in (0.0, 0.7, 1.3, 2.0, 99.0):
        settings = {
            "metric": "precomputed",
            "linkage": linkage,
            "distance_threshold": threshold,
        }
        other = AgglomerativeClustering(None, **settings).fit_predict(d.numpy())
        assert partition(agglomerate(d, linkage, threshold=threshold)) == partition(
            other.tolist()
        )


def test_groups_are_numbered_by_their_first_members() -> None:
    d = distances(torch.tensor([[9.0], [0.0], [9.1], [5.0], [0.2], [5.1]]))
    assert agglomerate(d, "average", threshold=1.0) == [0, 1, 0, 2, 1, 2]


def test_ties_still_give_as_many_groups_as_asked_for() -> None:
    d = 1 - torch.eye(6)
    for count in range(1, 7):
        assert len(set(agglomerate(d, "complete", count=count))) == count


def test_one_alone_is_a_group() -> None:
    assert agglomerate(torch.zeros(1, 1), "average", threshold=3.0) == [0]


def test_bisection_by_single_linkage_has_the_least_similarity_across() -> None:
    for seed in range(5):
        v = draw(7, 3, seed=seed)
        alpha = compare_directions(v, v)
        one, two, cross = bisect(alpha, "single")
        assert sorted(one + two) == list(range(7))
        best = 1.0
        # all ways to part seven, the last of them always on the second side
        for mask in range(1, 64):
            left = [i for i in range(6) if mask >> i & 1]
            right = [i for i in range(7) if i not in left]
            best = min(best, float(alpha[left][:, right].max()))
        assert cross == pytest.approx(best, abs=1e-15)
        assert cross == float(alpha[one][:, two].max())


@pytest.mark.parametrize(
    ("linkage", "near", "gap"),
    [("single", 2, 1.0), ("complete", 7, 4.0), ("average", 7, 3.5)],
)
def test_a_newcomer_goes_where_the_linkage_says(
    linkage: str, near: int, gap: float
) -> None:
    found = find_nearest(torch.tensor([1.0, 9.0, 3.0, 4.0]), [2, 2, 7, 7], linkage)
    assert found == (near, gap)


def test_the_largest_group_and_words_for_all() -> None:
    assert find_largest([3, 1, 3, 1, 0]) == 1
    assert find_largest([]) == 0
    assert tell_sizes([0, 0, 1, 2, 0, 1]) == "3 clusters of 3, 2 and 1 clients"
    assert tell_sizes([0, 0]) == "one cluster of 2 clients"
    assert tell_sizes([]) == "one cluster of no clients"


# ---------------------------------------------------------------- models
def test_a_vector_of_a_model_has_all_parameters_and_no_statistics() -> None:
    w = {
        "a.weight": draw(2, 3),
        "bn.running_mean": draw(5),
        "bn.weight": draw(5),
        "bn.running_var": draw(5),
    }
    assert torch.equal(flatten(w), torch.cat([w["a.weight"].flatten(), w["bn.weight"]]))


def test_directions_that_are_none_are_like_nothing() -> None:
    a = torch.tensor([[3.0, 0.0], [0.0, 0.0], [-1.0, 1.0]])
    found = compare_directions(a, torch.tensor([[2.0, 0.0]]))
    assert found.flatten().tolist() == pytest.approx([1.0, 0.0, -math.sqrt(0.5)])


# ---------------------------------------------------------------- subspaces
@pytest.mark.parametrize("shape", [(4, 30), (30, 30), (80, 30)])
def test_principal_directions_are_singular_vectors(shape: tuple[int, int]) -> None:
    rows = draw(*shape)
    found = find_directions(rows, 3)
    # left singular vectors of the matrix with samples as columns
    u = np.linalg.svd(rows.numpy().T)[0][:, :3]
    assert torch.allclose(
        found @ found.T, torch.eye(3, dtype=torch.float64), atol=1e-12
    )
    assert torch.allclose(
        (found @ torch.from_numpy(u)).abs(),
        torch.eye(3, dtype=torch.float64),
        atol=1e-9,
    )


def test_rows_that_span_little_have_few_directions() -> None:
    one = draw(1, 10)
    assert find_directions(torch.cat([one, 2 * one, -one]), 3).shape == (1, 10)
    assert find_directions(torch.zeros(4, 10), 3).shape == (0, 10)
    assert find_directions(torch.zeros(0, 10), 3).shape == (0, 10)
    assert find_directions(one.float(), 3).dtype == torch.float32


@pytest.mark.parametrize("seed", range(4))
def test_the_smallest_angle_is_the_principal_one(seed: int) -> None:
    common = draw(1, 20, seed=100)
    near = [common + 0.1 * draw(1, 20, seed=100 * seed + m) for m in (1, 3, 6)]
    bases = [
        torch.cat([draw(m, 20, seed=10 * seed + m), x])
        for m, x in zip((1, 3, 6), near, strict=True)
    ]
    found = measure_angles(bases, bases)
    for i, a in enumerate(bases):
        for j, b in enumerate(bases[:i]):
            exact = np.degrees(subspace_angles(a.numpy().T, b.numpy().T).min())
            assert float(found[i, j]) == pytest.approx(exact, abs=1e-7)
    assert found.shape == (3, 3) and float(found.diag().max()) < 1e-10


def test_tiny_angles_are_exact_where_cosines_know_nothing() -> None:
    e = torch.eye(4, dtype=torch.float64)
    for angle in (1e-9, 1e-6, 0.3):
        turned = math.cos(angle) * e[0] + math.sin(angle) * e[2]
        found = measure_angles([e[:2]], [torch.stack([turned, e[3]])])
        assert math.radians(float(found)) == pytest.approx(angle, rel=1e-6)


def test_angles_of_single_rows_are_no_smaller_and_their_sum_is_paired() -> None:
    a, b = find_directions(draw(9, 20), 3), find_directions(draw(9, 20, seed=1), 2)
    cosines = (a @ b.T).abs().clamp(max=1)
    assert float(measure_angles([a], [b], "entries")) == pytest.approx(
        math.degrees(math.acos(float(cosines.max())))
    )
    assert float(measure_angles([a], [b])) < float(measure_angles([a], [b], "entries"))
    paired = math.degrees(math.acos(float(cosines[0, 0]))) + math.degrees(
        math.acos(float(cosines[1, 1]))
    )
    assert float(measure_angles([a], [b], "sum")) == pytest.approx(paired)


def test_nothing_is_at_right_angles_to_anything() -> None:
    assert measure_angles(
        [torch.zeros(0, 5)], [draw(2, 5), torch.zeros(0, 5)]
    ).tolist() == [[90.0, 90.0]]
