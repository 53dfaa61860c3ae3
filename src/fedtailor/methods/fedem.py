"""FedEM: every client is a private mixture of a few shared models.

Marfoq et al., Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS 2021, Algorithm 1.

The means weigh all clients, as in the authors' code: one that is not asked or does not answer counts with the model
it was sent, which is the old one. So the server asks everybody's number of examples once, before the first round.
"""

from dataclasses import dataclass
from typing import Annotated, NamedTuple

import torch
from torch import Tensor

from fedtailor.client import Batch, Client
from fedtailor.core.tree import Params, average
from fedtailor.method import Cohort, Count, Doc, Method, New, Uploads, hyper

PIECE = 500  # examples in one forward of the E-step


class Server(NamedTuple):
    """What the server remembers."""

    models: Annotated[list[Params], Doc("theta_m, components")]
    n: Annotated[dict[int, float], Doc("n_k of every client heard of")]


class Down(NamedTuple):
    """What goes down."""

    models: Annotated[list[Params], Doc("theta_m")]


class Keep(NamedTuple):
    """What never leaves the client."""

    pi: Annotated[Tensor, Doc("pi_k, weights of its mixture")]


class Up(NamedTuple):
    """What goes up."""

    models: Annotated[
        list[Params], Doc("theta_k,m, trained on the client's share in each component")
    ]


class Ask(NamedTuple):
    """What goes down before the first round: nothing."""


class Hello(NamedTuple):
    """What goes up before the first round: nothing but the number of examples, which comes with every reply."""


@dataclass(frozen=True)
class FedEM(Method[Server, Down, Keep, Up]):
    """The components are shared, their weights are the client's own."""

    setup_calls = ("count",)
    m: Count = hyper(3, "M, components; the paper's experiments have 3 (Sec. 4)")

    def warnings(self) -> list[str]:
        return ["m=1: with a single component FedEM is FedAvg"] if self.m == 1 else []

    def init(self, new: New, clients: int) -> Server:
        return Server(
            [new(i) for i in range(self.m)], {}
        )  # unlike each other, or they would stay alike

    def setup(self, server: Server, cohort: Cohort) -> Server:
        ups = cohort.run(self.count, Ask())
        return server._replace(n=server.n | dict(zip(ups.clients, ups.n.tolist(), strict=True)))

    def count(self, c: Client, down: Ask, keep: Keep) -> tuple[Hello, Keep]:
        """Say hello."""
        return Hello(), keep

    def send(self, server: Server, k: int) -> Down:
        return Down(server.models)

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(torch.full((self.m,), 1 / self.m, device=c.rng.device))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        fit = torch.stack([-self.losses(c, w) for w in down.models], -1)
        q = torch.softmax(
            fit + keep.pi.log(), -1
        )  # E-step: q_j(m) ~ pi_m exp(-l(theta_m; x_j, y_j))
        models = []
        for m, w in enumerate(down.models):  # M-step

            def loss(w: Params, batch: Batch, m: int = m) -> Tensor:
                return (q[batch.index, m] * c.task.losses(c.model(w, batch.x), batch.y)).mean()

            models.append(c.train(loss, w))
        return Up(models), Keep(c.mean(q))

    def losses(self, c: Client, w: Params) -> Tensor:
        """The loss of every training example."""
        parts = [c.task.losses(c.model(w, x), y) for x, y, _ in c.data.chunks(PIECE)]
        return torch.cat(parts)

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        n = server.n | dict(zip(ups.clients, ups.n.tolist(), strict=True))
        idle = sum(n.values()) - sum(ups.n.tolist())
        models = []
        for m, old in enumerate(server.models):
            mine = [up[m] for up in ups.models]
            models.append(
                average([*mine, old], [*ups.n.tolist(), idle]) if idle else average(mine, ups.n)
            )
        return Server(models, n)

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return join_mixture(down.models, keep.pi)

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return join_mixture(up.models, keep.pi)

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        models = [
            {k.removeprefix(f"{m}."): v for k, v in w.items() if k.startswith(f"{m}.")}
            for m in range(self.m)
        ]
        logs = torch.stack([c.model(one, x).log_softmax(-1) for one in models], -1)
        return torch.logsumexp(logs + w["pi"].log(), -1)  # log of sum_m pi_m p_m(y | x)


def join_mixture(models: list[Params], pi: Tensor) -> Params:
    """A mixture as one set of named tensors."""
    return {f"{m}.{k}": v for m, w in enumerate(models) for k, v in w.items()} | {"pi": pi}
