"""Dealing a data set to clients, from the settings to the federation, and saved partitions."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data import load
from fedtailor.data.federation import Dataset, Federation
from fedtailor.data.partition.build import deal, thin
from fedtailor.data.partition.saved import load_partition, save
from fedtailor.report.partition_chart import count_samples

laws = settings(deadline=None, max_examples=30, derandomize=True, database=None)
Provide = Callable[[str], Path]


def world(
    n: int = 1200, classes: int = 10, owners: int = 0, tests: int = 0, **more: Any
) -> Dataset:
    """A data set with random labels, owners and test part; x tells the sample's number."""
    rng = np.random.default_rng(n + classes)
    return Dataset(
        name="world",
        kind="table",
        x=torch.arange(n, dtype=torch.float32)[:, None],
        y=torch.from_numpy(rng.permutation(np.arange(n) % classes)),
        classes=classes,
        test=torch.from_numpy(rng.permutation(n) < tests) if tests else None,
        owner=torch.from_numpy(rng.permutation(np.arange(n) % owners)) if owners else None,
        owners=tuple(f"owner {k}" for k in range(owners)),
        **more,
    )


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
    data = world(600, owners=12)
    how: dict[str, Any] = {
        "partition": text,
        "clients": 12,
        "seed": seed,
        "stratify": stratify,
        "validation": validation,
    }
    federation = deal(data, **how)
    assert federation.clients == 12
    assert_complete(federation, 600)
    assert federation.hash == deal(data, **how).hash != deal(data, **how | {"seed": seed + 1}).hash
    for train, val, test in zip(federation.train, federation.val, federation.test, strict=True):
        n = len(train) + len(val)
        assert abs(n - 0.75 * (n + len(test))) <= 0.5 or len(test) == 1
        assert (len(val) == 0) == (
            validation == 0 or n < 2 or (n < 5 and round(validation * n) == 0)
        )


def test_defaults() -> None:
    assert deal(world()).clients == 20 and deal(world()).dealt["partition"] == "iid"
    natural = deal(world(owners=7))
    assert natural.clients == 7 and natural.owners == tuple(f"owner {k}" for k in range(7))
    assert natural.dealt["partition"] == "natural" and natural.dealt["clients"] == 7
    assert deal(world()).common is None


def test_stratified_parts_keep_every_class() -> None:
    federation = deal(world(4000), partition="dirichlet:1", clients=10)
    own, train, val = (
        count_samples(federation, "all"),
        count_samples(federation, "train"),
        count_samples(federation, "val"),
    )
    assert ((train + val - 0.75 * own).abs() <= 1.01).all()
    plain = deal(world(4000), partition="dirichlet:1", clients=10, stratify=False)
    assert torch.equal(count_samples(plain, "all"), own)  # the same partition, cut in another way
    assert (
        (count_samples(plain, "train") + count_samples(plain, "val") - 0.75 * own).abs() > 1.01
    ).any()


def test_natural_clients_are_the_owners_whatever_the_official_test_part() -> None:
    data = world(owners=6, tests=300)
    federation = deal(data, partition="natural")
    assert_complete(federation, 1200)
    assert data.owner is not None
    for k in range(6):
        own = torch.cat([federation.train[k], federation.val[k], federation.test[k]])
        assert (data.owner[own] == k).all()


def test_a_subset_keeps_clients_as_they_were() -> None:
    whole = deal(world(3000), partition="dirichlet:0.3", clients=30)
    kept = deal(world(3000), partition="subset:10/30:dirichlet:0.3")
    ids = [next(j for j in range(30) if torch.equal(whole.train[j], train)) for train in kept.train]
    assert len(ids) == 10 and ids == sorted(set(ids)) and ids != list(range(10))
    for k, j in enumerate(ids):
        assert torch.equal(kept.test[k], whole.test[j]) and torch.equal(kept.val[k], whole.val[j])
    named = deal(world(owners=9), partition="subset:4/9", clients=4)
    assert [int(name.split()[1]) for name in named.owners] == [
        next(j for j, train in enumerate(deal(world(owners=9)).train) if torch.equal(train, own))
        for own in named.train
    ]


def test_concepts_permute_labels_by_group() -> None:
    data = world(900, classes=6)
    federation = deal(data, partition="concept:3", clients=9)
    tables = []
    for k in range(9):
        own = torch.cat([federation.train[k], federation.val[k], federation.test[k]])
        pairs = {(int(a), int(b)) for a, b in zip(data.y[own], federation.y[own], strict=True)}
        assert len(pairs) == len({b for _, b in pairs}) == 6
        tables.append(dict(pairs))
    assert tables[0] == {c: c for c in range(6)}
    assert (
        tables[:3] == tables[3:6] == tables[6:] and tables[0] != tables[1] != tables[2] != tables[0]
    )
    assert torch.equal(deal(data, partition="concept:1", clients=9).y, data.y)


def test_ratings_of_one_picture_are_concepts_already() -> None:
    row = torch.arange(1200) // 4
    data = world(owners=5, row=row)
    federation = deal(data, partition="concept")
    assert federation.clients == 5 and federation.row is row and torch.equal(federation.y, data.y)
    assert federation.hash == deal(data, partition="natural").hash


@pytest.mark.real
def test_official_split_on_fashion_mnist(real_data: Provide) -> None:
    data = load("fashion_mnist", real_data("fashion_mnist"))
    federation = deal(
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
    assert torch.equal(
        torch.cat(federation.test).sort().values, federation.common
    )  # P-Test: each sample to one client
    train, test = count_samples(federation, "train"), count_samples(federation, "test")
    assert ((test - train / 6).abs() < 1).all()  # 6000 and 1000 of each class
    assert train.sum(1).min() >= 10


@pytest.mark.real
def test_official_split_reuses_the_shards(real_data: Provide) -> None:
    data = load("fashion_mnist", real_data("fashion_mnist"))
    federation = deal(data, partition="shards:2", clients=100, split="official", validation=0.0)
    train, test = count_samples(federation, "train"), count_samples(federation, "test")
    assert set(train.flatten().tolist()) <= {0, 300, 600} and torch.equal(test, train // 6)
    assert ((train > 0).sum(1) <= 2).all() and (train.sum(1) == 600).all()


@pytest.mark.real
def test_the_papers_practical_setting(real_data: Provide) -> None:
    """Fashion-MNIST, 20 clients, Dir(0.1), 75/25: FedCP and GPFL."""
    data = load("fashion_mnist", real_data("fashion_mnist"))
    federation = deal(data, partition="dirichlet:0.1", clients=20)
    assert_complete(federation, 70_000)
    own = count_samples(federation, "all")
    assert own.sum(1).min() >= 40 and own.sum(0).tolist() == [7000] * 10
    main = own.max(1).values / own.sum(1)
    assert (
        main.mean() > 0.5 and (own > 100).sum(1).float().mean() < 6
    )  # a few large bubbles a client


@pytest.mark.parametrize(("owners", "partition"), [(4, "natural"), (0, "dirichlet:0.5")])
@pytest.mark.parametrize("limit", [None, 600])
def test_an_ordered_split_tests_everybody_on_later_samples(
    owners: int, partition: str, limit: int | None
) -> None:
    federation = deal(world(owners=owners), partition=partition, split="ordered:0.75", limit=limit)
    assert len(everything(federation)) == (limit or 1200)
    for train, val, test in zip(federation.train, federation.val, federation.test, strict=True):
        assert train.max() < val.min() and val.max() < test.min()
        assert len(test) == pytest.approx((len(train) + len(val)) / 3, abs=1)


def test_official_owners_test_on_their_own_part() -> None:
    data = world(owners=6, tests=300)
    federation = deal(data, split="official")
    assert data.owner is not None and data.test is not None
    for k in range(6):
        assert (data.owner[federation.test[k]] == k).all() and data.test[federation.test[k]].all()
    assert sum(map(len, federation.test)) == 300


def test_a_test_class_nobody_trains_on_is_only_in_the_common_part() -> None:
    data = world(tests=200)
    y = torch.where(torch.as_tensor(data.test), data.y, data.y % 9)
    federation = deal(replace(data, y=y), clients=5, split="official")
    assert federation.common is not None and len(federation.common) == 200
    dealt = torch.cat(federation.test)
    assert not (y[dealt] == 9).any() and len(dealt) == int((y[federation.common] < 9).sum())


@laws
@given(st.integers(60, 1200), st.integers(0, 5))
def test_a_limit_keeps_proportions(limit: int, seed: int) -> None:
    data = world(owners=6, tests=300)
    used = torch.from_numpy(thin(data, limit, np.random.default_rng(seed)))
    assert len(used) == limit == len(set(used.tolist()))
    share = limit / 1200
    assert data.owner is not None and data.test is not None
    assert (data.owner[used].bincount() - data.owner.bincount() * share).abs().max() < 2
    assert abs(int(data.test[used].sum()) - 300 * share) <= 6  # rounded once an owner
    assert (data.y[used].bincount(minlength=10) - 120 * share).abs().max() <= 12
    alone = replace(data, owner=None)
    used = torch.from_numpy(thin(alone, limit, np.random.default_rng(seed)))
    assert abs(int(data.test[used].sum()) - 300 * share) < 1


def test_a_limited_federation_uses_that_many_samples() -> None:
    federation = deal(world(), clients=4, limit=100)
    assert len(everything(federation)) == 100 and len(federation.y) == 1200
    assert_complete(deal(world(), clients=4, limit=5000), 1200)
    few = deal(world(owners=30), limit=30)
    assert all(
        (len(a), len(b), len(c)) == (1, 0, 0)
        for a, b, c in zip(few.train, few.val, few.test, strict=True)
    )


def test_fit_sees_the_training_samples_alone() -> None:
    seen: list[Tensor] = []

    def fit(indices: Tensor) -> Tensor:
        seen.append(indices)
        return torch.full((1200, 3), float(len(indices)))

    federation = deal(world(fit=fit), partition="subset:3/6:iid")
    assert len(seen) == 1 and torch.equal(seen[0], torch.cat(federation.train))
    assert federation.shape == (3,) and federation.x[0, 0] == len(seen[0])


def test_ten_thousand_clients() -> None:
    federation = deal(world(60_000), partition="iid", clients=10_000)
    assert federation.clients == 10_000
    assert_complete(federation, 60_000)


@pytest.mark.parametrize(
    "how", [{"partition": "dirichlet:0.3"}, {"split": "official"}, {"partition": "concept:2"}]
)
def test_a_saved_partition_is_the_same_again(tmp_path: Path, how: dict[str, Any]) -> None:
    data = world(tests=200)
    first = deal(data, clients=8, **how)
    path = save(first, tmp_path / "new" / "p")
    assert path == tmp_path / "new" / "p.npz" and [f.name for f in path.parent.iterdir()] == [
        "p.npz"
    ]
    again = deal(data, partition=str(path), seed=99)
    assert again.hash == first.hash and again.dealt == first.dealt
    for part in ("train", "val", "test"):
        assert all(
            torch.equal(a, b)
            for a, b in zip(getattr(first, part), getattr(again, part), strict=True)
        )
    assert (again.common is None) == (first.common is None) and torch.equal(again.y, first.y)
    assert save(again, tmp_path / "q.npz").read_bytes() == path.read_bytes()
    kept = deal(data, partition=f"subset:3/8:{path}")
    assert kept.clients == 3 and kept.dealt["partition"] == f"subset:3/8:{first.dealt['partition']}"


def test_a_saved_partition_knows_names_and_empty_parts(tmp_path: Path) -> None:
    first = deal(world(owners=4), partition="subset:2/4", validation=0.0)
    saved = load_partition(save(first, tmp_path / "p.npz"))
    assert (
        saved.owners == first.owners and [len(v) for v in saved.val] == [0, 0] and saved.y is None
    )
    with np.load(
        tmp_path / "p.npz", allow_pickle=False
    ) as file:  # plain arrays that anybody can read
        assert file["train_lengths"].tolist() == [len(v) for v in first.train]
        assert json.loads(file["header"].tobytes())["dealt"]["split"] == "merged:0.75"


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (replace(world(), name="else"), "is for data set 'world', not 'else'"),
        (world(1300), "is for 1200 samples of 'world', but there are 1300"),
        (replace(world(), y=world().y.roll(1)), "is for other labels than those of 'world' here"),
    ],
)
def test_a_partition_of_another_data_set_is_refused(
    tmp_path: Path, other: Dataset, says: str
) -> None:
    path = save(deal(world(), clients=5), tmp_path / "p.npz")
    with pytest.raises(UserError) as error:
        deal(other, partition=str(path))
    assert says in str(error.value) and str(path) in str(error.value)


def test_a_damaged_partition_is_refused_wherever_it_is_damaged(tmp_path: Path) -> None:
    path = save(deal(world(60), clients=5), tmp_path / "p.npz")
    good = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for at in [*rng.integers(0, len(good), 60).tolist(), 0, len(good) - 5]:
        path.write_bytes(good[:at] + bytes([good[at] ^ 0x55]) + good[at + 1 :])
        try:
            saved = load_partition(path)
        except UserError as error:
            refused += 1
            assert str(path) in str(error) and "\n" not in str(error)
        else:  # a byte that means nothing, such as a date in the archive's directory
            assert [v.tolist() for v in saved.train] == [
                v.tolist() for v in deal(world(60), clients=5).train
            ]
    assert refused > 30
    for end in (0, 10, len(good) // 2, len(good) - 1):
        path.write_bytes(good[:end])
        with pytest.raises(UserError, match="damaged"):
            load_partition(path)


def rewrite(path: Path, **changes: Any) -> None:
    with np.load(path) as file:
        np.savez(path.with_name("edited.npz"), **dict(file.items()) | changes)
    path.with_name("edited.npz").replace(path)


def test_an_edited_partition_is_refused(tmp_path: Path) -> None:
    first = deal(world(60), clients=5)
    path = save(first, tmp_path / "p.npz")
    rewrite(path, train=torch.cat(first.train).flip(0).numpy())
    with pytest.raises(UserError, match="damaged"):
        load_partition(path)
    header = json.loads(np.load(save(first, path))["header"].tobytes()) | {"version": 2}
    rewrite(path, header=np.frombuffer(json.dumps(header).encode(), np.uint8))
    with pytest.raises(UserError, match="has partition format 2, this version reads 1"):
        load_partition(path)
    save(replace(first, test=[first.train[0], *first.test[1:]]), path)
    with pytest.raises(UserError, match="gives a sample to two clients or parts"):
        load_partition(path)


def test_files_that_are_no_partition(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no partition file"):
        deal(world(), partition=str(tmp_path / "absent.npz"))
    np.savez(tmp_path / "x.npz", x=np.arange(3))
    np.savez(tmp_path / "pickle.npz", header=np.array([{}], dtype=object))
    (tmp_path / "text.npz").write_text("who has what")
    (tmp_path / "folder.npz").mkdir()
    for name, says in (
        ("x", "is not a saved partition"),
        ("pickle", "damaged"),
        ("text", "damaged"),
        ("folder", "read"),
    ):
        with pytest.raises(UserError, match=says):
            load_partition(tmp_path / f"{name}.npz")
    with pytest.raises(UserError, match="cannot write the partition"):
        save(deal(world()), tmp_path / "x.npz" / "p")


def test_settings_that_a_saved_partition_contradicts(tmp_path: Path) -> None:
    path = str(
        save(deal(world(tests=100), clients=5, split="official", limit=500), tmp_path / "p.npz")
    )
    data = world(tests=100)
    assert deal(data, partition=path, clients=5, split="official", limit=500).clients == 5
    for more, says in (
        ({"clients": 6}, "has 5 clients, not 6"),
        ({"partition": f"subset:2/6:{path}"}, "has 5 clients, not 6"),
        (
            {"split": "merged:0.8"},
            "was saved with split official, not merged:0.8: leave --split out",
        ),
        ({"validation": 0.2}, "was saved with validation 0.1, not 0.2"),
        ({"limit": 400}, "was saved with limit 500, not 400"),
    ):
        with pytest.raises(UserError, match=says):
            deal(data, **{"partition": path} | more)


@pytest.mark.parametrize(
    ("data", "how", "says"),
    [
        (world(10), {"clients": 20}, "20 clients but only 10 samples"),
        (world(10), {}, "20 clients but only 10 samples"),
        (world(), {"limit": 10}, "20 clients but only 10 samples"),
        (world(), {"clients": 0}, "clients 0: must be at least 1"),
        (world(), {"limit": -5}, "limit -5: must be at least 1"),
        (world(), {"batch": 0}, "batch 0: must be at least 1"),
        (world(), {"validation": 1.0}, "validation 1.0: the share must be at least 0 and below 1"),
        (world(), {"validation": -0.1}, "validation -0.1"),
        (world(), {"partition": "natural"}, "'natural': data set 'world' has no client column"),
        (world(), {"partition": "concept"}, "data set 'world' has no raters; write concept:2"),
        (world(owners=4), {"partition": "concept"}, "rate nothing in common; write concept:2"),
        (world(), {"partition": "concept:21"}, "21 groups need at least as many clients, not 20"),
        (world(owners=4), {"clients": 5}, "has 4 natural clients, not 5; leave --clients out"),
        (world(owners=4), {"partition": "subset:2/5"}, "has 4 natural clients, not 5"),
        (world(owners=4), {"limit": 3}, "limit 3: data set 'world' has 4 natural clients"),
        (
            world(),
            {"partition": "subset:2/5:iid", "clients": 5},
            "keeps 2 clients, not 5: leave --clients out",
        ),
        (
            world(),
            {"split": "official"},
            "data set 'world' has no official test part; use merged:0.75",
        ),
        (
            world(),
            {"split": "block:0.75"},
            "data set 'world' has no recordings to cut; use merged:0.75",
        ),
        (
            world(segment=torch.arange(1200) // 10),
            {"split": "block:0.75"},
            "partition 'iid' deals one recording to several clients; use natural",
        ),
        (
            replace(world(owners=4), owner=torch.arange(1200) % 4 * 2),
            {},
            "goes up to 6 but nobody is client 1; number the clients without gaps",
        ),
        (
            replace(
                world(owners=4), test=torch.arange(1200) % 4 == 2, owner=torch.arange(1200) % 4
            ),
            {"split": "official"},
            "client 2 of 4 has no training samples under partition 'natural' and split 'official'",
        ),
    ],
)
def test_bad_settings_are_one_clear_line(data: Dataset, how: dict[str, Any], says: str) -> None:
    with pytest.raises(UserError) as error:
        deal(data, **how)
    assert says in str(error.value) and "\n" not in str(error.value)
