"""FedClust: clients are grouped once, by the final layers of briefly trained models; then FedAvg.

Islam et al., FedClust: Tackling Data Heterogeneity in Federated Learning through Weight-Driven
Client Clustering, ICPP 2024, Algorithm 1.

The threshold lambda is a quantile of the distances between clients unless it, or the number of
clusters, is given. We know of no code by the authors: the linkage is that of PACFL's code, as in
our specification of the baselines. A new client trains the same first model by the same plan,
whenever it joins, and is added to the cluster whose members' final layers are nearest on average. A
client that has sent nothing yet is sent the model of the largest cluster.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedtailor.client import Client
from fedtailor.core.errors import unknown
from fedtailor.core.tree import Params, Tree, part
from fedtailor.maths.clustering import (
    agglomerate,
    find_largest,
    find_nearest,
    flatten,
    list_members,
    tell_sizes,
)
from fedtailor.method import (
    Cohort,
    Count,
    Doc,
    Method,
    New,
    NoReplies,
    Positive,
    Share,
    Uploads,
    hyper,
)
from fedtailor.models.backbone import Backbone


class Server(NamedTuple):
    """What the server remembers."""

    first: Annotated[
        Params, Doc("the first model of every cluster, which new clients train too")
    ]
    models: Annotated[list[Params], Doc("one a cluster")]
    cluster: Annotated[
        dict[int, int], Doc("of every client that has sent its final layer")
    ]
    last: Annotated[
        dict[int, Params],
        Doc("final layer of every client that has sent it, after the warm-up"),
    ]


class Down(NamedTuple):
    """What a client is sent."""

    w: Annotated[
        Params, Doc("the model of the client's cluster; before that the first one")
    ]


class Up(NamedTuple):
    """What a client sends back."""

    w: Annotated[Params, Doc("locally trained model")]


class FinalLayer(NamedTuple):
    """What a client sends once, before it has a cluster."""

    last: Annotated[Params, Doc("final layer of the model trained in the warm-up")]


@dataclass(frozen=True)
class FedClust(Method[Server, Down, None, Up]):
    """FedAvg among clients whose final layers moved alike."""

    setup_calls = ("warm_up",)
    warmup: Count = hyper(
        10,
        "epochs on the first model before the clusters are made; E of the paper's experiments",
    )
    clusters: Count | None = hyper(
        None,
        "how many; else the threshold decides",
    )
    threshold: Positive | None = hyper(
        None,
        "lambda, distance up to which clusters merge; else the quantile decides",
    )
    quantile: Share = hyper(
        0.5,
        "of the distances between clients that is lambda; "
        "the paper tunes lambda for every data set",
    )
    linkage: Literal["average", "complete", "single"] = hyper(
        "average",
        "distance of clusters; PACFL's code",
    )
    layer: str = hyper(
        "",
        "name of the final layer; the network's last one unless given",
    )

    def with_defaults_for(self, backbone: Backbone) -> Self:
        if not self.layer:
            return replace(self, layer=backbone.last)
        if self.layer not in dict(backbone.named_modules()):
            raise unknown("layer of this network", self.layer, backbone.stages)
        return self

    def warnings(self) -> list[str]:
        if self.clusters == 1:
            return ["clusters=1: FedClust is FedAvg after a warm-up in vain"]
        if self.clusters is None and self.quantile == 0:
            return ["quantile=0: in FedClust only the nearest share a cluster"]
        return []

    def init(self, new: New, clients: int) -> Server:
        return Server(
            first=new(0),
            models=[],
            cluster={},
            last={},
        )

    def setup(self, server: Server, cohort: Cohort) -> Server:
        """New clients send a final layer each: the first of them are grouped, later ones placed."""
        ups = cohort.run(self.warm_up, Down(server.first))
        last = dict(zip(ups.clients, ups.last, strict=True))
        if server.cluster:
            labels = self.place(server, ups.last)
            models = server.models
        else:
            distance = measure_distances(ups.last, ups.last)
            labels = self.group(distance)
            models = [server.first] * (max(labels) + 1)
        cluster = dict(zip(ups.clients, labels, strict=True))
        return Server(
            first=server.first,
            models=models,
            cluster=server.cluster | cluster,
            last=server.last | last,
        )

    def warm_up(self, c: Client, down: Down, keep: None) -> tuple[FinalLayer, None]:
        """Train the first model, at the first round's learning rate; send its final layer only."""
        first_round = c.plan.optimiser(1)
        w = c.train(c.loss, down.w, epochs=self.warmup, opt=first_round)
        return FinalLayer(part(w, self.layer)), None

    def group(self, distance: Tensor) -> list[int]:
        """Clusters of the first clients, by the distances between their final layers."""
        if self.clusters is not None:
            return agglomerate(distance, self.linkage, count=self.clusters)
        threshold = self.threshold
        if threshold is None:
            threshold = find_quantile(distance, self.quantile)
        return agglomerate(distance, self.linkage, threshold=threshold)

    def place(self, server: Server, last: list[Params]) -> list[int]:
        """The nearest clusters of new clients, by the distances to the clients that have one."""
        members = list(server.last.values())
        labels = [server.cluster[k] for k in server.last]
        nearest = []
        for row in measure_distances(last, members):
            j, _ = find_nearest(row, labels, self.linkage)
            nearest.append(j)
        return nearest

    def expected_upload(self, down: Tree, t: int) -> dict[str, Tree]:
        last = part(down.w, self.layer)
        return {"w": down.w, "last": last}

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Ask again for final layers that were lost; clients that fail again miss this round."""
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

    def formed_groups(self, server: Server) -> dict[str, list[list[int]]]:
        return {"clusters": list_members(server.cluster)}

    def closing_remarks(self, server: Server) -> list[str]:
        if not server.cluster:
            return []
        return [f"FedClust made {tell_sizes(server.cluster.values())}"]


def measure_distances(a: list[Params], b: list[Params]) -> Tensor:
    """Euclidean distances between every layer of one list and every one of the other."""
    columns = [flatten(layer) for layer in b]
    rows = []
    for layer in a:
        x = flatten(layer)
        distances = [(x - y).norm() for y in columns]
        rows.append(torch.stack(distances))
    return torch.stack(rows)


def find_quantile(distance: Tensor, quantile: float) -> float:
    """A quantile of the distances between different clients; 0 for a single client."""
    n = len(distance)
    pairs = distance[*torch.triu_indices(n, n, 1)]
    if not len(pairs):
        return 0.0
    return float(pairs.quantile(quantile))
