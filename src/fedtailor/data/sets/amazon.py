"""Amazon product reviews: counts of words and pairs of words, from Blitzer's processed files."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data.entry import Download, Entry
from fedtailor.data.federation import Dataset
from fedtailor.data.loader import Loader
from fedtailor.data.raw import Array, Raw, to_dataset
from fedtailor.data.readers.npz import read_npz, read_prepared

if TYPE_CHECKING:
    from scipy import sparse

WIDTH = 5000  # features kept
DOMAINS = ("books", "dvd", "electronics", "kitchen")
SENTIMENTS = ("negative", "positive")

AMAZON = Entry(
    name="amazon",
    title=(
        "Amazon product reviews of four domains, "
        "counts of the 5000 most widespread words and pairs of words"
    ),
    kind="table",
    shape=(WIDTH,),
    classes=2,
    samples=8_000,
    source="Blitzer, Dredze, Pereira, ACL 2007",
    homepage="https://www.cs.jhu.edu/~mdredze/datasets/sentiment",
    licence="none stated; academic use, cite the paper",
    files=tuple(f"{domain}/{kind}.review" for domain in DOMAINS for kind in SENTIMENTS),
    optional_files=tuple(f"{domain}/unlabeled.review" for domain in DOMAINS),
    archive_folders=("processed_acl",),
    downloads=(
        Download(
            file="processed_acl.tar.gz",
            urls=(
                "https://www.cs.jhu.edu/~mdredze/datasets/sentiment/processed_acl.tar.gz",
            ),
        ),
    ),
    natural_clients="4 domains",
    labels=SENTIMENTS,
    owners=DOMAINS,
    variants=("labelled", "all"),
    separate_files=True,
    overrides={"all": {"samples": 27_677}},
)

Feature = tuple[str, int]  # a word or pair of words, and how often a review has it


@dataclass
class Reviews:
    """All reviews, as the rows of a sparse matrix that grows."""

    # of the features, as they appear
    numbers: dict[str, int] = field(default_factory=dict)
    columns: array[int] = field(default_factory=lambda: array("i"))
    counts: array[int] = field(default_factory=lambda: array("i"))
    ends: array[int] = field(default_factory=lambda: array("q", [0]))  # of the rows
    y: array[int] = field(default_factory=lambda: array("q"))
    owner: array[int] = field(default_factory=lambda: array("q"))

    def add(self, features: list[Feature], label: int, owner: int) -> None:
        """Add one review."""
        for feature, count in features:
            number = self.numbers.setdefault(feature, len(self.numbers))
            self.columns.append(number)
            self.counts.append(count)
        self.ends.append(len(self.columns))
        self.y.append(label)
        self.owner.append(owner)

    def to_raw(self) -> Raw:
        """The matrix with its columns in alphabetical order, which tells no frequency."""
        names = list(self.numbers)
        order = sorted(range(len(names)), key=names.__getitem__)
        new_number = np.empty(len(names), np.int32)
        new_number[order] = np.arange(len(names))
        arrays: dict[str, Array] = {
            "columns": new_number[np.asarray(self.columns)],
            "counts": np.asarray(self.counts),
            "ends": np.asarray(self.ends),
            "size": np.array([len(names)]),
            "y": np.asarray(self.y, np.int64),
            "owner": np.asarray(self.owner, np.int64),
        }
        return Raw(arrays)


def parse_reviews(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """All reviews with all their features.

    ``amazon:all`` takes the third file of every domain too, whose reviews have labels after all.
    """
    kinds: tuple[str, ...] = SENTIMENTS
    if entry.variant == "all":
        kinds = (*SENTIMENTS, "unlabeled")
    reviews = Reviews()
    for owner, domain in enumerate(DOMAINS):
        for kind in kinds:
            file = f"{domain}/{kind}.review"
            if file not in paths:
                beside = paths[f"{domain}/positive.review"]
                raise UserError(f"amazon:all needs {file} beside {beside}")
            for features, label in read_reviews(paths[file]):
                reviews.add(features, label, owner)
    return reviews.to_raw()


def read_reviews(path: Path) -> Iterator[tuple[list[Feature], int]]:
    """The features and the label of every review: ``great_book:2 ... #label#:positive``."""
    with path.open(encoding="utf-8", errors="replace") as file:
        for i, line in enumerate(file, 1):
            where = f"{path}, line {i}"
            *cells, last = line.split() or [""]
            key, _, label = last.partition(":")
            if key != "#label#" or label not in SENTIMENTS:
                raise UserError(
                    f"{where}: it ends with '{last[:40]}', not #label#:positive or :negative"
                )
            features = [_read_feature(cell, where) for cell in cells]
            yield features, SENTIMENTS.index(label)


def _read_feature(cell: str, where: str) -> Feature:
    name, _, count = cell.rpartition(":")
    if not name or not count.isdecimal():
        raise UserError(f"{where}: '{cell[:40]}' is not feature:count")
    return name, int(count)


def read_amazon(path: Path, entry: Entry) -> Raw:
    """A prepared file, or the ``amazon.npz`` of the multi-source adaptation literature.

    Of the latter the first 5000 features are taken.
    """
    from scipy import sparse  # here, because no other data set needs it

    found = read_npz(path)
    if "xx_data" not in found:
        return read_prepared(path, entry)
    for key in ("xx_col", "xx_row", "xx_shape", "yy", "offset"):
        if key not in found:
            raise UserError(f"{path} has no '{key}'; is it truncated?")
    # the matrix is stored feature by review there
    shape = tuple(int(n) for n in found["xx_shape"].reshape(-1)[::-1])
    indices = (found["xx_col"], found["xx_row"])
    matrix = sparse.coo_matrix((found["xx_data"], indices), shape=shape)
    offset = found["offset"].reshape(-1).astype(np.int64)
    if len(offset) != len(DOMAINS) + 1 or offset[-1] != shape[0]:
        raise UserError(
            f"{path}: 'offset' does not mark four domains in {shape[0]} reviews"
        )
    signs = found["yy"].reshape(-1).astype(np.int64)  # -1 and 1
    arrays: dict[str, Array] = {
        "x": matrix.tocsc()[:, :WIDTH].toarray().astype(np.float32),
        "y": (signs + 1) // 2,
        "owner": np.repeat(np.arange(len(DOMAINS)), np.diff(offset)),
    }
    return Raw(arrays)


def choose_features(raw: Raw, entry: Entry) -> Dataset:
    """The data set: the most widespread features of all reviews until ``fit`` chooses them.

    ``fit`` knows which reviews are for training and looks at these alone.
    """
    from scipy import sparse

    arrays = raw.arrays
    if "x" in arrays:
        return to_dataset(raw, entry)
    samples = len(arrays["y"])
    counts = arrays["counts"].astype(np.float32)
    matrix = sparse.csr_matrix(
        (counts, arrays["columns"], arrays["ends"]),
        shape=(samples, int(arrays["size"][0])),
    )
    x = fit_features(matrix, torch.arange(samples))
    return replace(to_dataset(raw, entry, x), fit=partial(fit_features, matrix))


def fit_features(matrix: sparse.csr_matrix, train: Tensor) -> Tensor:
    """Counts of the 5000 features that the most training reviews have, in that order.

    Ties are in alphabetical order. Columns stay empty where the training reviews have fewer
    features than that.
    """
    reviews, features = matrix.shape
    spread = np.bincount(matrix[train.numpy()].indices, minlength=features)
    order = np.argsort(-spread, kind="stable")[:WIDTH]
    kept = order[spread[order] > 0]
    x = np.zeros((reviews, WIDTH), np.float32)
    x[:, : len(kept)] = matrix[:, kept].toarray()
    return torch.from_numpy(x)


LOADERS = (Loader(AMAZON, parse_reviews, read_amazon, choose_features),)
