"""FedDyn: a regulariser that follows every client's gradient aligns local optima with the global.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1.

All clients have the same weight, as in the paper. What the authors' code does otherwise can be
asked for: alpha scaled by data (``by_size``), clipped gradients (``clip``), and evaluation of the
mean of the uploaded models (``deploy``). That code also decays the learning rate, which is the
experiment's. BatchNorm statistics are measured, not learned: they have no gradient and no
correction, the server takes their mean.

A client's gradient is no secret: it is -alpha times the sum of all differences between the models
that the client sent and received, which the server can compute.

Algorithm 1 has no lost replies. If one is lost, the client's gradient has moved and h has not, and
the models would converge elsewhere. So a client also keeps its last gradient but one, and goes back
to it if the server never received the reply.
"""

from dataclasses import dataclass
from functools import partial
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.client import Client
from fedtailor.core.tree import Params, Tree, add, learned, subtract, tmap
from fedtailor.method import (
    Cohort,
    Doc,
    Method,
    New,
    NoReplies,
    Positive,
    Uploads,
    hyper,
)
from fedtailor.training.optim import Optimiser, pull, shorten


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[Params, Doc("theta, global model")]
    h: Annotated[Params, Doc("-alpha times the sum of all corrections so far")]
    clients: Annotated[int, Doc("m, how many there are")]
    sizes: Annotated[
        dict[int, float], Doc("by_size: examples of the clients that have replied")
    ]
    heard: Annotated[dict[int, int], Doc("by client, the round of its last reply")]
    mean: Annotated[Params | None, Doc("deploy=mean: of the models uploaded last")]


class Down(NamedTuple):
    """What a client is sent."""

    w: Annotated[Params, Doc("theta, global model")]
    heard: Annotated[
        Tensor,
        Doc("the round of the client's last reply that the server received; 0: none"),
    ]
    size: Annotated[
        float | None,
        Doc("by_size: examples of a client, on average"),
    ] = None
    mean: Annotated[
        Params | None,
        Doc("deploy=mean: the model to evaluate, sent for that only"),
    ] = None


class Keep(NamedTuple):
    """What a client keeps to itself."""

    grad: Annotated[
        Params,
        Doc(
            "its gradient at its last model; by_size: times its share of data, n_k / n_mean"
        ),
    ]
    old: Annotated[Params, Doc("the same before the last round it took part in")]
    t: Annotated[Tensor, Doc("that round")]


class Up(NamedTuple):
    """What a client sends back."""

    w: Annotated[Params, Doc("theta_k, locally trained model")]


class Empty(NamedTuple):
    """An empty message: the number of examples comes with every reply."""


@dataclass(frozen=True)
class FedDyn(Method[Server, Down, Keep, Up]):
    """Everything is shared; the personal model is the global one."""

    setup_calls = ("count",)
    also_sent = ("grad", "old")  # in the differences of models
    alpha: Positive = hyper(
        0.01,
        "alpha, strength of the regulariser; the authors try 0.1, 0.01 and 0.001",
    )
    by_size: bool = hyper(
        False,
        "whether client k has alpha n_mean / n_k; in the authors' code, not in the paper",
    )
    clip: Positive | None = hyper(
        None,
        "longest gradient, no limit in the paper; 10 in the authors' code",
    )
    deploy: Literal["theta", "mean"] = hyper(
        "theta",
        "model to evaluate: Algorithm 1's, or the mean; authors' code",
    )

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        return Server(
            w=w,
            h=tmap(torch.zeros_like, learned(w)),
            clients=clients,
            sizes={},
            heard={},
            mean=w if self.deploy == "mean" else None,
        )

    def setup(self, server: Server, cohort: Cohort) -> Server:
        """by_size: ask new clients for their numbers of examples."""
        if not self.by_size:
            return server
        try:
            ups = cohort.run(self.count, lambda k: self.send_for_training(server, k))
        except NoReplies:  # their sizes are known after their first round
            return server
        return remember_sizes(server, ups)

    def count(self, c: Client, down: Down, keep: Keep) -> tuple[Empty, Keep]:
        """Reply with an empty message, which comes with the number of examples."""
        return Empty(), keep

    def send(self, server: Server, k: int) -> Down:
        down = self.send_for_training(server, k)
        return down._replace(mean=server.mean)

    def send_for_training(self, server: Server, k: int) -> Down:
        """What client k needs to train."""
        like = next(iter(server.w.values()))
        last = server.heard.get(k, 0)
        heard = like.new_tensor(last, dtype=torch.int64)
        if not server.sizes:
            return Down(server.w, heard)
        sizes = server.sizes.values()
        mean_size = sum(sizes) / len(sizes)
        return Down(server.w, heard, mean_size)

    def first_keep(self, c: Client, down: Down) -> Keep:
        zero = tmap(torch.zeros_like, learned(down.w))
        return Keep(
            grad=zero,
            old=zero,
            t=torch.zeros_like(down.heard),
        )

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """Train on Eq. (1): L_k(w) - <grad, w> + alpha/2 ||w - theta||^2; update the gradient."""
        grad = recall(keep, down.heard)
        regularised = self.regularise(c, down, grad)
        w = c.train(c.loss, down.w, opt=regularised)
        kept = Keep(
            grad=self.follow(grad, learned(w), learned(down.w)),
            old=grad,
            t=torch.full_like(down.heard, c.t),
        )
        return Up(w), kept

    def regularise(self, c: Client, down: Down, grad: Params) -> Optimiser:
        """An optimiser whose steps go down Eq. (1).

        But for a constant, - <grad, w> + alpha/2 ||w - theta||^2 is a pull towards
        theta + grad / alpha.
        """
        centre = add(learned(down.w), grad, 1 / self.alpha)
        strength: float | Tensor = self.alpha
        if down.size is not None:
            n = torch.as_tensor(c.n, device=c.rng.device)
            strength = down.size / n.clamp(min=1) * self.alpha
        if self.clip:
            return ClippedPull(
                inner=c.optimiser,
                centre=centre,
                strength=strength,
                norm=self.clip,
            )
        return pull(c.optimiser, centre, strength)

    def follow(self, grad: Params, w: Params, start: Params) -> Params:
        """The gradient of L_k at the model just trained, where that of Eq. (1) vanishes."""
        moved: Params = add(grad, subtract(w, start), -self.alpha)
        return moved

    def round(self, server: Server, cohort: Cohort) -> Server:
        ups = cohort.run(self.local, lambda k: self.send_for_training(server, k))
        if self.by_size:
            server = remember_sizes(server, ups)
        server = self.merge(server, ups)
        heard = server.heard | dict.fromkeys(ups.clients, cohort.t)
        return server._replace(heard=heard)

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        """h = h - alpha/m sum_k (theta_k - theta), theta = mean of theta_k - h / alpha."""
        theta = learned(server.w)
        moves = ups.map(lambda up: Up(subtract(learned(up.w), theta)))
        share = self.alpha / server.clients
        h = add(server.h, moves.sum("w"), -share)
        equal = torch.ones(len(ups))
        mean = ups.mean("w", equal)
        corrected = add(learned(mean), h, -1 / self.alpha)
        server = server._replace(w=mean | corrected, h=h)
        if self.deploy == "mean":
            return server._replace(mean=mean)
        return server

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return down.w if down.mean is None else down.mean

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return up.w

    def shared(self, server: Server) -> Params:
        return server.w if server.mean is None else server.mean


@dataclass(frozen=True)
class ClippedPull:
    """``pull`` as in the authors' code, which clips all of the gradient but its weight decay.

    The gradient of L(w) + strength/2 ||w - centre||^2 is

        (grad L(w) - strength centre) + strength w.

    The code has the second term as the optimiser's weight decay; it shortens the first to ``norm``.
    """

    inner: Optimiser
    centre: Params
    strength: float | Tensor
    norm: float

    def init(self, w: Params) -> Tree:
        """The inner optimiser's first state."""
        return self.inner.init(w)

    def step(self, w: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """A step of the inner optimiser on the shortened gradient."""
        whole = self.shorten(w, gradient)
        return self.inner.step(w, whole, state)

    def shorten(self, w: Params, gradient: Params) -> Params:
        """The gradient with the pull, its first term shortened."""
        first = {}
        for name, g in gradient.items():
            first[name] = g - self.strength * self.centre[name]
        whole = {}
        for name, g in shorten(first, self.norm).items():
            whole[name] = g + self.strength * w[name]
        return whole


def recall(keep: Keep, heard: Tensor) -> Params:
    """The client's gradient as the server knows it.

    That is the newest one, or the one before it if the reply of that round was lost.
    """
    is_known = keep.t == heard
    choose = partial(torch.where, is_known)
    grad: Params = tmap(choose, keep.grad, keep.old)
    return grad


def remember_sizes(server: Server, ups: Uploads[Up]) -> Server:
    """The server, knowing how many examples the senders have."""
    sizes = ups.sizes()
    return server._replace(sizes=server.sizes | sizes)
