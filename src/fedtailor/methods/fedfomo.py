"""FedFomo: every client mixes other clients' models by what they do for its own validation loss.

Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021,
Algorithm 1.

The validation data are the experiment's; a client without any keeps its own model. The server holds
the last model of every client, sends client k its own and M others, and is told how well each of
them did. Those M have the highest affinities to k; each of them is, with a probability that fades
over the rounds, replaced by a random one. In the first round there is nothing to choose from.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from fedtailor.client import Client
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, Tree, add, subtract
from fedtailor.maths.clustering import flatten
from fedtailor.method import (
    Cohort,
    Count,
    Doc,
    Method,
    New,
    NonNegative,
    Share,
    Uploads,
    hyper,
)


class Server(NamedTuple):
    """What the server remembers."""

    first: Annotated[Params, Doc("every client's first model")]
    w: Annotated[
        dict[int, Params],
        Doc("theta_k, the last model of every client that has replied"),
    ]
    affinity: Annotated[
        dict[int, Tensor],
        Doc(
            "P_k of every client that has replied: sums of its gains from client 0, 1, ..."
        ),
    ]
    chosen: Annotated[
        dict[int, list[int]],
        Doc("by client, the clients whose models it is sent in this round"),
    ]
    mixed: Annotated[int, Doc("how often a client took something from another")]


class Down(NamedTuple):
    """What a client is sent."""

    own: Annotated[Params, Doc("theta_k, the client's last model")]
    others: Annotated[list[Params], Doc("theta_n, other clients' last models")]


class Up(NamedTuple):
    """What a client sends back."""

    own: Annotated[Params, Doc("theta_k, mixed and trained")]
    gain: Annotated[
        Tensor,
        Doc("w_n of the others before clipping: how much better they do, by distance"),
    ]


@dataclass(frozen=True)
class FedFomo(Method[Server, Down, None, Up]):
    """Every client has a model of its own, a mixture of others', trained on its own data."""

    m: Count = hyper(
        5,
        "M, models sent to a client; the paper has 5 and 10",
    )
    epsilon: Share = hyper(
        0.3,
        "epsilon, chance that one of them is chosen at random; as in the authors' code",
    )
    decay: NonNegative = hyper(
        0.05,
        "what epsilon loses in a round; as in the authors' code",
    )

    def init(self, new: New, clients: int) -> Server:
        return Server(
            first=new(0),
            w={},
            affinity={},
            chosen={},
            mixed=0,
        )

    def round(self, server: Server, cohort: Cohort) -> Server:
        chosen = {}
        for k in cohort.clients:
            rng = cohort.rng.fold(k)
            chosen[k] = self.choose(server, k, cohort.t, rng)
        server = server._replace(chosen=chosen)
        return super().round(server, cohort)

    def choose(self, server: Server, k: int, t: int, rng: Rng | None) -> list[int]:
        """Ids of the clients whose models client k is sent.

        They are those of the highest affinity or, with probability epsilon, random ones; without
        ``rng`` none is random.
        """
        others = [j for j in sorted(server.w) if j != k]
        count = min(self.m, max(len(server.w) - 1, 0))  # the same for all clients
        is_random = [False] * count
        if rng is not None:
            order = rng.fold(0).permutation(len(others))
            others = [others[i] for i in order.tolist()]
            epsilon = self.epsilon - self.decay * (t - 1)
            draws = rng.fold(1).uniform(count)
            is_random = (draws < epsilon).tolist()
        affinity = read_affinity(server, k)
        # equals stay in random order
        best = sorted(others, key=lambda j: -affinity.get(j, 0.0))
        chosen: list[int] = []
        for explore in is_random:
            candidates = others if explore else best
            remaining = (j for j in candidates if j not in chosen)
            chosen.append(next(remaining))
        return chosen

    def send(self, server: Server, k: int) -> Down:
        ids = server.chosen.get(k)
        if ids is None:  # an evaluation, or a client that is not in this round's cohort
            ids = self.choose(server, k, 0, None)
        return Down(
            own=server.w.get(k, server.first),
            others=[server.w[j] for j in ids],
        )

    def local(self, c: Client, down: Down, keep: None) -> tuple[Up, None]:
        """Mix the models that do better on the validation data into the own one, then train."""
        gain = self.weigh(c, down)
        mixed = mix(down.own, down.others, gain)
        w = c.train(c.loss, mixed)
        return Up(w, gain), None

    def weigh(self, c: Client, down: Down) -> Tensor:
        """Eq. (4) without the maximum: (L(theta_k) - L(theta_n)) / ||theta_n - theta_k||.

        The losses are those on the validation data; without any, the gains are 0.
        """
        if not down.others or c.val.index.shape[0] == 0:
            return torch.zeros(len(down.others), device=c.rng.device)
        own_loss = measure_loss(c, down.own)
        gains = []
        for other in down.others:
            better_by = own_loss - measure_loss(c, other)
            difference = flatten(subtract(other, down.own))
            distance = difference.norm().clamp(min=1e-12)
            gains.append(better_by / distance)
        return torch.stack(gains)

    def expected_upload(self, down: Tree, t: int) -> dict[str, Tree]:
        return {"own": down.own}

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        """Remember the new models, and add the gains up to affinities."""
        affinity = dict(server.affinity)
        mixed = server.mixed
        for k, up in ups.by_client().items():
            ids = server.chosen[k]
            if ids and len(ids) == len(up.gain):
                before = affinity.get(k, up.gain[:0])
                affinity[k] = add_gains(before, ids, up.gain)
                mixed += int((up.gain > 0).any())
        models = {k: up.own for k, up in ups.by_client().items()}
        return Server(
            first=server.first,
            w=server.w | models,
            affinity=affinity,
            chosen={},
            mixed=mixed,
        )

    def personal(self, c: Client, down: Down, keep: None) -> Params:
        return down.own

    def after_training(self, c: Client, down: Down, up: Up, keep: None) -> Params:
        return up.own

    def closing_remarks(self, server: Server) -> list[str]:
        if server.mixed:
            return []
        return [
            "FedFomo: no client found another's model better on its validation data, "
            "so everybody trained alone"
        ]


def measure_loss(c: Client, w: Params) -> Tensor:
    """The mean loss of a model on the validation data."""
    losses = c.losses(w, c.val)
    return c.val.mean(losses)


def mix(own: Params, others: list[Params], gain: Tensor) -> Params:
    """Eq. (3): own + sum_n w_n (theta_n - own), with w_n clipped at 0 and scaled to sum 1.

    Where no gain is positive it is the own model.
    """
    clipped = gain.clamp(min=0)
    smallest = torch.finfo(gain.dtype).tiny
    weights = clipped / clipped.sum().clamp(min=smallest)
    w = own
    for weight, other in zip(weights.unbind(), others, strict=True):
        w = add(w, subtract(other, own), weight)
    return w


def read_affinity(server: Server, k: int) -> dict[int, float]:
    """Affinities of client k to others, by id; empty for a client that has not replied."""
    if k not in server.affinity:
        return {}
    return dict(enumerate(server.affinity[k].tolist()))


def add_gains(affinity: Tensor, ids: list[int], gain: Tensor) -> Tensor:
    """A client's affinities, longer where needed, with the gains from the given clients added."""
    missing = max(ids) + 1 - len(affinity)
    longer = F.pad(affinity, (0, max(0, missing)))
    index = torch.tensor(ids, dtype=torch.int64, device=gain.device)
    return longer.index_add(0, index, gain)
