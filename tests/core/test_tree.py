"""Laws of trees and of aggregation."""

from typing import NamedTuple

import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core.rng import Rng
from fedtailor.core.tree import (
    add,
    average,
    dot,
    fill,
    leaves,
    lerp,
    part,
    rename,
    sqdist,
    stack,
    subtract,
    tmap,
    total,
    unstack,
    without,
)


class Pair(NamedTuple):
    w: dict
    more: list


def tree(seed: int) -> Pair:
    r = Rng.seed(seed)
    torch.set_default_dtype(torch.float32)
    return Pair(
        {"a.weight": r.normal(3, 2), "b.bias": r.fold(1).normal(4)},
        [r.fold(2).normal(2), None],
    )


def close(a, b, tolerance=1e-5):
    return all(
        torch.allclose(x, y, atol=tolerance, rtol=tolerance)
        for x, y in zip(leaves(a), leaves(b), strict=True)
    )


seeds = st.integers(0, 10_000)
weights = st.lists(st.floats(0.1, 100), min_size=1, max_size=6)


@settings(deadline=None, max_examples=30)
@given(seeds, seeds)
def test_arithmetic(i, j):
    a, b = tree(i), tree(j)
    assert close(subtract(add(a, b), b), a)
    assert close(lerp(a, b, 0.0), a) and close(lerp(a, b, 1.0), b)
    assert torch.allclose(sqdist(a, b), dot(subtract(a, b), subtract(a, b)), rtol=1e-4)
    assert sqdist(a, a) == 0


@settings(deadline=None, max_examples=30)
@given(seeds, weights)
def test_average_is_a_convex_combination(i, weight):
    trees = [tree(i + j) for j in range(len(weight))]
    mean = average(trees, weight)
    share = [w / sum(weight) for w in weight]
    by_hand = total(
        [tmap(lambda x, s=s: x * s, t) for t, s in zip(trees, share, strict=True)]
    )
    assert close(mean, by_hand)
    # only proportions count
    assert close(average(trees, [w * 7 for w in weight]), mean)
    assert close(average([trees[0]] * len(weight), weight), trees[0])


def test_the_average_of_one_is_itself_to_the_bit():
    t = tree(1)
    assert all(
        torch.equal(x, y)
        for x, y in zip(leaves(average([t], [3.0])), leaves(t), strict=True)
    )


def test_distances_go_by_name_not_by_order():
    a = {"x": torch.ones(2), "y": torch.zeros(3)}
    b = {"y": torch.zeros(3), "x": torch.ones(2)}
    assert sqdist(a, b) == 0


def test_stack_unstack_and_fill():
    trees = [tree(i) for i in range(3)]
    apart = unstack(stack(trees), 3)
    assert all(
        type(a) is type(b) and close(a, b) for a, b in zip(apart, trees, strict=True)
    )
    odd = [
        {"a": [torch.tensor(i)], "b": (), "c": {}, "d": None, "e": 7} for i in range(2)
    ]
    assert unstack(stack(odd), 2) == odd
    shared = tree(9)
    assert stack([shared] * 5).w["a.weight"].stride(0) == 0  # expanded, not copied
    assert close(fill(trees[0], leaves(trees[1])), trees[1])


def test_parts_by_prefix():
    w = {"base.1.weight": 1, "baseline.weight": 2, "head.weight": 3}
    assert part(w, "base") == {"base.1.weight": 1}
    assert without(w, "base", "head") == {"baseline.weight": 2}
    assert rename(w, "head", "own") == {"own.weight": 3}
