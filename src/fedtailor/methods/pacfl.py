"""PACFL: clients are grouped once, by the angles between the spaces their data span; then FedAvg in every cluster.

Vahidian et al., Efficient Distribution Similarity Identification in Clustered Federated Learning via Principal Angles
Between Client Data Subspaces, AAAI 2023, Algorithm 1.

The smallest principal angle is the exact one, of the spaces spanned by all of a client's directions; the authors' code
takes the smallest angle between two single directions (``angle=entries``). Images are taken as brightness above black,
like the bytes of the authors: beta depends on it, and on how many examples a class has.

A newcomer joins the nearest cluster, or founds one where all are further than beta. One of whom nothing is known yet
is sent the model of the largest cluster.
"""

from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import torch
from torch import Tensor, nn

from fedtailor.client import Client
from fedtailor.core.errors import Unsupported
from fedtailor.core.tree import Params
from fedtailor.maths.clustering import (
    agglomerate,
    find_directions,
    find_largest,
    find_nearest,
    measure_angles,
    tell_sizes,
)
from fedtailor.method import (
    Cohort,
    Count,
    Doc,
    Method,
    New,
    NonNegative,
    NoReplies,
    Uploads,
    hyper,
    one_by_one,
)
from fedtailor.models.backbone import Backbone


class Server(NamedTuple):
    """What the server remembers."""

    first: Annotated[Params, Doc("theta_0, the first model of every cluster")]
    models: Annotated[list[Params], Doc("theta_z, one a cluster")]
    cluster: Annotated[dict[int, int], Doc("of every client heard of")]
    basis: Annotated[dict[int, Tensor], Doc("U_k of every client heard of")]


class Down(NamedTuple):
    """What goes down."""

    w: Annotated[Params, Doc("the model of the client's cluster")]


class Up(NamedTuple):
    """What goes up."""

    w: Annotated[Params, Doc("locally trained model")]


class Ask(NamedTuple):
    """What goes down to a client not heard of before: nothing."""


class Signature(NamedTuple):
    """What goes up from it, once."""

    basis: Annotated[Tensor, Doc("U_k, p directions of every class the client has, one a row")]


@dataclass(frozen=True)
class PACFL(Method[Server, Down, None, Up]):
    """FedAvg among clients whose data lie alike."""

    setup_calls = ("span",)
    beta: NonNegative = hyper(
        4.9, "beta, degrees up to which clusters merge; as in the authors' script for CIFAR-10"
    )
    p: Count = hyper(3, "p, directions of a class; as in the authors' script")
    angle: Literal["smallest", "entries", "sum"] = hyper(
        "smallest", "Eq. (2), its stand-in in the authors' code, or Eq. (3)"
    )
    linkage: Literal["average", "complete", "single"] = hyper(
        "average", "distance of clusters; as in the authors' script"
    )
    cap: Count = hyper(
        500,
        "examples of a class that are looked at, as their decomposition takes time; the paper has no cap",
    )

    def warnings(self) -> list[str]:
        if self.beta == 0:
            return [
                "beta=0: in PACFL hardly two clients share a cluster, so everybody trains alone"
            ]
        if self.beta >= 90 and self.angle != "sum":
            return [
                f"beta={self.beta:g}: no angle is larger, so PACFL has one cluster and is FedAvg"
            ]
        return []

    def net(self, backbone: Backbone) -> nn.Module:
        if any(isinstance(m, nn.Embedding | nn.EmbeddingBag) for m in backbone.modules()):
            raise Unsupported("PACFL compares inputs as vectors, and the ids of words are none")
        return backbone

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0), [], {}, {})

    def setup(self, server: Server, cohort: Cohort) -> Server:
        ups = cohort.run(self.span, Ask())
        if not server.cluster:
            labels = agglomerate(
                measure_angles(ups.basis, ups.basis, self.angle), self.linkage, threshold=self.beta
            )
            cluster, models = (
                dict(zip(ups.clients, labels, strict=True)),
                [server.first] * (max(labels) + 1),
            )
            return Server(
                server.first, models, cluster, dict(zip(ups.clients, ups.basis, strict=True))
            )
        for k, basis in zip(ups.clients, ups.basis, strict=True):
            server = self.admit(server, k, basis)
        return server

    @one_by_one
    def span(self, c: Client, down: Ask, keep: None) -> tuple[Signature, None]:
        """The principal directions of every class's inputs."""
        x = c.x + 1 if c.x.dim() == 4 else c.x
        mine = [x[c.y == y][: self.cap].flatten(1) for y in range(c.classes)]
        return Signature(torch.cat([find_directions(rows, self.p) for rows in mine])), None

    def admit(self, server: Server, k: int, basis: Tensor) -> Server:
        """A newcomer's cluster, by the same angles."""
        angles = measure_angles([basis], list(server.basis.values()), self.angle)[0]
        j, gap = find_nearest(angles, [server.cluster[i] for i in server.basis], self.linkage)
        models, j = (
            (server.models, j)
            if gap <= self.beta
            else ([*server.models, server.first], len(server.models))
        )
        return Server(server.first, models, server.cluster | {k: j}, server.basis | {k: basis})

    def round(self, server: Server, cohort: Cohort) -> Server:
        server = self.ask_again(
            server, cohort.only(k for k in cohort.clients if k not in server.cluster)
        )
        return super().round(server, cohort.only(server.cluster))

    def ask_again(self, server: Server, cohort: Cohort) -> Server:
        """Clients whose signature got lost; one that is lost again sits this round out."""
        try:
            return self.setup(server, cohort) if len(cohort) else server
        except NoReplies:
            return server

    def send(self, server: Server, k: int) -> Down:
        j = server.cluster.get(k, find_largest(server.cluster.values()))
        return Down(server.models[j] if server.models else server.first)

    def local(self, c: Client, down: Down, keep: None) -> tuple[Up, None]:
        return Up(c.train(c.loss, down.w)), None

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        models = list(server.models)
        for j in range(len(models)):
            mine = ups.of(k for k in ups.clients if server.cluster[k] == j)
            if len(mine):
                models[j] = mine.mean("w")
        return server._replace(models=models)

    def personal(self, c: Client, down: Down, keep: None) -> Params:
        return down.w

    def after_training(self, c: Client, down: Down, up: Up, keep: None) -> Params:
        return up.w

    def closing_remarks(self, server: Server) -> list[str]:
        return [f"PACFL made {tell_sizes(server.cluster.values())}"] if server.cluster else []
