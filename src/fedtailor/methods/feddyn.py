"""FedDyn: a regulariser that follows every client's gradient makes local optima agree with the global one.

Acar et al., Federated Learning Based on Dynamic Regularization, ICLR 2021, Algorithm 1.

All clients weigh the same, as in the paper. What its authors' code does otherwise can be asked for: alpha scaled by
data (``by_size``), clipped gradients (``clip``), and the mean of the models that came in as the one that is evaluated
(``deploy``). That code also decays the learning rate, which is the experiment's. BatchNorm statistics are measured, not
learned: they have no gradient and no correction, the server takes their mean.

Algorithm 1 knows no lost replies. Where one gets lost the client's gradient has moved and h has not, and the models
would settle elsewhere: so a client keeps its last gradient but one as well, and takes back what was never heard of.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor

from fedtailor.client import Client
from fedtailor.core.tree import Params, Tree, add, dot, learned, subtract, tmap, total
from fedtailor.method import Cohort, Doc, Method, New, NoReplies, Positive, Uploads, hyper
from fedtailor.training.optim import Optimiser, pull


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[Params, Doc("theta, global model")]
    h: Annotated[Params, Doc("-alpha times the sum of all corrections so far")]
    clients: Annotated[int, Doc("m, how many there are")]
    sizes: Annotated[dict[int, float], Doc("by_size: examples of the clients heard of")]
    heard: Annotated[dict[int, int], Doc("by client, the round of its last reply")]
    mean: Annotated[Params | None, Doc("deploy=mean: of the models that came in last")]


class Down(NamedTuple):
    """What goes down."""

    w: Params
    heard: Annotated[
        Tensor, Doc("the round of the client's last reply that came through; 0: none did")
    ]
    size: Annotated[float | None, Doc("by_size: examples of a client, on average")] = None
    mean: Annotated[
        Params | None, Doc("deploy=mean: the model to evaluate, sent for that only")
    ] = None


class Keep(NamedTuple):
    """What never leaves the client."""

    grad: Annotated[
        Params,
        Doc("its gradient at its last model; by_size: times its share of data, n_k / n_mean"),
    ]
    old: Annotated[Params, Doc("the same before the last round it took part in")]
    t: Annotated[Tensor, Doc("that round")]


class Up(NamedTuple):
    """What goes up."""

    w: Annotated[Params, Doc("theta_k, locally trained model")]


class Hello(NamedTuple):
    """What goes up before the first round: nothing but the number of examples, which comes with every reply."""


@dataclass(frozen=True)
class FedDyn(Method[Server, Down, Keep, Up]):
    """Everything is shared; the personal model is the global one."""

    setup_calls = ("count",)
    alpha: Positive = hyper(
        0.01, "alpha, strength of the regulariser; the authors try 0.1, 0.01 and 0.001"
    )
    by_size: bool = hyper(
        False, "whether client k has alpha n_mean / n_k; in the authors' code, not in the paper"
    )
    clip: Positive | None = hyper(
        None, "longest gradient, no limit in the paper; 10 in the authors' code"
    )
    deploy: Literal["theta", "mean"] = hyper(
        "theta", "model to evaluate: Algorithm 1's, or the mean; authors' code"
    )

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        return Server(
            w,
            tmap(torch.zeros_like, learned(w)),
            clients,
            {},
            {},
            w if self.deploy == "mean" else None,
        )

    def setup(self, server: Server, cohort: Cohort) -> Server:
        if self.by_size:
            with suppress(NoReplies):  # who is not heard of here is so after its first round
                return self.note(server, cohort.run(self.count, lambda k: self.task(server, k)))
        return server

    def count(self, c: Client, down: Down, keep: Keep) -> tuple[Hello, Keep]:
        """Say hello, where alpha goes by size."""
        return Hello(), keep

    def note(self, server: Server, ups: Uploads[Up]) -> Server:
        """Remember how many examples the senders have."""
        return server._replace(
            sizes=server.sizes | dict(zip(ups.clients, ups.n.tolist(), strict=True))
        )

    def send(self, server: Server, k: int) -> Down:
        return self.task(server, k)._replace(mean=server.mean)

    def task(self, server: Server, k: int) -> Down:
        """What client k needs to train."""
        size = sum(server.sizes.values()) / len(server.sizes) if server.sizes else None
        heard = next(iter(server.w.values())).new_tensor(server.heard.get(k, 0), dtype=torch.int64)
        return Down(server.w, heard, size)

    def first_keep(self, c: Client, down: Down) -> Keep:
        zero = tmap(torch.zeros_like, learned(down.w))
        return Keep(zero, zero, torch.zeros_like(down.heard))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        start, grad = learned(down.w), recall(keep, down.heard)
        scale = (
            1.0
            if down.size is None
            else down.size / torch.as_tensor(c.n, device=c.rng.device).clamp(min=1)
        )
        # Eq. (1), L_k(w) - <grad, w> + alpha/2 ||w - theta||^2, but for a constant
        opt = pull(c.optimiser, add(start, grad, 1 / self.alpha), scale * self.alpha)
        w = c.train(
            c.loss,
            down.w,
            opt=ClippedPull(c.optimiser, opt.centre, opt.strength, self.clip) if self.clip else opt,
        )
        return Up(w), Keep(
            self.follow(grad, learned(w), start), grad, torch.full_like(down.heard, c.t)
        )

    def follow(self, grad: Params, w: Params, start: Params) -> Params:
        """The gradient at the model just trained: where Eq. (1) is least, its own gradient vanishes."""
        moved: Params = add(grad, subtract(w, start), -self.alpha)
        return moved

    def round(self, server: Server, cohort: Cohort) -> Server:
        ups = cohort.run(self.local, lambda k: self.task(server, k))
        server = self.merge(self.note(server, ups) if self.by_size else server, ups)
        return server._replace(heard=server.heard | dict.fromkeys(ups.clients, cohort.t))

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        start = learned(server.w)
        moved = total([subtract(learned(w), start) for w in ups.w])
        h = add(server.h, moved, -self.alpha / server.clients)
        mean = ups.mean("w", torch.ones(len(ups)))
        server = server._replace(w={**mean, **add(learned(mean), h, -1 / self.alpha)}, h=h)
        return server._replace(mean=mean) if self.deploy == "mean" else server

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return down.w if down.mean is None else down.mean

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return up.w

    def shared(self, server: Server) -> Params:
        return server.w if server.mean is None else server.mean


@dataclass(frozen=True)
class ClippedPull:
    """An optimiser on gradients no longer than ``norm``, but for alpha w, which is weight decay in the authors' code."""

    inner: Optimiser
    centre: Params
    strength: float | Tensor
    norm: float

    def init(self, w: Params) -> Tree:
        """The inner optimiser's first state."""
        return self.inner.init(w)

    def step(self, w: Params, gradient: Params, state: Tree) -> tuple[Params, Tree]:
        """A step on the shortened gradient."""
        return self.inner.step(w, self.shorten(w, gradient), state)

    def shorten(self, w: Params, g: Params) -> Params:
        """The gradient to follow; lengths are measured as torch.nn.utils.clip_grad_norm_ does."""
        rest = {k: g[k] - self.strength * self.centre[k] for k in g}
        share = (self.norm / (dot(rest, rest).sqrt() + 1e-6)).clamp(max=1)
        return {k: share * rest[k] + self.strength * w[k] for k in g}


def recall(keep: Keep, heard: Tensor) -> Params:
    """The client's gradient as the server knows it: the newest one, unless the reply of that round got lost."""
    newest = keep.t == heard
    known: Params = tmap(lambda new, old: torch.where(newest, new, old), keep.grad, keep.old)
    return known
