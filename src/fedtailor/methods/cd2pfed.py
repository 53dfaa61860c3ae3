"""CD2-pFed: channels, not layers, are private; their share grows, and both kinds of channels teach each other.

Shen, Zhou and Yu, CD2-pFed: Cyclic Distillation-guided Channel Decoupling for Model Personalization in Federated
Learning, CVPR 2022, Algorithm 1.

A channel owns what produces it (its row of weights, bias, normalisation and running statistics; its column of a table
of word vectors), a feature its column of the last layer; fedtailor.models.channels says
how. Other readings (what joins two channels is shared if both are; nothing joins the two kinds)
would not leave the paper's share p private. In round
t = 1..T the last ceil(p_t C) channels of a layer of C are private, so that none is ever shared again. One that turns
private starts from its last global value, of which the server keeps a copy. The temporal average is taken after every
epoch, of all that private channels own; momentum is left as it is. The sub-networks of either kind are smaller
computations, whose BatchNorm takes the batch's statistics; where a layer lacks one kind, nothing is distilled.
Statistics of shared channels go the way of ``--bn``.

The server remembers when it last heard of a client. It sends the shared channels, and of the private ones those that
turned private since the slowest of the cohort took part (in evaluations: the slowest of all), so that whoever was away
gets the copies it lacks, a newcomer all of them, and clients that run side by side the same. A client takes only what
it has no version of its own of. Where all take part, a channel travels for the last time as it turns private.
"""

import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

import fedtailor.models.channels as channels
from fedtailor.client import Batch, Client
from fedtailor.core.tree import Params, learned
from fedtailor.method import Cohort, Doc, Method, New, NonNegative, Share, Uploads, hyper
from fedtailor.models.backbone import Backbone
from fedtailor.training.optim import use_nesterov


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[Params, Doc("w_0: the shared channels")]
    turned: Annotated[
        Params,
        Doc("last global values of channels that turned private since the slowest client was here"),
    ]
    old: Annotated[Params, Doc("those of the other private channels")]
    seen: Annotated[
        dict[int, int], Doc("by client, the last round it is known to have taken part in")
    ]
    t: Annotated[int, Doc("this round")]
    rounds: Annotated[int, Doc("T")]


class Down(NamedTuple):
    """What goes down."""

    w: Annotated[Params, Doc("w_0: the shared channels")]
    turned: Annotated[
        Params,
        Doc(
            "last global values of channels that turned private since the slowest of the cohort was here"
        ),
    ]


class Keep(NamedTuple):
    """What never leaves the client."""

    w: Annotated[
        Params,
        Doc("w_i, the private channels, in a whole model's shape: zeros stand for the shared ones"),
    ]
    at: Annotated[
        Tensor, Doc("by parameter, how many channels were shared when the client was last here")
    ]
    momentum: Annotated[Params | None, Doc("the optimiser's, if it is to outlive the round")]


class Up(NamedTuple):
    """What goes up."""

    w: Annotated[Params, Doc("w_0: the shared channels")]


@dataclass(frozen=True)
class CD2pFed(Method[Server, Down, Keep, Up]):
    """Every layer is part shared, part private."""

    depends_on_rounds: ClassVar[bool] = True

    p: Share = hyper(
        0.5, "p, largest share of private channels; Sec. 4.2 has 0.5, and 0.8 for FLICKR-AES"
    )
    lam: NonNegative = hyper(1.0, "lambda, weight of the cyclic distillation; 1 (Eq. 5)")
    beta: Share = hyper(0.5, "beta, weight of the new values in the temporal average; 0.5 (Eq. 7)")
    t0: Share = hyper(
        0.1, "t_0 / T, share of the rounds in which beta_t rises to beta; 0.1 (Eq. 7)"
    )
    li: bool = hyper(True, "LI, linear increment: p_t = p t / T instead of p; on (Eq. 3, Table 5)")
    ta: bool = hyper(True, "TA, temporal average of the private channels; on (Eq. 6, Table 5)")
    cd: bool = hyper(True, "CD, cyclic distillation; on (Eq. 4, Table 5)")
    detach_teacher: bool = hyper(
        False, "whether each KL term trains only the side that learns; Eq. 4 trains both"
    )
    nesterov: bool = hyper(
        True, "Nesterov's momentum, where the experiment has momentum; on (Sec. 4.2)"
    )
    keep_private_momentum: bool = hyper(
        False, "whether private channels keep their momentum between rounds; not said"
    )

    def warnings(self) -> list[str]:
        odd = {
            "p=0: no channel is ever private, CD2-pFed is FedAvg": self.p == 0,
            "p=1: in the end no channel is shared, CD2-pFed trains locally": self.p == 1,
            "lam=0: the cyclic distillation is off": self.cd and self.lam == 0,
            "beta=1: the temporal average is off once beta_t has risen": self.ta and self.beta == 1,
            "beta=0: private channels never move": self.ta and self.beta == 0,
        }
        return [line for line, holds in odd.items() if holds]

    def net(self, backbone: Backbone) -> channels.Decoupled:
        return channels.Decoupled(backbone)

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0), {}, {}, dict.fromkeys(range(clients), 0), 0, 0)

    def ratio(self, t: int, rounds: int) -> float:
        """p_t, Eq. (3); nothing is private before the first round, nothing more after the last."""
        return 0.0 if t == 0 else self.p * t / rounds if self.li and t < rounds else self.p

    def smoothing(self, t: int, rounds: int) -> float:
        """beta_t, Eq. (7)."""
        t0 = self.t0 * rounds
        return self.beta * math.exp(-5 * (1 - t / t0) ** 2) if t < t0 else self.beta

    def arrange(self, server: Server, w: Params, seen: dict[int, int]) -> Server:
        """The server's state with this whole model, cut for clients last seen then."""
        times = server.t, min(seen.values(), default=0)
        now, then = (channels.draw_borders(w, self.ratio(t, server.rounds)) for t in times)
        shared, turned, old = channels.split_parts(w, now, then)
        return Server(shared, turned, old, seen, server.t, server.rounds)

    def send(self, server: Server, k: int) -> Down:
        return Down(
            server.w,
            server.turned if k in server.seen else channels.join_parts(server.turned, server.old),
        )

    def round(self, server: Server, cohort: Cohort) -> Server:
        w, here = self.shared(server), {k: server.seen.get(k, 0) for k in cohort.clients}
        server = self.arrange(server._replace(t=cohort.t, rounds=cohort.rounds), w, server.seen)
        sent = self.arrange(server, w, here)
        return self.merge(server, cohort.run(self.local, Down(sent.w, sent.turned)))

    def first_keep(self, c: Client, down: Down) -> Keep:
        w = {k: torch.zeros_like(x) for k, x in channels.join_parts(down.w, down.turned).items()}
        at = torch.tensor(
            [b.at for b in channels.draw_borders(w, 0.0).values()], device=c.data.index.device
        )
        still = learned(w)
        return Keep(w, at, still if self.keep_private_momentum and c.plan.momentum else None)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        w, p, beta = (
            self.personal(c, down, keep),
            self.ratio(c.t, c.rounds),
            self.smoothing(c.t, c.rounds),
        )
        borders, momentum = channels.draw_borders(w, p), keep.momentum
        opt = use_nesterov(c.optimiser) if self.nesterov else c.optimiser

        def distilled(w: Params, batch: Batch) -> Tensor:  # Eq. (5)
            a, b = (
                c.model(w, batch.x, channels.Side(private, p)).log_softmax(-1)
                for private in (True, False)
            )
            s, t = (a.detach(), b.detach()) if self.detach_teacher else (a, b)
            both: Tensor = (
                (s.exp() * (s - b) + t.exp() * (t - a)).sum(-1).mean()
            )  # KL(a || b) + KL(b || a), Eq. (4)
            return c.loss(w, batch) + self.lam / 2 * both

        loss = (
            distilled if self.cd and self.lam > 0 and channels.has_two_sides(w, borders) else c.loss
        )
        for _ in range(c.plan.epochs):
            new, momentum = c.train_with_state(loss, w, epochs=1, opt=opt, state=momentum)
            w = channels.smooth_private(w, new, borders, beta) if self.ta else new  # Eq. (6)
        at = torch.tensor([b.at for b in borders.values()], device=keep.at.device)
        kept = (
            channels.clear_shared(momentum, borders)
            if momentum and self.keep_private_momentum
            else None
        )
        return Up(channels.split_parts(w, borders)[0]), Keep(
            channels.clear_shared(w, borders), at, kept
        )

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        w = channels.overlay(self.shared(server), ups.mean("w"))
        return self.arrange(server, w, server.seen | dict.fromkeys(ups.clients, server.t))

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return channels.choose(
            keep.w, channels.overlay(keep.w, channels.join_parts(down.w, down.turned)), keep.at
        )

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return channels.overlay(keep.w, up.w)

    def shared(self, server: Server) -> Params:
        return channels.join_parts(server.w, server.turned, server.old)

    def diagnostics(self, c: Client, w: Params, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        p = self.ratio(c.t, c.rounds)
        both = channels.has_two_sides(w, channels.draw_borders(w, p))
        return channels.score_sides(c, w, p, x, y) if both else {}
