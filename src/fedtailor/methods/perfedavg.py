"""Per-FedAvg: a common first model from which one step on a client's own data leads far.

Fallah et al., Personalized Federated Learning with Theoretical Guarantees: A Model-Agnostic Meta-Learning Approach,
NeurIPS 2020, Algorithm 1.

Its two affordable variants: the first-order one forgets the Hessian (``fo``), the other takes the Hessian's product
with the gradient from two more gradients (``hf``). beta is the experiment's learning rate. Every meta-step draws two
or three disjoint batches of the experiment's size; where a client has too few examples, its batches repeat them.

The authors published no code that we know of: alpha and delta are those of others' implementations.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch

from fedtailor.client import Batch, Client
from fedtailor.core.tree import Params, Tree, add, learned, subtract
from fedtailor.method import Count, Doc, Method, New, Positive, Uploads, hyper
from fedtailor.training.optim import SGD


class Server(NamedTuple):
    """What the server remembers."""

    w: Annotated[Params, Doc("meta-model")]


class Down(NamedTuple):
    """What goes down."""

    w: Params


class Up(NamedTuple):
    """What goes up."""

    w: Annotated[Params, Doc("locally trained meta-model")]


@dataclass(frozen=True)
class PerFedAvg(Method[Server, Down, None, Up]):
    """The meta-model is shared; the personal model is a step away from it."""

    variant: Literal["fo", "hf"] = hyper(
        "fo", "first-order or Hessian-free; FedCP and GPFL compare with the first"
    )
    alpha: Positive = hyper(
        0.01,
        "alpha, size of the inner step and of the personal one; as in KarhouTam/Per-FedAvg and FLGo",
    )
    delta: Positive = hyper(
        0.001, "delta, how far from w the two gradients of hf are taken; as in FL-bench and FLGo"
    )
    steps: Count = hyper(1, "steps of the personal model, a batch each; the paper takes one")

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0))

    def send(self, server: Server, k: int) -> Down:
        return Down(server.w)

    def local(self, c: Client, down: Down, keep: None) -> tuple[Up, None]:
        parts, opt = 2 if self.variant == "fo" else 3, c.optimiser

        def step(carry: tuple[Params, Tree], batch: Batch) -> tuple[Params, Tree]:
            w, moments = carry
            batches = _cut(batch, parts)
            inner, _ = c.step(c.loss, w, batches[0], SGD(self.alpha))  # w~ = w - alpha grad f(w; D)
            g = c.grad(c.loss, inner, batches[1])
            start = {k: w[k] for k in g}
            if self.variant == "hf":  # (I - alpha H) g, H at w on D''
                ahead, behind = (
                    c.grad(c.loss, {**w, **add(start, g, shift)}, batches[2])
                    for shift in (self.delta, -self.delta)
                )
                g = add(g, subtract(ahead, behind), -self.alpha / (2 * self.delta))
            new, moments = opt.step(start, g, moments)
            return {**inner, **new}, moments

        w, _ = c.each_batch(step, (down.w, opt.init(learned(down.w))), size=parts * c.batch_size)
        return Up(w), None

    def adapt(self, c: Client, w: Params) -> Params:
        """A few steps on the client's own data, each on the first batch of a new shuffle."""

        def step(w: Params, batch: Batch) -> Params:
            return c.step(c.loss, w, batch, SGD(self.alpha))[0] if batch.step == 0 else w

        return c.each_batch(step, w, epochs=self.steps)

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        return Server(ups.mean("w", torch.ones(len(ups))))

    def personal(self, c: Client, down: Down, keep: None) -> Params:
        return self.adapt(c, down.w)

    def after_training(self, c: Client, down: Down, up: Up, keep: None) -> Params:
        return self.adapt(c, up.w)

    def shared(self, server: Server) -> Params:
        return server.w


def _cut(batch: Batch, parts: int) -> list[Batch]:
    """As many batches of equal size; each the whole one where there are fewer examples than parts."""
    m = len(batch.y) // parts
    cuts = [slice(i * m, (i + 1) * m) for i in range(parts)] if m else [slice(None)] * parts
    return [Batch(batch.x[s], batch.y[s], batch.index[s], batch.rng, i) for i, s in enumerate(cuts)]
