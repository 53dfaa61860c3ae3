"""FedClust: clients are grouped once, by the final layers of briefly trained models; then FedAvg in every cluster.

Islam et al., FedClust: Tackling Data Heterogeneity in Federated Learning through Weight-Driven Client Clustering,
ICPP 2024, Algorithm 1.

The threshold lambda is a quantile of the distances between clients unless it, or the number of clusters, is given. We
know of no code by the authors: the linkage is that of PACFL's, as our specification of the baselines has it. A newcomer
trains the same first model by the same plan, whenever it comes, and joins the cluster whose members' final layers are
nearest on average. One of whom nothing is known yet is sent the model of the largest cluster.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedtailor.client import Client
from fedtailor.core.errors import unknown
from fedtailor.core.tree import Params, Tree, part
from fedtailor.maths.clustering import agglomerate, find_largest, find_nearest, flatten, tell_sizes
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

    first: Annotated[Params, Doc("the first model of every cluster, which newcomers train too")]
    models: Annotated[list[Params], Doc("one a cluster")]
    cluster: Annotated[dict[int, int], Doc("of every client heard of")]
    last: Annotated[
        dict[int, Params], Doc("final layer of every client heard of, after the warm-up")
    ]


class Down(NamedTuple):
    """What goes down."""

    w: Annotated[Params, Doc("the model of the client's cluster; before that the first one")]


class Up(NamedTuple):
    """What goes up."""

    w: Annotated[Params, Doc("locally trained model")]


class Final(NamedTuple):
    """What goes up once, before the clusters are made."""

    last: Annotated[Params, Doc("final layer of the model trained in the warm-up")]


@dataclass(frozen=True)
class FedClust(Method[Server, Down, None, Up]):
    """FedAvg among clients whose final layers went the same way."""

    setup_calls = ("warm_up",)
    warmup: Count = hyper(
        10, "epochs on the first model before the clusters are made; E of the paper's experiments"
    )
    clusters: Count | None = hyper(None, "how many; else the threshold decides")
    threshold: Positive | None = hyper(
        None, "lambda, distance up to which clusters merge; else the quantile decides"
    )
    quantile: Share = hyper(
        0.5,
        "of the distances between clients that is lambda; the paper tunes lambda for every data set",
    )
    linkage: Literal["average", "complete", "single"] = hyper(
        "average", "distance of clusters; PACFL's code"
    )
    layer: str = hyper("", "name of the final layer; the network's last one unless given")

    def with_defaults_for(self, backbone: Backbone) -> Self:
        if self.layer and self.layer not in dict(backbone.named_modules()):
            raise unknown("layer of this network", self.layer, backbone.stages)
        return self if self.layer else replace(self, layer=backbone.last)

    def warnings(self) -> list[str]:
        if self.clusters is not None:
            return (
                ["clusters=1: FedClust is FedAvg after a warm-up in vain"]
                if self.clusters == 1
                else []
            )
        return (
            ["quantile=0: in FedClust only the nearest share a cluster"]
            if not self.quantile
            else []
        )

    def init(self, new: New, clients: int) -> Server:
        return Server(new(0), [], {}, {})

    def setup(self, server: Server, cohort: Cohort) -> Server:
        ups = cohort.run(self.warm_up, Down(server.first))
        rows = [flatten(last) for last in ups.last]
        if not server.cluster:
            labels = self.group(measure_distances(rows, rows))
            cluster, models = (
                dict(zip(ups.clients, labels, strict=True)),
                [server.first] * (max(labels) + 1),
            )
            return Server(
                server.first, models, cluster, dict(zip(ups.clients, ups.last, strict=True))
            )
        distance = measure_distances(rows, [flatten(last) for last in server.last.values()])
        labels = [
            find_nearest(row, [server.cluster[i] for i in server.last], self.linkage)[0]
            for row in distance
        ]
        return server._replace(
            cluster=server.cluster | dict(zip(ups.clients, labels, strict=True)),
            last=server.last | dict(zip(ups.clients, ups.last, strict=True)),
        )

    def warm_up(self, c: Client, down: Down, keep: None) -> tuple[Final, None]:
        """Train the first model, at the first round's learning rate whenever this happens; only its end goes up."""
        w = c.train(c.loss, down.w, epochs=self.warmup, opt=c.plan.optimiser(1))
        return Final(part(w, self.layer)), None

    def group(self, distance: Tensor) -> list[int]:
        """Everybody's cluster."""
        if self.clusters is not None:
            return agglomerate(distance, self.linkage, count=self.clusters)
        pairs = distance[*torch.triu_indices(len(distance), len(distance), 1)]
        chosen = float(pairs.quantile(self.quantile)) if len(pairs) else 0.0
        return agglomerate(
            distance, self.linkage, threshold=chosen if self.threshold is None else self.threshold
        )

    def expected_upload(self, down: Tree, t: int) -> dict[str, Tree]:
        return {"w": down.w, "last": part(down.w, self.layer)} if isinstance(down, Down) else {}

    def round(self, server: Server, cohort: Cohort) -> Server:
        server = self.ask_again(
            server, cohort.only(k for k in cohort.clients if k not in server.cluster)
        )
        return super().round(server, cohort.only(server.cluster))

    def ask_again(self, server: Server, cohort: Cohort) -> Server:
        """Clients whose final layer got lost; one that is lost again sits this round out."""
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
        return [f"FedClust made {tell_sizes(server.cluster.values())}"] if server.cluster else []


def measure_distances(a: list[Tensor], b: list[Tensor]) -> Tensor:
    """Euclidean distances between every vector of one list and every one of the other."""
    return torch.stack([torch.stack([(x - y).norm() for y in b]) for x in a])
