"""What a site tells of its data, and what a run says of the data of all its sites."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from torch import Tensor

from fedtailor.data.federation import Federation


@dataclass(frozen=True)
class SiteFacts:
    """All that a site tells of its data."""

    kind: str  # image, signal, table or text
    shape: tuple[int, ...]  # of one input
    dtype: str
    classes: int
    exact: bool  # whether the number of classes is known, or only the largest label
    labels: tuple[str, ...]  # names of the classes, where they have names
    vocabulary: int  # number of words, for texts
    n: tuple[int, int, int]  # samples to train, validate and test

    @classmethod
    def parse(cls, values: dict[str, Any]) -> Self:
        """Facts that came from a site or a file, with the types they must have."""
        n = [int(count) for count in values["n"]]
        if len(n) != 3 or min(n) < 0 or n[0] < 1:
            raise ValueError(f"{n} samples to train, validate and test")
        return cls(
            kind=str(values["kind"]),
            shape=tuple(int(length) for length in values["shape"]),
            dtype=str(values["dtype"]),
            classes=int(values["classes"]),
            exact=bool(values["exact"]),
            labels=tuple(str(label) for label in values["labels"]),
            vocabulary=int(values["vocabulary"]),
            n=(n[0], n[1], n[2]),
        )

    def summarise(self) -> str:
        """The facts as words of a log line."""
        shape = "x".join(str(length) for length in self.shape)
        n = "/".join(str(count) for count in self.n)
        return f"{n} samples of {shape} to train/validate/test, {self.classes} classes"


@dataclass(frozen=True)
class DataSpec:
    """What the data of every site in a run must be."""

    kind: str
    shape: tuple[int, ...]
    dtype: str
    classes: int
    labels: tuple[str, ...]
    vocabulary: int

    @classmethod
    def parse(cls, values: dict[str, Any]) -> Self:
        """What a message says of a run's data, with the types it must have."""
        return cls(
            kind=str(values["kind"]),
            shape=tuple(int(length) for length in values["shape"]),
            dtype=str(values["dtype"]),
            classes=int(values["classes"]),
            labels=tuple(str(label) for label in values["labels"]),
            vocabulary=int(values["vocabulary"]),
        )

    @classmethod
    def of(cls, federation: Federation) -> Self:
        """What a federation's data are."""
        return cls(
            kind=federation.kind,
            shape=federation.shape,
            dtype=name_dtype(federation.x),
            classes=federation.classes,
            labels=federation.labels,
            vocabulary=federation.vocabulary,
        )


def name_dtype(x: Tensor) -> str:
    """The type of a tensor's elements, as in ``torch.NAME``."""
    return str(x.dtype).removeprefix("torch.")
