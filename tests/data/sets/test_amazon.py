"""Amazon reviews: Blitzer's processed files, the literature's npz and the prepared one."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from data_helpers import refusal
from scipy import sparse

from fedtailor.data import load_dataset
from fedtailor.data.sets.amazon import DOMAINS, WIDTH


def write_official(folder: Path) -> Path:
    """Two negative and two positive reviews a domain, and one more in the third file."""
    home = folder / "amazon" / "processed_acl"
    for domain in DOMAINS:
        (home / domain).mkdir(parents=True)
        (home / domain / "negative.review").write_text(
            f"bad:2 {domain}:1 bad_{domain}:1 #label#:negative\nbad:1 10:30:1 #label#:negative\n"
        )
        (home / domain / "positive.review").write_text(
            f"good:1 {domain}:3 #label#:positive\ngood:2 bad:1 #label#:positive\n"
        )
        (home / domain / "unlabeled.review").write_text(
            "new:1 good:1 #label#:positive\n"
        )
    return home


def complaint(folder: Path) -> str:
    return refusal(load_dataset, "amazon", folder)


def test_processed_files(tmp_path: Path) -> None:
    write_official(tmp_path)
    d = load_dataset("amazon", tmp_path)
    assert (
        d.x.shape == (16, WIDTH)
        and d.y.tolist() == [0, 0, 1, 1] * 4
        and d.owners == DOMAINS
    )
    assert d.owner is not None and d.owner.tolist() == [
        k for k in range(4) for _ in range(4)
    ]
    # bad is in 12 reviews, good in 8, books, dvd ... in 2 of each domain, 10:30 in 4
    assert (
        d.x[0, :2].tolist() == [2.0, 0.0]
        and d.x[3, :2].tolist() == [1.0, 2.0]
        and d.x[1, 2].item() == 1.0
    )
    assert int((d.x.sum(0) > 0).sum()) == 11


def test_all_takes_the_third_file_too(tmp_path: Path) -> None:
    write_official(tmp_path)
    d = load_dataset("amazon:all", tmp_path)
    assert (
        len(d) == 20 and d.y.tolist() == [0, 0, 1, 1, 1] * 4 and d.name == "amazon:all"
    )


def test_features_are_chosen_on_training_reviews_alone(tmp_path: Path) -> None:
    write_official(tmp_path)
    d = load_dataset("amazon", tmp_path)
    assert d.fit is not None
    # two positive reviews of books: good twice, then bad and books
    x = d.fit(torch.tensor([2, 3]))
    assert x[2, :4].tolist() == [1.0, 0.0, 3.0, 0.0] and x[3, :4].tolist() == [
        2.0,
        1.0,
        0.0,
        0.0,
    ]
    assert x[0, :4].tolist() == [0.0, 2.0, 1.0, 0.0] and int((x.sum(0) > 0).sum()) == 3


def test_the_file_of_the_adaptation_literature(tmp_path: Path) -> None:
    rng = np.random.default_rng(2)
    dense = rng.poisson(0.3, (23, 6000)).astype(np.float64)
    m = sparse.coo_matrix(dense.T)  # stored feature by review there
    offset = np.array([[0, 5, 11, 17, 23]])
    yy = rng.choice([-1.0, 1.0], (23, 1))
    parts = {
        "xx_data": m.data,
        "xx_row": m.row,
        "xx_col": m.col,
        "xx_shape": np.array(m.shape),
    }
    np.savez(tmp_path / "amazon.npz", yy=yy, offset=offset, **parts)
    d = load_dataset("amazon", tmp_path)
    assert np.array_equal(d.x.numpy(), dense[:, :5000]) and np.array_equal(
        d.y.numpy() * 2 - 1, yy[:, 0]
    )
    assert d.owner is not None and d.owner.bincount().tolist() == [5, 6, 6, 6]


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "good:1 bad:1",
            "line 3: it ends with 'bad:1', not #label#:positive or :negative",
        ),
        ("good:1 #label#:maybe", "line 3: it ends with '#label#:maybe'"),
        ("good:x #label#:positive", "line 3: 'good:x' is not feature:count"),
        ("good #label#:positive", "line 3: 'good' is not feature:count"),
    ],
)
def test_bad_lines_are_named(line: str, expected: str, tmp_path: Path) -> None:
    path = write_official(tmp_path) / "dvd" / "positive.review"
    path.write_text(path.read_text() + line + "\n")
    assert f"{path}, {expected}" in complaint(tmp_path)


def test_real_reviews(real_data) -> None:
    d = load_dataset("amazon", real_data("amazon"))
    assert d.x.shape == (8000, 5000) and d.owner.bincount().tolist() == [2000] * 4
    assert [d.y[d.owner == k].bincount().tolist() for k in range(4)] == [
        [1000, 1000]
    ] * 4
    assert d.x.dtype == torch.float32 and (d.x >= 0).all() and d.owners == DOMAINS
