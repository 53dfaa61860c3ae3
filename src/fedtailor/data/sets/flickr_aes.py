"""FLICKR-AES: photographs, and the scores that single workers gave them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.entry import Entry
from fedtailor.data.loader import Loader
from fedtailor.data.raw import Array, Raw
from fedtailor.data.readers.images import list_folders, list_images, stack_images
from fedtailor.data.readers.text_lines import read_csv_rows

IMAGES = "40K"
RATINGS = "FLICKR-AES_image_labeled_by_each_worker.csv"
COLUMNS = ["worker", "imagePair", "score"]
SCORES = ("1", "2", "3", "4", "5")
# FedPer's selection of workers: so many images, and at least so many of every score
FEWEST_IMAGES = 60
MOST_IMAGES = 290
LEAST_OF_EACH_SCORE = 4
LOST_SHARE = 0.01  # of the rated images, which may be missing

FLICKR_AES = Entry(
    name="flickr_aes",
    title=(
        "FLICKR-AES, photographs rated 1 to 5 by single workers; REAL-CUR albums as an external set"
    ),
    kind="image",
    shape=(3, 224, 224),
    classes=5,
    samples=0,
    source="Ren, Shen, Lin, Mech, Foran, ICCV 2017",
    homepage="https://github.com/alanspike/personalizedImageAesthetics",
    licence="Creative Commons photographs; research",
    files=(IMAGES, RATINGS),
    optional_files=("REAL-CUR",),
    archive_folders=("FLICKR-AES-001", "FLICKR-AES"),
    natural_clients="workers with 60 to 290 images, at least 4 of every score",
    labels=SCORES,
    variants=("224", "64"),
    separate_files=True,
    overrides={"64": {"shape": (3, 64, 64)}},
)


class Rating(NamedTuple):
    """One worker's score of one image, 0 to 4."""

    worker: str
    image: str
    score: int


def parse_flickr_aes(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """Samples are ratings, owners the chosen workers.

    An image that several workers rated is stored once.
    """
    folder = paths[IMAGES]
    ratings = choose_workers(_drop_lost_images(read_ratings(paths[RATINGS]), folder))
    if not ratings:
        raise UserError(
            f"{paths[RATINGS]}: no worker rated {FEWEST_IMAGES} to {MOST_IMAGES} images "
            f"with at least {LEAST_OF_EACH_SCORE} of every score"
        )
    images = sorted({rating.image for rating in ratings})
    workers = sorted({rating.worker for rating in ratings})
    row = {image: i for i, image in enumerate(images)}
    owner = {worker: i for i, worker in enumerate(workers)}
    files = [folder / image for image in images]
    arrays = {
        "x": stack_images(files, entry.shape, resize=entry.shape[1]),
        "y": np.array([rating.score for rating in ratings]),
        "row": np.array([row[rating.image] for rating in ratings]),
        "owner": np.array([owner[rating.worker] for rating in ratings]),
    }
    if "REAL-CUR" in paths:
        x, y = _read_albums(paths["REAL-CUR"], entry)
        arrays |= {"real_cur.x": x, "real_cur.y": y}
    return Raw(arrays, owners=tuple(workers))


def read_ratings(path: Path) -> list[Rating]:
    """The official table: worker, imagePair, score."""
    rows = read_csv_rows(path)
    _, first = next(rows, ("", []))
    header = [cell.strip() for cell in first]
    if header != COLUMNS:
        found = ", ".join(header)[:80]
        raise UserError(
            f"{path}, line 1: the columns are '{found}', not worker, imagePair, score"
        )
    ratings = []
    for where, cells in rows:
        if len(cells) != 3:
            raise UserError(f"{where}: {len(cells)} columns instead of 3")
        worker, image, score = (cell.strip() for cell in cells)
        if score not in SCORES:
            raise UserError(
                f"{where}: score '{score}' is not one of {', '.join(SCORES)}"
            )
        ratings.append(Rating(worker, image, SCORES.index(score)))
    return ratings


def choose_workers(ratings: list[Rating]) -> list[Rating]:
    """The ratings of workers with 60 to 290 images and at least 4 of every score."""
    counts: dict[str, Counter[int]] = defaultdict(Counter)
    for rating in ratings:
        counts[rating.worker][rating.score] += 1
    chosen = {worker for worker in counts if _is_suitable(counts[worker])}
    return [rating for rating in ratings if rating.worker in chosen]


def _is_suitable(counts: Counter[int]) -> bool:
    """Whether a worker gave enough of every score, and neither too few nor too many in all."""
    if not FEWEST_IMAGES <= counts.total() <= MOST_IMAGES:
        return False
    return all(counts[score] >= LEAST_OF_EACH_SCORE for score in range(len(SCORES)))


def _drop_lost_images(ratings: list[Rating], folder: Path) -> list[Rating]:
    """The ratings whose image is there.

    If more than a few images are missing, the folder is not complete and refused.
    """
    present = {path.name for path in folder.iterdir()}
    rated = {rating.image for rating in ratings}
    lost = sorted(rated - present)
    if len(lost) > LOST_SHARE * len(rated):
        raise UserError(
            f"{folder} lacks {len(lost)} of {len(rated)} rated images, {lost[0]} first; "
            "unpack it again"
        )
    return [rating for rating in ratings if rating.image in present]


def _read_albums(folder: Path, entry: Entry) -> tuple[Array, Array]:
    """REAL-CUR: a folder for every album, with folders for the scores, named 1 to 5."""
    files: list[Path] = []
    y: list[int] = []
    for album in list_folders(folder):
        for rated in list_folders(album):
            if rated.name not in SCORES:
                scores = ", ".join(SCORES)
                raise UserError(
                    f"{rated}: an album's folders are scores, one of {scores}"
                )
            images = list_images(rated)
            files += images
            y += [SCORES.index(rated.name)] * len(images)
    if not files:
        raise UserError(f"{folder} holds no <album>/<score>/ pictures")
    return stack_images(files, entry.shape, resize=entry.shape[1]), np.array(y)


LOADERS = (Loader(FLICKR_AES, parse_flickr_aes),)
