"""Per-FedAvg: a common first model from which one step on a client's own data leads far.

Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic
Meta-Learning Approach, NeurIPS 2020, Algorithm 1.

These are its two affordable variants. The first-order one leaves out the Hessian (``fo``); the
Hessian-free one takes the Hessian's product with the gradient from two more gradients (``hf``).
beta is the experiment's learning rate. Every meta-step uses two or three disjoint batches of the
experiment's size; where a client has too few examples, its batches repeat them.

We know of no code by the authors: alpha and delta are those of others' implementations.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch

from fedtailor.client import Batch, Client
from fedtailor.core.tree import Params, Tree, add, learned, subtract
from fedtailor.method import Count, Doc, Method, New, Positive, Uploads, hyper
from fedtailor.training.optim import SGD

Trained = tuple[Params, Tree]  # a model and the state of its optimiser


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[Params, Doc("w, meta-model")]


class Down(NamedTuple):
    """What a client is sent."""

    w: Annotated[Params, Doc("w, meta-model")]


class Up(NamedTuple):
    """What a client sends back."""

    w: Annotated[Params, Doc("w_k, locally trained meta-model")]


@dataclass(frozen=True)
class PerFedAvg(Method[Server, Down, None, Up]):
    """The meta-model is shared; the personal model is a step away from it."""

    variant: Literal["fo", "hf"] = hyper(
        "fo",
        "first-order or Hessian-free; FedCP and GPFL compare with the first",
    )
    alpha: Positive = hyper(
        0.01,
        "alpha, size of the inner step and of the personal one; "
        "as in KarhouTam/Per-FedAvg and FLGo",
    )
    delta: Positive = hyper(
        0.001,
        "delta, how far from w the two gradients of hf are taken; as in FL-bench and FLGo",
    )
    steps: Count = hyper(
        1,
        "steps of the personal model, a batch each; the paper takes one",
    )

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0))

    def send(self, server: Server, k: int) -> Down:
        return Down(server.w)

    def local(self, c: Client, down: Down, keep: None) -> tuple[Up, None]:
        """Meta-steps: the gradient at the model one inner step ahead moves the meta-model."""
        parts = 2 if self.variant == "fo" else 3
        inner = SGD(self.alpha)
        optimiser = c.optimiser

        def step(carry: Trained, batch: Batch) -> Trained:
            w, state = carry
            batches = cut_batch(batch, parts)
            ahead, _ = c.step(c.loss, w, batches[0], inner)  # w - alpha grad f(w; D)
            gradient = c.grad(c.loss, ahead, batches[1])
            if self.variant == "hf":
                gradient = self.correct(c, w, gradient, batches[2])
            start = {name: w[name] for name in gradient}
            moved, state = optimiser.step(start, gradient, state)
            # BatchNorm statistics are those of the inner step
            return (
                ahead | moved,
                state,
            )

        state = optimiser.init(learned(down.w))
        size = parts * c.batch_size
        w, _ = c.each_batch(step, (down.w, state), size=size)
        return Up(w), None

    def correct(self, c: Client, w: Params, gradient: Params, batch: Batch) -> Params:
        """(I - alpha H) gradient, with H the Hessian at w on this batch.

        H gradient is (grad f(w + delta gradient) - grad f(w - delta gradient)) / (2 delta).
        """
        start = {name: w[name] for name in gradient}
        forward = add(start, gradient, self.delta)
        backward = add(start, gradient, -self.delta)
        above = c.grad(c.loss, w | forward, batch)
        below = c.grad(c.loss, w | backward, batch)
        scale = -self.alpha / (2 * self.delta)
        corrected: Params = add(gradient, subtract(above, below), scale)
        return corrected

    def adapt(self, c: Client, w: Params) -> Params:
        """A few steps on the client's own data, each on the first batch of a new shuffle."""
        inner = SGD(self.alpha)

        def step(w: Params, batch: Batch) -> Params:
            if batch.step > 0:
                return w
            moved, _ = c.step(c.loss, w, batch, inner)
            return moved

        return c.each_batch(step, w, epochs=self.steps)

    @property
    def counts_alike(self) -> bool:
        return True

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        equal = torch.ones(len(ups))
        return Server(ups.mean("w", equal))

    def personal(self, c: Client, down: Down, keep: None) -> Params:
        return self.adapt(c, down.w)

    def after_training(self, c: Client, down: Down, up: Up, keep: None) -> Params:
        return self.adapt(c, up.w)

    def shared(self, server: Server) -> Params:
        return server.w


def cut_batch(batch: Batch, parts: int) -> list[Batch]:
    """Batches of equal size; each is the whole batch if that has fewer examples than parts."""
    size = len(batch.y) // parts
    batches = []
    for i in range(parts):
        here = slice(i * size, (i + 1) * size)
        if size == 0:
            here = slice(None)
        piece = Batch(
            x=batch.x[here],
            y=batch.y[here],
            index=batch.index[here],
            stream=batch.rng,
            step=i,
        )
        batches.append(piece)
    return batches
