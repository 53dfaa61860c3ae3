"""Fed3+2p: extractor, filter and heads of a network, trained in two phases by two kinds of coordinators.

Anonymous authors, Fed3+2p: Training Different Parts of Neural Network with Two-Phase Strategy, submission to
ICLR 2025, Section 4, Eq. (4)-(13).

Where the paper is silent: the filter is the linear layer before the last one (or an added one); there are ceil(sqrt(N))
coordinators of each kind, 5 for 20 clients and 10 for 100; whole groups take part, so that they mirror everybody; both
phases are equally long. Type-B groups are formed as phase 2 begins; later clients join existing groups. A client whose
counts got lost is asked again; meanwhile it is a Type-A group of its own and gets the largest Type-B group's filter.
The frozen extractor runs once a visit, with its running statistics. The paper's future work: phase 1 may end when the
clients' validation accuracy, of the models they receive, has become flat; label counts may be noisy.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from fedtailor import grouping
from fedtailor.client import Client
from fedtailor.method import Cohort, Count, Method, New, NonNegative, Positive
from fedtailor.models.backbone import Backbone
from fedtailor.models.parts import judge_both_heads, judge_features, name_filter, redraw_filter, split_backbone
from fedtailor.rng import Rng
from fedtailor.tree import Params, Tree, average, part, rename

LADDER = ("", "filter", "coordinators", "phases")  # what Table 2 takes away, one after the other


class Server(NamedTuple):
    """What the server and its coordinators remember."""

    w: Params  # W_e, W_i and W_g as phase 1 leaves them: the global model
    roster: grouping.Roster  # label counts, Type-A groups (mirrors) and Type-B groups (look-alikes)
    filters: list[Params]  # W_i^c of every Type-B group in phase 2
    curve: list[float]  # validation accuracy by round of phase 1
    phase: int  # 1 or 2; 0 where both are one
    since: int = 0  # last round before this phase
    over: bool = False  # whether the next round begins phase 2


class Down(NamedTuple):
    """What goes down."""

    w: Params  # W_e, W_i and W_g; in phase 2 W_i is the Type-B group's
    phase: int  # as in Server
    since: int  # as in Server


class Keep(NamedTuple):
    """What never leaves the client."""

    own: Params  # W_p under the name of the head it stands in for; also W_i where the filter is private
    begun: Tensor  # whether ``own`` counts yet: without reinit it starts from the values received


class Up(NamedTuple):
    """What goes up."""

    w: Params  # phase 1: the whole model; phase 2: the filter
    score: Tensor | None  # how many validation examples the model received gets right, and how many there are


class Counts(NamedTuple):
    """What goes up once."""

    labels: Tensor  # examples of every class


@dataclass(frozen=True)
class Fed3p2p(Method[Server, Down, Keep, Up]):
    """Phase 1 trains a global model; phase 2 trains, on its extractor, filters of groups and heads of clients."""

    reads_rounds: ClassVar[bool] = True

    num_type_a: Count | None = None  # C, Type-A coordinators (Eq. 4); not given, ceil(sqrt(N))
    num_type_b: Count | None = None  # M, Type-B coordinators (Eq. 10); not given, ceil(sqrt(N))
    choose_b: Literal["root", "silhouette"] = "root"  # how M is found where num_type_b is not set; not given
    grouping_a: Literal["balanced_kl", "greedy_astraea", "random"] = "balanced_kl"  # solver of Eq. (5); not given
    weights: Literal["uniform", "size"] = "uniform"  # of the groups in Eq. (5): all alike, or |D^c|/|D|; Eq. (5)
    js_cost: Literal["sum", "mean"] = "sum"  # of a group in Eq. (10): sum over its pairs, or that by its size; Eq. (10)
    participation: Literal["groups", "clients", "regroup"] = "groups"  # what is drawn in phase 1; Sec. 4.1
    phase1: NonNegative = 0.5  # rounds of phase 1, at most: below 1 a share of all, else their number; not given
    switch: Literal["fixed", "auto"] = "fixed"  # auto: phase 1 may end before, when validation gets flat; Sec. 6
    window: Count = 5  # rounds whose mean accuracy switch=auto compares with that of as many before; not given
    threshold: NonNegative = 0.01  # gain between the two below which it is flat; not given
    filter: Literal["auto", "fc", "extra_fc"] = "auto"  # W_i: the layer before the last, or an added one; Fig. 2
    reinit: bool = True  # whether phase 2 starts from random W_i and W_p, or from phase 1's W_i and W_g; Sec. 4.2
    without: Literal["", "filter", "coordinators", "phases"] = ""  # ablation: this and what stands before it; Table 2
    filter_scope: Literal["frozen", "private"] = "frozen"  # W_i in phase 2 without filter coordinators; not given
    epsilon: Positive | None = None  # privacy of the label counts (Laplace noise of scale 1/epsilon), if any; Sec. 6

    def resolve(self, backbone: Backbone) -> Self:
        return replace(self, filter=name_filter(backbone)) if self.filter == "auto" else self

    def lacks(self, what: str) -> bool:
        """Whether ``without`` takes this away."""
        return LADDER.index(self.without) >= LADDER.index(what)

    def doubts(self) -> list[str]:
        none = ["phase1=0: nothing trains Fed3+2p's extractor"] if self.phase1 == 0 else []
        one = ["num_type_b=1: all clients share one filter in Fed3+2p's phase 2"] if self.num_type_b == 1 else []
        any_ = ["grouping_a=random: Fed3+2p's Type-A groups mirror nobody"] if self.grouping_a == "random" else []
        return none + one + any_

    def net(self, backbone: Backbone) -> nn.Module:
        return split_backbone(backbone, self.filter)

    def init(self, new: New, clients: int) -> Server:
        roster = grouping.open_roster(self.num_type_a, self.num_type_b, clients)
        return Server(new(0), roster, [], [], 0 if self.lacks("phases") else 1)

    def setup(self, server: Server, cohort: Cohort) -> Server:
        if self.lacks("coordinators"):
            return server
        labels, how = grouping.ask_counts(cohort, self.count), self.grouping_a
        return server._replace(roster=grouping.enrol(server.roster, labels, cohort.rng, how=how, weights=self.weights))

    def sample(self, server: Server, clients: Sequence[int], share: float, rng: Rng) -> list[int]:
        if self.participation != "groups" or server.phase == 2 or server.over:
            return super().sample(server, clients, share, rng)
        return grouping.draw_groups(grouping.list_mirrors(server.roster, clients), share, rng)

    def round(self, server: Server, cohort: Cohort) -> Server:
        if strangers := [k for k in cohort.clients if k not in server.roster.counts]:
            server = self.setup(server, cohort.only(strangers))
        if server.phase == 1 and (server.over or cohort.t > self.limit(cohort.rounds)):
            server = self.begin(server, cohort)
        return self.second(server, cohort) if server.phase == 2 else self.first(server, cohort)

    def limit(self, rounds: int) -> int:
        """The last round of phase 1, unless it ends before."""
        return max(round(self.phase1 * rounds), 1) if 0 < self.phase1 < 1 else round(self.phase1)

    def first(self, server: Server, cohort: Cohort) -> Server:
        """In every Type-A group the model goes from client to client, Eq. (6)-(8); the ends are averaged, Eq. (4)."""
        roster, how = server.roster, self.grouping_a
        if self.participation == "regroup":
            roster = grouping.remirror(roster, cohort.clients, cohort.rng, how=how, weights=self.weights)
        groups = grouping.list_mirrors(roster, cohort.clients)
        chains = grouping.run_relay(cohort, groups, self.local, lambda w: Down(w, server.phase, server.since), server.w)
        curve = grouping.extend_curve(server.curve, [score for ups in chains.calls for score in ups.score])
        flat = self.switch == "auto" and grouping.is_flat(curve, self.window, self.threshold)
        over = flat or cohort.t >= self.limit(cohort.rounds)
        return server._replace(w=average(chains.w, chains.n), curve=curve, over=over)

    def begin(self, server: Server, cohort: Cohort) -> Server:
        """Phase 2 begins: form the Type-B groups, each with a filter."""
        if self.lacks("filter"):
            return server._replace(phase=2, since=cohort.t - 1)
        by_silhouette = self.choose_b == "silhouette" and self.num_type_b is None
        roster = grouping.form_lookalikes(server.roster, cohort.rng, cost=self.js_cost, silhouette=by_silhouette)
        old = part(server.w, "filter")
        filters = [redraw_filter(old, cohort.rng.fold(c)) if self.reinit else old for c in range(len(roster.b))]
        return server._replace(roster=roster, filters=filters, phase=2, since=cohort.t - 1)

    def second(self, server: Server, cohort: Cohort) -> Server:
        """Every Type-B group averages its filter, Eq. (11); P-Heads stay at home."""
        ups = cohort.run(self.local, lambda k: self.send(server, k))
        pairs = zip(map(ups.of, server.roster.b), server.filters, strict=False)
        return server._replace(filters=[average(mine.w, mine.n) if len(mine) else old for mine, old in pairs])

    def send(self, server: Server, k: int) -> Down:
        mine = server.filters[grouping.find_group(server.roster.b, k)] if server.filters else {}
        return Down(server.w | mine, server.phase, server.since)

    def expected(self, down: Tree, t: int) -> dict[str, Tree]:
        if not isinstance(down, Down):
            return {}
        return {"w": down.w if down.phase != 2 else {} if self.lacks("filter") else part(down.w, "filter")}

    def join(self, c: Client, down: Down | None) -> Keep:
        private = ("filter",) if self.lacks("filter") and self.filter_scope == "private" else ()
        return Keep(c.fresh("head", *private), torch.tensor(self.reinit))

    def count(self, c: Client, down: None, keep: Keep) -> tuple[Counts, Keep]:
        if self.epsilon is None:
            return Counts(c.counts), keep
        return Counts((c.counts + c.rng.laplace(c.classes) / self.epsilon).round().clamp(min=0)), keep

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        opt, w, begun = c.plan.sgd(c.t - down.since), self.personal(c, down, keep), torch.ones_like(keep.begun)
        if down.phase == 1:  # all three parts under the G-Head, Eq. (9)
            score = grouping.validate(c, w) if self.switch == "auto" else None
            return Up(c.train(c.loss, w, opt=opt), score), keep
        if down.phase == 0:  # everything at once, under both heads
            w = c.train(judge_both_heads(c), down.w | rename(w, "head", "own"), opt=opt)
            return Up({k: w[k] for k in down.w}, None), Keep(rename(w, "own", "head"), begun)
        frozen = self.lacks("filter") and self.filter_scope == "frozen"  # else filter and P-Head, Eq. (12) and (13)
        w = c.train(judge_features(c, w), w, opt=opt, only="head" if frozen else ("filter", "head"))
        return Up({} if self.lacks("filter") else part(w, "filter"), None), Keep({k: w[k] for k in keep.own}, begun)

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        if down.phase == 1:
            return down.w
        return down.w | {k: torch.where(keep.begun, v, down.w[k]) for k, v in keep.own.items()}

    def after(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return self.personal(c, down._replace(w=down.w | up.w), keep)

    def shared(self, server: Server) -> Params:
        return server.w
