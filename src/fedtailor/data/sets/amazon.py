"""Amazon product reviews: counts of words and pairs of words, from Blitzer's processed files."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.data.entry import Entry
from fedtailor.data.federation import Dataset
from fedtailor.data.labels import DOMAINS, SENTIMENT
from fedtailor.data.raw import Array, Raw, to_dataset
from fedtailor.data.readers.npz import read_npz, read_prepared

if TYPE_CHECKING:
    from scipy import sparse

WIDTH = 5000  # features kept


def read_reviews(path: Path) -> Iterator[tuple[list[tuple[str, int]], int]]:
    """Features with their counts, and the label, of every review: ``great_book:2 ... #label#:positive``."""
    with path.open(encoding="utf-8", errors="replace") as f:
        for i, line in enumerate(f, 1):
            *cells, mark = line.split() or [""]
            key, _, label = mark.partition(":")
            if key != "#label#" or label not in SENTIMENT:
                raise UserError(
                    f"{path}, line {i}: it ends with '{mark[:40]}', not #label#:positive or :negative"
                )
            features = []
            for cell in cells:
                feature, _, count = cell.rpartition(":")
                if not feature or not count.isdecimal():
                    raise UserError(f"{path}, line {i}: '{cell[:40]}' is not feature:count")
                features.append((feature, int(count)))
            yield features, SENTIMENT.index(label)


def parse_reviews(paths: Mapping[str, Path], entry: Entry) -> Raw:
    """All reviews with all their features, as a sparse matrix; ``amazon:all`` takes the third file of a domain too."""
    sorts = (
        ("negative", "positive", "unlabeled")
        if entry.variant == "all"
        else ("negative", "positive")
    )
    numbers: dict[str, int] = {}
    columns, counts, ends, y, owner = (
        array("i"),
        array("i"),
        array("q", [0]),
        array("q"),
        array("q"),
    )
    for k, domain in enumerate(DOMAINS):
        for sort in sorts:
            file = f"{domain}/{sort}.review"
            if file not in paths:
                raise UserError(
                    f"amazon:all needs {file} beside {paths[f'{domain}/positive.review']}"
                )
            for features, label in read_reviews(paths[file]):
                for feature, count in features:
                    columns.append(numbers.setdefault(feature, len(numbers)))
                    counts.append(count)
                ends.append(len(columns))
                y.append(label)
                owner.append(k)
    names = list(numbers)
    place = np.empty(len(names), np.int32)
    place[sorted(range(len(names)), key=names.__getitem__)] = np.arange(
        len(names)
    )  # alphabetical: says no frequency
    arrays: dict[str, Array] = {"columns": place[np.asarray(columns)], "counts": np.asarray(counts)}
    arrays |= {"ends": np.asarray(ends), "size": np.array([len(names)])}
    return Raw(arrays | {"y": np.asarray(y, np.int64), "owner": np.asarray(owner, np.int64)})


def read_amazon(path: Path, entry: Entry) -> Raw:
    """A prepared file, or the ``amazon.npz`` of the multi-source adaptation literature (first 5000 features)."""
    from scipy import sparse  # here, because no other data set needs it

    found = read_npz(path)
    if "xx_data" not in found:
        return read_prepared(path, entry)
    lacking = [k for k in ("xx_col", "xx_row", "xx_shape", "yy", "offset") if k not in found]
    if lacking:
        raise UserError(f"{path} has no '{lacking[0]}'; is it truncated?")
    shape = tuple(int(n) for n in found["xx_shape"].reshape(-1)[::-1])
    matrix = sparse.coo_matrix((found["xx_data"], (found["xx_col"], found["xx_row"])), shape=shape)
    offset = found["offset"].reshape(-1).astype(np.int64)
    if len(offset) != len(DOMAINS) + 1 or offset[-1] != shape[0]:
        raise UserError(f"{path}: 'offset' does not mark four domains in {shape[0]} reviews")
    x = matrix.tocsc()[:, :WIDTH].toarray().astype(np.float32)
    y = (found["yy"].reshape(-1).astype(np.int64) + 1) // 2  # -1 and 1 there
    return Raw({"x": x, "y": y, "owner": np.repeat(np.arange(len(DOMAINS)), np.diff(offset))})


def choose_features(raw: Raw, entry: Entry) -> Dataset:
    """The data set: the most widespread features of all reviews, until ``fit`` has seen which are for training."""
    from scipy import sparse

    if "x" in raw.arrays:
        return to_dataset(raw, entry)
    a = raw.arrays
    shape = (len(a["y"]), int(a["size"][0]))
    matrix = sparse.csr_matrix(
        (a["counts"].astype(np.float32), a["columns"], a["ends"]), shape=shape
    )
    everything = torch.arange(len(a["y"]))
    return to_dataset(
        raw, entry, x=fit_features(matrix, everything), fit=partial(fit_features, matrix)
    )


def fit_features(matrix: sparse.csr_matrix, train: Tensor) -> Tensor:
    """Counts of the 5000 features that the most training reviews have, in that order; ties are alphabetical.

    A column is left empty where the training reviews have fewer features than that.
    """
    spread = np.bincount(matrix[train.numpy()].indices, minlength=matrix.shape[1])
    order = np.argsort(-spread, kind="stable")[:WIDTH]
    kept = order[spread[order] > 0]
    out = np.zeros((matrix.shape[0], WIDTH), np.float32)
    out[:, : len(kept)] = matrix[:, kept].toarray()
    return torch.from_numpy(out)
