"""Chains of clients: inside every group a model goes from client to client."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from fedtailor.core.tree import Params, Tree
from fedtailor.maths.grouping.divergence import Groups
from fedtailor.method import Cohort, NoReplies, Uploads


class Relay(NamedTuple):
    """What came of all chains; a chain in which nobody replied is left out."""

    w: list[Params]  # the model at the end of each
    n: list[float]  # training examples it has seen on its way
    calls: list[Uploads[Any]]  # all uploads, call by call


def run_relay(
    cohort: Cohort,
    groups: Groups,
    function: Callable[..., Any],
    send: Callable[[Params], Tree],
    w: Params,
) -> Relay:
    """Start at ``w`` in every group, in random order; ``function`` is a client function whose upload has a field ``w``.

    The i-th clients of all chains run in one call. Where a reply gets lost, the chain goes on from its last model.
    """
    chains = [cohort.shuffle(group) for group in groups]
    ends, n, calls = [w for _ in chains], [0.0 for _ in chains], list[Uploads[Any]]()
    for i in range(max(map(len, chains), default=0)):
        turn = {chain[i]: c for c, chain in enumerate(chains) if i < len(chain)}
        downs = {k: send(ends[c]) for k, c in turn.items()}
        try:
            ups = cohort.only(turn).run(function, downs.__getitem__)
        except NoReplies:
            continue
        for k, end, size in zip(ups.clients, ups.w, ups.n.tolist(), strict=True):
            ends[turn[k]], n[turn[k]] = end, n[turn[k]] + size
        calls.append(ups)
    done = [c for c, size in enumerate(n) if size]
    if not done:
        raise NoReplies(f"no reply to '{function.__name__}' in round {cohort.t}")
    return Relay([ends[c] for c in done], [n[c] for c in done], calls)
