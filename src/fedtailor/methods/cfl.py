"""CFL: clients whose updates still disagree once their common model stands still are split in two, again and again.

Sattler et al., Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization Under Privacy
Constraints, IEEE TNNLS 2021, Algorithms 1 to 3.

Clients send their models; the server, which knows what it sent, takes the updates from them. Means weigh all members
alike. A split looks at the last update of every member, so that not all need to take part in one round.

Where the authors' code differs from the text, the defaults are the code's, as our specification of the baselines has
it: complete linkage (Algorithm 1 is single linkage), no bound gamma_max, and thresholds that are norms, those of its
notebook (the text: a tenth of the largest mean update and up). The text's are options.

A client that comes after a split, or was not heard of before it, walks down the tree of splits: it trains the model
that was split, and goes where the most similar update went.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedtailor.client import Client
from fedtailor.core.tree import Params, subtract
from fedtailor.maths.clustering import bisect, compare_directions, flatten, tell_sizes
from fedtailor.method import Cohort, Doc, Method, New, NonNegative, NoReplies, Share, Uploads, hyper
from fedtailor.models.backbone import Backbone

EPS = {
    "absolute": (0.4, 1.6),
    "relative": (0.1, 0.4),
}  # the authors' notebook; the paper's rule, at the same ratio


class Split(NamedTuple):
    """A cluster fell in two."""

    cluster: Annotated[int, Doc("the one that was split; some of its members stay in it")]
    new: Annotated[int, Doc("the cluster of the others")]
    w: Annotated[Params, Doc("the model at which it happened")]
    stayed: Annotated[Tensor, Doc("updates of those who stayed, one a row")]
    moved: Annotated[Tensor, Doc("updates of the others")]


class Server(NamedTuple):
    """What the server remembers."""

    models: Annotated[list[Params], Doc("theta_c, one a cluster")]
    cluster: Annotated[dict[int, int], Doc("of every client heard of")]
    dw: Annotated[dict[int, Tensor], Doc("last update of every client heard of, as a vector")]
    splits: Annotated[list[Split], Doc("in the order they happened")]
    t: Annotated[int, Doc("this round")]
    largest: Annotated[Tensor, Doc("norm of the mean update, the largest of the first rounds")]
    norms: Annotated[
        Tensor, Doc("of the mean update and of the largest one, in the cluster looked at last")
    ]


class Down(NamedTuple):
    """What goes down."""

    w: Annotated[Params, Doc("the model of the client's cluster")]


class Up(NamedTuple):
    """What goes up."""

    w: Annotated[Params, Doc("theta_c + Delta theta_k, locally trained")]


@dataclass(frozen=True)
class CFL(Method[Server, Down, None, Up]):
    """FedAvg in every cluster; clusters split where their members pull apart."""

    eps1: NonNegative | None = hyper(
        None, "eps_1, a mean update below it stands still; 0.4 (code), relative 0.1 (paper)"
    )
    eps2: NonNegative | None = hyper(
        None, "eps_2, and a member above it still moves; 1.6 (code), relative 0.4 (same ratio)"
    )
    thresholds: Literal["absolute", "relative"] = hyper(
        "absolute", "norms (code), or shares of the largest mean (paper)"
    )
    first: int = hyper(20, "rounds before the first split; as in the authors' code")
    gamma: Share = hyper(
        0.0,
        "gamma_max, no split unless sqrt((1 - alpha_cross) / 2) exceeds it (text); 0: no bound (code)",
    )
    linkage: Literal["complete", "single"] = hyper(
        "complete", "of the bipartition: authors' code, or the text's Algorithm 1"
    )

    def with_defaults_for(self, backbone: Backbone) -> Self:
        given, usual = (self.eps1, self.eps2), EPS[self.thresholds]
        eps1, eps2 = (u if g is None else g for g, u in zip(given, usual, strict=True))
        return replace(self, eps1=eps1, eps2=eps2)

    def warnings(self) -> list[str]:
        off = {"eps1=0": self.eps1 == 0, "gamma=1": self.gamma == 1}
        return [
            f"{value}: CFL never splits, it is FedAvg with equal weights"
            for value, it_is in off.items()
            if it_is
        ]

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        zeros = flatten(w).new_zeros(2)
        return Server([w], {}, {}, [], 0, zeros[0], zeros)

    def setup(self, server: Server, cohort: Cohort) -> Server:
        return self.place(server, cohort) if server.splits else server

    def place(self, server: Server, cohort: Cohort) -> Server:
        """Algorithm 3: newcomers walk down the tree of splits; one whose reply gets lost stays unplaced."""
        cluster = dict.fromkeys(cohort.clients, 0)
        for split in server.splits:
            here = cohort.only(k for k, j in cluster.items() if j == split.cluster)
            if not len(here):
                continue
            try:
                ups = here.run(self.local, Down(split.w))
            except NoReplies:
                ups = Uploads([], torch.zeros(0), [])
            cluster = {k: j for k, j in cluster.items() if j != split.cluster or k in ups.clients}
            for k, w in zip(ups.clients, ups.w, strict=True):
                dw = flatten(subtract(w, split.w))[None]
                if (
                    compare_directions(dw, split.moved).max()
                    > compare_directions(dw, split.stayed).max()
                ):
                    cluster[k] = split.new
        return server._replace(cluster=server.cluster | cluster)

    def round(self, server: Server, cohort: Cohort) -> Server:
        server = self.place(
            server, cohort.only(k for k in cohort.clients if k not in server.cluster)
        )
        return super().round(server._replace(t=cohort.t), cohort.only(server.cluster))

    def send(self, server: Server, k: int) -> Down:
        return Down(server.models[server.cluster.get(k, 0)])

    def local(self, c: Client, down: Down, keep: None) -> tuple[Up, None]:
        return Up(c.train(c.loss, down.w)), None

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        sent = [server.models[server.cluster[k]] for k in ups.clients]
        dw = {k: flatten(subtract(w, s)) for k, w, s in zip(ups.clients, ups.w, sent, strict=True)}
        server = server._replace(dw=server.dw | dw)
        for j in range(len(server.models)):
            if any(server.cluster[k] == j for k in ups.clients):
                server = self.split(server, j)
        models = list(server.models)
        for j in range(len(models)):
            mine = ups.of(k for k in ups.clients if server.cluster[k] == j)
            if len(mine):
                models[j] = mine.mean("w", torch.ones(len(mine)))
        return server._replace(models=models)

    def split(self, server: Server, j: int) -> Server:
        """Algorithm 2: split cluster j in two if it stands still while a member would go on."""
        members = [k for k in sorted(server.dw) if server.cluster.get(k) == j]
        dw = torch.stack([server.dw[k] for k in members])
        mean, most = dw.mean(0).norm(), dw.norm(dim=1).max()
        server = server._replace(norms=torch.stack([mean, most]))
        if server.t <= max(self.first, 1) and not server.splits:
            server = server._replace(largest=torch.maximum(server.largest, mean))
        eps1, eps2 = self.limits(server)
        if server.t <= self.first or len(members) <= 2 or mean >= eps1 or most <= eps2:
            return server
        stay, move, cross = bisect(compare_directions(dw, dw), self.linkage)
        if math.sqrt(max(1 - cross, 0.0) / 2) <= self.gamma:
            return server
        new, moved = len(server.models), {members[i] for i in move}  # places in dw are not ids
        known = {
            k: c for k, c in server.cluster.items() if c != j or k in server.dw
        }  # the others walk the tree later
        return server._replace(
            models=[*server.models, server.models[j]],
            cluster={k: new if k in moved else c for k, c in known.items()},
            splits=[*server.splits, Split(j, new, server.models[j], dw[stay], dw[move])],
        )

    def limits(self, server: Server) -> tuple[float, float]:
        """Both thresholds as norms."""
        assert self.eps1 is not None and self.eps2 is not None  # resolved
        scale = float(server.largest) if self.thresholds == "relative" else 1.0
        return self.eps1 * scale, self.eps2 * scale

    def personal(self, c: Client, down: Down, keep: None) -> Params:
        return down.w

    def after_training(self, c: Client, down: Down, up: Up, keep: None) -> Params:
        return up.w

    def closing_remarks(self, server: Server) -> list[str]:
        if server.splits or not server.t:
            return (
                [f"CFL ended with {tell_sizes(server.cluster.values())}"] if server.splits else []
            )
        (mean, most), (eps1, eps2) = server.norms.tolist(), self.limits(server)
        return [
            f"CFL never split, it was FedAvg with equal weights: its last mean update had a norm of {mean:.3g} (splits "
            f"need less than eps1, {eps1:.3g}) and the largest update {most:.3g} (more than eps2, {eps2:.3g})"
        ]
