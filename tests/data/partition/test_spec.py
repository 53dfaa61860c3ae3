"""Every law of partition, on drawn class sizes and numbers of clients."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedtailor.core.errors import UserError
from fedtailor.data.partition.laws import (
    Integers,
    draw_classes,
    draw_concepts,
    draw_dirichlet,
    draw_hsu,
    draw_pathological,
    draw_shards,
    least_size,
    repair,
)
from fedtailor.data.partition.spec import (
    apportion,
    assign,
    check_owners,
    follow,
    gather,
    hand_out,
    parse,
    weigh,
)

laws = settings(deadline=None, max_examples=40, derandomize=True, database=None)

seeds = st.integers(0, 2**32 - 1)
some_sizes = st.lists(st.integers(1, 80), min_size=1, max_size=12).map(np.array)


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
        ["iid", "dirichlet:0.01", "dirichlet:1:uncapped", "hsu:0.1", "hsu:10", "concept:2"]
    ),
)
def test_every_sample_has_one_owner_and_every_client_a_sample(
    world: tuple[Integers, int, int], text: str
) -> None:
    y, clients, seed = world
    owner = assign(parse(text), y, clients, rng(seed)).owner
    assert owner.shape == y.shape and owner.min() >= 0 and owner.max() < clients
    assert set(owner) == set(range(clients))
    assert np.array_equal(owner, assign(parse(text), y, clients, rng(seed)).owner)
    mine = gather(owner, clients)
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
    first, second = (assign(parse(text), y, 20, rng(seed)).owner for seed in (1, 2))
    assert not np.array_equal(first, second)


@laws
@given(worlds())
def test_iid_clients_differ_by_one_sample_at_most(world: tuple[Integers, int, int]) -> None:
    y, clients, seed = world
    sizes = np.bincount(assign(parse("iid"), y, clients, rng(seed)).owner, minlength=clients)
    assert np.ptp(sizes) <= 1


@laws
@given(
    some_sizes, st.integers(1, 60), st.floats(1e-6, 1e3), st.integers(1, 12), st.booleans(), seeds
)
def test_dirichlet_reaches_the_least_size_or_says_why(
    sizes: Integers, clients: int, beta: float, least: int, capped: bool, seed: int
) -> None:
    if sizes.sum() < least * clients:
        with pytest.raises(
            UserError, match=f"{clients} clients {least} samples out of {sizes.sum()}"
        ):
            draw_dirichlet(sizes, clients, beta, least, capped, rng(seed))
        return
    counts = draw_dirichlet(sizes, clients, beta, least, capped, rng(seed))
    assert np.array_equal(counts.sum(0), sizes)
    assert counts.min() >= 0 and counts.sum(1).min() >= least


@laws
@given(some_sizes, st.integers(2, 30), st.floats(0.01, 10), seeds)
def test_dirichlet_gives_nothing_more_to_a_client_that_has_its_even_share(
    sizes: Integers, clients: int, beta: float, seed: int
) -> None:
    counts = draw_dirichlet(sizes, clients, beta, 0, True, rng(seed))
    before = np.cumsum(counts, 1) - counts
    assert not counts[before >= sizes.sum() / clients].any()


def test_dirichlet_shares_have_the_moments_of_a_dirichlet_law() -> None:
    clients, beta, generator = 8, 0.4, rng(3)
    shares = np.concatenate(
        [
            draw_dirichlet(np.full(10, 100_000), clients, beta, 0, False, generator).T / 1e5
            for _ in range(300)
        ]
    )
    variance = (1 / clients) * (1 - 1 / clients) / (clients * beta + 1)
    assert np.allclose(shares.mean(0), 1 / clients, atol=0.015)
    assert np.allclose(shares.var(0), variance, rtol=0.12)


@pytest.mark.parametrize("beta", [1e-9, 0.01, 0.1])
@pytest.mark.parametrize("sizes", [np.full(10, 6000), np.full(200, 500), np.array([59_000, 1000])])
def test_dirichlet_ends_for_500_clients(beta: float, sizes: Integers) -> None:
    n = int(sizes.sum())
    counts = draw_dirichlet(sizes, 500, beta, least_size(n, 500, 10), True, rng())
    assert np.array_equal(counts.sum(0), sizes) and counts.sum(1).min() >= 40


@laws
@given(some_sizes, st.integers(1, 30), st.integers(1, 5), seeds)
def test_repair_takes_from_the_rich_only(
    sizes: Integers, clients: int, least: int, seed: int
) -> None:
    sizes = sizes + least * clients
    counts = draw_dirichlet(sizes, clients, 0.05, 0, False, rng(seed))
    mended = repair(counts, least)
    before, after = counts.sum(1), mended.sum(1)
    assert np.array_equal(mended.sum(0), sizes) and mended.min() >= 0
    assert (after[before < least] == least).all() and (after[before >= least] >= least).all()
    assert (after <= np.maximum(before, least)).all()
    assert np.array_equal(mended, counts) == (before.min() >= least)


def test_the_largest_client_gives_of_its_largest_class() -> None:
    counts = np.array([[0, 1, 0], [20, 0, 25], [40, 5, 60], [0, 0, 0]])
    assert repair(counts, 8).tolist() == [[0, 1, 7], [20, 0, 25], [40, 5, 45], [0, 0, 8]]


@laws
@given(some_sizes, st.integers(1, 40), st.floats(1e-3, 1e3), seeds)
def test_hsu_clients_are_equally_large(
    sizes: Integers, clients: int, alpha: float, seed: int
) -> None:
    counts = draw_hsu(sizes, clients, alpha, rng(seed))
    assert np.array_equal(counts.sum(0), sizes) and counts.min() >= 0
    assert np.ptp(counts.sum(1)) <= 1


def test_hsu_shares_follow_the_prior() -> None:
    """The first client of many is filled before any class runs out: its shares are Dir(alpha p), sampled."""
    sizes, alpha, each, generator = np.array([60_000, 30_000, 10_000]), 2.0, 5000, rng(5)
    shares = np.stack([draw_hsu(sizes, 20, alpha, generator)[0] / each for _ in range(600)])
    p = sizes / sizes.sum()
    assert np.allclose(shares.mean(0), p, atol=0.04)
    assert np.allclose(shares.var(0), p * (1 - p) / (alpha + 1), rtol=0.2)


@st.composite
def class_worlds(draw: st.DrawFn) -> tuple[Integers, int, int, int]:
    """Class sizes, clients, classes a client (that cover all classes) and a seed."""
    total, clients = draw(st.integers(1, 15)), draw(st.integers(1, 30))
    k = draw(st.integers(-(-total // clients), total))
    sizes = draw(st.lists(st.integers(clients, 200), min_size=total, max_size=total))
    return np.array(sizes), clients, k, draw(seeds)


@laws
@given(class_worlds())
def test_pathological_clients_have_exactly_k_classes(world: tuple[Integers, int, int, int]) -> None:
    sizes, clients, k, seed = world
    counts = draw_pathological(
        sizes, clients, k, least_size(int(sizes.sum()), clients, 10), rng(seed)
    )
    assert np.array_equal(counts.sum(0), sizes)
    assert ((counts > 0).sum(1) == k).all()
    holders = (counts > 0).sum(0)
    assert np.ptp(holders) <= 1
    for c, m in enumerate(holders):  # all but the last holder stay within an even share
        part = counts[counts[:, c] > 0, c]
        assert (part[:-1] <= sizes[c] // m).all() and part[-1] == part.max()


def test_pathological_makes_groups_with_the_same_labels_and_consecutive_slices() -> None:
    y = rng().permutation(np.repeat(np.arange(10), 700))
    owner = assign(parse("pathological:2"), y, 20, rng(1)).owner
    counts = held(y, owner, 20)
    for k in range(20):
        assert set(np.flatnonzero(counts[k])) == {k // 4 * 2, k // 4 * 2 + 1}
    for c in range(10):
        assert (np.diff(owner[y == c]) >= 0).all()
    assert np.unique(counts[counts > 0]).size > 20  # unbalanced
    assert counts[counts > 0].min() >= 700 / 4 / 10 - 1


@laws
@given(st.integers(1, 12), st.integers(1, 6), st.integers(1, 4), seeds)
def test_shards_are_equal_parts_of_one_class(total: int, s: int, times: int, seed: int) -> None:
    clients = total // np.gcd(total, s) * times
    each = s * clients // total
    sizes = each + rng(seed).integers(0, 50, total)
    counts, matrix = draw_shards(sizes, clients, s, rng(seed))
    assert np.array_equal(counts.sum(0), sizes)
    drawn = np.zeros_like(counts)
    np.add.at(drawn, (np.arange(clients)[:, None], matrix), 1)
    assert (drawn.sum(1) == s).all() and (drawn.sum(0) == each).all()
    assert (counts >= drawn * (sizes // each)).all() and (counts <= drawn * -(-sizes // each)).all()


def test_a_test_set_reuses_the_label_matrix_of_the_shards() -> None:
    y = np.repeat([0, 1, 2, 5], [7, 300, 301, 403])  # shards of 1 and 2 samples weigh the same
    hands = assign(parse("shards:3"), y, 8, rng(2))
    assert (
        hands.shards is not None
        and hands.shards.shape == (8, 3)
        and set(hands.shards.flat) == {0, 1, 2, 5}
    )
    weight = weigh(hands, y, 8, 6)
    exam = np.repeat([0, 1, 2, 5], [60, 60, 120, 66])
    counts = held(exam, follow(exam, weight, rng(3)), 8)
    for c, shard in ((0, 10), (1, 10), (2, 20), (5, 11)):  # six shards a class
        assert np.array_equal(counts[:, c], (hands.shards == c).sum(1) * shard)


@laws
@given(class_worlds())
def test_classes_are_balanced_both_ways(world: tuple[Integers, int, int, int]) -> None:
    sizes, clients, k, seed = world
    counts = draw_classes(sizes, clients, k, False, rng(seed))
    assert np.array_equal(counts.sum(0), sizes)
    assert ((counts > 0).sum(1) == k).all()
    assert np.ptp((counts > 0).sum(0)) <= 1
    assert all(np.ptp(column[column > 0]) <= 1 for column in counts.T)


def test_partial_classes_leave_the_others_out() -> None:
    y = np.repeat(np.arange(100), 30)
    owner = assign(parse("classes:2:partial"), y, 20, rng()).owner
    covered = np.unique(y[owner >= 0])
    assert len(covered) == 40 and (owner[np.isin(y, covered)] >= 0).all()
    assert all(len(np.unique(y[owner == k])) == 2 for k in range(20))


@laws
@given(worlds(), st.sampled_from(["iid", "dirichlet:0.1", "hsu:0.5"]), st.integers(0, 50))
def test_a_test_set_follows_the_training_proportions(
    world: tuple[Integers, int, int], text: str, each: int
) -> None:
    y, clients, seed = world
    weight = weigh(assign(parse(text), y, clients, rng(seed)), y, clients, 13)
    exam = np.repeat(np.arange(13), each)
    owner = follow(exam, weight, rng(seed))
    trained = np.isin(exam, y)
    assert (owner[~trained] == -1).all() and (owner[trained] >= 0).all()
    counts = (
        held(exam[trained], owner[trained], clients) if each else np.zeros((clients, 1), np.int64)
    )
    share = weight / np.maximum(weight.sum(0), 1) * each
    assert (np.abs(counts - share[:, : counts.shape[1]]) < 1 + 1e-9).all()


@laws
@given(
    st.integers(0, 1000), st.lists(st.integers(0, 50), min_size=1, max_size=30).filter(any), seeds
)
def test_apportion_rounds_quotas_up_or_down(n: int, weight: list[int], seed: int) -> None:
    share = apportion(n, np.array(weight), rng(seed))
    quota = n * np.array(weight) / sum(weight)
    assert share.sum() == n and (np.abs(share - quota) < 1 + 1e-9).all()


def test_hand_out_keeps_the_order_unless_it_may_shuffle() -> None:
    y, counts = np.array([0, 1, 0, 1, 0, 1]), np.array([[2, 0], [1, 3]])
    assert hand_out(y, counts).tolist() == [0, 1, 0, 1, 1, 1]
    seen = {tuple(hand_out(y, counts, rng(seed))) for seed in range(20)}
    assert len(seen) == 3 and all(np.array_equal(held(y, np.array(o), 2), counts) for o in seen)


@laws
@given(st.integers(1, 9), st.data())
def test_concepts_are_different_orders_of_the_labels(classes: int, data: st.DataObject) -> None:
    groups = data.draw(st.integers(1, min(int(np.prod(np.arange(1, classes + 1))), 40)))
    tables = draw_concepts(groups, classes, rng(data.draw(seeds)))
    assert tables.shape == (groups, classes) and np.array_equal(tables[0], np.arange(classes))
    assert (np.sort(tables, 1) == np.arange(classes)).all()
    assert len({tuple(t) for t in tables}) == groups


def test_the_least_size_is_pfllibs() -> None:
    assert least_size(70_000, 20, 10) == 40
    assert least_size(60_000, 500, 32) == 60
    assert least_size(30, 20, 10) == 1  # never an empty client


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
        ("dirichlet:0.1:capped", "cannot read 'capped'; dirichlet takes uncapped and least=10"),
        ("dirichlet:0.1:least=0", "cannot read 'least=0'"),
        (
            "pathological:0",
            "'pathological:0': pathological needs a whole number of at least 1, e.g. pathological:2",
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
    with pytest.raises(UserError) as error:
        parse(text)
    assert says in str(error.value) and "\n" not in str(error.value)


def test_all_ways_to_write_a_partition() -> None:
    spec = parse("subset:10/50:dirichlet:0.1:uncapped:least=10")
    assert (spec.law, spec.number, spec.uncapped, spec.least, spec.keep) == (
        "dirichlet",
        0.1,
        True,
        10,
        (10, 50),
    )
    assert parse("classes:2:partial").partial and parse("shards:40").whole == 40
    assert parse("subset:3/30", "natural").law == "natural"
    assert (
        parse("subset:3/5:some/where.npz").path == "some/where.npz"
        and parse("C:p.npz").law == "file"
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
            "makes 21 shards, which 10 classes cannot share evenly; ask for a multiple of 10 clients",
        ),
        ("shards:2", 100, "cut a class of 10 samples into 20 parts"),
        ("classes:2", 100, "cut a class of 10 samples into 20 parts"),
        ("pathological:3", 50, "cut a class of 10 samples into 15 parts"),
    ],
)
def test_a_partition_that_cannot_exist_is_one_clear_line(
    text: str, clients: int, says: str
) -> None:
    with pytest.raises(UserError) as error:
        assign(parse(text), np.repeat(np.arange(10), 10), clients, rng())
    assert says in str(error.value) and "\n" not in str(error.value)


def test_too_many_concepts_for_the_classes() -> None:
    with pytest.raises(UserError, match="concept:7: 3 classes have only 6 orders"):
        draw_concepts(7, 3, rng())


def test_owners_are_numbered_without_gaps() -> None:
    assert check_owners(np.array([2, 0, 1, 1]), "mine") == 3
    with pytest.raises(
        UserError, match="goes up to 5 but nobody is client 2; number the clients without gaps"
    ):
        check_owners(np.array([0, 1, 5]), "mine")
    with pytest.raises(UserError, match="client -1 in the client column; number clients from 0"):
        check_owners(np.array([0, -1]), "mine")
