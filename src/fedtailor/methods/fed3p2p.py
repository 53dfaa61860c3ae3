"""Fed3+2p: extractor, filter and heads of a network, trained in two phases by two kinds of coordinators.

Anonymous authors, Fed3+2p: Training Different Parts of Neural Network with Two-Phase Strategy, submission to
ICLR 2025, Section 4, Eq. (4)-(13).

Where the paper is silent: the filter is the linear layer before the last (or an added one); there are ceil(sqrt(N))
coordinators of each kind; whole groups take part, so that they mirror everybody; both phases are equally long; Type-B
groups are formed as phase 2 begins; late clients join the groups there are. Whose counts got lost is asked again, till
then a Type-A group of its own with the largest Type-B group's filter. A frozen extractor keeps its running statistics.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from fedtailor.client import Client
from fedtailor.core.errors import unknown
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, Tree, average, part, rename
from fedtailor.maths import grouping
from fedtailor.method import Cohort, Count, Doc, Method, New, NonNegative, Positive, hyper
from fedtailor.models.backbone import Backbone
from fedtailor.models.three_parts import (
    judge_both_heads,
    judge_features,
    name_filter,
    split_backbone,
    start_filters,
)

LADDER = ("filter", "coordinators", "phases")  # what Table 2 takes away, one after the other


class Server(NamedTuple):
    """What the server and its coordinators remember."""

    w: Annotated[Params, Doc("W_e, W_i and W_g as phase 1 leaves them: the global model")]
    roster: Annotated[
        grouping.Roster,
        Doc("label counts, Type-A groups (mirrors) and Type-B groups (look-alikes)"),
    ]
    filters: Annotated[list[Params], Doc("W_i^c of every Type-B group in phase 2")]
    phase: Annotated[grouping.Phase, Doc("1 or 2, or 0 where both are one; and when it began")]


class Down(NamedTuple):
    """What goes down."""

    w: Annotated[Params, Doc("W_e, W_i and W_g; in phase 2 W_i is the Type-B group's")]
    phase: Annotated[int, Doc("1 or 2, or 0 where both are one")]
    since: Annotated[int, Doc("last round before this phase")]


class Keep(NamedTuple):
    """What never leaves the client."""

    own: Annotated[
        Params,
        Doc(
            "W_p under the name of the head it stands in for; also W_i where the filter is private"
        ),
    ]
    begun: Annotated[
        Tensor, Doc("whether ``own`` counts yet: without reinit it starts from the values received")
    ]


class Up(NamedTuple):
    """What goes up."""

    w: Annotated[Params, Doc("phase 1: the whole model; phase 2: the filter")]
    score: Annotated[
        Tensor | None,
        Doc("how many validation examples the model received gets right, and how many there are"),
    ]


@dataclass(frozen=True)
class Fed3p2p(Method[Server, Down, Keep, Up]):
    """Phase 1 trains a global model; phase 2 trains, on its extractor, filters of groups and heads of clients."""

    setup_calls = ("count",)
    depends_on_rounds: ClassVar[bool] = True
    num_type_a: Count | None = hyper(
        None, "C, Type-A coordinators (Eq. 4); not given, ceil(sqrt(N))"
    )
    num_type_b: Count | Literal["silhouette"] | None = hyper(
        None, "M, Type-B coordinators (Eq. 10); not given, ceil(sqrt(N))"
    )
    grouping_a: Literal["balanced_kl", "greedy_astraea", "random"] = hyper(
        "balanced_kl", "solver of Eq. (5); not given"
    )
    weights: Literal["uniform", "size"] = hyper(
        "uniform", "of the groups in Eq. (5): all alike, or |D^c|/|D|; Eq. (5)"
    )
    js_cost: Literal["sum", "mean"] = hyper(
        "sum", "of a group in Eq. (10): sum over its pairs, or that by its size; Eq. (10)"
    )
    participation: Literal["groups", "clients", "regroup"] = hyper(
        "groups", "what is drawn in phase 1; Sec. 4.1"
    )
    phase1: NonNegative = hyper(
        0.5, "rounds of phase 1, at most: below 1 a share of all, else their number; not given"
    )
    switch: Literal["fixed", "auto"] = hyper(
        "fixed", "auto: phase 1 may end before, when validation gets flat; Sec. 6"
    )
    window: Count = hyper(
        5, "rounds whose mean accuracy switch=auto compares with that of as many before; not given"
    )
    threshold: NonNegative = hyper(0.01, "gain between the two below which it is flat; not given")
    filter: Literal["auto", "fc", "extra_fc"] = hyper(
        "auto", "W_i: the layer before the last, or an added one; Fig. 2"
    )
    reinit: bool = hyper(
        True,
        "whether phase 2 starts from random W_i and W_p, or from phase 1's W_i and W_g; Sec. 4.2",
    )
    without: str = hyper(
        "", "parts left out as in Table 2, each with those before it: filter, coordinators, phases"
    )
    filter_scope: Literal["frozen", "private"] = hyper(
        "frozen", "W_i in phase 2 without=filter or coordinators; not given"
    )
    epsilon: Positive | None = hyper(
        None, "privacy of the label counts (Laplace noise of scale 1/epsilon), if any; Sec. 6"
    )

    def with_defaults_for(self, backbone: Backbone) -> Self:
        if wrong := [t for t in self.without.replace(" ", "").split(",") if t and t not in LADDER]:
            raise unknown("part of fed3p2p to leave out named", wrong[0], LADDER)
        return replace(self, filter=name_filter(backbone)) if self.filter == "auto" else self

    def lacks(self, what: str) -> bool:
        return any(
            name in self.without for name in LADDER[LADDER.index(what) :]
        )  # each implies those before it

    def warnings(self) -> list[str]:
        return ["phase1=0: nothing trains Fed3+2p's extractor"] if self.phase1 == 0 else []

    def net(self, backbone: Backbone) -> nn.Module:
        return split_backbone(backbone, self.filter)

    def init(self, new: New, clients: int) -> Server:
        roster = grouping.open_roster(
            self.num_type_a, 0 if self.lacks("filter") else self.num_type_b, clients
        )
        return Server(new(0), roster, [], grouping.Phase(0 if self.lacks("phases") else 1))

    def setup(self, server: Server, cohort: Cohort) -> Server:
        if self.lacks("coordinators"):
            return server
        labels, how = grouping.ask_counts(cohort, self.count), self.grouping_a
        return server._replace(
            roster=grouping.enrol(server.roster, labels, cohort.rng, how=how, weights=self.weights)
        )

    def sample(self, server: Server, clients: Sequence[int], share: float, rng: Rng) -> list[int]:
        if self.participation != "groups" or server.phase.number == 2 or server.phase.over:
            return super().sample(server, clients, share, rng)
        return grouping.draw_groups(grouping.list_mirrors(server.roster, clients), share, rng)

    def round(self, server: Server, cohort: Cohort) -> Server:
        if strangers := [k for k in cohort.clients if k not in server.roster.counts]:
            server = self.setup(server, cohort.only(strangers))
        last = grouping.last_round(self.phase1, cohort.rounds)
        if server.phase.number == 1 and (server.phase.over or cohort.t > last):
            server = self.begin(server, cohort)
        return (
            self.second(server, cohort)
            if server.phase.number == 2
            else self.first(server, cohort, last)
        )

    def first(self, server: Server, cohort: Cohort, last: int) -> Server:
        """In every Type-A group the model goes from client to client, Eq. (6)-(8); the ends are averaged, Eq. (4)."""
        roster, how, phase = server.roster, self.grouping_a, server.phase
        if self.participation == "regroup":
            roster = grouping.remirror(
                roster, cohort.clients, cohort.rng, how=how, weights=self.weights
            )
        groups = grouping.list_mirrors(roster, cohort.clients)
        chains = grouping.run_relay(
            cohort, groups, self.local, lambda w: Down(w, phase.number, phase.since), server.w
        )
        flat = (self.window, self.threshold) if self.switch == "auto" else None
        phase = grouping.advance(
            phase, [s for ups in chains.calls for s in ups.score], cohort.t, last, flat
        )
        return server._replace(w=average(chains.w, chains.n), phase=phase)

    def begin(self, server: Server, cohort: Cohort) -> Server:
        """Phase 2 begins: form the Type-B groups, each with a filter."""
        roster = grouping.form_lookalikes(
            server.roster, cohort.rng, self.js_cost, self.num_type_b == "silhouette"
        )
        filters, curve = (
            start_filters(server.w, cohort.rng, len(roster.b), self.reinit),
            server.phase.curve,
        )
        return server._replace(
            roster=roster, filters=filters, phase=grouping.Phase(2, cohort.t - 1, False, curve)
        )

    def second(self, server: Server, cohort: Cohort) -> Server:
        """Every Type-B group averages its filter, Eq. (11); P-Heads stay at home."""
        ups = cohort.run(self.local, lambda k: self.send(server, k))
        pairs = zip(map(ups.of, server.roster.b), server.filters, strict=True)
        return server._replace(
            filters=[mine.mean("w") if len(mine) else old for mine, old in pairs]
        )

    def send(self, server: Server, k: int) -> Down:
        mine = server.filters[grouping.find_group(server.roster.b, k)] if server.filters else {}
        return Down(server.w | mine, server.phase.number, server.phase.since)

    def expected_upload(self, down: Down | None, t: int) -> dict[str, Tree]:
        if down is None or down.phase != 2:
            return super().expected_upload(down, t)
        return {"w": {} if self.lacks("filter") else part(down.w, "filter")}

    def first_keep(self, c: Client, down: Down | None) -> Keep:
        private = (
            self.filter_scope == "private" and self.lacks("filter") and not self.lacks("phases")
        )
        return Keep(c.fresh("head", *["filter"] * private), torch.tensor(self.reinit))

    def count(self, c: Client, down: None, keep: Keep) -> tuple[grouping.Census, Keep]:
        return grouping.count_labels(c, self.epsilon), keep

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        opt, w, begun = (
            c.plan.optimiser(c.t - down.since),
            self.personal(c, down, keep),
            torch.ones_like(keep.begun),
        )
        if down.phase == 1:  # all three parts under the G-Head, Eq. (9)
            return Up(
                c.train(c.loss, w, opt=opt),
                grouping.validate(c, w) if self.switch == "auto" else None,
            ), keep
        if down.phase == 0:  # everything at once, under both heads
            w = c.train(judge_both_heads(c), down.w | rename(w, "head", "own"), opt=opt)
            return Up({k: w[k] for k in down.w}, None), Keep(rename(w, "own", "head"), begun)
        frozen = (
            self.lacks("filter") and self.filter_scope == "frozen"
        )  # else filter and P-Head, Eq. (12) and (13)
        w = c.train(judge_features(c, w), w, opt=opt, only="head" if frozen else ("filter", "head"))
        return Up({} if self.lacks("filter") else part(w, "filter"), None), Keep(
            {k: w[k] for k in keep.own}, begun
        )

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        return down.w | {
            k: torch.where(keep.begun, v, down.w[k]) for k, v in keep.own.items() if down.phase != 1
        }

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return self.personal(c, down._replace(w=down.w | up.w), keep)

    def shared(self, server: Server) -> Params:
        return server.w

    def closing_remarks(self, server: Server) -> list[str]:
        return grouping.tell(server.roster)
