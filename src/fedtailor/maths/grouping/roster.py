"""Who belongs to which coordinator, as clients come, answer and take part."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

from torch import Tensor

from fedtailor.client import Client
from fedtailor.core.errors import UserError
from fedtailor.core.rng import Rng
from fedtailor.maths.grouping.balanced_kl import extend_mirrors, group_mirrors
from fedtailor.maths.grouping.divergence import Counts, Groups
from fedtailor.maths.grouping.minsum_js import extend_lookalikes, group_lookalikes, suggest_groups
from fedtailor.maths.grouping.quality import Quality, assess
from fedtailor.method import Cohort, Doc, NoReplies


class Roster(NamedTuple):
    """The groups of both kinds; there may be empty ones."""

    a: Annotated[list[list[int]], Doc("mirrors: together like everybody")]
    b: Annotated[list[list[int]], Doc("look-alikes; none until they are formed")]
    wanted: Annotated[int, Doc("look-alike groups to form")]
    counts: Annotated[
        dict[int, Tensor],
        Doc("by client, its examples of every class; who is missing here is in no group"),
    ]


class Census(NamedTuple):
    """How many training examples of every class a client has, told once, so that it can be grouped."""

    labels: Annotated[Tensor, Doc("examples of every class")]


def tell(roster: Roster) -> list[str]:
    """How good the groups are, one line a kind."""
    lines = []
    if any(roster.a):
        a = assess(roster.a, roster.counts)
        far = f"{a.kl_sum:.3f} in all, {a.kl_max:.3f} at most"
        lines.append(f"Type-A groups of {_sizes(a)} clients: KL to everybody {far}")
    if any(roster.b):
        b = assess(roster.b, roster.counts)
        lines.append(
            f"Type-B groups of {_sizes(b)} clients: JS between two of a group {b.js_mean:.3f} on average"
        )
    return lines


def _sizes(quality: Quality) -> str:
    return ", ".join(str(n) for n in sorted(quality.sizes, reverse=True) if n)


def open_roster(mirrors: int | None, lookalikes: int | str | None, clients: int) -> Roster:
    """Nobody yet in so many groups; what is not a number stands for ceil(sqrt(clients)), for the time being."""
    sizes = [math.isqrt(max(clients - 1, 0)) + 1] * 2
    for i, asked in enumerate((mirrors, lookalikes)):
        if isinstance(asked, int):
            if asked > clients:
                field = ("num_type_a", "num_type_b")[i]
                raise UserError(
                    f"{field}={asked}, but there are {clients} clients: set {clients} at most"
                )
            sizes[i] = asked
    return Roster([[] for _ in range(sizes[0])], [], sizes[1], {})


def count_labels(c: Client, epsilon: float | None) -> Census:
    """The client's label counts, with Laplace noise of scale 1/epsilon if there is an epsilon.

    One example more or less changes one count by one, so the noisy counts are epsilon-differentially private; rounding
    and cutting at zero looks at nothing else.
    """
    if epsilon is None:
        return Census(c.counts)
    return Census((c.counts + c.rng.laplace(c.classes) / epsilon).round().clamp(min=0))


def ask_counts(cohort: Cohort, function: Callable[..., Any]) -> dict[int, Tensor]:
    """The label counts of those who answer; ``function`` is a client function that sends a Census."""
    try:
        ups = cohort.run(function, None)
    except NoReplies:
        return {}
    return dict(zip(ups.clients, ups.labels, strict=True))


def enrol(roster: Roster, labels: Counts, rng: Rng, *, how: str, weights: str) -> Roster:
    """With the counts of clients that answered: the first ones form mirrors, later ones join what there is."""
    counts = dict(sorted({**roster.counts, **labels}.items()))
    new = [k for k in labels if k not in roster.counts]
    if roster.counts:
        a = extend_mirrors(roster.a, counts, new, weights)
    else:
        a = group_mirrors(counts, len(roster.a), rng, how=how, weights=weights)
    b = extend_lookalikes(roster.b, counts, new) if roster.b else []
    return roster._replace(a=a, b=b, counts=counts)


def list_mirrors(roster: Roster, clients: Sequence[int]) -> Groups:
    """The mirrors with only the given clients in them, none empty; a client without counts is one of its own."""
    here = set(clients)
    groups = [[k for k in group if k in here] for group in roster.a]
    return sorted(
        [group for group in groups if group] + [[k] for k in clients if k not in roster.counts]
    )


def remirror(roster: Roster, clients: Sequence[int], rng: Rng, *, how: str, weights: str) -> Roster:
    """Fresh mirrors, as large as before, of the given clients alone."""
    here = {k: roster.counts[k] for k in clients if k in roster.counts}
    m = max(1, round(len(here) * len(roster.a) / max(len(roster.counts), 1)))
    return roster._replace(
        a=group_mirrors(here, m, rng, how=how, weights=weights, everybody=roster.counts)
    )


def form_lookalikes(
    roster: Roster, rng: Rng, cost: str = "sum", silhouette: bool = False
) -> Roster:
    """With look-alikes among all clients known, if any are wanted; ``silhouette`` chooses how many groups there are."""
    if not roster.wanted:
        return roster
    m = suggest_groups(roster.counts, rng, cost=cost) if silhouette else roster.wanted
    return roster._replace(b=group_lookalikes(roster.counts, m, rng, cost=cost))


def draw_groups(groups: Groups, share: float, rng: Rng) -> list[int]:
    """All members of a uniform share of the groups, at least one."""
    m = max(1, round(share * len(groups)))
    return sorted(k for i in rng.permutation(len(groups))[:m].tolist() for k in groups[i])


def find_group(groups: Groups, k: int) -> int:
    """The number of client k's group; that of the largest where it has none."""
    largest = max(range(len(groups)), key=lambda j: len(groups[j]))
    return next((j for j, group in enumerate(groups) if k in group), largest)
