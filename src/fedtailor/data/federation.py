"""A data set, and the same data set divided among clients."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, TypeAlias

import torch
from torch import Tensor

Kind = Literal["image", "signal", "table", "text"]
# what a target is: a class, a number, a rating, several labels, or a time and an event
TARGET_KINDS = ("classes", "number", "labels", "survival")
TargetKind = Literal["classes", "number", "labels", "survival"]
Settings: TypeAlias = dict[str, str | int | float | None]


@dataclass(frozen=True)
class TableFill:
    """What further rows of one client's table are filled in with: numbers of every column."""

    medians: tuple[float, ...]
    means: tuple[float, ...]
    deviations: tuple[float, ...]

    def apply(self, x: Tensor) -> Tensor:
        """The filled table and the columns that mark gaps, as the model was trained on."""
        is_missing = torch.isnan(x)
        filled = torch.where(is_missing, torch.tensor(self.medians), x)
        scaled = (filled - torch.tensor(self.means)) / torch.tensor(self.deviations)
        return torch.cat([scaled, is_missing.to(x.dtype)], 1)

    def to_dict(self) -> dict[str, list[float]]:
        """As JSON has it."""
        return {name: list(values) for name, values in vars(self).items()}

    @staticmethod
    def from_dict(values: Mapping[str, Any]) -> TableFill:
        """What ``to_dict`` wrote."""
        return TableFill(**{name: tuple(column) for name, column in values.items()})


@dataclass(frozen=True)
class Dataset:
    """A whole data set in memory, not yet divided. Sample i is ``(x[row[i]], y[i])``."""

    name: str
    kind: Kind
    # uint8 images (M, C, H, W), float32 signals (M, 9, 128) or features (M, D), int64 tokens (M, L)
    x: Tensor
    # classes: int64 (N,). Other targets are float32: numbers (N,), labels that are there or not
    # (N, L), times and events (N, 2)
    y: Tensor
    classes: int  # of labels (N, L), their number; of numbers and times 1
    test: Tensor | None = None  # bool (N,): the official test part
    owner: Tensor | None = None  # int64 (N,): the natural client, 0..K-1
    # int64 (N,): the uninterrupted recording that a window was cut from, in time order
    segment: Tensor | None = None
    # int64 (N,): row of x, where several samples share one (one image, several raters)
    row: Tensor | None = None
    labels: tuple[str, ...] = ()  # names of the classes
    owners: tuple[str, ...] = ()  # names of the natural clients
    vocabulary: int = 0  # size of the vocabulary, for text
    # x as it follows from the training samples alone: a vocabulary, medians for missing values
    fit: Callable[[Tensor], Tensor] | None = None
    columns: tuple[str, ...] = ()  # names of a table's columns, before ``fit``
    words: tuple[str, ...] = ()  # of texts, in the order of their numbers
    # what further rows are filled in with, from every client's training samples
    find_fills: Callable[[Sequence[Tensor]], list[TableFill | None]] | None = None
    # x and y of samples that no client owns
    external: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    target: TargetKind = "classes"

    def __len__(self) -> int:
        return len(self.y)


@dataclass(frozen=True)
class Federation:
    """A data set divided among clients: one copy of the data, and index vectors."""

    name: str
    kind: Kind
    x: Tensor
    y: Tensor
    classes: int
    train: list[Tensor]  # one index vector (into y) a client
    val: list[Tensor]
    test: list[Tensor]
    common: Tensor | None = None  # the whole official test set (G-Test)
    row: Tensor | None = None
    labels: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    vocabulary: int = 0
    columns: tuple[str, ...] = ()  # names of a table's columns in a file
    words: tuple[str, ...] = ()  # of texts, in the order of their numbers
    # what further rows of every client are filled in with; empty where nothing is
    fills: Sequence[TableFill | None] = ()
    external: dict[str, tuple[Tensor, Tensor]] = field(default_factory=dict)
    # how it was divided: partition, split, seed
    settings: Settings = field(default_factory=dict)
    target: TargetKind = "classes"

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return len(self.train)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.x.shape[1:])

    def name_client(self, k: int) -> str:
        """Client k for people: its number, and its name if it has one that says more."""
        name = self.find_name(k)
        return f"client {k} ('{name}')" if name else f"client {k}"

    def find_name(self, k: int) -> str:
        """The name of client k; empty if it has none beside its number."""
        name = self.owners[k] if k < len(self.owners) else ""
        return "" if name == str(k) else name

    @property
    def hash(self) -> str:
        """A digest of who has which samples, with which labels and which feature skew."""
        digest = hashlib.sha256()
        vectors = [*self.train, *self.val, *self.test]
        if self.common is not None:
            vectors.append(self.common)
        for indices in vectors:
            digest.update(len(indices).to_bytes(8, "little"))
            digest.update(indices.contiguous().numpy().tobytes())
        digest.update(self.y.contiguous().numpy().tobytes())
        skew = self.settings.get("skew")
        if skew:
            digest.update(f"{skew} seed {self.settings.get('seed')}".encode())
        return digest.hexdigest()[:16]


def features(x: Tensor) -> Tensor:
    """Stored values as a network takes them.

    Bytes become floats in [-1, 1]; counts and signals stay as they are.
    """
    if x.dtype == torch.uint8:
        return x.to(torch.get_default_dtype()).div_(127.5).sub_(1.0)
    if x.dtype == torch.int64:
        return x
    return x.to(torch.get_default_dtype())
