"""FedFomo: every client mixes a few other clients' models by what they do for its own validation loss.

Zhang et al., Personalized Federated Learning with First Order Model Optimization, ICLR 2021, Algorithm 1.

The validation data are the experiment's; a client without any keeps its own model. The server holds the last model of
everybody, sends client k its own and M others, and learns how each did. Those M are the best of k's affinities; every
one of them is, with a chance that fades, a random one instead. In the first round there is nothing to choose from.
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
from fedtailor.method import Cohort, Count, Doc, Method, New, NonNegative, Share, Uploads, hyper

PIECE = 500  # validation examples in one forward


class Server(NamedTuple):
    """What the server remembers."""

    first: Annotated[Params, Doc("every client's first model")]
    w: Annotated[dict[int, Params], Doc("theta_k, the last model of every client heard of")]
    affinity: Annotated[
        dict[int, Tensor],
        Doc("P_k of every client heard of: sums of the gains it had from client 0, 1, ..."),
    ]
    chosen: Annotated[dict[int, list[int]], Doc("whose models go to whom in this round")]
    mixed: Annotated[int, Doc("how often a client took something of another")]


class Down(NamedTuple):
    """What goes down."""

    own: Annotated[Params, Doc("theta_k, the client's last model")]
    others: Annotated[list[Params], Doc("theta_n")]


class Up(NamedTuple):
    """What goes up."""

    own: Annotated[Params, Doc("theta_k, mixed and trained")]
    gain: Annotated[
        Tensor, Doc("w_n of the others before clipping: how much better they do, by distance")
    ]


@dataclass(frozen=True)
class FedFomo(Method[Server, Down, None, Up]):
    """Every client has a model of its own, a mixture of others', trained at home."""

    m: Count = hyper(5, "M, models sent to a client; the paper has 5 and 10")
    epsilon: Share = hyper(
        0.3, "epsilon, chance that one of them is chosen at random; as in the authors' code"
    )
    decay: NonNegative = hyper(0.05, "what epsilon loses in a round; as in the authors' code")

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0), {}, {}, {}, 0)

    def round(self, server: Server, cohort: Cohort) -> Server:
        chosen = {k: self.choose(server, k, cohort.t, cohort.rng.fold(k)) for k in cohort.clients}
        return super().round(server._replace(chosen=chosen), cohort)

    def choose(self, server: Server, k: int, t: int, rng: Rng | None) -> list[int]:
        """Whose models client k is sent: the best by affinity or, where epsilon says so, any; without rng the best."""
        many = min(self.m, max(len(server.w) - 1, 0))  # the same for everybody
        row = dict(enumerate(server.affinity[k].tolist())) if k in server.affinity else {}
        others = [j for j in sorted(server.w) if j != k]
        explore = [False] * many
        if rng is not None:
            others = [others[i] for i in rng.fold(0).permutation(len(others)).tolist()]
            explore = (rng.fold(1).uniform(many) < self.epsilon - self.decay * (t - 1)).tolist()
        best = sorted(
            others, key=lambda j: -row.get(j, 0.0)
        )  # those of equal affinity stay in random order
        chosen: list[int] = []
        for at_random in explore:
            chosen.append(next(j for j in (others if at_random else best) if j not in chosen))
        return chosen

    def send(self, server: Server, k: int) -> Down:
        ids = server.chosen[k] if k in server.chosen else self.choose(server, k, 0, None)
        return Down(server.w.get(k, server.first), [server.w[j] for j in ids])

    def local(self, c: Client, down: Down, keep: None) -> tuple[Up, None]:
        gain = self.weigh(c, down)
        return Up(c.train(c.loss, mix(down.own, down.others, gain)), gain), None

    def weigh(self, c: Client, down: Down) -> Tensor:
        """Eq. (4) without the maximum: (L(theta_k) - L(theta_n)) / ||theta_n - theta_k|| on the validation data."""

        def loss(w: Params) -> Tensor:
            pieces = [c.task.losses(c.model(w, x), y) for x, y, _ in c.val.chunks(PIECE)]
            return c.val.mean(torch.cat(pieces))

        if not down.others or c.val.index.shape[0] == 0:
            return torch.zeros(len(down.others), device=c.rng.device)
        now = loss(down.own)
        far = [flatten(subtract(w, down.own)).norm().clamp(min=1e-12) for w in down.others]
        return torch.stack([(now - loss(w)) / d for w, d in zip(down.others, far, strict=True)])

    def expected_upload(self, down: Tree, t: int) -> dict[str, Tree]:
        return {"own": down.own}

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        affinity, mixed = dict(server.affinity), server.mixed
        for k, gain in zip(ups.clients, ups.gain, strict=True):
            ids = torch.tensor(server.chosen[k], dtype=torch.int64, device=gain.device)
            if len(ids) and len(ids) == len(gain):
                row = affinity.get(k, gain[:0])
                row = F.pad(row, (0, max(0, int(ids.max()) + 1 - len(row))))
                affinity[k] = row.index_add(0, ids, gain)
                mixed += int((gain > 0).any())
        return Server(
            server.first,
            server.w | dict(zip(ups.clients, ups.own, strict=True)),
            affinity,
            {},
            mixed,
        )

    def personal(self, c: Client, down: Down, keep: None) -> Params:
        return down.own

    def after_training(self, c: Client, down: Down, up: Up, keep: None) -> Params:
        return up.own

    def closing_remarks(self, server: Server) -> list[str]:
        if server.mixed:
            return []
        return [
            "FedFomo: no client found another's model better on its validation data, so everybody trained alone"
        ]


def mix(own: Params, others: list[Params], gain: Tensor) -> Params:
    """Eq. (3): own + sum_n w_n (theta_n - own), with w_n clipped at 0 and scaled to sum 1; own where all are 0."""
    weight = gain.clamp(min=0)
    weight = weight / weight.sum().clamp(min=torch.finfo(weight.dtype).tiny)
    w = own
    for a, other in zip(weight.unbind(), others, strict=True):
        w = add(w, subtract(other, own), a)
    return w
