"""pFedMe: personal models near the global one, which follows their Moreau envelopes.

T. Dinh et al., Personalized Federated Learning with Moreau Envelopes, NeurIPS 2020, Algorithm 1.

The personal model is theta, kept from the last batch of a client's last round. The authors' own
numbers are those of w_k, into which their code turns theta by sharing memory: that is the view
``after``. Their code also decays theta's weights by 0.001, which is the experiment's weight decay
here; eta is its learning rate. The experiment's momentum is not used: neither the paper nor the
code has any, and every batch is a new problem for theta's K steps.

A local round is one batch. Algorithm 1 and the code have R of them; here there are as many as the
experiment's epochs hold, as in every method, unless ``local_rounds`` says otherwise. Their code
takes batches in a fixed order; here they are drawn, as in the paper. All clients have the same
weight, as in the paper; in the code they are weighted by their data (``by_size``).

BatchNorm statistics are measured, not learned: no step goes beyond what was measured (eta lambda >
1, beta > 1), as that could make a variance negative.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch

from fedtailor.client import Batch, Client
from fedtailor.core.tree import Params, learned, lerp
from fedtailor.method import (
    Count,
    Doc,
    Method,
    New,
    NonNegative,
    Positive,
    Uploads,
    hyper,
)
from fedtailor.training.optim import SGD, pull


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[Params, Doc("w, global model")]


class Down(NamedTuple):
    """What a client is sent."""

    w: Annotated[Params, Doc("w, global model, from which w_k and theta_k start")]


class Keep(NamedTuple):
    """What a client keeps to itself."""

    theta: Annotated[Params, Doc("theta_k, personal model")]


class Up(NamedTuple):
    """What a client sends back."""

    w: Annotated[
        Params, Doc("w_k, the client's copy of the global model after its steps")
    ]


@dataclass(frozen=True)
class PFedMe(Method[Server, Down, Keep, Up]):
    """The global model moves towards the personal models, which are held near it."""

    lam: NonNegative = hyper(
        15.0,
        "lambda, pull of theta towards w and of w towards theta; 15 in the authors' runs",
    )
    inner: Count = hyper(
        5,
        "K, steps of theta on every batch; 5 in the authors' runs",
    )
    inner_lr: Positive = hyper(
        0.01,
        "eta_p, size of these steps; 0.01 for CIFAR, 0.09 and 0.1 in the authors' runs on MNIST",
    )
    beta: Positive = hyper(
        1.0,
        "beta, how far the server goes towards the mean; the authors' tuned runs have 2",
    )
    local_rounds: Count | None = hyper(
        None,
        "R, each on a batch of its own, not the experiment's epochs; 20 in their runs",
    )
    by_size: bool = hyper(
        False,
        "whether that mean is weighted by data; in the authors' code, not in the paper",
    )

    def warnings(self) -> list[str]:
        if self.lam == 0:
            return [
                "lam=0: pFedMe's global model never moves, and nothing pulls personal models"
            ]
        return []

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0))

    def send(self, server: Server, k: int) -> Down:
        return Down(server.w)

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(down.w)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """On every batch: K steps of theta near w, then a step of w towards theta."""
        inner = SGD(self.inner_lr, weight_decay=c.plan.weight_decay)
        rate = c.plan.lr_in_round(c.t) * self.lam  # eta lambda

        def step(carry: tuple[Params, Params], batch: Batch) -> tuple[Params, Params]:
            w, theta = carry
            if self.local_rounds and batch.step:
                return carry  # the first batch of every shuffle is a new one
            # theta ~ argmin f(theta; D) + lambda/2 ||theta - w||^2
            pulled = pull(inner, w, self.lam)
            for _ in range(self.inner):
                theta, _ = c.step(c.loss, theta, batch, pulled)
            # w - eta lambda (w - theta), which BatchNorm statistics follow no further than to theta
            statistics = lerp(w, theta, min(1.0, rate))
            moved = lerp(learned(w), learned(theta), rate)
            return statistics | moved, theta

        start = (down.w, down.w)
        w, theta = c.each_batch(step, start, epochs=self.local_rounds)
        return Up(w), Keep(theta)

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        """(1 - beta) w + beta mean of the w_k; BatchNorm statistics are the mean's."""
        weights = ups.n
        if not self.by_size:
            weights = torch.ones(len(ups))
        mean = ups.mean("w", weights)
        moved = lerp(learned(server.w), learned(mean), self.beta)
        return Server(mean | moved)

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return keep.theta

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return up.w

    def shared(self, server: Server) -> Params:
        return server.w
