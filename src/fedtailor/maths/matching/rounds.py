"""A round of matched averaging, layer by layer: what travels, what a client does, and how the server goes on.

Wang et al., Federated Learning with Matched Averaging, ICLR 2020, Algorithm 1. Only the layer that is due travels; a
client keeps the rest of its network until the round is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.client import Client
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, average, learned
from fedtailor.maths.matching.bbp import Prior, count_owners, match_units
from fedtailor.maths.matching.units import (
    average_classes,
    average_layers,
    keep_statistics,
    list_units,
    place_units,
    shrink_layers,
    take_layers,
    take_units,
)
from fedtailor.maths.matching.wiring import Step, Wiring
from fedtailor.method import Cohort, Doc


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[Params, Doc("the matched network, whose layers may be wider than the clients'")]
    picks: Annotated[
        dict[int, Params], Doc("by client, which units of a wider layer are its own, in order")
    ]
    usual: Annotated[Params, Doc("those of a client without: the units that most clients have")]


class Down(NamedTuple):
    """What goes down at the beginning of a round, and to evaluate."""

    w: Annotated[Params, Doc("the client's units of the matched network; to evaluate, all")]
    picks: Annotated[
        Params, Doc("which units of wider layers are the client's, where they are not alone")
    ]


class Keep(NamedTuple):
    """What a client keeps during a round; its layers go up one by one."""

    w: Annotated[Params, Doc("W_j, the client's network; nothing between rounds")]


class Up(NamedTuple):
    """What goes up: the layer that is matched next."""

    layer: Annotated[Params, Doc("W_j,n, in the order of the client's units")]


class Matched(NamedTuple):
    """What goes down once a layer is matched."""

    step: Annotated[int, Doc("n, which layer it is")]
    layer: Annotated[Params, Doc("W_n, averaged")]
    at: Annotated[Tensor, Doc("Pi_j, the places of the client's units in it")]
    width: Annotated[int, Doc("how many units it has")]
    sizes: Annotated[dict[str, tuple[int, ...]], Doc("of what is to come back")]


class Last(NamedTuple):
    """What goes up in the end."""

    layer: Annotated[Params, Doc("W_j,L, the last layer")]
    counts: Annotated[Tensor, Doc("examples of every class, by which last layers are averaged")]
    statistics: Annotated[Params, Doc("BatchNorm's, of all layers")]


# -------------------------------------------------------------------- a client
def train_own(c: Client, wiring: Wiring, down: Down) -> tuple[Up, Keep]:
    """Train the client's part of the matched network, of the size that every client's network has."""
    w = c.train(c.loss, take_units(down.w, wiring, down.picks))
    return Up(take_layers(w, wiring.steps[0])), Keep(w)


def train_rest(c: Client, wiring: Wiring, down: Matched, keep: Keep) -> tuple[Up, Keep]:
    """Put the matched layer in, reorder what reads it, and train the layers behind; send the next one."""
    w = _go_on(c, wiring, down, keep)
    return Up(take_layers(w, wiring.steps[down.step + 1])), Keep(w)


def train_last(c: Client, wiring: Wiring, down: Matched, keep: Keep) -> tuple[Last, Keep]:
    """The same, once the last layer is all that is left."""
    w = _go_on(c, wiring, down, keep)
    return Last(take_layers(w, wiring.steps[-1]), c.counts, keep_statistics(w)), Keep({})


def _go_on(c: Client, wiring: Wiring, down: Matched, keep: Keep) -> Params:
    step, w = wiring.steps[down.step], keep.w
    if step.decides:
        w = place_units(w, wiring, step.stream, down.at, down.width)
    behind = [name for later in wiring.steps[down.step + 1 :] for name in later.names]
    return c.train(c.loss, w | learned(down.layer), only=behind)


# -------------------------------------------------------------------- the server
def start(w: Params, wiring: Wiring) -> Server:
    """Before the first round the matched network is of the clients' size."""
    return Server(
        w, {}, {name: torch.arange(s.width) for name, s in wiring.streams.items() if s.grows}
    )


def send(server: Server, k: int) -> Down:
    """What client k is sent at the beginning of a round."""
    return Down(server.w, server.picks.get(k, server.usual))


def expect(wiring: Wiring, down: Down | Matched) -> dict[str, Params]:
    """Layers of the shapes that are to come up: of those trained already, or, later, of the sizes told."""
    if isinstance(down, Matched):
        like = next(iter(down.layer.values()))
        return {"layer": {k: like.new_zeros(size) for k, size in down.sizes.items()}}
    return {"layer": take_layers(take_units(down.w, wiring, down.picks), wiring.steps[0])}


def run_round(
    server: Server,
    cohort: Cohort,
    wiring: Wiring,
    prior: Prior,
    functions: tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]],
    *,
    by_class: bool = True,
    shrink: bool = False,
) -> Server:
    """Algorithm 1: match a layer, average it, let the clients train those behind it; then the next.

    ``functions``: the client functions for the first layer, the others and the last one. ``by_class``: last layers are
    weighed class by class. ``shrink``: hidden units are MAP estimates, no means. Whoever does not answer is left out of
    the rest of the round.
    """
    first, rest, last = functions
    own = {k: take_units(server.w, wiring, send(server, k).picks) for k in cohort.clients}
    ups = cohort.run(first, lambda k: Down(own[k], {}))
    like = take_units(server.w, wiring, server.usual)  # shaped like all clients' networks
    w: Params = {}
    usual: Params = {}
    picks: dict[int, Params] = {k: {} for k in ups.clients}
    for n, step in enumerate(wiring.steps[:-1]):
        at, width = match_layer(ups.layer, step, wiring, prior, cohort.rng.fold(n))
        layer = average_layers(ups.layer, at, width)
        if shrink:
            layer = shrink_layers(layer, step, count_owners(at, width), prior)
        w |= layer
        if step.decides:
            like = place_units(like, wiring, step.stream, at[0], width)
            if wiring.streams[step.stream].grows:
                order = count_owners(at, width).argsort(descending=True, stable=True)
                usual[step.stream] = order[: len(at[0])].sort()[0]
                picks = {
                    k: picks[k] | {step.stream: a.sort()[0]}
                    for k, a in zip(ups.clients, at, strict=True)
                }
        sizes = {k: tuple(x.shape) for k, x in take_layers(like, wiring.steps[n + 1]).items()}
        downs = {
            k: Matched(n, layer, a, width, sizes) for k, a in zip(ups.clients, at, strict=True)
        }
        ups = cohort.only(ups.clients).run(
            rest if n + 2 < len(wiring.steps) else last, downs.__getitem__
        )
    w |= average_classes(ups.layer, ups.counts, ups.n) if by_class else average(ups.layer, ups.n)
    w |= average(ups.statistics, ups.n)
    return Server({k: w[k] for k in server.w if k in w}, {k: picks[k] for k in ups.clients}, usual)


def match_layer(
    layers: Sequence[Params], step: Step, wiring: Wiring, prior: Prior, rng: Rng
) -> tuple[list[Tensor], int]:
    """The places of all clients' units in a layer, and how many there are; where no choice is left, as they are."""
    units, means = zip(*(list_units(layer, step) for layer in layers), strict=True)
    if not step.decides:
        return [torch.arange(len(u)) for u in units], len(units[0])
    _, groups, grows = wiring.streams[step.stream]
    return match_units(units, means[0], prior, rng.numpy(), grow=grows, groups=groups)
