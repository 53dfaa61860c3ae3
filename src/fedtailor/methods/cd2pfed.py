"""CD2-pFed: channels, not layers, are private; their share grows, and both kinds of channels teach each other.

Shen, Zhou and Yu, CD2-pFed: Cyclic Distillation-guided Channel Decoupling for Model Personalization in Federated
Learning, CVPR 2022, Algorithm 1.

A channel owns what produces it (its row of weights, bias, normalisation and running statistics), a feature its column
of the last layer; see fedtailor.channels. Round t = 1..T has ceil(p_t C) private channels in a layer of C, the last
ones, so that no channel is ever shared again. One that turns private starts from its last global value, of which the
server keeps a copy for those who were away. The temporal average is taken after each epoch, of all that private
channels own. The two sub-networks are smaller computations, left out where a layer lacks channels of one kind.

The server remembers when it last heard of a client and sends the shared channels, and of the private ones those that
turned private since the slowest of the cohort took part (to evaluate: the slowest of the federation). So all clients of
a call are sent the same and can run side by side; a client uses what it has no own version of. After a round that
all took part in, nothing but the shared channels and the newly private ones travels.
"""

import math
from dataclasses import dataclass, replace
from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from fedtailor.channels import (
    Decoupled, Side, choose, draw_borders, has_two_sides, is_statistic, join_parts, measure_sides, overlay,
    smooth_private, take_between, take_shared,
)  # fmt: skip
from fedtailor.client import Batch, Client
from fedtailor.method import Cohort, Method, New, NonNegative, Share, Uploads
from fedtailor.models.backbone import Backbone
from fedtailor.tree import Params, average, tmap


class Server(NamedTuple):
    """What the server remembers."""

    w: Params  # w_0, and every private channel as it was when last shared
    seen: dict[int, int]  # by client, the last round it is known to have taken part in
    t: int  # this round
    rounds: int  # T


class Down(NamedTuple):
    """What goes down."""

    w: Params  # w_0: the shared channels
    turned: Params  # last global values of channels that turned private since somebody of the cohort was last here


class Keep(NamedTuple):
    """What never leaves the client."""

    w: Params  # the model after the last training: w_i, and w_0 as it was then
    at: Tensor  # by parameter, how many channels were shared then
    momentum: Params | None  # the optimiser's, if it is to outlive the round

    @property
    def counts(self) -> dict[str, Tensor]:
        """``at`` by name."""
        return dict(zip(self.w, self.at.unbind(), strict=True))


class Up(NamedTuple):
    """What goes up."""

    w: Params  # w_0: the shared channels


@dataclass(frozen=True)
class CD2pFed(Method[Server, Down, Keep, Up]):
    """Every layer is part shared, part private."""

    reads_rounds: ClassVar[bool] = True

    p: Share = 0.5  # p, largest share of private channels; Sec. 4.2 has 0.5, and 0.8 for FLICKR-AES
    lam: NonNegative = 1.0  # lambda, weight of the cyclic distillation; 1 (Eq. 5)
    beta: Share = 0.5  # beta, weight of the new values in the temporal average; 0.5 (Eq. 7)
    t0: Share = 0.1  # t_0 / T, share of the rounds in which beta_t rises to beta; 0.1 (Eq. 7)
    li: bool = True  # LI, linear increment: p_t = p t / T instead of p; on (Eq. 3, Table 5)
    ta: bool = True  # TA, temporal average of the private channels; on (Eq. 6, Table 5)
    cd: bool = True  # CD, cyclic distillation; on (Eq. 4, Table 5)
    detach_teacher: bool = False  # whether each KL term trains only the side that learns; Eq. 4 trains both
    nesterov: bool = True  # Nesterov's momentum, where the experiment has momentum; on (Sec. 4.2)
    keep_private_momentum: bool = False  # whether private channels keep their momentum between rounds; not said

    def doubts(self) -> list[str]:
        odd = {
            "p=0: no channel is ever private, CD2-pFed is FedAvg": self.p == 0,
            "p=1: in the end no channel is shared, CD2-pFed trains locally": self.p == 1,
            "lam=0: the cyclic distillation is off": self.cd and self.lam == 0,
            "beta=1: the temporal average is off once beta_t has risen": self.ta and self.beta == 1,
            "beta=0: private channels never move": self.ta and self.beta == 0,
        }
        return [line for line, holds in odd.items() if holds]

    def net(self, backbone: Backbone) -> Decoupled:
        return Decoupled(backbone)

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0), dict.fromkeys(range(clients), 0), 0, 0)

    def ratio(self, t: int, rounds: int) -> float:
        """p_t, Eq. (3); before the first round nothing is private."""
        return 0.0 if t == 0 else self.p * t / rounds if self.li else self.p

    def smoothing(self, t: int, rounds: int) -> float:
        """beta_t, Eq. (7)."""
        t0 = self.t0 * rounds
        return self.beta * math.exp(-5 * (1 - t / t0) ** 2) if t < t0 else self.beta

    def pack(self, server: Server, since: int) -> Down:
        """What those need who took part in round ``since`` or later."""
        now, then = (draw_borders(server.w, self.ratio(t, server.rounds)) for t in (server.t, since))
        return Down(take_shared(server.w, now), take_between(server.w, now, then))

    def send(self, server: Server, k: int) -> Down:
        return self.pack(server, min(server.seen.values()) if k in server.seen else 0)

    def round(self, server: Server, cohort: Cohort) -> Server:
        server = server._replace(t=cohort.t, rounds=cohort.rounds)
        since = min((server.seen.get(k, 0) for k in cohort.clients), default=0)
        return self.merge(server, cohort.run(self.local, self.pack(server, since)))

    def join(self, c: Client, down: Down) -> Keep:
        w = join_parts(down.w, down.turned)
        still = {k: torch.zeros_like(x) for k, x in w.items() if not is_statistic(k)}
        at = torch.tensor([b.size for b in draw_borders(w, 0.0).values()], device=c.data.index.device)
        return Keep(w, at, still if self.keep_private_momentum and c.sgd.momentum else None)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        w, p = self.personal(c, down, keep), self.ratio(c.t, c.rounds)
        borders, beta = draw_borders(w, p), self.smoothing(c.t, c.rounds)
        opt = replace(c.sgd, nesterov=self.nesterov and c.sgd.momentum > 0)

        def loss(w: Params, batch: Batch) -> Tensor:  # Eq. (4) and (5)
            a, b = (c.model(w, batch.x, Side(private, p)).log_softmax(-1) for private in (True, False))
            teacher_a, teacher_b = (a.detach(), b.detach()) if self.detach_teacher else (a, b)
            return c.loss(w, batch) + self.lam / 2 * (diverge(teacher_a, b) + diverge(teacher_b, a))

        both, momentum = self.cd and self.lam > 0 and has_two_sides(w, borders), keep.momentum
        if momentum is not None:  # what the shared channels had is gone
            momentum = choose(momentum, tmap(torch.zeros_like, momentum), keep.counts)
        for _ in range(c.plan.epochs):
            new, momentum = c.fit(loss if both else c.loss, w, epochs=1, opt=opt, state=momentum)
            w = smooth_private(w, new, borders, beta) if self.ta else new  # Eq. (6)
        at = torch.tensor([b.at for b in borders.values()], device=keep.at.device)
        return Up(take_shared(w, borders)), Keep(w, at, momentum if self.keep_private_momentum else None)

    def merge(self, server: Server, ups: Uploads) -> Server:
        w = overlay(server.w, average(ups.w, ups.n))
        return server._replace(w=w, seen=server.seen | dict.fromkeys(ups.clients, server.t))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return choose(keep.w, overlay(keep.w, join_parts(down.w, down.turned)), keep.counts)

    def after(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return keep.w

    def shared(self, server: Server) -> Params:
        return server.w

    def notes(self, c: Client, w: Params, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        p = self.ratio(c.t, c.rounds)
        if not has_two_sides(w, draw_borders(w, p)):
            return {}
        w, sides = w | measure_sides(c, w, p), {"private": Side(True, p), "shared": Side(False, p)}
        return {name: (c.model(w, x, side).argmax(-1) == y).to(x.dtype) for name, side in sides.items()}


def diverge(teacher: Tensor, pupil: Tensor) -> Tensor:
    """KL(teacher || pupil) of log-probabilities, the batch's mean."""
    return (teacher.exp() * (teacher - pupil)).sum(-1).mean()
