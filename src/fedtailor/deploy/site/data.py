"""What a site holds: its own data, read by its own loader, cut into parts as the run says or as they come."""

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
from fedtailor.experiment.config import Experiment

PARTS = ("train", "val", "test")
KINDS: dict[int, Kind] = {2: "table", 3: "signal", 4: "image"}


@dataclass(frozen=True)
class Holdings:
    """A site's samples and the parts they are cut into."""

    kind: Kind
    x: Tensor
    y: Tensor
    parts: tuple[Tensor, Tensor, Tensor]  # train, validation, test
    classes: int
    exact: bool  # whether the number of classes is known, or only the largest label
    labels: tuple[str, ...] = ()
    vocabulary: int = 0

    def facts(self) -> dict[str, Any]:
        """All that a run is told of them."""
        return {
            "kind": self.kind,
            "shape": list(self.x.shape[1:]),
            "dtype": str(self.x.dtype)[6:],
            "classes": self.classes,
            "exact": self.exact,
            "labels": list(self.labels),
            "vocabulary": self.vocabulary,
            "n": [len(p) for p in self.parts],
        }

    def federation(self, k: int, classes: int, labels: list[str]) -> Federation:
        """As client k sees them, in the run's numbers of classes; the other clients are not here."""
        y = self.y
        if self.labels and list(self.labels) != labels:
            y = torch.tensor([labels.index(name) for name in self.labels])[y]
        nothing = torch.zeros(0, dtype=torch.int64)
        train, val, test = ([nothing] * k + [part] for part in self.parts)
        return Federation(
            "site",
            self.kind,
            self.x,
            y,
            classes,
            train,
            val,
            test,
            labels=tuple(labels),
            vocabulary=self.vocabulary,
        )


@dataclass(frozen=True)
class Texts:
    """Texts that wait for the run's vocabulary."""

    tokens: list[list[str]]
    y: list[str]

    def dataset(self, words: list[str]) -> Dataset:
        """The texts in numbers of the run's words."""
        number = {word: i for i, word in enumerate(words, FIRST)}
        x = torch.full((len(self.tokens), LENGTH), PAD, dtype=torch.int64)
        for row, tokens in zip(x, self.tokens, strict=True):
            row[: len(tokens)] = torch.tensor(
                [number.get(token, UNKNOWN) for token in tokens], dtype=torch.int64
            )
        named = not all(label.isdecimal() for label in self.y)
        names = sorted(set(self.y)) if named else []
        y = torch.tensor([names.index(label) if named else int(label) for label in self.y])
        return Dataset(
            "texts",
            "text",
            x,
            y,
            int(y.max()) + 1,
            labels=tuple(names),
            vocabulary=len(words) + FIRST,
        )


Source = Holdings | Dataset | Texts


def load(data: str, folder: Path | None = None, missing: str | None = None) -> Source:
    """A site's data: an npz file that is cut already, a csv file of texts, or whatever ``fedtailor run`` takes."""
    path = Path(data).expanduser()
    if path.suffix == ".npz" and path.is_file():
        found = read_npz(path)
        if "x_train" in found:
            return _read_parts(found, path)
    if path.suffix == ".csv" and path.is_file():
        texts = _read_texts(path)
        if texts is not None:
            return texts
    return data_sets.load_dataset(data, folder, missing=missing)


def cut(source: Source, options: Experiment, words: list[str]) -> Holdings:
    """A site's data as a run uses them: its split, its validation share, its vocabulary."""
    if isinstance(source, Holdings):
        return source
    if isinstance(source, Texts):
        if not words:
            raise UserError(
                "this site holds texts, and the run brings no vocabulary: federate with --vocabulary"
            )
        source = source.dataset(words)
    whole = replace(source, owner=None, owners=())
    f = build_federation(
        whole,
        partition="iid",
        clients=1,
        split=options.split,
        validation=options.validation,
        seed=options.seed,
        stratify=options.stratify,
        batch=options.batch,
    )
    x = f.x if f.row is None else f.x[f.row]
    exact = source.name in {entry.name for entry in data_sets.list_datasets()} or bool(f.labels)
    return Holdings(
        f.kind, x, f.y, (f.train[0], f.val[0], f.test[0]), f.classes, exact, f.labels, f.vocabulary
    )


def _read_parts(found: dict[str, Any], path: Path) -> Holdings:
    for part in PARTS:
        for key in (f"x_{part}", f"y_{part}"):
            if key not in found:
                raise UserError(
                    f"{path} has x_train but no '{key}'; a file that is cut already has x and y of all parts"
                )
        if len(found[f"x_{part}"]) != len(found[f"y_{part}"]):
            raise UserError(f"{path}: x_{part} and y_{part} differ in length")
    x, y = (np.concatenate([found[f"{c}_{part}"] for part in PARTS]) for c in "xy")
    if y.dtype.kind not in "iu" or not len(found["y_train"]):
        raise UserError(
            f"{path}: labels are whole numbers, and there is at least one training sample"
        )
    if x.dtype.kind == "f":
        x = x.astype(np.float32)
        if not np.isfinite(x).all():
            raise UserError(f"{path}: x holds NaN or infinity")
    labels = tuple(str(label) for label in found["labels"].reshape(-1)) if "labels" in found else ()
    known = "classes" in found or bool(labels)
    classes = int(found["classes"]) if "classes" in found else len(labels) or int(y.max()) + 1
    if y.min() < 0 or y.max() >= classes:
        raise UserError(
            f"{path}: labels go from {y.min()} to {y.max()}, but there are {classes} classes"
        )
    kind = cast(Kind, str(found["kind"])) if "kind" in found else KINDS.get(x.ndim)
    if kind is None:
        raise UserError(f"{path}: x has {x.ndim} dimensions; images have 4, signals 3 and tables 2")
    ends = np.cumsum([len(found[f"y_{part}"]) for part in PARTS]).tolist()
    train, val, test = (torch.arange(a, b) for a, b in zip([0, *ends], ends, strict=False))
    vocabulary = int(found["vocabulary"]) if "vocabulary" in found else 0
    return Holdings(
        kind,
        torch.from_numpy(x),
        torch.from_numpy(y.astype(np.int64)),
        (train, val, test),
        classes,
        known,
        labels,
        vocabulary,
    )


def _read_texts(path: Path) -> Texts | None:
    """A csv file with the columns label and text, if it is one."""
    with path.open(newline="", encoding="utf-8") as file:
        rows = csv.reader(file)
        header = next(rows, [])
        if sorted(header) != ["label", "text"]:
            return None
        label, text = header.index("label"), header.index("text")
        found = [(row[label], tokenize(row[text])[:LENGTH]) for row in rows if len(row) == 2]
    if not found:
        raise UserError(f"{path} holds no texts")
    return Texts([tokens for _, tokens in found], [name for name, _ in found])


def export(federation: Federation, folder: Path) -> list[Path]:
    """Every client's parts as a file of its own, which ``fedtailor node --data`` takes as they are."""
    f, out = federation, list[Path]()
    folder.mkdir(parents=True, exist_ok=True)
    for k in range(f.clients):
        arrays: dict[str, Any] = {"classes": np.array(f.classes), "kind": np.array(f.kind)}
        for part, index in zip(PARTS, (f.train[k], f.val[k], f.test[k]), strict=True):
            arrays[f"x_{part}"] = f.x[index if f.row is None else f.row[index]].numpy()
            arrays[f"y_{part}"] = f.y[index].numpy()
        if f.labels:
            arrays["labels"] = np.array(f.labels)
        if f.vocabulary:
            arrays["vocabulary"] = np.array(f.vocabulary)
        out.append(folder / f"site-{k}.npz")
        np.savez_compressed(out[-1], **arrays)
    return out
