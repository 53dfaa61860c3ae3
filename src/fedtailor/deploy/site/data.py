"""A site's own data: loaded by the site, split by the run's rules or as the file says."""

from __future__ import annotations

import csv
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from fedtailor import data as data_sets
from fedtailor.core.errors import UserError
from fedtailor.data.federation import Dataset, Federation, Kind
from fedtailor.data.partition.build import build_federation
from fedtailor.data.readers.npz import read_npz
from fedtailor.data.sets.ag_news import FIRST, LENGTH, PAD, UNKNOWN, tokenize
from fedtailor.deploy.data_facts import SiteFacts, name_dtype
from fedtailor.experiment.config import Experiment

SPLITS = ("train", "val", "test")
KINDS: dict[int, Kind] = {2: "table", 3: "signal", 4: "image"}  # by dimensions of x


@dataclass(frozen=True)
class SiteData:
    """A site's samples, split into those to train, validate and test."""

    kind: Kind
    x: Tensor
    y: Tensor
    # indices of the samples to train, validate and test
    splits: tuple[Tensor, Tensor, Tensor]
    classes: int
    exact: bool  # whether the number of classes is known, or only the largest label
    labels: tuple[str, ...] = ()
    vocabulary: int = 0

    def facts(self) -> SiteFacts:
        """All that a run is told of the data."""
        train, val, test = self.splits
        return SiteFacts(
            kind=self.kind,
            shape=tuple(self.x.shape[1:]),
            dtype=name_dtype(self.x),
            classes=self.classes,
            exact=self.exact,
            labels=self.labels,
            vocabulary=self.vocabulary,
            n=(len(train), len(val), len(test)),
        )

    def to_federation(
        self, k: int, classes: int, labels: tuple[str, ...]
    ) -> Federation:
        """The data as those of client k, with the run's numbers of classes.

        The clients before k have no samples, because their data are not here.
        """
        y = self.y
        if self.labels and self.labels != labels:
            y = torch.tensor([labels.index(name) for name in self.labels])[y]
        train, val, test = self.splits
        others = [torch.zeros(0, dtype=torch.int64)] * k
        return Federation(
            name="site",
            kind=self.kind,
            x=self.x,
            y=y,
            classes=classes,
            train=[*others, train],
            val=[*others, val],
            test=[*others, test],
            labels=labels,
            vocabulary=self.vocabulary,
        )


@dataclass(frozen=True)
class Texts:
    """Texts that become numbers once the run's vocabulary is known."""

    tokens: list[list[str]]
    y: list[str]

    def encode_with(self, words: list[str]) -> Dataset:
        """The texts as numbers of the run's words."""
        number = {word: i for i, word in enumerate(words, FIRST)}
        x = torch.full((len(self.tokens), LENGTH), PAD, dtype=torch.int64)
        for row, tokens in zip(x, self.tokens, strict=True):
            numbers = [number.get(token, UNKNOWN) for token in tokens]
            row[: len(tokens)] = torch.tensor(numbers, dtype=torch.int64)
        y, names = self._number_labels()
        return Dataset(
            name="texts",
            kind="text",
            x=x,
            y=y,
            classes=int(y.max()) + 1,
            labels=names,
            vocabulary=len(words) + FIRST,
        )

    def _number_labels(self) -> tuple[Tensor, tuple[str, ...]]:
        """Labels as numbers, and their names unless they are numbers already."""
        if all(label.isdecimal() for label in self.y):
            return torch.tensor([int(label) for label in self.y]), ()
        names = sorted(set(self.y))
        return torch.tensor([names.index(label) for label in self.y]), tuple(names)


Source = SiteData | Dataset | Texts


# -------------------------------------------------------------------- loading
def load_source(
    data: str, folder: Path | None = None, missing: str | None = None
) -> Source:
    """Load a site's data.

    They are an npz file that is split already, a csv file of texts, or anything that
    ``fedtailor run --data`` takes.
    """
    path = Path(data).expanduser()
    if path.suffix == ".npz" and path.is_file():
        arrays = read_npz(path)
        if "x_train" in arrays:
            return read_split_arrays(arrays, path)
    if path.suffix == ".csv" and path.is_file():
        texts = read_texts(path)
        if texts is not None:
            return texts
    return data_sets.load_dataset(data, folder, missing=missing)


def read_split_arrays(arrays: dict[str, Any], path: Path) -> SiteData:
    """The data of an npz file that is split already."""
    check_split_arrays(arrays, path)
    x = np.concatenate([arrays[f"x_{split}"] for split in SPLITS])
    y = np.concatenate([arrays[f"y_{split}"] for split in SPLITS])
    if y.dtype.kind not in "iu" or not len(arrays["y_train"]):
        raise UserError(
            f"{path}: labels are whole numbers, and there is at least one training sample"
        )
    if x.dtype.kind == "f":
        x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise UserError(f"{path}: x holds NaN or infinity")
    labels: tuple[str, ...] = ()
    if "labels" in arrays:
        labels = tuple(str(label) for label in arrays["labels"].reshape(-1))
    classes = read_classes(arrays, labels, y, path)
    kind = read_kind(arrays, x.ndim, path)
    return SiteData(
        kind=kind,
        x=torch.from_numpy(x),
        y=torch.from_numpy(y.astype(np.int64)),
        splits=index_splits(arrays),
        classes=classes,
        exact="classes" in arrays or bool(labels),
        labels=labels,
        vocabulary=int(arrays.get("vocabulary", 0)),
    )


def check_split_arrays(arrays: dict[str, Any], path: Path) -> None:
    """Refuse a file that has not x and y of all splits."""
    for split in SPLITS:
        for key in (f"x_{split}", f"y_{split}"):
            if key not in arrays:
                raise UserError(
                    f"{path} has x_train but no '{key}'; "
                    "a file that is split already has x and y of train, val and test"
                )
        if len(arrays[f"x_{split}"]) != len(arrays[f"y_{split}"]):
            raise UserError(f"{path}: x_{split} and y_{split} differ in length")


def read_classes(
    arrays: dict[str, Any], labels: tuple[str, ...], y: np.ndarray[Any, Any], path: Path
) -> int:
    """The number of classes that an npz file says, else that of its labels."""
    found = len(labels) or int(y.max()) + 1
    classes = int(arrays.get("classes", found))
    if y.min() < 0 or y.max() >= classes:
        raise UserError(
            f"{path}: labels go from {y.min()} to {y.max()}, but there are {classes} classes"
        )
    return classes


def read_kind(arrays: dict[str, Any], dimensions: int, path: Path) -> Kind:
    """The kind of data that an npz file says or shows."""
    if "kind" in arrays:
        return cast(Kind, str(arrays["kind"]))
    if dimensions not in KINDS:
        raise UserError(
            f"{path}: x has {dimensions} dimensions; images have 4, signals 3 and tables 2"
        )
    return KINDS[dimensions]


def index_splits(arrays: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
    """Indices of each split's samples, where all are joined in the order of ``SPLITS``."""
    train = len(arrays["y_train"])
    val = train + len(arrays["y_val"])
    test = val + len(arrays["y_test"])
    return torch.arange(train), torch.arange(train, val), torch.arange(val, test)


def read_texts(path: Path) -> Texts | None:
    """The texts of a csv file with the columns label and text, or None if it has others."""
    tokens: list[list[str]] = []
    labels: list[str] = []
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        header = next(rows, [])
        if sorted(header) != ["label", "text"]:
            return None
        label = header.index("label")
        text = header.index("text")
        for row in rows:
            if len(row) == 2:
                labels.append(row[label])
                tokens.append(tokenize(row[text])[:LENGTH])
    if not labels:
        raise UserError(f"{path} holds no texts")
    return Texts(tokens, labels)


# -------------------------------------------------------------------- splitting
def split_data(source: Source, options: Experiment, words: list[str]) -> SiteData:
    """A site's data as a run uses them: its split, its validation share, its vocabulary."""
    if isinstance(source, SiteData):
        return source
    if isinstance(source, Texts):
        if not words:
            raise UserError(
                "this site holds texts, and the run brings no vocabulary: "
                "federate with --vocabulary"
            )
        source = source.encode_with(words)
    federation = build_federation(
        replace(source, owner=None, owners=()),
        partition="iid",
        clients=1,
        split=options.split,
        validation=options.validation,
        seed=options.seed,
        stratify=options.stratify,
        batch=options.batch,
    )
    x = federation.x
    if federation.row is not None:
        x = x[federation.row]
    built_in = {entry.name for entry in data_sets.list_datasets()}
    return SiteData(
        kind=federation.kind,
        x=x,
        y=federation.y,
        splits=(federation.train[0], federation.val[0], federation.test[0]),
        classes=federation.classes,
        exact=source.name in built_in or bool(federation.labels),
        labels=federation.labels,
        vocabulary=federation.vocabulary,
    )


# -------------------------------------------------------------------- exporting
def export_clients(federation: Federation, folder: Path) -> list[Path]:
    """Write each client's data to a file that ``fedtailor node --data`` takes as it is."""
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for k in range(federation.clients):
        path = folder / f"site-{k}.npz"
        np.savez_compressed(path, **collect_arrays(federation, k))
        files.append(path)
    return files


def collect_arrays(federation: Federation, k: int) -> dict[str, Any]:
    """The arrays of client k's file."""
    arrays: dict[str, Any] = {
        "classes": np.array(federation.classes),
        "kind": np.array(federation.kind),
    }
    indices = (federation.train[k], federation.val[k], federation.test[k])
    for split, index in zip(SPLITS, indices, strict=True):
        rows = index if federation.row is None else federation.row[index]
        arrays[f"x_{split}"] = federation.x[rows].numpy()
        arrays[f"y_{split}"] = federation.y[index].numpy()
    if federation.labels:
        arrays["labels"] = np.array(federation.labels)
    if federation.vocabulary:
        arrays["vocabulary"] = np.array(federation.vocabulary)
    return arrays
