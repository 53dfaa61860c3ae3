"""CD2-pFed: channels, not layers, are private; their share grows, and both kinds teach each other.

Shen, Zhou and Yu, CD2-pFed: Cyclic Distillation-guided Channel Decoupling for Model Personalization
in Federated Learning, CVPR 2022, Algorithm 1.

Where the paper is silent:

* A channel owns what produces it: its row of weights, bias, normalisation and running statistics,
  or its column of a table of word vectors. A feature owns its column of the last layer. See
  ``fedtailor.models.channels``. With other readings (what joins two channels is shared if both
  are; nothing joins the two kinds) the private share would not be the paper's p.
* In round t = 1..T the last ceil(p_t C) channels of a layer of C are private, so that none is ever
  shared again. A channel that turns private starts from its last global value, of which the server
  keeps a copy.
* Momentum, Nesterov's in Sec. 4.2, is the experiment's, so that all methods have the same
  (``--protocol cd2``).
* The temporal average is taken after every epoch, of everything private channels own. Momentum is
  left as it is.
* The sub-networks of either kind are smaller computations whose BatchNorm uses the batch's
  statistics. Where a layer lacks channels of one kind, nothing is distilled. Running statistics of
  shared channels follow ``--bn``.

A client that was away lacks the channels that turned private meanwhile. So the server remembers in
which round each client was last heard. All clients of a cohort, which may run side by side, are
sent the same: the shared channels, and those that turned private since the longest absent of them
was heard (in evaluations: of all clients). New clients are sent all channels. A client uses only
channels of which it has no version of its own. If all clients take part in all rounds, a channel is
sent for the last time in the round in which it turns private.
"""

import copy
import math
from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedtailor.client import Batch, Client, Loss
from fedtailor.core.tree import Params, Tree, is_statistic, learned, tmap
from fedtailor.method import (
    Cohort,
    Doc,
    Method,
    New,
    NonNegative,
    Share,
    Uploads,
    hyper,
)
from fedtailor.models import channels
from fedtailor.models.backbone import Backbone
from fedtailor.models.channels import Borders, Side


# ---------------------------------------------------------------- states and messages
class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[Params, Doc("w_0: the shared channels")]
    turned: Annotated[
        Params,
        Doc(
            "last global values of channels that turned private since the slowest client was here"
        ),
    ]
    old: Annotated[Params, Doc("those of the other private channels")]
    seen: Annotated[
        dict[int, int],
        Doc("by client, the last round it is known to have taken part in"),
    ]
    t: Annotated[int, Doc("this round")]
    rounds: Annotated[int, Doc("T")]


class Down(NamedTuple):
    """What goes down."""

    w: Annotated[Params, Doc("w_0: the shared channels")]
    turned: Annotated[
        Params,
        Doc(
            "channels that turned private since the slowest of the cohort was here: last values"
        ),
    ]


class Keep(NamedTuple):
    """What never leaves the client."""

    w: Annotated[
        Params,
        Doc(
            "w_i, the private channels, in a whole model's shape: zeros stand for the shared ones"
        ),
    ]
    at: Annotated[
        Tensor,
        Doc(
            "by parameter, how many channels were shared when the client was last here"
        ),
    ]
    momentum: Annotated[
        Params | None, Doc("the optimiser's, if it is to outlive the round")
    ]


class Up(NamedTuple):
    """What goes up."""

    w: Annotated[Params, Doc("w_0: the shared channels")]


class Division(NamedTuple):
    """The channels of a whole model, as a round divides them."""

    shared: Params
    turned: Params  # private now, but shared in an earlier round
    old: Params  # private in both


# ---------------------------------------------------------------- the two sides of a model
class Sides(NamedTuple):
    """The private and the shared channels of a network."""

    private: Side
    shared: Side


def cut_network(p: float) -> Sides:
    """The two sides of a network of which a share p of the channels is private."""
    return Sides(
        private=Side(private=True, p=p),
        shared=Side(private=False, p=p),
    )


def sum_divergences(a: Tensor, b: Tensor, detach_teacher: bool) -> Tensor:
    """KL(a, b) + KL(b, a) of logarithms of probabilities, averaged over the examples."""
    teacher_a = a.detach() if detach_teacher else a
    teacher_b = b.detach() if detach_teacher else b
    a_to_b = teacher_a.exp() * (teacher_a - b)
    b_to_a = teacher_b.exp() * (teacher_b - a)
    both = a_to_b + b_to_a
    return both.sum(-1).mean()


def score_sides(
    c: Client,
    w: Params,
    p: float,
    x: Tensor,
    y: Tensor,
) -> dict[str, Tensor]:
    """Which examples either side of ``w`` gets right alone."""
    w = w | measure_statistics(c, w, p)
    sides = cut_network(p)
    scores = {}
    for name, side in sides._asdict().items():
        guess = c.model(w, x, side).argmax(-1)
        scores[name] = (guess == y).to(x.dtype)
    return scores


def measure_statistics(c: Client, w: Params, p: float) -> Params:
    """Buffers for predicting with either side of ``w``: mean statistics of an epoch's batches."""
    statistics = {name: value for name, value in w.items() if is_statistic(name)}
    if not statistics:
        return {}
    sides = cut_network(p)

    def add_batch(total: Params, batch: Batch) -> Params:
        shared: Params = {}
        private: Params = {}
        c.model(w, batch.x, sides.shared, shared)
        c.model(w, batch.x, sides.private, private)
        measured = channels.join_channels(shared, private)
        return {name: total[name] + measured[name] for name in total}

    reader = copy.copy(c)  # so that this epoch does not count as one of c's own
    total = reader.each_batch(add_batch, make_zeros(statistics), epochs=1)
    steps = c.steps(1)
    return {name: value / steps for name, value in total.items()}


def make_zeros(w: Params) -> Params:
    """Zeros in the shape of a model."""
    zeros: Params = tmap(torch.zeros_like, w)
    return zeros


def list_shared(borders: Borders, device: torch.device) -> Tensor:
    """By parameter, how many channels are shared."""
    counts = [border.shared for border in borders.values()]
    return torch.tensor(counts, device=device)


# ---------------------------------------------------------------- the method
@dataclass(frozen=True)
class CD2pFed(Method[Server, Down, Keep, Up]):
    """Every layer is part shared, part private."""

    needs_classes: ClassVar[str] = "its two paths agree on probabilities of classes"

    depends_on_rounds: ClassVar[bool] = True
    moved: ClassVar[dict[str, str]] = {
        "nesterov": "an option of the experiment, for all methods alike: --nesterov"
    }

    p: Share = hyper(
        0.5,
        "p, largest share of private channels; Sec. 4.2 has 0.5, and 0.8 for FLICKR-AES",
    )
    lam: NonNegative = hyper(
        1.0, "lambda, weight of the cyclic distillation; 1 (Eq. 5)"
    )
    beta: Share = hyper(
        0.5, "beta, weight of the new values in the temporal average; 0.5 (Eq. 7)"
    )
    t0: Share = hyper(
        0.1, "t_0 / T, share of the rounds in which beta_t rises to beta; 0.1 (Eq. 7)"
    )
    li: bool = hyper(
        True, "LI, linear increment: p_t = p t / T instead of p; on (Eq. 3, Table 5)"
    )
    ta: bool = hyper(
        True, "TA, temporal average of the private channels; on (Eq. 6, Table 5)"
    )
    cd: bool = hyper(True, "CD, cyclic distillation; on (Eq. 4, Table 5)")
    detach_teacher: bool = hyper(
        False,
        "whether each KL term trains only the side that learns; Eq. 4 trains both",
    )
    keep_private_momentum: bool = hyper(
        False, "whether private channels keep their momentum between rounds; not said"
    )

    def warnings(self) -> list[str]:
        found = []
        if self.p == 0:
            found.append("p=0: no channel is ever private, CD2-pFed is FedAvg")
        if self.p == 1:
            found.append(
                "p=1: in the end no channel is shared, CD2-pFed trains locally"
            )
        if self.cd and self.lam == 0:
            found.append("lam=0: the cyclic distillation is off")
        if self.ta and self.beta == 1:
            found.append("beta=1: the temporal average is off once beta_t has risen")
        if self.ta and self.beta == 0:
            found.append("beta=0: private channels never move")
        return found

    def net(self, backbone: Backbone) -> channels.Decoupled:
        return channels.Decoupled(backbone)

    def ratio(self, t: int, rounds: int) -> float:
        """p_t, Eq. (3); nothing is private before the first round, nothing more after the last."""
        if t == 0:
            return 0.0
        if self.li and t < rounds:
            return self.p * t / rounds
        return self.p

    def smoothing(self, t: int, rounds: int) -> float:
        """beta_t, Eq. (7)."""
        t0 = self.t0 * rounds
        if t >= t0:
            return self.beta
        rest = 1 - t / t0
        return self.beta * math.exp(-5 * rest**2)

    # ---------------------------------------------------------------- server
    def init(self, new: New, clients: int) -> Server:
        return Server(
            w=new(0),
            turned={},
            old={},
            seen=dict.fromkeys(range(clients), 0),
            t=0,
            rounds=0,
        )

    def round(self, server: Server, cohort: Cohort) -> Server:
        server = server._replace(t=cohort.t, rounds=cohort.rounds)
        last_heard = [server.seen.get(k, 0) for k in cohort.clients]
        since = min(last_heard, default=0)
        division = self.divide(server, self.shared(server), since)
        down = Down(division.shared, division.turned)
        ups = cohort.run(self.local, down)
        return self.merge(server, ups)

    def send(self, server: Server, k: int) -> Down:
        if k in server.seen:
            return Down(server.w, server.turned)
        all_private = channels.join_channels(server.turned, server.old)
        return Down(server.w, all_private)

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        before = self.shared(server)
        w = channels.overlay_channels(before, ups.mean("w"))
        seen = server.seen | dict.fromkeys(ups.clients, server.t)
        slowest = min(seen.values(), default=0)
        division = self.divide(server, w, slowest)
        return Server(
            w=division.shared,
            turned=division.turned,
            old=division.old,
            seen=seen,
            t=server.t,
            rounds=server.rounds,
        )

    def divide(self, server: Server, w: Params, since: int) -> Division:
        """The channels that are shared now, those that turned private since a round, and the rest.

        Args:
            server: this round's.
            w: the whole model.
            since: an earlier round.
        """
        p_now = self.ratio(server.t, server.rounds)
        p_then = self.ratio(since, server.rounds)
        now = channels.draw_borders(w, p_now)
        then = channels.draw_borders(w, p_then)
        return Division(
            shared=channels.take_channels(w, stop=now),
            turned=channels.take_channels(w, start=now, stop=then),
            old=channels.take_channels(w, start=then),
        )

    def shared(self, server: Server) -> Params:
        return channels.join_channels(server.w, server.turned, server.old)

    # ---------------------------------------------------------------- client
    def first_keep(self, c: Client, down: Down) -> Keep:
        received = channels.join_channels(down.w, down.turned)
        nothing = make_zeros(received)
        all_shared = channels.draw_borders(nothing, 0.0)
        momentum = None
        if self.keep_private_momentum and c.plan.momentum:
            momentum = learned(nothing)
        return Keep(
            w=nothing,
            at=list_shared(all_shared, c.data.index.device),
            momentum=momentum,
        )

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        received = channels.join_channels(down.w, down.turned)
        complete = channels.overlay_channels(keep.w, received)
        return channels.choose_channels(keep.w, complete, keep.at)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        w = self.personal(c, down, keep)  # Algorithm 1, line 1
        p = self.ratio(c.t, c.rounds)  # line 2
        beta = self.smoothing(c.t, c.rounds)
        borders = channels.draw_borders(w, p)
        loss = self.make_loss(c, w, borders, p)
        momentum = keep.momentum
        for _ in range(c.plan.epochs):
            new, momentum = c.train_with_state(
                loss,
                w,
                epochs=1,
                state=momentum,
            )
            if self.ta:
                new = channels.smooth_private(w, new, borders, beta)  # Eq. (6)
            w = new
        shared = channels.take_channels(w, stop=borders)
        kept = self.keep_private(w, borders, momentum, keep.at.device)
        return Up(shared), kept

    def make_loss(self, c: Client, w: Params, borders: Borders, p: float) -> Loss:
        """Eq. (5), or the cross entropy alone where there is nothing to distil."""
        can_distil = channels.has_two_sides(w, borders)
        if not self.cd or self.lam == 0 or not can_distil:
            return c.loss
        sides = cut_network(p)

        def loss(w: Params, batch: Batch) -> Tensor:
            local = c.model(w, batch.x, sides.private).log_softmax(-1)
            shared = c.model(w, batch.x, sides.shared).log_softmax(-1)
            both = sum_divergences(local, shared, self.detach_teacher)
            return c.loss(w, batch) + self.lam / 2 * both  # the half is Eq. (4)'s

        return loss

    def keep_private(
        self,
        w: Params,
        borders: Borders,
        momentum: Tree,
        device: torch.device,
    ) -> Keep:
        """What a client keeps after training: what its private channels own."""
        kept = None
        if momentum and self.keep_private_momentum:
            kept = channels.clear_shared(momentum, borders)
        return Keep(
            w=channels.clear_shared(w, borders),
            at=list_shared(borders, device),
            momentum=kept,
        )

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return channels.overlay_channels(keep.w, up.w)

    def diagnostics(
        self, c: Client, w: Params, x: Tensor, y: Tensor
    ) -> dict[str, Tensor]:
        p = self.ratio(c.t, c.rounds)
        borders = channels.draw_borders(w, p)
        if not channels.has_two_sides(w, borders):
            return {}
        return score_sides(c, w, p, x, y)
