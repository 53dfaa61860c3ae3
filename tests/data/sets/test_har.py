"""UCI HAR from its official folder: real windows written as its text files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from data_helpers import refusal

from fedtailor.data import load_dataset
from fedtailor.data.sets.har import DEVIATION, MEAN, SIGNALS, find_segments


def write_folder(
    folder: Path, x: np.ndarray, y: np.ndarray, subject: np.ndarray, held_out: int
) -> Path:
    """x is (windows, 9, 128); windows of the subject ``held_out`` go to the test part."""
    home = folder / "har" / "UCI HAR Dataset"
    for part, rows in (("train", subject != held_out), ("test", subject == held_out)):
        (home / part / "Inertial Signals").mkdir(parents=True)
        for i, s in enumerate(SIGNALS):
            np.savetxt(
                home / part / "Inertial Signals" / f"{s}_{part}.txt",
                x[rows, i],
                fmt="% .7e",
            )
        np.savetxt(home / part / f"y_{part}.txt", y[rows] + 1, fmt="%d")
        np.savetxt(home / part / f"subject_{part}.txt", subject[rows], fmt="%d")
    return home


def windows() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Half-overlapping windows of three recordings by subjects 1, 1 and 3."""
    rng = np.random.default_rng(4)
    xs, ys, subjects = [], [], []
    for subject, activity, n in ((1, 0, 4), (1, 4, 3), (3, 0, 2)):
        stream = rng.normal(size=(9, 64 * (n + 1))).astype(np.float32)
        xs += [stream[:, 64 * i : 64 * i + 128] for i in range(n)]
        ys += [activity] * n
        subjects += [subject] * n
    return np.stack(xs), np.array(ys), np.array(subjects)


def complaint(folder: Path) -> str:
    return refusal(load_dataset, "har", folder)


def test_official_folder(tmp_path: Path) -> None:
    x, y, subject = windows()
    write_folder(tmp_path, x, y, subject, held_out=3)
    d = load_dataset("har", tmp_path)
    assert d.x.shape == (9, 9, 128) and np.allclose(
        d.x.numpy(), x, rtol=1e-6, atol=1e-7
    )
    assert d.y.tolist() == y.tolist() and d.test is None and d.kind == "signal"
    assert (
        d.owners == ("subject 1", "subject 3")
        and d.owner is not None
        and d.owner.tolist() == [0] * 7 + [1] * 2
    )
    assert d.segment is not None and d.segment.tolist() == [0] * 4 + [1] * 3 + [2] * 2


def test_a_gap_in_time_begins_a_new_segment() -> None:
    x, y, subject = windows()
    keep = [0, 1, 3, 4, 5, 6, 7, 8]  # the third window of the first recording is gone
    assert find_segments(x[keep], y[keep], subject[keep]).tolist() == [
        0,
        0,
        1,
        2,
        2,
        2,
        3,
        3,
    ]


def test_legacy_reshapes_where_it_should_transpose(tmp_path: Path) -> None:
    x, y, subject = windows()
    write_folder(tmp_path, x, y, subject, held_out=3)
    ordered, legacy = (
        load_dataset("har", tmp_path),
        load_dataset("har:legacy", tmp_path),
    )
    assert legacy.x.shape == ordered.x.shape and not torch.equal(legacy.x, ordered.x)
    time_first = ordered.x.transpose(1, 2).contiguous()  # (windows, 128, 9)
    assert torch.equal(legacy.x, time_first.view(-1, 9, 128))
    # all nine channels at time 0, in what should be channel 0
    assert torch.equal(legacy.x[0, 0, :9], ordered.x[0, :, 0])
    assert legacy.segment is not None and ordered.segment is not None
    assert torch.equal(legacy.segment, ordered.segment)


def test_standard_takes_every_channel_by_its_own_measure(tmp_path: Path) -> None:
    write_folder(tmp_path, *windows(), held_out=3)
    ordered, standard = (
        load_dataset("har", tmp_path),
        load_dataset("har:standard", tmp_path),
    )
    back = standard.x * torch.tensor(DEVIATION)[:, None] + torch.tensor(MEAN)[:, None]
    assert torch.allclose(back, ordered.x, atol=1e-5) and not torch.allclose(
        standard.x, ordered.x, atol=1e-2
    )


def test_a_line_with_too_few_numbers(tmp_path: Path) -> None:
    home = write_folder(tmp_path, *windows(), held_out=3)
    path = home / "train" / "Inertial Signals" / "body_gyro_y_train.txt"
    lines = path.read_text().splitlines()
    lines[2] = lines[2].rsplit(maxsplit=1)[0]
    path.write_text("\n".join(lines) + "\n")
    assert str(path) in complaint(tmp_path) and "row 3" in complaint(tmp_path)


def test_a_truncated_file(tmp_path: Path) -> None:
    home = write_folder(tmp_path, *windows(), held_out=3)
    path = home / "train" / "Inertial Signals" / "total_acc_z_train.txt"
    path.write_text("\n".join(path.read_text().splitlines()[:-1]) + "\n")
    assert f"{path} has 6 lines, y_train.txt 7; is it truncated?" in complaint(tmp_path)


def test_nan_in_a_signal(tmp_path: Path) -> None:
    x, y, subject = windows()
    x[5, 2, 17] = np.nan
    write_folder(tmp_path, x, y, subject, held_out=3)
    assert "sample 5, place 2, 17 is NaN" in complaint(tmp_path)


def test_an_activity_out_of_range(tmp_path: Path) -> None:
    x, y, subject = windows()
    write_folder(tmp_path, x, np.where(y == 4, 6, y), subject, held_out=3)
    assert "sample 4 has label 6, labels go from 0 to 5" in complaint(tmp_path)


class TestReal:
    def test_counts_of_uci(self, real_data) -> None:
        d = load_dataset("har", real_data("har"))
        assert (
            d.x.shape == (10_299, 9, 128)
            and d.owner.max() == 29
            and d.owners[29] == "subject 30"
        )
        assert d.y.bincount().tolist() == [1722, 1544, 1406, 1777, 1906, 1944]
        assert d.owner.bincount()[:3].tolist() == [347, 302, 341] and d.test is None

    def test_channels_and_time_are_in_order(self, real_data) -> None:
        """Total acceleration is body acceleration and gravity (1 g); signals are smooth in time."""
        d = load_dataset("har", real_data("har"))
        gravity = (d.x[:, 6:] - d.x[:, :3]).norm(dim=1)
        assert 0.9 < gravity.median() < 1.1

        def roughness(x: torch.Tensor) -> float:
            return (x.diff(dim=2).square().mean() / x.var()).item()

        assert (
            roughness(d.x)
            < 0.1
            < roughness(load_dataset("har:legacy", real_data("har")).x)
        )

    def test_standard_channels_are_of_one_size(self, real_data) -> None:
        plain, standard = (
            load_dataset("har", real_data("har")),
            load_dataset("har:standard", real_data("har")),
        )
        assert (
            standard.x.mean((0, 2)).abs().max() < 0.03
            and (standard.x.std((0, 2)) - 1).abs().max() < 0.05
        )
        # the same signals
        for one, other in zip(plain.x.unbind(1), standard.x.unbind(1), strict=True):
            assert (
                torch.corrcoef(torch.stack([one.flatten(), other.flatten()]))[0, 1]
                > 0.99999
            )
        assert torch.equal(plain.y, standard.y) and torch.equal(
            plain.segment, standard.segment
        )

    def test_segments_are_recordings(self, real_data) -> None:
        d = load_dataset("har", real_data("har"))
        same = d.segment[1:] == d.segment[:-1]
        overlap = (d.x[1:, :, :64] == d.x[:-1, :, 64:]).flatten(1).all(1)
        assert (overlap[same]).all() and d.segment.diff().min() >= 0
        assert (
            ((d.y[1:] == d.y[:-1])[same]).all()
            and ((d.owner[1:] == d.owner[:-1])[same]).all()
        )
        assert 300 < int(d.segment.max()) + 1 < 1000

    def test_the_official_folder_gives_what_the_prepared_file_gives(
        self, real_data, tmp_path: Path
    ) -> None:
        d = load_dataset("har", real_data("har"))
        some = (d.owner < 3).nonzero()[:, 0]
        write_folder(
            tmp_path,
            d.x[some].numpy(),
            d.y[some].numpy(),
            d.owner[some].numpy() + 1,
            held_out=2,
        )
        again = load_dataset("har", tmp_path)
        order = torch.cat([some[d.owner[some] != 1], some[d.owner[some] == 1]])
        assert torch.equal(again.y, d.y[order]) and torch.equal(
            again.owner, d.owner[order]
        )
        assert torch.allclose(again.x, d.x[order], rtol=1e-6, atol=1e-8)
