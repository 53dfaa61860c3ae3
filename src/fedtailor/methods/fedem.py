"""FedEM: every client is a private mixture of a few shared models.

Marfoq et al., Federated Multi-Task Learning under a Mixture of Distributions, NeurIPS 2021,
Algorithm 1.

The means are over all clients, as in the authors' code: a client that does not take part, or whose
reply is lost, counts with the model it would have been sent, which is the old one. So the server
asks every client for its number of examples once, before its first round.
"""

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

import torch
from torch import Tensor

from fedtailor.client import Batch, Client
from fedtailor.core.tree import Params
from fedtailor.method import Cohort, Count, Doc, Method, New, Uploads, hyper


class Server(NamedTuple):
    """What the server remembers."""

    models: Annotated[list[Params], Doc("theta_m, components")]
    n: Annotated[dict[int, float], Doc("n_k of every client that has replied")]


class Down(NamedTuple):
    """What a client is sent."""

    models: Annotated[list[Params], Doc("theta_m, components")]


class Keep(NamedTuple):
    """What a client keeps to itself."""

    pi: Annotated[Tensor, Doc("pi_k, weights of its mixture")]


class Up(NamedTuple):
    """What a client sends back."""

    models: Annotated[
        list[Params],
        Doc("theta_k,m, trained on the client's share in each component"),
    ]


class Empty(NamedTuple):
    """An empty message: the number of examples comes with every reply."""


@dataclass(frozen=True)
class FedEM(Method[Server, Down, Keep, Up]):
    """The components are shared, their weights are the client's own."""

    needs_classes: ClassVar[str] = "its mixture is one of probabilities of classes"

    setup_calls = ("count",)

    m: Count = hyper(
        3,
        "M, components; the paper's experiments have 3 (Sec. 4)",
    )

    def warnings(self) -> list[str]:
        if self.m == 1:
            return ["m=1: with a single component FedEM is FedAvg"]
        return []

    def init(self, new: New, clients: int) -> Server:
        # different ones, or they would stay equal
        models = [new(i) for i in range(self.m)]
        return Server(models, {})

    def setup(self, server: Server, cohort: Cohort) -> Server:
        """Ask new clients for their numbers of examples."""
        ups = cohort.run(self.count, Empty())
        return server._replace(n=server.n | ups.sizes())

    def count(self, c: Client, down: Empty, keep: Keep) -> tuple[Empty, Keep]:
        """Reply with an empty message, which comes with the number of examples."""
        return Empty(), keep

    def send(self, server: Server, k: int) -> Down:
        return Down(server.models)

    def first_keep(self, c: Client, down: Down) -> Keep:
        equal = 1 / self.m
        pi = torch.full((self.m,), equal, device=c.rng.device)
        return Keep(pi)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """E-step: weigh the examples for every component. M-step: train every component."""
        # E-step: q_j(m) ~ pi_m exp(-l(theta_m; x_j, y_j))
        losses = [c.losses(w, c.data) for w in down.models]
        likelihood = -torch.stack(losses, -1)
        q = torch.softmax(likelihood + keep.pi.log(), -1)
        # M-step
        models = []
        for m, w in enumerate(down.models):
            trained = train_weighted(c, w, q[:, m])
            models.append(trained)
        pi = c.mean(q)
        return Up(models), Keep(pi)

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        """The means over all clients; those that sent nothing count with the old models."""
        n = server.n | ups.sizes()
        present = ups.n.tolist()
        absent = sum(n.values()) - sum(present)
        if absent == 0:
            return Server(ups.mean("models"), n)
        models = [*ups.models, server.models]
        weights = torch.tensor([*present, absent], dtype=torch.float64)
        return Server(ups.reduction(models, weights), n)

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return join_mixture(down.models, keep.pi)

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return join_mixture(up.models, keep.pi)

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        """log sum_m pi_m p_m(y | x)"""
        logs = []
        for m in range(self.m):
            component = take_component(w, m)
            logits = c.model(component, x)
            logs.append(logits.log_softmax(-1))
        prior = w["pi"].log()
        weighted = torch.stack(logs, -1) + prior
        return torch.logsumexp(weighted, -1)


def train_weighted(c: Client, w: Params, weight: Tensor) -> Params:
    """Train a component on all examples, each with its own weight."""

    def loss(w: Params, batch: Batch) -> Tensor:
        logits = c.model(w, batch.x)
        losses = c.task.losses(logits, batch.y)
        return (weight[batch.index] * losses).mean()

    return c.train(loss, w)


def join_mixture(models: list[Params], pi: Tensor) -> Params:
    """A mixture as one set of named tensors."""
    joined: Params = {}
    for m, w in enumerate(models):
        for name, value in w.items():
            joined[f"{m}.{name}"] = value
    joined["pi"] = pi
    return joined


def take_component(joined: Params, m: int) -> Params:
    """One model of a mixture that ``join_mixture`` made."""
    prefix = f"{m}."
    w: Params = {}
    for name, value in joined.items():
        if name.startswith(prefix):
            w[name.removeprefix(prefix)] = value
    return w
