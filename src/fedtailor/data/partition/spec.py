"""A partition as the user writes it, and the owner it gives to every sample.

A partition is written ``[subset:N/M:]law[:number][:option ...]``, or as the name of a saved one
(``p.npz``), and read by ``parse_partition``. A law (see ``laws``) decides how many samples of each
class every client holds; ``assign_owners`` then gives every sample exactly one owner.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from fedtailor.core.errors import UserError, unknown
from fedtailor.data.partition.defaults import DEFAULT_PARTITION
from fedtailor.data.partition.laws import (
    Integers,
    compute_least_size,
    draw_classes,
    draw_dirichlet,
    draw_hsu,
    draw_iid,
    draw_pathological,
    draw_quantity,
    draw_shards,
)

EXAMPLES = {  # law -> a way to write it; laws without a number in their example take none
    "iid": "iid",
    "dirichlet": "dirichlet:0.1",
    "hsu": "hsu:0.1",
    "quantity": "quantity:0.5",
    "pathological": "pathological:2",
    "shards": "shards:2",
    "classes": "classes:2",
    "natural": "natural",
    "domains": "domains",
    "concept": "concept:2",
}
# law -> what it takes
OPTIONS = {
    "dirichlet": "uncapped and least=10",
    "quantity": "least=10",
    "classes": "partial",
}
OWNED_LAWS = ("natural", "domains")  # the data set says who owns what
# the number is a concentration; elsewhere it counts something
REAL_LAWS = (
    "dirichlet",
    "hsu",
    "quantity",
)
# laws that do not look at targets
BLIND_LAWS = ("iid", "quantity", "natural", "domains", "file")


@dataclass(frozen=True)
class PartitionSpec:
    """A partition as the user wrote it, parsed."""

    text: str
    law: str
    number: float = 0.0  # 0 where none was given
    uncapped: bool = False  # dirichlet: no cap on a client's size
    least: int | None = None  # dirichlet and quantity: a client's least size
    partial: bool = False  # classes: classes that no client gets are left out
    path: str = ""  # file: a saved partition
    keep: tuple[int, int] | None = None  # subset:N/M

    @property
    def whole(self) -> int:
        """The number, where it counts classes, shards or groups."""
        return int(self.number)

    @property
    def uses_owners(self) -> bool:
        """Whether the data set's owners are the clients.

        ``concept`` without a number means that they are raters, who differ in their labels.
        """
        are_raters = self.law == "concept" and not self.number
        return are_raters or self.law in OWNED_LAWS


def parse_partition(text: str, default: str = DEFAULT_PARTITION) -> PartitionSpec:
    """The partition named by ``text``; ``default`` is used when a subset names none."""
    law, _, rest = text.partition(":")
    if law == "subset":
        return _parse_subset(text, rest, default)
    if text.endswith(".npz"):
        return PartitionSpec(text, "file", path=text)
    if law not in EXAMPLES:
        raise unknown("partition", law, [*EXAMPLES, "subset"])
    number, *options = rest.split(":") if rest else [""]
    spec = PartitionSpec(text, law, _parse_number(text, law, number))
    for option in options:
        spec = _add_option(spec, option)
    return spec


def _parse_subset(text: str, rest: str, default: str) -> PartitionSpec:
    """``subset:N/M:law``, of which ``rest`` is ``N/M:law``."""
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
    spec = parse_partition(inner or default)
    return replace(spec, text=text, keep=(int(kept), int(made)))


def _add_option(spec: PartitionSpec, option: str) -> PartitionSpec:
    key, _, value = option.partition("=")
    if spec.law == "dirichlet" and option == "uncapped":
        return replace(spec, uncapped=True)
    if (
        spec.law in ("dirichlet", "quantity")
        and key == "least"
        and value.isdecimal()
        and int(value) >= 1
    ):
        return replace(spec, least=int(value))
    if spec.law == "classes" and option == "partial":
        return replace(spec, partial=True)
    known = OPTIONS.get(spec.law, "no options")
    raise UserError(
        f"partition '{spec.text}': cannot read '{option}'; {spec.law} takes {known}"
    )


def _parse_number(text: str, law: str, word: str) -> float:
    example = EXAMPLES[law]
    takes_number = ":" in example
    if not takes_number and word:
        raise UserError(f"partition '{text}': {law} takes no number, write {law}")
    if not takes_number:
        return 0.0
    if law == "concept" and not word:  # the owners' own ratings are the concepts
        return 0.0
    try:
        number = float(word)
    except ValueError:
        number = math.nan
    if law in REAL_LAWS and not 0 < number <= 1e6:
        raise UserError(
            f"partition '{text}': the concentration must be above 0 and at most 1e6, e.g. {example}"
        )
    if law not in REAL_LAWS and not (number >= 1 and number.is_integer()):
        raise UserError(
            f"partition '{text}': {law} needs a whole number of at least 1, e.g. {example}"
        )
    return number


class Assignment(NamedTuple):
    """What a law decided: the owner of every sample (-1 for none)."""

    owner: Integers
    shards: Integers | None = None  # (clients, S): the classes each client drew


def draw_assignment(
    spec: PartitionSpec,
    y: Integers,
    clients: int,
    rng: np.random.Generator,
    batch: int = 10,
) -> Assignment:
    """Divide samples with labels ``y`` among clients by a law that needs nothing but labels.

    ``batch`` is the batch size, which decides how few samples a client may have.
    """
    n = len(y)
    if n < clients:
        raise UserError(
            f"partition '{spec.text}': {clients} clients but only {n} samples; "
            f"ask for at most {n} clients"
        )
    if spec.law in ("iid", "concept"):
        return Assignment(draw_iid(n, clients, rng))
    return _draw_by_sizes(spec, y, clients, rng, batch)


def _draw_by_sizes(
    spec: PartitionSpec,
    y: Integers,
    clients: int,
    rng: np.random.Generator,
    batch: int,
) -> Assignment:
    """Laws in which clients have unequal sizes or classes."""
    n = len(y)
    least = spec.least or compute_least_size(n, clients, batch)
    if spec.law == "quantity":
        return Assignment(draw_quantity(n, clients, spec.number, least, rng))
    kinds, y = np.unique(y, return_inverse=True)
    sizes = np.bincount(y)
    if spec.law in ("pathological", "classes") and spec.whole > len(kinds):
        raise UserError(
            f"partition '{spec.text}': there are only {len(kinds)} classes, "
            "ask for at most that many"
        )
    if spec.law == "shards":
        counts, drawn = draw_shards(sizes, clients, spec.whole, rng)
        return Assignment(assign_owners(y, counts, rng), kinds[drawn])
    if spec.law == "pathological":
        counts = draw_pathological(sizes, clients, spec.whole, least, rng)
        return Assignment(assign_owners(y, counts))
    if spec.law == "dirichlet":
        counts = draw_dirichlet(
            sizes, clients, spec.number, least, not spec.uncapped, rng
        )
    elif spec.law == "hsu":
        counts = draw_hsu(sizes, clients, spec.number, rng)
    else:
        counts = draw_classes(sizes, clients, spec.whole, spec.partial, rng)
    return Assignment(assign_owners(y, counts, rng))


def assign_owners(
    y: Integers, counts: Integers, rng: np.random.Generator | None = None
) -> Integers:
    """The owner of every sample: client k gets ``counts[k, c]`` samples of class c.

    The first samples go to the first clients, unless ``rng`` shuffles them.
    """
    clients, classes = counts.shape
    owner = np.full(len(y), -1, np.int64)
    for c in range(classes):
        owners = np.repeat(np.arange(clients), counts[:, c])
        if rng is not None:
            owners = rng.permutation(owners)
        samples = np.flatnonzero(y == c)
        owner[samples[: len(owners)]] = owners
    return owner


def compute_test_weights(
    assignment: Assignment, y: Integers, clients: int, classes: int
) -> Integers:
    """How a test set is shared, (clients, classes).

    By the shards drawn, or else by the samples that clients hold of each class.
    """
    weight = np.zeros((clients, classes), np.int64)
    if assignment.shards is not None:
        rows = np.arange(clients)[:, None]
        np.add.at(weight, (rows, assignment.shards), 1)
    else:
        owned = assignment.owner >= 0
        np.add.at(weight, (assignment.owner[owned], y[owned]), 1)
    return weight


def follow_labels(y: Integers, weight: Integers, rng: np.random.Generator) -> Integers:
    """The owners of a test set with labels ``y``: each class is shared like its column of weights.

    Samples of a class that no client trains on have no owner (-1).
    """
    counts = np.zeros_like(weight)
    for c in np.flatnonzero(weight.any(0)):
        size = int((y == c).sum())
        counts[:, c] = apportion(size, weight[:, c], rng)
    return assign_owners(y, counts, rng)


def group_by_owner(owner: Integers, clients: int) -> list[Integers]:
    """The indices of every client's samples, in order."""
    order = np.argsort(owner, kind="stable")
    edges = np.searchsorted(owner[order], np.arange(clients + 1))
    return [order[a:b] for a, b in itertools.pairwise(edges)]


def apportion(
    n: int, weight: npt.NDArray[np.float64] | Integers, rng: np.random.Generator
) -> Integers:
    """Share n things in proportion to the weights.

    First everyone gets the whole part of its quota, then the largest remainders get one more; ties
    are decided at random.
    """
    quota = n * (weight / weight.sum())
    share: Integers = np.floor(quota).astype(np.int64)
    largest_first = np.lexsort((rng.random(len(share)), share - quota))
    left = n - share.sum()
    share[largest_first[:left]] += 1
    return share


def count_owners(owner: Integers, name: str) -> int:
    """How many natural clients there are; their numbers must be 0..K-1 without gaps."""
    if owner.min() < 0:
        raise UserError(
            f"data set '{name}': client {owner.min()} in the client column; number clients from 0"
        )
    absent = np.flatnonzero(np.bincount(owner) == 0)
    if len(absent):
        raise UserError(
            f"data set '{name}': the client column goes up to {owner.max()} but nobody is "
            f"client {absent[0]}; number the clients without gaps"
        )
    return int(owner.max()) + 1
