"""FLICKR-AES: ratings by workers, images stored once."""

from __future__ import annotations

from pathlib import Path

from data_helpers import refusal
from PIL import Image

from fedtailor.data import load_dataset
from fedtailor.data.sets.flickr_aes import Rating, choose_workers

RATINGS = "FLICKR-AES_image_labeled_by_each_worker.csv"
N = 70


def write_flickr(folder: Path) -> Path:
    """Two workers who rated the same 70 images, and one who rated too few."""
    home = folder / "flickr_aes"
    (home / "FLICKR-AES-001" / "40K").mkdir(parents=True)
    lines = ["worker, imagePair, score\n"]
    for i in range(N):
        Image.new("RGB", (40 + i % 3, 30), (i, 2 * i, 0)).save(
            home / "FLICKR-AES-001" / "40K" / f"farm1_{i:03}.jpg", quality=95
        )
        lines += [
            f"A2, farm1_{i:03}.jpg, {i % 5 + 1}\n",
            f"A1, farm1_{i:03}.jpg, {(i + 2) % 5 + 1}\n",
        ]
    lines += [f"A3, farm1_{i:03}.jpg, {i % 5 + 1}\n" for i in range(20)]
    (home / RATINGS).write_text("".join(lines))
    return home


def complaint(folder: Path) -> str:
    return refusal(load_dataset, "flickr_aes:64", folder)


def test_samples_are_ratings_and_images_are_shared(tmp_path: Path) -> None:
    write_flickr(tmp_path)
    d = load_dataset("flickr_aes:64", tmp_path)
    assert d.x.shape == (N, 3, 64, 64) and len(d) == 2 * N and d.classes == 5
    assert d.owners == ("A1", "A2") and d.owner is not None and d.row is not None
    mine = d.owner == 1
    assert d.row[mine].tolist() == list(range(N)) and d.y[mine].tolist() == [
        i % 5 for i in range(N)
    ]
    other = d.owner == 0
    assert d.row[other].tolist() == list(range(N)) and d.y[other].tolist() == [
        (i + 2) % 5 for i in range(N)
    ]
    assert abs(int(d.x[50, 1, 30, 30]) - 100) < 4


def test_the_default_size_is_224(tmp_path: Path) -> None:
    write_flickr(tmp_path)
    assert load_dataset("flickr_aes", tmp_path).x.shape == (N, 3, 224, 224)


def test_real_cur_is_an_external_set(tmp_path: Path) -> None:
    home = write_flickr(tmp_path)
    for album, score, n in (("album1", 1, 2), ("album1", 5, 1), ("album2", 3, 2)):
        (home / "REAL-CUR" / album / str(score)).mkdir(parents=True)
        for i in range(n):
            Image.new("RGB", (50, 80)).save(
                home / "REAL-CUR" / album / str(score) / f"{i}.png"
            )
    x, y = load_dataset("flickr_aes:64", tmp_path).external["real_cur"]
    assert x.shape == (5, 3, 64, 64) and y.tolist() == [0, 0, 4, 2, 2]


def test_which_workers_are_chosen() -> None:
    def rate(worker: str, counts: tuple[int, ...]) -> list[Rating]:
        return [
            Rating(worker, f"{s}_{i}", s)
            for s, n in enumerate(counts)
            for i in range(n)
        ]

    few, many = rate("few", (12, 12, 12, 12, 11)), rate("many", (59, 58, 58, 58, 58))
    rare, good = rate("rare", (3, 20, 20, 20, 20)), rate("good", (4, 14, 14, 14, 14))
    assert {r.worker for r in choose_workers(few + many + rare + good)} == {"good"}


def test_a_row_with_too_few_columns(tmp_path: Path) -> None:
    home = write_flickr(tmp_path)
    with (home / RATINGS).open("a") as f:
        f.write("A1, farm1_000.jpg\n")
    assert f"{home / RATINGS}, line 162: 2 columns instead of 3" in complaint(tmp_path)


def test_a_score_out_of_range(tmp_path: Path) -> None:
    home = write_flickr(tmp_path)
    with (home / RATINGS).open("a") as f:
        f.write("A1, farm1_000.jpg, 6\n")
    assert "line 162: score '6' is not one of 1, 2, 3, 4, 5" in complaint(tmp_path)


def test_an_archive_half_unpacked(tmp_path: Path) -> None:
    home = write_flickr(tmp_path)
    for i in range(30):
        (home / "FLICKR-AES-001" / "40K" / f"farm1_{i:03}.jpg").unlink()
    assert "lacks 30 of 70 rated images, farm1_000.jpg first" in complaint(tmp_path)


def test_where_it_comes_from_when_it_is_not_there(tmp_path: Path) -> None:
    text = complaint(tmp_path)
    assert "github.com/alanspike" in text and "40K" in text and "fetch" not in text
