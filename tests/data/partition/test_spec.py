"""Partitions as they are written, and the owners they give to samples."""

from __future__ import annotations

import numpy as np
import pytest
from data_helpers import refusal
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import UserError
from fedtailor.data.partition.laws import Integers
from fedtailor.data.partition.spec import (
    apportion,
    assign_owners,
    compute_test_weights,
    count_owners,
    draw_assignment,
    follow_labels,
    group_by_owner,
    parse_partition,
)

laws = settings(deadline=None, max_examples=40, derandomize=True, database=None)


seeds = st.integers(0, 2**32 - 1)


def rng(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[Integers, int, int]:
    """Shuffled labels, some classes without a sample; clients; a seed."""
    sizes = draw(st.lists(st.integers(0, 60), min_size=1, max_size=12).filter(any))
    seed = draw(seeds)
    y = rng(seed).permutation(np.repeat(np.arange(len(sizes)), sizes))
    return y, draw(st.integers(1, min(len(y), 40))), seed


def held(y: Integers, owner: Integers, clients: int) -> Integers:
    out = np.zeros((clients, int(y.max()) + 1), np.int64)
    np.add.at(out, (owner, y), 1)
    return out


@laws
@given(
    worlds(),
    st.sampled_from(
        [
            "iid",
            "dirichlet:0.01",
            "dirichlet:1:uncapped",
            "hsu:0.1",
            "hsu:10",
            "concept:2",
        ]
    ),
)
def test_every_sample_has_one_owner_and_every_client_a_sample(
    world: tuple[Integers, int, int], text: str
) -> None:
    y, clients, seed = world
    owner = draw_assignment(parse_partition(text), y, clients, rng(seed)).owner
    assert owner.shape == y.shape and owner.min() >= 0 and owner.max() < clients
    assert set(owner) == set(range(clients))
    assert np.array_equal(
        owner, draw_assignment(parse_partition(text), y, clients, rng(seed)).owner
    )
    mine = group_by_owner(owner, clients)
    assert np.array_equal(np.sort(np.concatenate(mine)), np.arange(len(y)))
    assert all(
        (owner[samples] == k).all() and (np.diff(samples) > 0).all()
        for k, samples in enumerate(mine)
    )


@pytest.mark.parametrize(
    "text",
    [
        "iid",
        "dirichlet:0.1",
        "dirichlet:0.1:uncapped",
        "hsu:0.5",
        "pathological:2",
        "shards:2",
        "classes:2",
    ],
)
def test_another_seed_is_another_partition(text: str) -> None:
    y = np.repeat(np.arange(10), 200)
    first, second = (
        draw_assignment(parse_partition(text), y, 20, rng(seed)).owner
        for seed in (1, 2)
    )
    assert not np.array_equal(first, second)


@laws
@given(worlds())
def test_iid_clients_differ_by_one_sample_at_most(
    world: tuple[Integers, int, int],
) -> None:
    y, clients, seed = world
    sizes = np.bincount(
        draw_assignment(parse_partition("iid"), y, clients, rng(seed)).owner,
        minlength=clients,
    )
    assert np.ptp(sizes) <= 1


def test_pathological_makes_groups_with_the_same_labels_and_consecutive_slices() -> (
    None
):
    y = rng().permutation(np.repeat(np.arange(10), 700))
    owner = draw_assignment(parse_partition("pathological:2"), y, 20, rng(1)).owner
    counts = held(y, owner, 20)
    for k in range(20):
        assert set(np.flatnonzero(counts[k])) == {k // 4 * 2, k // 4 * 2 + 1}
    for c in range(10):
        assert (np.diff(owner[y == c]) >= 0).all()
    assert np.unique(counts[counts > 0]).size > 20  # unbalanced
    assert counts[counts > 0].min() >= 700 / 4 / 10 - 1


def test_a_test_set_reuses_the_label_matrix_of_the_shards() -> None:
    # shards of 1 and 2 samples weigh the same
    y = np.repeat([0, 1, 2, 5], [7, 300, 301, 403])
    assignment = draw_assignment(parse_partition("shards:3"), y, 8, rng(2))
    assert (
        assignment.shards is not None
        and assignment.shards.shape == (8, 3)
        and set(assignment.shards.flat) == {0, 1, 2, 5}
    )
    weight = compute_test_weights(assignment, y, 8, 6)
    exam = np.repeat([0, 1, 2, 5], [60, 60, 120, 66])
    counts = held(exam, follow_labels(exam, weight, rng(3)), 8)
    for c, shard in ((0, 10), (1, 10), (2, 20), (5, 11)):  # six shards a class
        assert np.array_equal(counts[:, c], (assignment.shards == c).sum(1) * shard)


def test_partial_classes_leave_the_others_out() -> None:
    y = np.repeat(np.arange(100), 30)
    owner = draw_assignment(parse_partition("classes:2:partial"), y, 20, rng()).owner
    covered = np.unique(y[owner >= 0])
    assert len(covered) == 40 and (owner[np.isin(y, covered)] >= 0).all()
    assert all(len(np.unique(y[owner == k])) == 2 for k in range(20))


@laws
@given(
    worlds(), st.sampled_from(["iid", "dirichlet:0.1", "hsu:0.5"]), st.integers(0, 50)
)
def test_a_test_set_follows_the_training_proportions(
    world: tuple[Integers, int, int], text: str, each: int
) -> None:
    y, clients, seed = world
    weight = compute_test_weights(
        draw_assignment(parse_partition(text), y, clients, rng(seed)), y, clients, 13
    )
    exam = np.repeat(np.arange(13), each)
    owner = follow_labels(exam, weight, rng(seed))
    trained = np.isin(exam, y)
    assert (owner[~trained] == -1).all() and (owner[trained] >= 0).all()
    counts = (
        held(exam[trained], owner[trained], clients)
        if each
        else np.zeros((clients, 1), np.int64)
    )
    share = weight / np.maximum(weight.sum(0), 1) * each
    assert (np.abs(counts - share[:, : counts.shape[1]]) < 1 + 1e-9).all()


@laws
@given(
    st.integers(0, 1000),
    st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(any),
    seeds,
)
def test_apportion_rounds_quotas_up_or_down(
    n: int, weight: list[int], seed: int
) -> None:
    share = apportion(n, np.array(weight), rng(seed))
    quota = n * np.array(weight) / sum(weight)
    assert share.sum() == n and (np.abs(share - quota) < 1 + 1e-9).all()


def test_owners_keep_the_order_unless_they_may_be_shuffled() -> None:
    y, counts = np.array([0, 1, 0, 1, 0, 1]), np.array([[2, 0], [1, 3]])
    assert assign_owners(y, counts).tolist() == [0, 1, 0, 1, 1, 1]
    seen = {tuple(assign_owners(y, counts, rng(seed))) for seed in range(20)}
    assert len(seen) == 3 and all(
        np.array_equal(held(y, np.array(o), 2), counts) for o in seen
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("dirichelt:0.1", "no partition 'dirichelt'; did you mean dirichlet"),
        ("Shards:2", "did you mean shards"),
        ("zzz", "there are classes, concept, dirichlet, domains, hsu, iid, natural"),
        ("dirichlet", "above 0 and at most 1e6, e.g. dirichlet:0.1"),
        ("dirichlet:-1", "'dirichlet:-1': the concentration must be above 0"),
        ("dirichlet:nan", "must be above 0"),
        ("dirichlet:inf", "at most 1e6"),
        ("hsu:0", "e.g. hsu:0.1"),
        (
            "dirichlet:0.1:capped",
            "cannot read 'capped'; dirichlet takes uncapped and least=10",
        ),
        ("dirichlet:0.1:least=0", "cannot read 'least=0'"),
        (
            "pathological:0",
            "pathological needs a whole number of at least 1, e.g. pathological:2",
        ),
        ("pathological:2:3", "cannot read '3'; pathological takes no options"),
        ("shards:1.5", "whole number"),
        ("classes:x", "whole number"),
        ("iid:3", "iid takes no number, write iid"),
        ("subset:60/50:iid", "1 <= N <= M, e.g. subset:10/50:iid"),
        ("subset:0/50:iid", "1 <= N <= M"),
        ("subset:ten/50:iid", "1 <= N <= M"),
        ("subset:5/10:subset:10/50:iid", "a subset of a subset"),
        ("subset:5/10:dirichlet:-1", "must be above 0"),
    ],
)
def test_a_misspelt_partition_is_one_clear_line(text: str, says: str) -> None:
    assert says in refusal(parse_partition, text)


def test_all_ways_to_write_a_partition() -> None:
    spec = parse_partition("subset:10/50:dirichlet:0.1:uncapped:least=10")
    assert (spec.law, spec.number, spec.uncapped, spec.least, spec.keep) == (
        "dirichlet",
        0.1,
        True,
        10,
        (10, 50),
    )
    assert (
        parse_partition("classes:2:partial").partial
        and parse_partition("shards:40").whole == 40
    )
    assert parse_partition("subset:3/30", "natural").law == "natural"
    assert (
        parse_partition("subset:3/5:some/where.npz").path == "some/where.npz"
        and parse_partition("C:p.npz").law == "file"
    )


@pytest.mark.parametrize(
    ("text", "clients", "says"),
    [
        ("iid", 101, "101 clients but only 100 samples; ask for at most 100 clients"),
        (
            "dirichlet:0.1:least=10",
            20,
            "each of 20 clients 10 samples out of 100; ask for at most 10 clients",
        ),
        ("pathological:20", 20, "'pathological:20': there are only 10 classes"),
        ("classes:11", 20, "there are only 10 classes"),
        (
            "pathological:2",
            3,
            "covers 6 of 10 classes; ask for pathological:4 or at least 5 clients",
        ),
        ("classes:2", 3, "classes:4, at least 5 clients, or classes:2:partial"),
        (
            "shards:3",
            7,
            "21 shards, which 10 classes cannot share evenly; ask for a multiple of 10 clients",
        ),
        ("shards:2", 100, "cut a class of 10 samples into 20 parts"),
        ("classes:2", 100, "cut a class of 10 samples into 20 parts"),
        ("pathological:3", 50, "cut a class of 10 samples into 15 parts"),
    ],
)
def test_a_partition_that_cannot_exist_is_one_clear_line(
    text: str, clients: int, says: str
) -> None:
    y = np.repeat(np.arange(10), 10)
    assert says in refusal(draw_assignment, parse_partition(text), y, clients, rng())


def test_owners_are_numbered_without_gaps() -> None:
    assert count_owners(np.array([2, 0, 1, 1]), "mine") == 3
    with pytest.raises(
        UserError,
        match="goes up to 5 but nobody is client 2; number the clients without gaps",
    ):
        count_owners(np.array([0, 1, 5]), "mine")
    with pytest.raises(
        UserError, match="client -1 in the client column; number clients from 0"
    ):
        count_owners(np.array([0, -1]), "mine")
