"""CFL: clients whose updates still disagree once their common model stands still are split in two.

Sattler et al., Clustered Federated Learning: Model-Agnostic Distributed Multitask Optimization
Under Privacy Constraints, IEEE TNNLS 2021, Algorithms 1 to 3.

Clients send their models; the server knows what it sent and computes the updates. In a mean all
members have the same weight. A split considers the last update of every member, so that not all
need to take part in one round.

Where the authors' code differs from the text, the defaults are the code's, as in our specification
of the baselines: complete linkage (Algorithm 1 is single linkage), no bound gamma_max, and
thresholds that are norms, those of its notebook (the text: a tenth of the largest mean update and
more). Those of the text are options.

A client that joins after a split, or had not replied before it, walks down the tree of splits: it
trains the model that was split, and goes where the most similar update went.
"""

import math
from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, Self

import torch
from torch import Tensor

from fedtailor.client import Client
from fedtailor.core.tree import Params, subtract
from fedtailor.maths.clustering import (
    bisect,
    compare_directions,
    flatten,
    list_members,
    tell_sizes,
)
from fedtailor.method import (
    Cohort,
    Doc,
    Method,
    New,
    NonNegative,
    NoReplies,
    Share,
    Uploads,
    hyper,
)
from fedtailor.models.backbone import Backbone

EPS1 = {"absolute": 0.4, "relative": 0.1}  # the authors' notebook; the paper's rule
# the authors' notebook; at the same ratio to eps_1
EPS2 = {
    "absolute": 1.6,
    "relative": 0.4,
}


class Split(NamedTuple):
    """A cluster that was split in two."""

    cluster: Annotated[
        int, Doc("the one that was split; some of its members stay in it")
    ]
    new: Annotated[int, Doc("the cluster of the others")]
    w: Annotated[Params, Doc("the model at which it happened")]
    stayed: Annotated[Tensor, Doc("updates of the members that stayed, one a row")]
    moved: Annotated[Tensor, Doc("updates of the others")]


class Server(NamedTuple):
    """What the server remembers."""

    models: Annotated[list[Params], Doc("theta_c, one a cluster")]
    cluster: Annotated[dict[int, int], Doc("of every client that has been placed")]
    dw: Annotated[
        dict[int, Tensor], Doc("last update of every client that replied, as a vector")
    ]
    splits: Annotated[list[Split], Doc("in the order they happened")]
    t: Annotated[int, Doc("this round")]
    largest: Annotated[
        Tensor, Doc("norm of the mean update, the largest of the first rounds")
    ]
    norms: Annotated[
        Tensor,
        Doc(
            "of the mean update and of the largest one, in the cluster considered last"
        ),
    ]


class Down(NamedTuple):
    """What a client is sent."""

    w: Annotated[Params, Doc("the model of the client's cluster")]


class Up(NamedTuple):
    """What a client sends back."""

    w: Annotated[Params, Doc("theta_c + Delta theta_k, locally trained")]


@dataclass(frozen=True)
class CFL(Method[Server, Down, None, Up]):
    """FedAvg in every cluster; a cluster splits where its members pull apart."""

    eps1: NonNegative | None = hyper(
        None,
        "eps_1, a mean update below it stands still; 0.4 (code), relative 0.1 (paper)",
    )
    eps2: NonNegative | None = hyper(
        None,
        "eps_2, and a member above it still moves; 1.6 (code), relative 0.4 (same ratio)",
    )
    thresholds: Literal["absolute", "relative"] = hyper(
        "absolute",
        "norms (code), or shares of the largest mean (paper)",
    )
    first: int = hyper(
        20,
        "rounds before the first split; as in the authors' code",
    )
    gamma: Share = hyper(
        0.0,
        "gamma_max, no split unless sqrt((1 - alpha_cross) / 2) exceeds it (text); "
        "0: no bound (code)",
    )
    linkage: Literal["complete", "single"] = hyper(
        "complete",
        "of the bipartition: authors' code, or the text's Algorithm 1",
    )

    def with_defaults_for(self, backbone: Backbone) -> Self:
        eps1 = EPS1[self.thresholds] if self.eps1 is None else self.eps1
        eps2 = EPS2[self.thresholds] if self.eps2 is None else self.eps2
        return replace(self, eps1=eps1, eps2=eps2)

    def warnings(self) -> list[str]:
        found = []
        if self.eps1 == 0:
            found.append("eps1=0: CFL never splits, it is FedAvg with equal weights")
        if self.gamma == 1:
            found.append("gamma=1: CFL never splits, it is FedAvg with equal weights")
        return found

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        zeros = flatten(w).new_zeros(2)
        return Server(
            models=[w],
            cluster={},
            dw={},
            splits=[],
            t=0,
            largest=zeros[0],
            norms=zeros,
        )

    def setup(self, server: Server, cohort: Cohort) -> Server:
        """Place new clients, once there are clusters."""
        if not server.splits:
            return server
        return self.place(server, cohort)

    def place(self, server: Server, cohort: Cohort) -> Server:
        """Algorithm 3: new clients walk down the tree of splits.

        One whose reply is lost remains without a cluster, and is placed in a later round.
        """
        cluster = dict.fromkeys(cohort.clients, 0)
        for split in server.splits:
            here = cohort.only(k for k, j in cluster.items() if j == split.cluster)
            if not len(here):
                continue
            replies = self.ask(here, split)
            for k in here.clients:
                if k not in replies:
                    del cluster[k]
                elif follows_the_moved(split, replies[k].w):
                    cluster[k] = split.new
        return server._replace(cluster=server.cluster | cluster)

    def ask(self, cohort: Cohort, split: Split) -> dict[int, Up]:
        """The model that was split, trained by new clients."""
        try:
            ups = cohort.run(self.local, Down(split.w))
        except NoReplies:
            return {}
        return ups.by_client()

    def round(self, server: Server, cohort: Cohort) -> Server:
        """Place clients that have no cluster yet; those that still have none miss this round."""
        unplaced = cohort.only(k for k in cohort.clients if k not in server.cluster)
        server = self.place(server, unplaced)
        server = server._replace(t=cohort.t)
        return super().round(server, cohort.only(server.cluster))

    def send(self, server: Server, k: int) -> Down:
        j = server.cluster.get(k, 0)
        return Down(server.models[j])

    def local(self, c: Client, down: Down, keep: None) -> tuple[Up, None]:
        """Train the cluster's model."""
        w = c.train(c.loss, down.w)
        return Up(w), None

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        """Split clusters that have to be split, and average in every cluster."""
        server = remember_updates(server, ups)
        active = {server.cluster[k] for k in ups.clients}
        for j in sorted(active):
            server = self.split(server, j)
        models = list(server.models)
        for j in range(len(models)):
            mine = ups.of(k for k in ups.clients if server.cluster[k] == j)
            if len(mine):
                equal = torch.ones(len(mine))
                models[j] = mine.mean("w", equal)
        return server._replace(models=models)

    def split(self, server: Server, j: int) -> Server:
        """Algorithm 2: split cluster j in two if it stands still while a member would go on."""
        members = [k for k in sorted(server.dw) if server.cluster.get(k) == j]
        updates = [server.dw[k] for k in members]
        dw = torch.stack(updates)
        mean = dw.mean(0).norm()
        most = dw.norm(dim=1).max()
        norms = torch.stack([mean, most])
        server = server._replace(norms=norms)
        if server.t <= max(self.first, 1) and not server.splits:
            largest = torch.maximum(server.largest, mean)
            server = server._replace(largest=largest)
        eps1, eps2 = self.limits(server)
        if server.t <= self.first or len(members) <= 2:
            return server
        if mean >= eps1 or most <= eps2:
            return server
        similarity = compare_directions(dw, dw)
        stay, move, cross = bisect(similarity, self.linkage)
        gap = math.sqrt(max(1 - cross, 0.0) / 2)
        if gap <= self.gamma:
            return server
        moved = {members[i] for i in move}  # stay and move are places in dw
        return divide(server, j, moved, dw[stay], dw[move])

    def limits(self, server: Server) -> tuple[float, float]:
        """Both thresholds as norms."""
        # set by with_defaults_for
        assert self.eps1 is not None and self.eps2 is not None
        scale = 1.0
        if self.thresholds == "relative":
            scale = float(server.largest)
        return self.eps1 * scale, self.eps2 * scale

    def personal(self, c: Client, down: Down, keep: None) -> Params:
        return down.w

    def after_training(self, c: Client, down: Down, up: Up, keep: None) -> Params:
        return up.w

    def formed_groups(self, server: Server) -> dict[str, list[list[int]]]:
        return {"clusters": list_members(server.cluster)}

    def closing_remarks(self, server: Server) -> list[str]:
        if server.splits:
            return [f"CFL ended with {tell_sizes(server.cluster.values())}"]
        if server.t == 0:
            return []
        mean, most = server.norms.tolist()
        eps1, eps2 = self.limits(server)
        return [
            "CFL never split, it was FedAvg with equal weights: "
            f"its last mean update had a norm of {mean:.3g} "
            f"(splits need less than eps1, {eps1:.3g}) "
            f"and the largest update {most:.3g} (more than eps2, {eps2:.3g})"
        ]


def remember_updates(server: Server, ups: Uploads[Up]) -> Server:
    """The server, knowing the newest updates: what clients sent minus what they were sent."""
    updates = {}
    for k, up in ups.by_client().items():
        sent = server.models[server.cluster[k]]
        updates[k] = flatten(subtract(up.w, sent))
    return server._replace(dw=server.dw | updates)


def divide(
    server: Server, j: int, moved: set[int], stay_dw: Tensor, move_dw: Tensor
) -> Server:
    """The server with the given members of cluster j in a new cluster."""
    w = server.models[j]
    new = len(server.models)
    cluster = {}
    for k, label in server.cluster.items():
        if k in moved:
            cluster[k] = new
        elif (
            label != j or k in server.dw
        ):  # a member that never replied walks the tree later
            cluster[k] = label
    split = Split(
        cluster=j,
        new=new,
        w=w,
        stayed=stay_dw,
        moved=move_dw,
    )
    return server._replace(
        models=[*server.models, w],
        cluster=cluster,
        splits=[*server.splits, split],
    )


def follows_the_moved(split: Split, w: Params) -> bool:
    """Whether a client's update is more similar to one that moved than to all that stayed."""
    dw = flatten(subtract(w, split.w))[None]
    to_moved = compare_directions(dw, split.moved).max()
    to_stayed = compare_directions(dw, split.stayed).max()
    return bool(to_moved > to_stayed)
