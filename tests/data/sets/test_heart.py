"""UCI heart disease, and the filling of gaps from training data of the same hospital."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from data_helpers import refusal

from fedtailor.data import load_dataset
from fedtailor.data.own.missing_values import fill_missing_values
from fedtailor.data.sets.heart import HOSPITALS

ROW = "63.0,1.0,1.0,145.0,233.0,1.0,2.0,150.0,0.0,2.3,3.0,0.0,6.0,0\n"
GAPS = "41,0,2,130,?,0,0,?,0,1.4,?,?,?,3\n"


def write_official(folder: Path) -> Path:
    home = folder / "heart"
    home.mkdir()
    for hospital in HOSPITALS:
        (home / f"processed.{hospital}.data").write_text(ROW + GAPS)
    return home


def complaint(folder: Path) -> str:
    return refusal(load_dataset, "heart", folder)


def test_official_files(tmp_path: Path) -> None:
    write_official(tmp_path)
    d = load_dataset("heart", tmp_path)
    assert d.x.shape == (8, 13) and d.y.tolist() == [0, 1] * 4 and d.classes == 2
    assert (
        d.owners == HOSPITALS
        and d.owner is not None
        and d.owner.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    )
    assert torch.isnan(d.x[1]).nonzero()[:, 0].tolist() == [4, 7, 10, 11, 12]


def test_26_columns_after_fit(tmp_path: Path) -> None:
    write_official(tmp_path)
    d = load_dataset("heart", tmp_path)
    assert d.fit is not None
    x = d.fit(torch.arange(8))
    assert x.shape == (8, 26) and torch.isfinite(x).all()
    assert (
        x[1, 13:].nonzero()[:, 0].tolist() == [4, 7, 10, 11, 12] and not x[0, 13:].any()
    )


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("1,2,3\n", "line 3: 3 columns instead of 14"),
        (
            ROW.replace("145.0", "high"),
            "line 3: could not convert string to float: 'high'",
        ),
        (ROW.replace("6.0,0", "6.0,7"), "line 3: diagnosis '7' is not one of 0 to 4"),
    ],
)
def test_bad_lines_are_named(line: str, expected: str, tmp_path: Path) -> None:
    path = write_official(tmp_path) / "processed.va.data"
    path.write_text(path.read_text() + line)
    assert f"{path}, {expected}" in complaint(tmp_path)


def test_infinite_values_are_refused(tmp_path: Path) -> None:
    path = write_official(tmp_path) / "processed.va.data"
    path.write_text(ROW + ROW.replace("145.0", "inf"))
    assert "sample 7, place 3 is infinite" in complaint(tmp_path)


def test_other_hospitals_and_test_patients_change_nothing(real_data) -> None:
    d = load_dataset("heart", real_data("heart"))
    train = torch.arange(0, 920, 2)
    before = d.fit(train)
    changed = d.x.clone()
    changed[d.owner == 2] = 1000.0
    held_out = torch.ones(920, dtype=torch.bool)
    held_out[train] = False
    changed[held_out & (d.owner == 0)] = 500.0
    after = fill_missing_values(changed, d.owner, True, train)
    kept = (d.owner == 1) | (d.owner == 3) | ((d.owner == 0) & ~held_out)
    assert torch.equal(before[kept], after[kept])


class TestReal:
    def test_counts_of_uci(self, real_data) -> None:
        d = load_dataset("heart", real_data("heart"))
        assert d.owner.bincount().tolist() == [303, 294, 123, 200]
        assert [int(torch.isnan(d.x[d.owner == k]).sum()) for k in range(4)] == [
            6,
            782,
            273,
            698,
        ]

    def test_fitted_columns(self, real_data) -> None:
        d = load_dataset("heart", real_data("heart"))
        train = torch.arange(0, 920, 2)
        x = d.fit(train)
        assert x.shape == (920, 26) and torch.isfinite(x).all()
        assert torch.equal(x[:, 13:].bool(), torch.isnan(d.x))
        for k in range(4):
            mine = x[train][d.owner[train] == k][:, :13]
            assert mine.mean(0).abs().max() < 1e-4
            deviation = mine.std(0, correction=0)
            assert (((deviation - 1).abs() < 1e-3) | (deviation < 1e-6)).all()

    def test_the_prepared_file_and_the_official_files_agree(
        self, real_data, tmp_path: Path
    ) -> None:
        prepared = load_dataset("heart", real_data("heart"))
        raw = np.load(real_data("heart") / "heart.npz")
        (tmp_path / "heart").mkdir()
        for k, hospital in enumerate(HOSPITALS):
            mine = raw["client"] == k
            lines = [
                ",".join("?" if np.isnan(v) else f"{v:g}" for v in row)
                + f",{2 * label}\n"
                for row, label in zip(raw["x"][mine], raw["y"][mine], strict=True)
            ]
            (tmp_path / "heart" / f"processed.{hospital}.data").write_text(
                "".join(lines)
            )
        official = load_dataset("heart", tmp_path)
        assert torch.equal(official.y, prepared.y) and torch.equal(
            official.owner, prepared.owner
        )
        assert torch.allclose(official.x, prepared.x, equal_nan=True)
