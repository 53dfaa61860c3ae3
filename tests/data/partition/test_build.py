"""Dividing a data set among clients, from the settings to the federation."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import make_dataset, refusal
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedtailor.data import load_dataset
from fedtailor.data.federation import Dataset, Federation
from fedtailor.data.partition.build import build_federation, subsample
from fedtailor.report.partition_chart import count_samples

laws = settings(deadline=None, max_examples=30, derandomize=True, database=None)


Provide = Callable[[str], Path]


def everything(federation: Federation) -> Tensor:
    return torch.cat([*federation.train, *federation.val, *federation.test])


def assert_complete(federation: Federation, n: int) -> None:
    """Every sample is in one part of one client, and every client trains."""
    assert everything(federation).sort().values.tolist() == list(range(n))
    assert all(len(part) for part in federation.train)


@laws
@given(
    st.sampled_from(
        [
            "iid",
            "dirichlet:0.1",
            "dirichlet:0.5:uncapped:least=2",
            "hsu:0.3",
            "pathological:3",
            "shards:5",
        ]
    )
    | st.sampled_from(["classes:4", "natural", "domains", "concept:3"]),
    st.booleans(),
    st.integers(0, 5),
    st.sampled_from([0.0, 0.1, 0.3]),
)
def test_every_partition_is_complete_and_repeatable(
    text: str, stratify: bool, seed: int, validation: float
) -> None:
    data = make_dataset(600, owners=12)
    how: dict[str, Any] = {
        "partition": text,
        "clients": 12,
        "seed": seed,
        "stratify": stratify,
        "validation": validation,
    }
    federation = build_federation(data, **how)
    assert federation.clients == 12
    assert_complete(federation, 600)
    assert (
        federation.hash
        == build_federation(data, **how).hash
        != build_federation(data, **how | {"seed": seed + 1}).hash
    )
    for train, val, test in zip(
        federation.train, federation.val, federation.test, strict=True
    ):
        n = len(train) + len(val)
        assert abs(n - 0.75 * (n + len(test))) <= 0.5 or len(test) == 1
        assert (len(val) == 0) == (
            validation == 0 or n < 2 or (n < 5 and round(validation * n) == 0)
        )


def test_stratified_parts_keep_every_class() -> None:
    federation = build_federation(
        make_dataset(4000), partition="dirichlet:1", clients=10
    )
    own, train, val = (
        count_samples(federation, "all"),
        count_samples(federation, "train"),
        count_samples(federation, "val"),
    )
    assert ((train + val - 0.75 * own).abs() <= 1.01).all()
    plain = build_federation(
        make_dataset(4000), partition="dirichlet:1", clients=10, stratify=False
    )
    # the same partition, cut in another way
    assert torch.equal(count_samples(plain, "all"), own)
    assert (
        (count_samples(plain, "train") + count_samples(plain, "val") - 0.75 * own).abs()
        > 1.01
    ).any()


def test_natural_clients_are_the_owners_whatever_the_official_test_part() -> None:
    data = make_dataset(owners=6, tests=300)
    federation = build_federation(data, partition="natural")
    assert_complete(federation, 1200)
    assert data.owner is not None
    for k in range(6):
        own = torch.cat([federation.train[k], federation.val[k], federation.test[k]])
        assert (data.owner[own] == k).all()


def test_a_subset_keeps_clients_as_they_were() -> None:
    whole = build_federation(make_dataset(3000), partition="dirichlet:0.3", clients=30)
    kept = build_federation(make_dataset(3000), partition="subset:10/30:dirichlet:0.3")
    ids = [
        next(j for j in range(30) if torch.equal(whole.train[j], train))
        for train in kept.train
    ]
    assert len(ids) == 10 and ids == sorted(set(ids)) and ids != list(range(10))
    for k, j in enumerate(ids):
        assert torch.equal(kept.test[k], whole.test[j]) and torch.equal(
            kept.val[k], whole.val[j]
        )
    named = build_federation(make_dataset(owners=9), partition="subset:4/9", clients=4)
    assert [int(name.split()[1]) for name in named.owners] == [
        next(
            j
            for j, train in enumerate(build_federation(make_dataset(owners=9)).train)
            if torch.equal(train, own)
        )
        for own in named.train
    ]


def test_concepts_permute_labels_by_group() -> None:
    data = make_dataset(900, classes=6)
    federation = build_federation(data, partition="concept:3", clients=9)
    tables = []
    for k in range(9):
        own = torch.cat([federation.train[k], federation.val[k], federation.test[k]])
        pairs = {
            (int(a), int(b))
            for a, b in zip(data.y[own], federation.y[own], strict=True)
        }
        assert len(pairs) == len({b for _, b in pairs}) == 6
        tables.append(dict(pairs))
    assert tables[0] == {c: c for c in range(6)}
    assert (
        tables[:3] == tables[3:6] == tables[6:]
        and tables[0] != tables[1] != tables[2] != tables[0]
    )
    assert torch.equal(
        build_federation(data, partition="concept:1", clients=9).y, data.y
    )


def test_ratings_of_one_picture_are_concepts_already() -> None:
    row = torch.arange(1200) // 4
    data = make_dataset(owners=5, row=row)
    federation = build_federation(data, partition="concept")
    assert (
        federation.clients == 5
        and federation.row is row
        and torch.equal(federation.y, data.y)
    )
    assert federation.hash == build_federation(data, partition="natural").hash


@pytest.mark.real
def test_official_split_on_fashion_mnist(real_data: Provide) -> None:
    data = load_dataset("fashion_mnist", real_data("fashion_mnist"))
    federation = build_federation(
        data,
        partition="dirichlet:0.1:uncapped:least=10",
        clients=100,
        split="official",
        validation=0.0,
    )
    assert federation.common is not None and federation.common.tolist() == list(
        range(60_000, 70_000)
    )
    assert torch.cat(federation.train).sort().values.tolist() == list(range(60_000))
    # P-Test: each sample to one client
    assert torch.equal(torch.cat(federation.test).sort().values, federation.common)
    train, test = count_samples(federation, "train"), count_samples(federation, "test")
    assert ((test - train / 6).abs() < 1).all()  # 6000 and 1000 of each class
    assert train.sum(1).min() >= 10


@pytest.mark.real
def test_official_split_reuses_the_shards(real_data: Provide) -> None:
    data = load_dataset("fashion_mnist", real_data("fashion_mnist"))
    federation = build_federation(
        data, partition="shards:2", clients=100, split="official", validation=0.0
    )
    train, test = count_samples(federation, "train"), count_samples(federation, "test")
    assert set(train.flatten().tolist()) <= {0, 300, 600} and torch.equal(
        test, train // 6
    )
    assert ((train > 0).sum(1) <= 2).all() and (train.sum(1) == 600).all()


@pytest.mark.real
def test_the_papers_practical_setting(real_data: Provide) -> None:
    """Fashion-MNIST, 20 clients, Dir(0.1), 75/25: FedCP and GPFL."""
    data = load_dataset("fashion_mnist", real_data("fashion_mnist"))
    federation = build_federation(data, partition="dirichlet:0.1", clients=20)
    assert_complete(federation, 70_000)
    own = count_samples(federation, "all")
    assert own.sum(1).min() >= 40 and own.sum(0).tolist() == [7000] * 10
    main = own.max(1).values / own.sum(1)
    # a few large bubbles a client
    assert main.mean() > 0.5 and (own > 100).sum(1).float().mean() < 6


@pytest.mark.parametrize(
    ("owners", "partition"), [(4, "natural"), (0, "dirichlet:0.5")]
)
@pytest.mark.parametrize("limit", [None, 600])
def test_an_ordered_split_tests_everybody_on_later_samples(
    owners: int, partition: str, limit: int | None
) -> None:
    federation = build_federation(
        make_dataset(owners=owners),
        partition=partition,
        split="ordered:0.75",
        limit=limit,
    )
    assert len(everything(federation)) == (limit or 1200)
    for train, val, test in zip(
        federation.train, federation.val, federation.test, strict=True
    ):
        assert train.max() < val.min() and val.max() < test.min()
        assert len(test) == pytest.approx((len(train) + len(val)) / 3, abs=1)


def test_official_owners_test_on_their_own_part() -> None:
    data = make_dataset(owners=6, tests=300)
    federation = build_federation(data, split="official")
    assert data.owner is not None and data.test is not None
    for k in range(6):
        assert (data.owner[federation.test[k]] == k).all() and data.test[
            federation.test[k]
        ].all()
    assert sum(map(len, federation.test)) == 300


def test_a_test_class_nobody_trains_on_is_only_in_the_common_part() -> None:
    data = make_dataset(tests=200)
    y = torch.where(torch.as_tensor(data.test), data.y, data.y % 9)
    federation = build_federation(replace(data, y=y), clients=5, split="official")
    assert federation.common is not None and len(federation.common) == 200
    tested = torch.cat(federation.test)
    assert not (y[tested] == 9).any() and len(tested) == int(
        (y[federation.common] < 9).sum()
    )


@laws
@given(st.integers(60, 1200), st.integers(0, 5))
def test_a_limit_keeps_proportions(limit: int, seed: int) -> None:
    data = make_dataset(owners=6, tests=300)
    used = torch.from_numpy(subsample(data, limit, np.random.default_rng(seed)))
    assert len(used) == limit == len(set(used.tolist()))
    share = limit / 1200
    assert data.owner is not None and data.test is not None
    assert (data.owner[used].bincount() - data.owner.bincount() * share).abs().max() < 2
    assert abs(int(data.test[used].sum()) - 300 * share) <= 6  # rounded once an owner
    assert (data.y[used].bincount(minlength=10) - 120 * share).abs().max() <= 12
    alone = replace(data, owner=None)
    used = torch.from_numpy(subsample(alone, limit, np.random.default_rng(seed)))
    assert abs(int(data.test[used].sum()) - 300 * share) < 1


def test_a_limited_federation_uses_that_many_samples() -> None:
    federation = build_federation(make_dataset(), clients=4, limit=100)
    assert len(everything(federation)) == 100 and len(federation.y) == 1200
    assert_complete(build_federation(make_dataset(), clients=4, limit=5000), 1200)
    few = build_federation(make_dataset(owners=30), limit=30)
    assert all(
        (len(a), len(b), len(c)) == (1, 0, 0)
        for a, b, c in zip(few.train, few.val, few.test, strict=True)
    )


def test_fit_sees_the_training_samples_alone() -> None:
    seen: list[Tensor] = []

    def fit(indices: Tensor) -> Tensor:
        seen.append(indices)
        return torch.full((1200, 3), float(len(indices)))

    federation = build_federation(make_dataset(fit=fit), partition="subset:3/6:iid")
    assert len(seen) == 1 and torch.equal(seen[0], torch.cat(federation.train))
    assert federation.shape == (3,) and federation.x[0, 0] == len(seen[0])


def test_ten_thousand_clients() -> None:
    federation = build_federation(make_dataset(60_000), partition="iid", clients=10_000)
    assert federation.clients == 10_000
    assert_complete(federation, 60_000)


@pytest.mark.parametrize(
    ("data", "how", "says"),
    [
        (make_dataset(10), {"clients": 20}, "20 clients but only 10 samples"),
        (make_dataset(10), {}, "20 clients but only 10 samples"),
        (make_dataset(), {"limit": 10}, "20 clients but only 10 samples"),
        (make_dataset(), {"clients": 0}, "clients 0: must be at least 1"),
        (make_dataset(), {"limit": -5}, "limit -5: must be at least 1"),
        (make_dataset(), {"batch": 0}, "batch 0: must be at least 1"),
        (
            make_dataset(),
            {"validation": 1.0},
            "validation 1.0: the share must be at least 0 and below 1",
        ),
        (make_dataset(), {"validation": -0.1}, "validation -0.1"),
        (
            make_dataset(),
            {"partition": "natural"},
            "'natural': data set 'world' has no client column",
        ),
        (
            make_dataset(),
            {"partition": "concept"},
            "data set 'world' has no raters; write concept:2",
        ),
        (
            make_dataset(owners=4),
            {"partition": "concept"},
            "rate nothing in common; write concept:2",
        ),
        (
            make_dataset(),
            {"partition": "concept:21"},
            "21 groups need at least as many clients, not 20",
        ),
        (
            make_dataset(owners=4),
            {"clients": 5},
            "has 4 natural clients, not 5; leave --clients out",
        ),
        (
            make_dataset(owners=4),
            {"partition": "subset:2/5"},
            "has 4 natural clients, not 5",
        ),
        (
            make_dataset(owners=4),
            {"limit": 3},
            "limit 3: data set 'world' has 4 natural clients",
        ),
        (
            make_dataset(),
            {"partition": "subset:2/5:iid", "clients": 5},
            "keeps 2 clients, not 5: leave --clients out",
        ),
        (
            make_dataset(),
            {"split": "official"},
            "data set 'world' has no official test part; use merged:0.75",
        ),
        (
            make_dataset(),
            {"split": "block:0.75"},
            "data set 'world' has no recordings to cut; use merged:0.75",
        ),
        (
            make_dataset(segment=torch.arange(1200) // 10),
            {"split": "block:0.75"},
            "partition 'dirichlet:0.1' gives one recording to several clients; use natural",
        ),
        (
            replace(make_dataset(owners=4), owner=torch.arange(1200) % 4 * 2),
            {},
            "goes up to 6 but nobody is client 1; number the clients without gaps",
        ),
        (
            replace(
                make_dataset(owners=4),
                test=torch.arange(1200) % 4 == 2,
                owner=torch.arange(1200) % 4,
            ),
            {"split": "official"},
            "client 2 of 4 has no training samples under partition 'natural' and split 'official'",
        ),
    ],
)
def test_bad_settings_are_one_clear_line(
    data: Dataset, how: dict[str, Any], says: str
) -> None:
    assert says in refusal(build_federation, data, **how)
