"""What is known about a data set before it is loaded."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from fedtailor.core.errors import unknown
from fedtailor.data.federation import Kind


@dataclass(frozen=True)
class Download:
    """One file of an official distribution."""

    file: str  # its name in <data folder>/<data set>/
    urls: tuple[str, ...]  # tried in turn
    checksum: str = ""  # "md5:..." or "sha256:..."; empty where none is published
    gives: tuple[str, ...] = ()  # the official files in an archive; empty means all


@dataclass(frozen=True)
class Entry:
    """One line of the catalogue: what a data set is, where it comes from and which files it is read from."""

    name: str
    title: str
    kind: Kind
    shape: tuple[int, ...]  # of one sample as it is stored; after ``fit`` a table may be wider
    classes: int
    samples: int  # 0 where it depends on the files
    source: str  # whom to cite
    home: str  # the official page
    licence: str
    files: tuple[str, ...] = ()  # official files and folders, in <data folder>/<name>/
    optional: tuple[str, ...] = ()  # official files that need not be there
    inside: tuple[str, ...] = ()  # folders an official archive unpacks to, also searched
    downloads: tuple[Download, ...] = ()
    natural: str = ""  # who the natural clients are; empty where there are none
    labels: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    variants: tuple[str, ...] = ()  # NAME:VARIANT; the first is the default
    apart: bool = False  # every variant has files of its own
    differs: Mapping[str, Mapping[str, Any]] = field(
        default_factory=dict
    )  # what a variant has in another way
    variant: str = ""  # which one this is

    def at(self, variant: str) -> Entry:
        """This entry as the variant has it; no name means the default."""
        if variant and variant not in self.variants:
            raise unknown(f"variant of {self.name}", variant, self.variants or ("none",))
        variant = variant or (self.variants[0] if self.variants else "")
        return replace(self, variant=variant, **self.differs.get(variant, {}))

    @property
    def label(self) -> str:
        """The name with its variant, as ``load`` takes it."""
        return (
            self.name
            if not self.variants or self.variant in ("", self.variants[0])
            else self.spelled
        )

    @property
    def spelled(self) -> str:
        """The name with its variant even where that is the default."""
        return f"{self.name}:{self.variant}" if self.variant else self.name

    @property
    def stems(self) -> tuple[str, ...]:
        """Names, without ending, of the prepared and cached files, in order of preference."""
        if not (self.apart and self.variant):
            return (self.name,)
        own = f"{self.name}_{self.variant}"
        return (own, self.name) if self.variant == self.variants[0] else (own,)
