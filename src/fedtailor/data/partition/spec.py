"""Who owns which samples: the laws by which a data set is dealt to clients.

A law (``laws``) decides how many samples of each class every client holds; ``hand_out`` then gives every sample
exactly one owner. A partition is written ``[subset:N/M:]law[:number][:option ...]``, or as the name of a saved one
(``p.npz``), and read by ``parse``.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import UserError, unknown
from fedtailor.data.partition.laws import (
    Integers,
    deal_evenly,
    draw_classes,
    draw_dirichlet,
    draw_hsu,
    draw_pathological,
    draw_shards,
    least_size,
)

EXAMPLES = {  # law -> a way to write it; laws without a number in their example take none
    "iid": "iid",
    "dirichlet": "dirichlet:0.1",
    "hsu": "hsu:0.1",
    "pathological": "pathological:2",
    "shards": "shards:2",
    "classes": "classes:2",
    "natural": "natural",
    "domains": "domains",
    "concept": "concept:2",
}
OWNED = ("natural", "domains")  # the data set says who owns what
REAL = ("dirichlet", "hsu")  # the number is a concentration; elsewhere it counts something


@dataclass(frozen=True)
class Spec:
    """A partition as the user wrote it, understood."""

    text: str
    law: str
    number: float = 0.0  # 0 where none was given
    uncapped: bool = False  # dirichlet: no cap on a client's size
    least: int | None = None  # dirichlet: a client's least size
    partial: bool = False  # classes: classes that nobody gets are left out
    path: str = ""  # file: a saved partition
    keep: tuple[int, int] | None = None  # subset:N/M

    @property
    def whole(self) -> int:
        """The number, where it counts classes, shards or groups."""
        return int(self.number)


def parse(text: str, default: str = "iid") -> Spec:
    """The partition named by ``text`` (``default`` when a subset names none); every mistake in it is one clear line."""
    head, _, rest = text.partition(":")
    if head == "subset":
        size, _, inner = rest.partition(":")
        kept, _, made = size.partition("/")
        if not (kept.isdecimal() and made.isdecimal() and 1 <= int(kept) <= int(made)):
            raise UserError(
                f"partition '{text}': write subset:N/M:law with 1 <= N <= M, e.g. subset:10/50:iid"
            )
        if inner.startswith("subset:"):
            raise UserError(
                f"partition '{text}': a subset of a subset is not supported, write one subset:N/M"
            )
        return replace(parse(inner or default), text=text, keep=(int(kept), int(made)))
    if text.endswith(".npz"):
        return Spec(text, "file", path=text)
    if head not in EXAMPLES:
        raise unknown("partition", head, [*EXAMPLES, "subset"])
    first, *options = rest.split(":") if rest else [""]
    spec = Spec(text, head, _read_number(text, head, first))
    for option in options:
        key, _, value = option.partition("=")
        if head == "dirichlet" and option == "uncapped":
            spec = replace(spec, uncapped=True)
        elif head == "dirichlet" and key == "least" and value.isdecimal() and int(value) >= 1:
            spec = replace(spec, least=int(value))
        elif head == "classes" and option == "partial":
            spec = replace(spec, partial=True)
        else:
            known = {"dirichlet": "uncapped and least=10", "classes": "partial"}.get(
                head, "no options"
            )
            raise UserError(f"partition '{text}': cannot read '{option}'; {head} takes {known}")
    return spec


def _read_number(text: str, law: str, word: str) -> float:
    example = EXAMPLES[law]
    if ":" not in example:
        if word:
            raise UserError(f"partition '{text}': {law} takes no number, write {law}")
        return 0.0
    if not word and law == "concept":  # the owners' own ratings are the concepts
        return 0.0
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if law in REAL and not 0 < number <= 1e6:
        raise UserError(
            f"partition '{text}': the concentration must be above 0 and at most 1e6, e.g. {example}"
        )
    if law not in REAL and not (number >= 1 and number.is_integer()):
        raise UserError(
            f"partition '{text}': {law} needs a whole number of at least 1, e.g. {example}"
        )
    return number


class Hands(NamedTuple):
    """What a law decided: the owner of every sample (-1 for nobody)."""

    owner: Integers
    shards: Integers | None = None  # (clients, S): the classes each client drew


def assign(
    spec: Spec, y: Integers, clients: int, rng: np.random.Generator, batch: int = 10
) -> Hands:
    """Deal samples with labels ``y`` to clients by a law that needs nothing but labels."""
    n = len(y)
    if n < clients:
        raise UserError(
            f"partition '{spec.text}': {clients} clients but only {n} samples; ask for at most {n} clients"
        )
    if spec.law in ("iid", "concept"):
        return Hands(deal_evenly(n, clients, rng))
    kinds, y = np.unique(y, return_inverse=True)
    sizes = np.bincount(y)
    least = least_size(n, clients, batch)
    if spec.law == "dirichlet":
        least = spec.least or least
        return Hands(
            hand_out(
                y, draw_dirichlet(sizes, clients, spec.number, least, not spec.uncapped, rng), rng
            )
        )
    if spec.law == "hsu":
        return Hands(hand_out(y, draw_hsu(sizes, clients, spec.number, rng), rng))
    if spec.law != "shards" and spec.whole > len(kinds):
        raise UserError(
            f"partition '{spec.text}': there are only {len(kinds)} classes, ask for at most that many"
        )
    if spec.law == "pathological":
        return Hands(hand_out(y, draw_pathological(sizes, clients, spec.whole, least, rng)))
    if spec.law == "classes":
        return Hands(hand_out(y, draw_classes(sizes, clients, spec.whole, spec.partial, rng), rng))
    counts, matrix = draw_shards(sizes, clients, spec.whole, rng)
    return Hands(hand_out(y, counts, rng), kinds[matrix])


def hand_out(y: Integers, counts: Integers, rng: np.random.Generator | None = None) -> Integers:
    """The owner of every sample: client k gets ``counts[k, c]`` of class c, in their order or shuffled by ``rng``."""
    owner = np.full(len(y), -1, np.int64)
    for c in range(counts.shape[1]):
        held = np.repeat(np.arange(len(counts)), counts[:, c])
        where = np.flatnonzero(y == c)
        owner[where[: len(held)]] = held if rng is None else rng.permutation(held)
    return owner


def weigh(hands: Hands, y: Integers, clients: int, classes: int) -> Integers:
    """How a test set is shared, (clients, classes): by the shards drawn, or by the samples held of each class."""
    weight = np.zeros((clients, classes), np.int64)
    if hands.shards is not None:
        np.add.at(weight, (np.arange(clients)[:, None], hands.shards), 1)
    else:
        held = hands.owner >= 0
        np.add.at(weight, (hands.owner[held], y[held]), 1)
    return weight


def follow(y: Integers, weight: Integers, rng: np.random.Generator) -> Integers:
    """The owners of a test set with labels ``y``: each class in proportion to its column of ``weight``.

    A class that no client trains on is nobody's.
    """
    counts = np.zeros_like(weight)
    for c in np.flatnonzero(weight.any(0)):
        counts[:, c] = apportion(int((y == c).sum()), weight[:, c], rng)
    return hand_out(y, counts, rng)


def gather(owner: Integers, clients: int) -> list[Integers]:
    """Every client's samples, in order."""
    order = np.argsort(owner, kind="stable")
    edges = np.searchsorted(owner[order], np.arange(clients + 1))
    return [order[a:b] for a, b in itertools.pairwise(edges)]


def apportion(
    n: int, weight: npt.NDArray[np.float64] | Integers, rng: np.random.Generator
) -> Integers:
    """n things shared in proportion to ``weight``: whole quotas, then the largest remainders, ties by lot."""
    quota = n * (weight / weight.sum())
    share: Integers = np.floor(quota).astype(np.int64)
    share[np.lexsort((rng.random(len(share)), share - quota))[: n - share.sum()]] += 1
    return share


def check_owners(owner: Integers, name: str) -> int:
    """How many natural clients there are; their numbers must be 0..K-1 without gaps."""
    if owner.min() < 0:
        raise UserError(
            f"data set '{name}': client {owner.min()} in the client column; number clients from 0"
        )
    absent = np.flatnonzero(np.bincount(owner) == 0)
    if len(absent):
        raise UserError(
            f"data set '{name}': the client column goes up to {owner.max()} but nobody is client {absent[0]}; "
            "number the clients without gaps"
        )
    return int(owner.max()) + 1
