"""Who belongs to which coordinator, as clients come, answer and take part."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from torch import Tensor

from fedtailor.errors import UserError
from fedtailor.grouping.balanced_kl import extend_mirrors, group_mirrors
from fedtailor.grouping.divergence import Counts, Groups
from fedtailor.grouping.minsum_js import extend_lookalikes, group_lookalikes, suggest_groups
from fedtailor.method import Cohort, NoReplies
from fedtailor.rng import Rng


class Roster(NamedTuple):
    """The groups of both kinds; there may be empty ones."""

    a: list[list[int]]  # mirrors: together like everybody
    b: list[list[int]]  # look-alikes; empty until they are formed
    counts: dict[int, Tensor]  # by client, its examples of every class; who is missing here is in no group


def open_roster(mirrors: int | None, lookalikes: int | None, clients: int) -> Roster:
    """Nobody yet in so many groups; by default there are ceil(sqrt(clients)) of each kind."""
    for field, asked in (("num_type_a", mirrors), ("num_type_b", lookalikes)):
        if asked is not None and asked > clients:
            raise UserError(f"{field}={asked}, but there are {clients} clients: set {clients} at most")
    root = math.isqrt(max(clients - 1, 0)) + 1
    return Roster([[] for _ in range(mirrors or root)], [[] for _ in range(lookalikes or root)], {})


def ask_counts(cohort: Cohort, function: Callable[..., Any]) -> dict[int, Tensor]:
    """The label counts of those who answer: ``function`` is a client function whose upload has a field ``labels``."""
    try:
        ups = cohort.run(function, None)
    except NoReplies:
        return {}
    return dict(zip(ups.clients, ups.labels, strict=True))


def enrol(roster: Roster, labels: Counts, rng: Rng, *, how: str, weights: str) -> Roster:
    """With the counts of clients that answered: the first ones form mirrors, later ones join what there is."""
    counts = dict(sorted({**roster.counts, **labels}.items()))
    new = [k for k in labels if k not in roster.counts]
    if not new:
        return roster._replace(counts=counts)
    if not roster.counts:
        return roster._replace(a=group_mirrors(counts, len(roster.a), rng, how=how, weights=weights), counts=counts)
    b = extend_lookalikes(roster.b, counts, new) if any(roster.b) else roster.b
    return Roster(extend_mirrors(roster.a, counts, new, weights), b, counts)


def list_mirrors(roster: Roster, clients: Sequence[int]) -> Groups:
    """The mirrors with only the given clients in them, none empty; a client without counts is one of its own."""
    here = set(clients)
    groups = [[k for k in group if k in here] for group in roster.a]
    return [group for group in groups if group] + [[k] for k in clients if k not in roster.counts]


def remirror(roster: Roster, clients: Sequence[int], rng: Rng, *, how: str, weights: str) -> Roster:
    """Fresh mirrors, as large as before, of the given clients alone."""
    here = {k: roster.counts[k] for k in clients if k in roster.counts}
    m = max(1, round(len(here) * len(roster.a) / max(len(roster.counts), 1)))
    return roster._replace(a=group_mirrors(here, m, rng, how=how, weights=weights, everybody=roster.counts))


def form_lookalikes(roster: Roster, rng: Rng, *, cost: str, silhouette: bool) -> Roster:
    """With look-alikes among all clients known; ``silhouette`` chooses how many groups there are."""
    m = suggest_groups(roster.counts, rng, cost=cost) if silhouette else len(roster.b)
    return roster._replace(b=group_lookalikes(roster.counts, m, rng, cost=cost))


def draw_groups(groups: Groups, share: float, rng: Rng) -> list[int]:
    """All members of a uniform share of the groups, at least one."""
    m = max(1, round(share * len(groups)))
    return sorted(k for i in rng.permutation(len(groups))[:m].tolist() for k in groups[i])


def find_group(groups: Groups, k: int) -> int:
    """The number of client k's group; that of the largest where it has none."""
    largest = max(range(len(groups)), key=lambda j: len(groups[j]))
    return next((j for j, group in enumerate(groups) if k in group), largest)
