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
    urls: tuple[str, ...]  # tried one after the other
    checksum: str = ""  # "md5:..." or "sha256:..."; empty where none is published
    contains: tuple[str, ...] = ()  # the official files in an archive; empty means all


@dataclass(frozen=True)
class Entry:
    """One line of the catalogue: what a data set is, where it comes from, which files it has."""

    name: str
    title: str
    kind: Kind
    # of one sample as it is stored; after ``fit`` a table may be wider
    shape: tuple[int, ...]
    classes: int
    samples: int  # 0 where it depends on the files
    source: str  # the paper or report to cite
    homepage: str
    licence: str
    # official files and folders; none: embedded in a package
    files: tuple[str, ...] = ()
    optional_files: tuple[str, ...] = ()  # official files that need not be there
    # folders an official archive unpacks to, also searched
    archive_folders: tuple[str, ...] = ()
    downloads: tuple[Download, ...] = ()
    # of the unpacked contents, by file
    md5: Mapping[str, str] = field(default_factory=dict)
    missing_values: bool = False  # whether NaN stands for a missing value
    natural_clients: str = ""  # who they are, in words; empty where there are none
    labels: tuple[str, ...] = ()  # names of the classes
    owners: tuple[str, ...] = ()  # names of the natural clients
    variants: tuple[str, ...] = ()  # NAME:VARIANT; the first is the default
    # whether every variant has prepared and cached files of its own
    separate_files: bool = False
    # fields, by variant
    overrides: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    variant: str = ""  # which variant this entry describes

    def with_variant(self, variant: str) -> Entry:
        """This entry for a variant; an empty name means the default variant."""
        if variant and variant not in self.variants:
            raise unknown(
                f"variant of {self.name}", variant, self.variants or ("none",)
            )
        if not variant and self.variants:
            variant = self.variants[0]
        changes = self.overrides.get(variant, {})
        return replace(self, variant=variant, **changes)

    @property
    def is_default(self) -> bool:
        """Whether this entry describes the default variant, or there are no variants."""
        return not self.variants or self.variant in ("", self.variants[0])

    @property
    def short_name(self) -> str:
        """``NAME:VARIANT``, or ``NAME`` for the default variant."""
        return self.name if self.is_default else self.full_name

    @property
    def full_name(self) -> str:
        """``NAME:VARIANT``, for the default variant too."""
        return f"{self.name}:{self.variant}" if self.variant else self.name

    @property
    def stems(self) -> tuple[str, ...]:
        """Names, without ending, of the prepared and cached files, in order of preference."""
        if not (self.separate_files and self.variant):
            return (self.name,)
        own = f"{self.name}_{self.variant}"
        return (own, self.name) if self.is_default else (own,)
