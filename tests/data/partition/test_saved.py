"""Saved partitions: the same again, and refused when damaged or of another data set."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from data_helpers import make_dataset

from fedtailor.core.errors import UserError
from fedtailor.data.federation import Dataset
from fedtailor.data.partition.build import build_federation
from fedtailor.data.partition.saved import load_partition, save_partition


@pytest.mark.parametrize(
    "how",
    [{"partition": "dirichlet:0.3"}, {"split": "official"}, {"partition": "concept:2"}],
)
def test_a_saved_partition_is_the_same_again(
    tmp_path: Path, how: dict[str, Any]
) -> None:
    data = make_dataset(tests=200)
    first = build_federation(data, clients=8, **how)
    path = save_partition(first, tmp_path / "new" / "p")
    assert path == tmp_path / "new" / "p.npz" and [
        f.name for f in path.parent.iterdir()
    ] == ["p.npz"]
    again = build_federation(data, partition=str(path), seed=99)
    assert again.hash == first.hash and again.settings == first.settings
    for part in ("train", "val", "test"):
        assert all(
            torch.equal(a, b)
            for a, b in zip(getattr(first, part), getattr(again, part), strict=True)
        )
    assert (again.common is None) == (first.common is None) and torch.equal(
        again.y, first.y
    )
    assert save_partition(again, tmp_path / "q.npz").read_bytes() == path.read_bytes()
    kept = build_federation(data, partition=f"subset:3/8:{path}")
    assert (
        kept.clients == 3
        and kept.settings["partition"] == f"subset:3/8:{first.settings['partition']}"
    )


def test_a_saved_partition_knows_names_and_empty_parts(tmp_path: Path) -> None:
    first = build_federation(
        make_dataset(owners=4), partition="subset:2/4", validation=0.0
    )
    saved = load_partition(save_partition(first, tmp_path / "p.npz"))
    assert (
        saved.owners == first.owners
        and [len(v) for v in saved.val] == [0, 0]
        and saved.y is None
    )
    with np.load(
        tmp_path / "p.npz", allow_pickle=False
    ) as file:  # plain arrays that anybody can read
        assert file["train_lengths"].tolist() == [len(v) for v in first.train]
        assert json.loads(file["header"].tobytes())["dealt"]["split"] == "merged:0.75"


@pytest.mark.parametrize(
    ("other", "says"),
    [
        (replace(make_dataset(), name="else"), "is for data set 'world', not 'else'"),
        (make_dataset(1300), "is for 1200 samples of 'world', but there are 1300"),
        (
            replace(make_dataset(), y=make_dataset().y.roll(1)),
            "is for other labels than those of 'world' here",
        ),
    ],
)
def test_a_partition_of_another_data_set_is_refused(
    tmp_path: Path, other: Dataset, says: str
) -> None:
    path = save_partition(
        build_federation(make_dataset(), clients=5), tmp_path / "p.npz"
    )
    with pytest.raises(UserError) as error:
        build_federation(other, partition=str(path))
    assert says in str(error.value) and str(path) in str(error.value)


def test_a_damaged_partition_is_refused_wherever_it_is_damaged(tmp_path: Path) -> None:
    path = save_partition(
        build_federation(make_dataset(60), clients=5), tmp_path / "p.npz"
    )
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
                v.tolist() for v in build_federation(make_dataset(60), clients=5).train
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
    first = build_federation(make_dataset(60), clients=5)
    path = save_partition(first, tmp_path / "p.npz")
    rewrite(path, train=torch.cat(first.train).flip(0).numpy())
    with pytest.raises(UserError, match="damaged"):
        load_partition(path)
    header = json.loads(np.load(save_partition(first, path))["header"].tobytes()) | {
        "version": 2
    }
    rewrite(path, header=np.frombuffer(json.dumps(header).encode(), np.uint8))
    with pytest.raises(UserError, match="has partition format 2, this version reads 1"):
        load_partition(path)
    save_partition(replace(first, test=[first.train[0], *first.test[1:]]), path)
    with pytest.raises(UserError, match="gives a sample to two clients or parts"):
        load_partition(path)


def test_files_that_are_no_partition(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no partition file"):
        build_federation(make_dataset(), partition=str(tmp_path / "absent.npz"))
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
        save_partition(build_federation(make_dataset()), tmp_path / "x.npz" / "p")


def test_settings_that_a_saved_partition_contradicts(tmp_path: Path) -> None:
    path = str(
        save_partition(
            build_federation(
                make_dataset(tests=100), clients=5, split="official", limit=500
            ),
            tmp_path / "p.npz",
        )
    )
    data = make_dataset(tests=100)
    assert (
        build_federation(
            data, partition=path, clients=5, split="official", limit=500
        ).clients
        == 5
    )
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
            build_federation(data, **{"partition": path} | more)
