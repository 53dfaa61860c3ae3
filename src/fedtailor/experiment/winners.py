"""The file that a search for hyper-parameters hands to a comparison."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import tomli_w

from fedtailor.core.errors import UserError
from fedtailor.experiment.config import read_config
from fedtailor.experiment.variants import (
    Variant,
    parse_variant,
)
from fedtailor.storage.files import write_bytes

TUNED = "tuned"  # what the label of a winner says
HEADING = (
    "# The best values that were found on validation data;"
    " fedtailor compare --tuned FILE takes them.\n"
)


@dataclass(frozen=True)
class Winner:
    """The values that served a variant best."""

    of: str  # the variant, as it was written
    trial: int
    score: float  # on validation data, the mean over the seeds
    values: dict[str, Any]


@dataclass(frozen=True)
class Winners:
    """What a search found."""

    seeds: list[int]  # that the search used
    trials: int  # of every method
    winners: list[Winner]


def write_winners(path: Path, found: Winners) -> None:
    """Write a file that ``read_winners`` reads."""
    values = asdict(found)
    text = HEADING + tomli_w.dumps(values)
    write_bytes(path, text.encode())


def read_winners(path: Path) -> Winners:
    """The winners in a file."""
    content = read_config(path)
    try:
        winners = [Winner(**one) for one in content["winners"]]
        return Winners(list(content["seeds"]), int(content["trials"]), winners)
    except (KeyError, TypeError, ValueError):
        raise UserError(
            f"{path} holds no winners; fedtailor tune writes such a file"
        ) from None


def add_tuned(variants: Sequence[Variant], found: Winners) -> list[Variant]:
    """The variants, and every winner as one more: ``fedcp[tuned]``."""
    given = {variant.written: variant for variant in variants}
    tuned = []
    for winner in found.winners:
        variant = given.get(winner.of) or parse_variant(winner.of)
        tuned.append(variant.add(winner.values, TUNED))
    return [*variants, *tuned]


def warn_of_seeds(found: Winners, first: int, seeds: int) -> list[str]:
    """What must be said where the compared seeds are those of the search."""
    compared = set(range(first, first + seeds))
    both = sorted(compared & set(found.seeds))
    if not both:
        return []
    names = ", ".join(map(str, both))
    return [
        f"warning: seeds {names} were tuned on: their partitions and first values are"
        " known to the winners; compare with other seeds (--seed)"
    ]
