"""Fed3+2p: extractor, filter and heads, trained in two phases by two kinds of coordinators.

Anonymous authors, Fed3+2p: Training Different Parts of Neural Network with Two-Phase Strategy,
submission to ICLR 2025, Section 4, Eq. (4)-(13).

Phase 1 trains the whole network W = {W_e, W_i, W_g}: extractor, filter and G-Head. Type-A
coordinators have clients whose labels, taken together, are distributed like those of all clients;
a coordinator's model goes from client to client. Phase 2 freezes extractor and G-Head. Type-B
coordinators have clients with similar labels, which share a filter; every client has a P-Head W_p.

Where the paper is silent: the filter is the linear layer before the last, or an added one. There
are ceil(sqrt(N)) coordinators of each kind. In phase 1 whole groups are drawn, so that their labels
stay like those of all clients. Both phases are equally long. Type-B groups are formed when phase 2
begins; later clients join existing groups. A client whose label counts got lost is asked again;
meanwhile it is a Type-A group of its own and gets the filter of the largest Type-B group. The
frozen extractor keeps its running statistics.
"""

import math
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from fedtailor.client import Batch, Client, Loss
from fedtailor.core.errors import UserError
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, Tree, add, part, rename
from fedtailor.maths.grouping import (
    Counts,
    Groups,
    Quality,
    draw_groups,
    extend_balanced_groups,
    extend_similar_groups,
    find_group,
    make_balanced_groups,
    make_similar_groups,
    measure_quality,
    suggest_group_count,
)
from fedtailor.method import (
    Cohort,
    Count,
    Doc,
    Method,
    New,
    NonNegative,
    NoReplies,
    Positive,
    Uploads,
    hyper,
)
from fedtailor.models.backbone import Backbone
from fedtailor.models.three_parts import draw_filter, name_filter, split_backbone
from fedtailor.training.optim import Optimiser

# Table 2 leaves out one after the other
ABLATIONS = (
    "filter",
    "coordinators",
    "phases",
)
CHUNK = 100  # examples in one forward pass of the frozen extractor


# ---------------------------------------------------------------- messages and states
class Roster(NamedTuple):
    """Which clients belong to which coordinator; groups may be empty."""

    a: Annotated[
        list[list[int]], Doc("Type-A groups: labels together like those of all clients")
    ]
    b: Annotated[
        list[list[int]], Doc("Type-B groups: similar labels; none before phase 2")
    ]
    wanted: Annotated[int, Doc("M, number of Type-B groups to form")]
    counts: Annotated[
        dict[int, Tensor],
        Doc(
            "by client, its examples of every class; a client without counts is in no group"
        ),
    ]


class Phase(NamedTuple):
    """The phase of training."""

    number: Annotated[int, Doc("1 or 2, or 0 where both are one")]
    since: Annotated[int, Doc("last round before this phase")] = 0
    over: Annotated[bool, Doc("whether the next round begins phase 2")] = False
    curve: Annotated[
        tuple[float, ...], Doc("validation accuracy by round of phase 1")
    ] = ()


class Server(NamedTuple):
    """What the server and its coordinators remember."""

    w: Annotated[
        Params, Doc("W_e, W_i and W_g as phase 1 leaves them: the global model")
    ]
    roster: Annotated[Roster, Doc("label counts, Type-A groups and Type-B groups")]
    filters: Annotated[list[Params], Doc("W_i^c of every Type-B group in phase 2")]
    phase: Annotated[Phase, Doc("1 or 2, or 0 where both are one; and when it began")]


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
            "W_p under the name of the head it replaces; also W_i where the filter is private"
        ),
    ]
    begun: Annotated[
        Tensor,
        Doc(
            "whether ``own`` counts yet: without reinit it starts from the values received"
        ),
    ]


class Up(NamedTuple):
    """What goes up."""

    w: Annotated[Params, Doc("phase 1: the whole model; phase 2: the filter")]
    score: Annotated[
        Tensor | None,
        Doc(
            "how many validation examples the model received gets right, and how many there are"
        ),
    ]


class LabelCounts(NamedTuple):
    """How many training examples of every class a client has, sent once, to form groups."""

    labels: Annotated[Tensor, Doc("examples of every class")]


@dataclass
class Chain:
    """One round of a Type-A coordinator: its model goes from client to client."""

    order: list[int]  # its clients, in random order
    w: Params  # W^c, as the last client that replied left it
    n: float = 0.0  # |D^c|, training examples of the clients that replied


@dataclass(frozen=True)
class Fed3p2p(Method[Server, Down, Keep, Up]):
    """Phase 1 trains a global model; phase 2 trains groups' filters and clients' heads on it."""

    reveals: ClassVar[dict[str, str]] = {
        "class counts": "the counts are sent once",
    }

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
        "sum",
        "of a group in Eq. (10): sum over its pairs, or that by its size; Eq. (10)",
    )
    participation: Literal["groups", "clients", "regroup"] = hyper(
        "groups", "what is drawn in phase 1; Sec. 4.1"
    )
    phase1: NonNegative = hyper(
        0.5,
        "rounds of phase 1, at most: below 1 a share of all, else their number; not given",
    )
    switch: Literal["fixed", "auto"] = hyper(
        "fixed", "auto: phase 1 may end before, when validation gets flat; Sec. 6"
    )
    window: Count = hyper(
        5,
        "rounds whose mean accuracy switch=auto compares with that of as many before; not given",
    )
    threshold: NonNegative = hyper(
        0.01, "gain between the two below which it is flat; not given"
    )
    filter: Literal["auto", "fc", "extra_fc"] = hyper(
        "auto", "W_i: the layer before the last, or an added one; Fig. 2"
    )
    reinit: bool = hyper(
        True,
        "whether phase 2 starts from random W_i and W_p, or from phase 1's W_i and W_g; Sec. 4.2",
    )
    without: frozenset[Literal["filter", "coordinators", "phases"]] = hyper(
        frozenset(),
        "parts left out as in Table 2, each with those before it: filter, coordinators, phases",
    )
    filter_scope: Literal["frozen", "private"] = hyper(
        "frozen", "W_i in phase 2 without=filter or coordinators; not given"
    )
    epsilon: Positive | None = hyper(
        None,
        "privacy of the label counts (Laplace noise of scale 1/epsilon), if any; Sec. 6",
    )

    # ---------------------------------------------------------------- before the first round
    def with_defaults_for(self, backbone: Backbone) -> Self:
        if self.filter != "auto":
            return self
        return replace(self, filter=name_filter(backbone))

    def lacks(self, what: str) -> bool:
        """Whether an ablation leaves this part out; each leaves out those before it, too."""
        leaving_it_out = ABLATIONS[ABLATIONS.index(what) :]
        return not self.without.isdisjoint(leaving_it_out)

    def warnings(self) -> list[str]:
        found = []
        if self.phase1 == 0:
            found.append("phase1=0: nothing trains Fed3+2p's extractor")
        if self.num_type_b == 1 and not self.lacks("filter"):
            found.append(
                "num_type_b=1: all clients share one filter in Fed3+2p's phase 2"
            )
        if self.grouping_a == "random" and not self.lacks("coordinators"):
            found.append(
                "grouping_a=random: Fed3+2p's Type-A groups do not mirror the labels of all clients"
            )
        return found

    def net(self, backbone: Backbone) -> nn.Module:
        return split_backbone(backbone, self.filter)

    def init(self, new: New, clients: int) -> Server:
        type_a = count_groups("num_type_a", self.num_type_a, clients)
        type_b = 0
        if not self.lacks("filter"):
            type_b = count_groups("num_type_b", self.num_type_b, clients)
        roster = Roster(
            a=[[] for _ in range(type_a)],
            b=[],
            wanted=type_b,
            counts={},
        )
        phase = Phase(0 if self.lacks("phases") else 1)
        return Server(new(0), roster, [], phase)

    def setup(self, server: Server, cohort: Cohort) -> Server:
        if self.lacks("coordinators"):
            return server
        labels: Counts = {}
        with suppress(NoReplies):
            ups = cohort.run(self.count, None)
            labels = {k: up.labels for k, up in ups.by_client().items()}
        roster = self.add_clients(server.roster, labels, cohort.rng)
        return server._replace(roster=roster)

    def add_clients(self, roster: Roster, labels: Counts, rng: Rng) -> Roster:
        """The first clients that answer form Type-A groups, Eq. (5); later ones join groups."""
        new = [k for k in labels if k not in roster.counts]
        counts = {**roster.counts, **labels}
        counts = {k: counts[k] for k in sorted(counts)}
        if roster.counts:
            type_a = extend_balanced_groups(roster.a, counts, new, self.weights)
        else:
            type_a = self.make_type_a_groups(counts, len(roster.a), rng)
        type_b = roster.b
        if type_b:
            type_b = extend_similar_groups(type_b, counts, new)
        return roster._replace(a=type_a, b=type_b, counts=counts)

    # ---------------------------------------------------------------- a round
    def sample(
        self, server: Server, clients: Sequence[int], share: float, rng: Rng
    ) -> list[int]:
        is_phase_2 = server.phase.number == 2 or server.phase.over
        if is_phase_2 or self.participation != "groups":
            return super().sample(server, clients, share, rng)
        groups = find_type_a_groups(server.roster, clients)
        return draw_groups(groups, share, rng)

    def round(self, server: Server, cohort: Cohort) -> Server:
        known = server.roster.counts
        unknown = [k for k in cohort.clients if k not in known]
        if unknown:
            server = self.setup(server, cohort.only(unknown))
        if server.phase.number == 1 and self.is_phase_1_over(server, cohort):
            server = self.begin_phase_2(server, cohort)
        if server.phase.number == 2:
            return self.run_phase_2(server, cohort)
        return self.run_phase_1(server, cohort)

    def is_phase_1_over(self, server: Server, cohort: Cohort) -> bool:
        """Whether phase 1 ended before this round."""
        last = last_round(self.phase1, cohort.rounds)
        return server.phase.over or cohort.t > last

    def send(self, server: Server, k: int) -> Down:
        w = server.w
        if server.filters:
            group = find_group(server.roster.b, k)
            w = w | server.filters[group]
        phase = server.phase
        return Down(w, phase.number, phase.since)

    def expected_upload(self, down: Down | None, t: int) -> dict[str, Tree]:
        if down is None or down.phase != 2:
            return super().expected_upload(down, t)
        if self.lacks("filter"):
            return {"w": {}}
        return {"w": part(down.w, "filter")}

    # ---------------------------------------------------------------- phase 1, Section 4.1
    def run_phase_1(self, server: Server, cohort: Cohort) -> Server:
        """Train a model along the clients of every Type-A group, and average the models."""
        roster = server.roster
        if self.participation == "regroup":
            roster = self.regroup(roster, cohort)
        groups = find_type_a_groups(roster, cohort.clients)
        chains, replies = self.run_chains(server, cohort, groups)

        # Eq. (4) and (8): W - 1/|D| sum_c |D^c| (W - W^c) is the weighted mean of all W^c
        models = [chain.w for chain in chains]
        sizes = [chain.n for chain in chains]
        reduction = replies[-1].reduction  # the mean, unless a filter replaced it
        w = reduction(models, torch.tensor(sizes, dtype=torch.float64))

        phase = self.advance_phase(server.phase, replies, cohort)
        return server._replace(w=w, phase=phase)

    def make_type_a_groups(
        self, counts: Counts, number: int, rng: Rng, target: Counts | None = None
    ) -> Groups:
        """Eq. (5): groups whose labels, taken together, are like those of all clients."""
        return make_balanced_groups(
            counts,
            number,
            rng,
            how=self.grouping_a,
            weights=self.weights,
            target=target,
        )

    def regroup(self, roster: Roster, cohort: Cohort) -> Roster:
        """New Type-A groups of this round's clients alone, as large as those of all clients."""
        known = roster.counts
        here = {k: known[k] for k in cohort.clients if k in known}
        number = round(len(here) * len(roster.a) / max(len(known), 1))
        groups = self.make_type_a_groups(here, max(1, number), cohort.rng, target=known)
        return roster._replace(a=groups)

    def run_chains(
        self, server: Server, cohort: Cohort, groups: Groups
    ) -> tuple[list[Chain], list[Uploads[Up]]]:
        """In every group the model goes from client to client, Eq. (6) and (7).

        The i-th clients of all chains train in one call. Where a reply gets lost, the chain goes on
        from its last model. Gives the chains in which a client replied, and the replies by call.
        """
        phase = server.phase
        train = (
            self.train_both_heads if self.lacks("phases") else self.train_whole_model
        )
        chains = []
        for group in groups:
            order = cohort.shuffle(group)
            chains.append(Chain(order, server.w))  # Eq. (6)
        longest = max((len(chain.order) for chain in chains), default=0)
        replies: list[Uploads[Up]] = []
        for i in range(longest):
            chain_of = {
                chain.order[i]: chain for chain in chains if i < len(chain.order)
            }
            downs = {
                k: Down(chain.w, phase.number, phase.since)
                for k, chain in chain_of.items()
            }
            try:
                ups = cohort.only(chain_of).run(train, downs.__getitem__)
            except NoReplies:
                continue
            replies.append(ups)
            for k, n, w in zip(ups.clients, ups.n.tolist(), ups.w, strict=True):
                chain_of[k].w = w  # Eq. (7): W^c - Delta W^(k)
                chain_of[k].n += n
        trained = [chain for chain in chains if chain.n]
        if not trained:
            raise NoReplies(f"no reply to '{train.__name__}' in round {cohort.t}")
        return trained, replies

    def advance_phase(
        self, phase: Phase, replies: list[Uploads[Up]], cohort: Cohort
    ) -> Phase:
        """Decide whether this was the last round of phase 1; switch=auto looks at the scores."""
        is_over = cohort.t >= last_round(self.phase1, cohort.rounds)
        if self.switch == "fixed":
            return phase._replace(over=is_over)
        correct = 0.0
        examples = 0.0
        for ups in replies:
            for score in ups.score:
                if score is not None:  # without phases no client scores the model
                    correct += float(score[0])
                    examples += float(score[1])
        curve = phase.curve
        if examples:
            curve = (*curve, correct / examples)
        is_over = is_over or is_flat(curve, self.window, self.threshold)
        return phase._replace(curve=curve, over=is_over)

    # ---------------------------------------------------------------- phase 2, Section 4.2
    def begin_phase_2(self, server: Server, cohort: Cohort) -> Server:
        """Form the Type-B groups, each with a filter of its own."""
        groups = self.make_type_b_groups(server.roster, cohort.rng)
        filters = [part(server.w, "filter") for _ in groups]
        if self.reinit:
            filters = [
                draw_filter(server.w, cohort.rng.fold(i)) for i in range(len(groups))
            ]
        phase = Phase(
            number=2,
            since=cohort.t - 1,
            over=False,
            curve=server.phase.curve,
        )
        roster = server.roster._replace(b=groups)
        return server._replace(roster=roster, filters=filters, phase=phase)

    def make_type_b_groups(self, roster: Roster, rng: Rng) -> Groups:
        """Eq. (10): groups of clients with similar labels."""
        if self.lacks("filter"):
            return []
        number = roster.wanted
        if self.num_type_b == "silhouette":
            number = suggest_group_count(roster.counts, rng, cost=self.js_cost)
        return make_similar_groups(roster.counts, number, rng, cost=self.js_cost)

    def run_phase_2(self, server: Server, cohort: Cohort) -> Server:
        """Average the filters inside every Type-B group, Eq. (11); P-Heads stay private."""
        ups = cohort.run(self.train_filter_and_head, lambda k: self.send(server, k))
        # clients without label counts are in no group
        group = dict.fromkeys(ups.clients, -1)
        for i, members in enumerate(server.roster.b):
            group |= dict.fromkeys(members, i)
        filters = ups.mean_by_group("w", group, server.filters)
        return server._replace(filters=filters)

    # ---------------------------------------------------------------- what clients do
    def count(self, c: Client, down: None, keep: Keep) -> tuple[LabelCounts, Keep]:
        """Send the label counts, with Laplace noise of scale 1/epsilon if there is an epsilon.

        One example more or less changes one count by one, so the noisy counts are
        epsilon-differentially private; rounding and cutting at zero uses nothing else.
        """
        if self.epsilon is None:
            return LabelCounts(c.counts), keep
        noise = c.rng.laplace(c.classes) / self.epsilon
        noisy = (c.counts + noise).round()
        return LabelCounts(noisy.clamp(min=0)), keep

    def first_keep(self, c: Client, down: Down | None) -> Keep:
        parts = ["head"]
        if self.has_private_filter():
            parts.append("filter")
        begun = torch.tensor(self.reinit)
        return Keep(c.fresh(*parts), begun)

    def has_private_filter(self) -> bool:
        """Whether clients train a filter each, where no coordinators share one."""
        has_no_coordinators = self.lacks("filter") and not self.lacks("phases")
        return has_no_coordinators and self.filter_scope == "private"

    def train_whole_model(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """Phase 1, Eq. (9): train extractor, filter and G-Head."""
        opt = self.optimiser(c, down)
        w = c.train(c.loss, down.w, opt=opt)
        score = None
        if self.switch == "auto":
            score = score_validation(c, down.w)
        return Up(w, score), keep

    def train_filter_and_head(
        self, c: Client, down: Down, keep: Keep
    ) -> tuple[Up, Keep]:
        """Phase 2: train the filter, Eq. (12), and the P-Head, Eq. (13), on frozen features."""
        opt = self.optimiser(c, down)
        w = self.personal(c, down, keep)
        trained = ["filter", "head"]
        if self.lacks("filter") and self.filter_scope == "frozen":
            trained = ["head"]
        loss = loss_on_frozen_features(c, w)
        w = c.train(loss, w, opt=opt, only=trained)

        shared: Params = {}
        if not self.lacks("filter"):
            shared = part(w, "filter")
        own = {name: w[name] for name in keep.own}
        return Up(shared, None), Keep(own, torch.ones_like(keep.begun))

    def train_both_heads(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """Without phases: train everything at once, under the G-Head and the P-Head."""
        opt = self.optimiser(c, down)
        personal = self.personal(c, down, keep)
        both = down.w | rename(personal, "head", "own")
        w = c.train(loss_of_both_heads(c), both, opt=opt)
        shared = {name: w[name] for name in down.w}
        own = rename(w, "own", "head")
        return Up(shared, None), Keep(own, torch.ones_like(keep.begun))

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        """The training of the present phase, for evaluations right after local training."""
        if down.phase == 1:
            return self.train_whole_model(c, down, keep)
        if down.phase == 2:
            return self.train_filter_and_head(c, down, keep)
        return self.train_both_heads(c, down, keep)

    def optimiser(self, c: Client, down: Down) -> Optimiser:
        """The experiment's optimiser; the decay of its learning rate restarts in every phase."""
        return c.plan.optimiser(c.t - down.since)

    # ---------------------------------------------------------------- the models
    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        if down.phase == 1:
            return down.w
        w = dict(down.w)
        for name, own in keep.own.items():
            w[name] = torch.where(keep.begun, own, down.w[name])
        return w

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        trained = down._replace(w=down.w | up.w)
        return self.personal(c, trained, keep)

    def shared(self, server: Server) -> Params:
        return server.w

    def closing_remarks(self, server: Server) -> list[str]:
        roster = server.roster
        remarks = []
        if any(roster.a):
            quality = measure_quality(roster.a, roster.counts)
            remarks.append(
                f"Type-A groups of {list_sizes(quality)} clients: KL to all clients "
                f"{quality.kl_sum:.3f} in all, {quality.kl_max:.3f} at most"
            )
        if any(roster.b):
            quality = measure_quality(roster.b, roster.counts)
            remarks.append(
                f"Type-B groups of {list_sizes(quality)} clients: JS between two of a group "
                f"{quality.js_mean:.3f} on average"
            )
        return remarks


# ---------------------------------------------------------------- losses and scores of a client
def loss_on_frozen_features(c: Client, w: Params) -> Loss:
    """The task's loss on a frozen extractor, which runs once for all batches."""
    features = c.data.map(lambda x: c.model.base(w, x), CHUNK)

    def loss(w: Params, batch: Batch) -> Tensor:
        filtered = c.model.filter(w, features[batch.index])
        filtered = c.model.rest(w, filtered)
        output = c.model.head(w, filtered)
        return c.task.loss(output, batch.y)

    return loss


def loss_of_both_heads(c: Client) -> Loss:
    """The loss of the G-Head plus that of the P-Head, whose parameters are called ``own``."""

    def loss(w: Params, batch: Batch) -> Tensor:
        features = c.model.base(w, batch.x)
        filtered = c.model.rest(w, c.model.filter(w, features))
        g_head = c.model.head(w, filtered)
        p_head = c.model.head(rename(w, "own", "head"), filtered)
        return c.task.loss(g_head, batch.y) + c.task.loss(p_head, batch.y)

    return loss


def score_validation(c: Client, w: Params) -> Tensor:
    """How many validation examples a model gets right, and how many there are."""
    tally = c.task.empty_tally(c.val.index.device)
    for x, y, mask in c.val.chunks():
        output = c.model(w, x)
        tally = add(tally, c.task.tally(output, y, mask))
    return torch.stack([tally.correct.sum(), tally.n.sum()])


# ---------------------------------------------------------------- groups
def count_groups(field: str, asked: int | str | None, clients: int) -> int:
    """How many groups to form: the number asked for, else ceil(sqrt(clients))."""
    if not isinstance(asked, int):
        return math.isqrt(max(clients - 1, 0)) + 1
    if asked > clients:
        raise UserError(
            f"{field}={asked}, but there are {clients} clients: set {clients} at most"
        )
    return asked


def find_type_a_groups(roster: Roster, clients: Sequence[int]) -> Groups:
    """The given clients in their Type-A groups; a client without counts is a group of its own."""
    groups = [[k] for k in clients if k not in roster.counts]
    here = set(clients)
    for group in roster.a:
        members = [k for k in group if k in here]
        if members:
            groups.append(members)
    return sorted(groups)


def list_sizes(quality: Quality) -> str:
    """The sizes of all groups that have members, the largest first."""
    sizes = sorted(quality.sizes, reverse=True)
    return ", ".join(str(size) for size in sizes if size)


# ---------------------------------------------------------------- the end of phase 1
def last_round(length: float, rounds: int) -> int:
    """The last round of phase 1: a length below 1 is a share of all rounds, of at least one."""
    if 0 < length < 1:
        return max(round(length * rounds), 1)
    return round(length)


def is_flat(curve: Sequence[float], window: int, threshold: float) -> bool:
    """Whether the last ``window`` values gain less than ``threshold`` over as many before them."""
    late = curve[-window:]
    early = curve[-2 * window : -window]
    if len(early) < window:
        return False
    return (sum(late) - sum(early)) / window < threshold
