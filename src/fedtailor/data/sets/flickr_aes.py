"""FLICKR-AES: photographs, and what single workers think of them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

from fedtailor.core.errors import UserError
from fedtailor.data.entry import Entry
from fedtailor.data.labels import SCORES
from fedtailor.data.raw import Array, Raw
from fedtailor.data.readers.images import list_folders, list_pictures, stack_pictures
from fedtailor.data.readers.text_lines import read_cells

RATINGS = "FLICKR-AES_image_labeled_by_each_worker.csv"
FEWEST, MOST, EACH = (
    60,
    290,
    4,
)  # images of a worker, and at least so many of every score (FedPer's selection)
LOST = 0.01  # share of rated images that may be missing


class Rating(NamedTuple):
    """One worker's score of one image, 0 to 4."""

    worker: str
    image: str
    score: int


def parse_flickr_aes(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """Samples are ratings; an image several workers rated is stored once. Owners are the chosen workers."""
    size = entry.shape[1]
    ratings = choose_workers(_with_images(read_ratings(paths[RATINGS]), paths["40K"]))
    if not ratings:
        raise UserError(
            f"{paths[RATINGS]}: no worker rated {FEWEST} to {MOST} images with at least {EACH} of every score"
        )
    images = sorted({r.image for r in ratings})
    workers = sorted({r.worker for r in ratings})
    row, owner = ({name: i for i, name in enumerate(names)} for names in (images, workers))
    arrays = {
        "x": stack_pictures([paths["40K"] / i for i in images], entry.shape, resize=size),
        "y": np.array([r.score for r in ratings]),
        "row": np.array([row[r.image] for r in ratings]),
        "owner": np.array([owner[r.worker] for r in ratings]),
    }
    if "REAL-CUR" in paths:
        arrays["real_cur.x"], arrays["real_cur.y"] = _read_albums(paths["REAL-CUR"], entry)
    return Raw(arrays, owners=tuple(workers))


def read_ratings(path: Path) -> list[Rating]:
    """The official table: worker, imagePair, score."""
    ratings = []
    rows = read_cells(path)
    head = [cell.strip() for cell in next(rows, ("", []))[1]]
    if head != ["worker", "imagePair", "score"]:
        raise UserError(
            f"{path}, line 1: the columns are '{', '.join(head)[:80]}', not worker, imagePair, score"
        )
    for where, cells in rows:
        if len(cells) != 3:
            raise UserError(f"{where}: {len(cells)} columns instead of 3")
        worker, image, score = (cell.strip() for cell in cells)
        if score not in SCORES:
            raise UserError(f"{where}: score '{score}' is not one of {', '.join(SCORES)}")
        ratings.append(Rating(worker, image, SCORES.index(score)))
    return ratings


def choose_workers(ratings: list[Rating]) -> list[Rating]:
    """The ratings of workers with 60 to 290 images and at least 4 of every score."""
    scores: dict[str, Counter[int]] = defaultdict(Counter)
    for r in ratings:
        scores[r.worker][r.score] += 1
    chosen = {
        worker
        for worker, counts in scores.items()
        if FEWEST <= counts.total() <= MOST and all(counts[s] >= EACH for s in range(len(SCORES)))
    }
    return [r for r in ratings if r.worker in chosen]


def _with_images(ratings: list[Rating], folder: Path) -> list[Rating]:
    """The ratings whose image is there; a few lost ones are let pass, more mean that the folder is not whole."""
    there = {p.name for p in folder.iterdir()}
    rated = {r.image for r in ratings}
    lost = sorted(rated - there)
    if len(lost) > LOST * len(rated):
        raise UserError(
            f"{folder} lacks {len(lost)} of {len(rated)} rated images, {lost[0]} first; unpack it again"
        )
    return [r for r in ratings if r.image in there]


def _read_albums(folder: Path, entry: Entry) -> tuple[Array, Array]:
    """REAL-CUR: one folder an album, in it one folder a score, named 1 to 5."""
    files: list[Path] = []
    y: list[int] = []
    for album in list_folders(folder):
        for rated in list_folders(album):
            if rated.name not in SCORES:
                raise UserError(
                    f"{rated}: an album's folders are scores, one of {', '.join(SCORES)}"
                )
            pictures = list_pictures(rated)
            files += pictures
            y += [SCORES.index(rated.name)] * len(pictures)
    if not files:
        raise UserError(f"{folder} holds no <album>/<score>/ pictures")
    return stack_pictures(files, entry.shape, resize=entry.shape[1]), np.array(y)
