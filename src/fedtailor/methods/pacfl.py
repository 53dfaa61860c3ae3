"""PACFL: clients are grouped once, by the angles between the spaces their data span; then FedAvg.

Vahidian et al., Efficient Distribution Similarity Identification in Clustered Federated Learning
via Principal Angles Between Client Data Subspaces, AAAI 2023, Algorithm 1.

The smallest principal angle is the exact one, of the spaces spanned by all of a client's
directions; the authors' code takes the smallest angle between two single directions
(``angle=entries``). Images are taken as brightness above black, like the authors' bytes: beta
depends on it, and on how many examples a class has.

A new client joins the nearest cluster, or forms a new one if all are further than beta. A client
that has sent nothing yet is sent the model of the largest cluster.
"""

from contextlib import suppress
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

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
    cluster: Annotated[
        dict[int, int], Doc("of every client that has sent its directions")
    ]
    basis: Annotated[dict[int, Tensor], Doc("U_k of every client that has sent it")]


class Down(NamedTuple):
    """What a client is sent."""

    w: Annotated[Params, Doc("the model of the client's cluster")]


class Up(NamedTuple):
    """What a client sends back."""

    w: Annotated[Params, Doc("locally trained model")]


class Ask(NamedTuple):
    """What a client is sent before it has a cluster: nothing."""


class Signature(NamedTuple):
    """What a client sends once, before it has a cluster."""

    basis: Annotated[
        Tensor, Doc("U_k, p directions of every class the client has, one a row")
    ]


@dataclass(frozen=True)
class PACFL(Method[Server, Down, None, Up]):
    """FedAvg among clients whose data span similar spaces."""

    reveals: ClassVar[dict[str, str]] = {
        "class images": "the first direction of a class is nearly its mean image, and is sent",
    }

    setup_calls = ("span",)
    beta: NonNegative = hyper(
        4.9,
        "beta, degrees up to which clusters merge; as in the authors' script for CIFAR-10",
    )
    p: Count = hyper(
        3,
        "p, directions of a class; as in the authors' script",
    )
    angle: Literal["smallest", "entries", "sum"] = hyper(
        "smallest",
        "Eq. (2), its stand-in in the authors' code, or Eq. (3)",
    )
    linkage: Literal["average", "complete", "single"] = hyper(
        "average",
        "distance of clusters; as in the authors' script",
    )
    cap: Count = hyper(
        500,
        "examples of a class that are looked at, as their decomposition takes time; "
        "the paper has no cap",
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
        for module in backbone.modules():
            if isinstance(module, nn.Embedding | nn.EmbeddingBag):
                raise Unsupported(
                    "PACFL compares inputs as vectors, and the ids of words are none"
                )
        return backbone

    def init(self, new: New, clients: int) -> Server:
        return Server(
            first=new(0),
            models=[],
            cluster={},
            basis={},
        )

    def setup(self, server: Server, cohort: Cohort) -> Server:
        """New clients send their directions: the first of them are grouped, later ones placed."""
        ups = cohort.run(self.span, Ask())
        if not server.cluster:
            return self.group(server, ups)
        for k, up in ups.by_client().items():
            server = self.place(server, k, up.basis)
        return server

    @one_by_one
    def span(self, c: Client, down: Ask, keep: None) -> tuple[Signature, None]:
        """Send the principal directions of every class's inputs."""
        x = c.x
        if x.dim() == 4:  # images: brightness above black, which is -1
            x = x + 1
        directions = []
        for y in range(c.classes):
            rows = x[c.y == y][: self.cap]
            found = find_directions(rows.flatten(1), self.p)
            directions.append(found)
        return Signature(torch.cat(directions)), None

    def group(self, server: Server, ups: Uploads[Signature]) -> Server:
        """Clusters of the first clients, by the angles between their directions."""
        angles = measure_angles(ups.basis, ups.basis, self.angle)
        labels = agglomerate(angles, self.linkage, threshold=self.beta)
        return Server(
            first=server.first,
            models=[server.first] * (max(labels) + 1),
            cluster=dict(zip(ups.clients, labels, strict=True)),
            basis=dict(zip(ups.clients, ups.basis, strict=True)),
        )

    def place(self, server: Server, k: int, basis: Tensor) -> Server:
        """A new client joins the nearest cluster, or forms one if all are further than beta."""
        members = list(server.basis.values())
        labels = [server.cluster[i] for i in server.basis]
        angles = measure_angles([basis], members, self.angle)
        j, distance = find_nearest(angles[0], labels, self.linkage)
        models = server.models
        if distance > self.beta:
            j = len(models)
            models = [*models, server.first]
        return Server(
            first=server.first,
            models=models,
            cluster=server.cluster | {k: j},
            basis=server.basis | {k: basis},
        )

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Ask again for directions that were lost; clients that fail again miss this round."""
        missing = cohort.only(k for k in cohort.clients if k not in server.cluster)
        if len(missing):
            with suppress(NoReplies):
                server = self.setup(server, missing)
        return super().round(server, cohort.only(server.cluster))

    def send(self, server: Server, k: int) -> Down:
        if not server.models:
            return Down(server.first)
        largest = find_largest(server.cluster.values())
        j = server.cluster.get(k, largest)
        return Down(server.models[j])

    def local(self, c: Client, down: Down, keep: None) -> tuple[Up, None]:
        """Train the cluster's model."""
        w = c.train(c.loss, down.w)
        return Up(w), None

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        models = ups.mean_by_group("w", server.cluster, server.models)
        return server._replace(models=models)

    def personal(self, c: Client, down: Down, keep: None) -> Params:
        return down.w

    def after_training(self, c: Client, down: Down, up: Up, keep: None) -> Params:
        return up.w

    def closing_remarks(self, server: Server) -> list[str]:
        if not server.cluster:
            return []
        return [f"PACFL made {tell_sizes(server.cluster.values())}"]
