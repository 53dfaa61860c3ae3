"""The catalogue: every data set that has a name."""

from __future__ import annotations

from fedtailor.core.errors import unknown
from fedtailor.data.entries_domains import DOMAINS
from fedtailor.data.entries_images import IMAGES
from fedtailor.data.entry import Entry

ENTRIES = {e.name: e for e in (*IMAGES, *DOMAINS)}


def catalogue() -> list[Entry]:
    """Every data set that has a name, in its default variant."""
    return [e.at("") for e in ENTRIES.values()]


def find_entry(name: str) -> Entry:
    """The entry of ``NAME`` or ``NAME:VARIANT``."""
    base, _, variant = name.partition(":")
    if base not in ENTRIES:
        raise unknown("data set", base, ENTRIES)
    return ENTRIES[base].at(variant)
