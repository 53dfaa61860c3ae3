"""pFedC: the classifier is split into a small head per task, shared by the owners of the task.

Anonymous authors, Disentangled Knowledge Transfer: A New Perspective for Personalized Federated
Learning, submitted to ICLR 2023, Algorithm 1.

The owners of a task are the clients that have examples of it. A client is sent the heads of the
tasks it has, and no others (line 8). So that the server can do this, it knows which tasks every
client has, pi_i in clear: a new client tells it once. Where it must not know, all clients are sent
all heads (``distribute=all``): this is Algorithm 2 without its encryption.

Algorithm 2, Privacy-pFedC, is ``fedtailor run --method pfedc --encrypt heads``: clients encrypt
weight times head and the weights, phi is in clear, and the server adds up ciphertexts that only
clients can open (``--encrypt all``: phi as well). At sites: ``fedtailor federate --method pfedc
--encrypt heads --he-public he.pub``; docs/privacy.md says who holds what.

Algorithm 1 returns the models right after local training: the view ``after``. Personal models are
those that clients have before they train, with the heads of this round's mean.

Where the paper is unclear:

* Eq. (3) and (5) read literally move the head of task c by lambda_c times its gradient. MGDA-UB,
  which the paper names for lambda, does not: heads get their plain gradients, and only the
  representation the weighted sum (Sener and Koltun, NeurIPS 2018, Algorithm 2, lines 1-3). This is
  the default; ``head_step=lambda`` is the literal reading.
* The weights lambda_c sum to one, as in MGDA. So phi takes a step as long as for a single task;
  with ``lambda_sum=tasks`` they sum to the number of the client's tasks.
* MGDA's gradients are divided by their lengths (``grad_norm=l2``), an option of Sener and Koltun's
  code. It makes MGDA nearly idle: all lambda_c are about 1 / T. Besides, these weights then apply
  to gradients that are not normalised, so that their sum need not be a direction in which no task
  gets worse. ``grad_norm=none`` is the paper's form and keeps this guarantee.
* All examples of a client train all its tasks. Eq. (3) as printed averages over the examples of a
  class, none of which is negative.
* A client does not train tasks of which it has no example: their gradients vanish, and MGDA would
  give them all the weight (``task_scope``).
* A client with a single task has no negative examples: it trains its head to say yes to everything,
  and counts as much as any other owner in Eq. (7). A run tells at its end how many such clients
  there are.
* Eq. (13) weighs heads by data sizes and then divides by the number of owners; here it is one or
  the other (``head_agg``).
* With a single task all clients have the same head, which counts as representation: this is FedAvg.
* MGDA's solver moves weight between pairs of tasks, in a fixed number of steps.
* Data whose owner is unknown (``--views new``): a class is as likely as its owners say on average.
  The others do not know it, and have no say.

A client uploads each head times the client's weight, 0 for tasks it does not have, and the weights:
the server only adds up. With ``distribute=all`` it sends the sums of heads and weights to all
clients, and each divides (which line 17 of Algorithm 2 forgets). If only some clients take part in
a round, the server then also keeps the sums of earlier rounds, until all their clients have been
heard again; the oldest are added up if there are more than ``memory``. A client takes the newest
mean there is for each of its tasks.
"""

from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Annotated, ClassVar, Literal, NamedTuple, Self

import torch
from annotated_types import Ge, Le
from torch import Tensor, nn

from fedtailor.client import Batch, Client, Loss
from fedtailor.core.tree import Params, add, part, tmap
from fedtailor.maths.class_tasks import CPU, Tasks, divide_classes, lay_out
from fedtailor.maths.mgda import head_gram, lift, min_norm, normalise
from fedtailor.method import (
    Cohort,
    Count,
    Doc,
    Method,
    New,
    NoReplies,
    Share,
    Uploads,
    hyper,
    shape,
)
from fedtailor.models.backbone import Backbone
from fedtailor.models.task_heads import mount_heads

One = Annotated[int, Ge(1), Le(1)]


# ---------------------------------------------------------------- states and messages
class RoundSums(NamedTuple):
    """What the clients of a round (or of several rounds) sent, added up."""

    heads: Annotated[Params, Doc("sum of weight_n^c omega_n^c")]
    weight: Annotated[Tensor, Doc("sum of weight_n^c, by row of the heads")]


class Owned(NamedTuple):
    """What a client tells once: the tasks it has."""

    rows: Annotated[Tensor, Doc("pi_i: 1 for rows of the heads of its tasks, else 0")]
    tasks: Annotated[Tensor, Doc("how many tasks it has; 0 if it has not told")]


class Server(NamedTuple):
    """What the server remembers."""

    base: Annotated[Params, Doc("phi, representation")]
    first: Annotated[Params, Doc("every client's first heads")]
    sums: Annotated[
        tuple[RoundSums, ...],
        Doc("newest means of heads; with distribute=all sums, newest first"),
    ]
    senders: Annotated[
        tuple[tuple[int, ...], ...],
        Doc("with distribute=all, the clients in each of the sums"),
    ]
    owned: Annotated[
        dict[int, Owned], Doc("pi_i in clear, by client: which tasks it has")
    ]


class Down(NamedTuple):
    """What goes down."""

    base: Annotated[Params, Doc("phi")]
    first: Annotated[Params, Doc("every client's first heads")]
    sums: Annotated[
        tuple[RoundSums, ...],
        Doc("means of the heads of its own tasks; with distribute=all sums of all"),
    ]


class Keep(NamedTuple):
    """What a client remembers."""

    own: Annotated[Params, Doc("omega_i^c of the tasks it has, for their owners' mean")]
    other: Annotated[Params, Doc("omega_i^c of the tasks it does not have")]


class Up(NamedTuple):
    """What goes up."""

    base: Annotated[Params, Doc("phi_i")]
    heads: Annotated[
        Params, Doc("weight_i^c omega_i^c, so 0 for a task the client does not have")
    ]
    weight: Annotated[
        Tensor, Doc("pi_i^c, times what head_agg says, by row of the heads")
    ]


# ---------------------------------------------------------------- the server's history
class Entry(NamedTuple):
    """One of the sums that the server keeps."""

    sums: RoundSums
    senders: frozenset[int]


History = list[Entry]  # newest first


def read_history(server: Server) -> History:
    """The sums that the server has, each with its clients."""
    history: History = []
    for sums, senders in zip(server.sums, server.senders, strict=True):
        history.append(Entry(sums, frozenset(senders)))
    return history


def drop_outdated(history: History) -> History:
    """Without the sums whose clients have all been heard since: their tasks have newer heads."""
    kept: History = []
    heard: set[int] = set()
    for entry in history:
        if entry.senders <= heard:
            continue
        kept.append(entry)
        heard |= entry.senders
    return kept


def fold_oldest(history: History, memory: int) -> History:
    """At most ``memory`` rounds besides the newest, with the oldest added up."""
    folded = list(history)
    while len(folded) > memory + 1:
        older = folded.pop()
        newer = folded.pop()
        both = Entry(
            sums=add(newer.sums, older.sums),
            senders=newer.senders | older.senders,
        )
        folded.append(both)
    return folded


# ---------------------------------------------------------------- rows of heads
def align(rows: Tensor, like: Tensor) -> Tensor:
    """A value for every row of the heads, to be multiplied with one of their parameters."""
    other_axes = [1] * (like.dim() - 1)
    return rows.reshape(-1, *other_axes)


def owners_mean(sums: RoundSums) -> Params:
    """Eq. (7): for every task, the mean of its owners' heads; 0 where there are no owners."""
    divisor = total_weight(sums).clamp(min=1)
    means: Params = {}
    for name, total in sums.heads.items():
        means[name] = total / align(divisor, total)
    return means


def total_weight(sums: RoundSums) -> Tensor:
    """The weight of all owners of every row: a whole number, to which a filter may add noise."""
    return sums.weight.round()


def choose_heads(is_new: Tensor, new: Params, old: Params) -> Params:
    """The new heads in some rows, the old heads in the others."""
    chosen: Params = {}
    for name, value in new.items():
        chosen[name] = torch.where(align(is_new, value), value, old[name])
    return chosen


def scale_heads(weight: Tensor, heads: Params) -> Params:
    """Every row of the heads times its weight."""
    return {name: value * align(weight, value) for name, value in heads.items()}


def take_rows(sums: RoundSums, rows: Tensor) -> RoundSums:
    """The sums of some rows; 0 in the others."""
    nothing = tmap(torch.zeros_like, sums.heads)
    return RoundSums(
        heads=choose_heads(rows, sums.heads, nothing),
        weight=sums.weight * rows,
    )


def update_means(sums: RoundSums, known: RoundSums) -> RoundSums:
    """The means of this round; those known before where no owner took part."""
    is_new = total_weight(sums) > 0
    return RoundSums(
        heads=choose_heads(is_new, owners_mean(sums), known.heads),
        weight=torch.where(is_new, 1.0, known.weight),
    )


def read_owned(ups: Uploads[Up]) -> dict[int, Owned]:
    """Which tasks clients have, as their uploads say: for those that did not want to tell."""
    owned = {}
    for k, up in ups.by_client().items():
        owned[k] = Owned(
            rows=(up.weight > 0) * 1.0,
            tasks=torch.zeros((), dtype=torch.int64),
        )
    return owned


def sort_clients(owned: dict[int, Owned]) -> dict[int, Owned]:
    """In the order of clients, whoever answered first."""
    return {k: owned[k] for k in sorted(owned)}


def balance_positives(examples: Tensor) -> Tensor:
    """By task, negative examples for each positive one; 1 where there are no negative ones."""
    negatives = examples.sum() - examples
    ratio = negatives / examples.clamp(min=1)
    return torch.where(ratio > 0, ratio, 1.0)


# ---------------------------------------------------------------- the method
@dataclass(frozen=True)
class PFedC(Method[Server, Down, Keep, Up]):
    """Clients learn several tasks at once; the head of a task is averaged over its owners."""

    reveals: ClassVar[dict[str, str]] = {
        "owned tasks": "pi_i is sent, and the heads of other tasks are 0",
    }

    also_sent: ClassVar[tuple[str, ...]] = ("own",)
    setup_calls: ClassVar[tuple[str, ...]] = ("tell_tasks",)
    summed: ClassVar[tuple[str, ...]] = ("heads", "weight")
    head_fields: ClassVar[tuple[str, ...]] = ("weight",)

    tasks: Count | None = hyper(
        None,
        "T, number of tasks, runs of neighbouring classes; C (Sec. 3.2), 10 in Table 4",
    )
    groups: str = hyper(
        "classes",
        "which classes are a task: classes, consecutive:T or superclass (CIFAR-100's 20, Sec. 5)",
    )
    task_target: Literal["group_softmax", "membership"] = hyper(
        "group_softmax", "tell a group's classes, or only the group"
    )
    task_scope: Literal["present", "all"] = hyper(
        "present", "tasks a client trains; with all, those it lacks stop phi"
    )
    head_step: Literal["full", "lambda"] = hyper(
        "full",
        "gradient of a head: its own (Sener and Koltun, Algorithm 2, lines 1-3), "
        "or times lambda_c (Eq. 3 and 5 read literally)",
    )
    lambda_sum: One | Literal["tasks"] = hyper(
        1,
        "what all lambda_c sum to: 1 (MGDA), or the number of the client's tasks; "
        "none in the paper",
    )
    grad_norm: Literal["none", "l2", "loss", "loss+"] | None = hyper(
        "l2",
        "MGDA divides gradients by it; option of its code; "
        "l2 makes lambda about 1/T, with no guarantee of common descent",
    )
    alpha_min: Share = hyper(
        0.0, "least weight lambda_c of a task the client trains; none in the paper"
    )
    pos_weight: bool = hyper(
        False,
        "weigh a task's positives by the ratio of negatives to positives; none in the paper",
    )
    head_agg: Literal["uniform", "weighted", "class_count"] = hyper(
        "uniform", "weight of an owner: 1 (Eq. 7), D_i or D_i^c"
    )
    distribute: Literal["own", "all"] = hyper(
        "own",
        "heads a client is sent: of its own tasks (Algorithm 1, line 8), or of all, "
        "where the server must not know who has which (Algorithm 2)",
    )
    rep_dim: Count | None = hyper(
        None,
        "width of phi's output, by one more layer; the backbone's own (the paper's has 50)",
    )
    memory: Count = hyper(
        8,
        "rounds whose sums of heads are kept apart with distribute=all under partial "
        "participation; not in the paper",
    )
    solver_steps: Count = hyper(
        2,
        "steps of MGDA's solver per task; Sener and Koltun take up to 250 shorter ones",
    )

    # ---------------------------------------------------------------- before the first round
    def with_defaults_for(self, backbone: Backbone) -> Self:
        groups = divide_classes(self.groups, self.tasks, backbone.classes)
        return replace(self, tasks=len(groups))

    def with_sealed_sums(self, clients: int) -> Self:
        """Algorithm 2: the server cannot know who has which task, and divides nothing."""
        memory = max(self.memory, clients)
        return replace(self, distribute="all", memory=memory)

    def warnings(self) -> list[str]:
        found = []
        if self.tasks == 1 or self.groups == "consecutive:1":
            found.append("tasks=1: with a single task pFedC is FedAvg")
        if self.task_scope == "all":
            found.append(
                "task_scope=all: MGDA gives most weight to tasks a client does not have"
            )
        if self.alpha_min * (self.tasks or 1) >= 1:
            found.append(f"alpha_min={self.alpha_min}: all tasks weigh the same")
        if self.task_target == "membership":
            found.append(
                "task_target=membership: classes of one group are not told apart"
            )
        if self.distribute == "all":
            found.append(
                "distribute=all: every client receives the heads of tasks it does not have"
            )
        return found

    def net(self, backbone: Backbone) -> nn.Module:
        tasks = self.make_tasks(backbone.classes)
        return mount_heads(backbone, tasks.logits, self.rep_dim)

    def make_tasks(self, classes: int, device: torch.device = CPU) -> Tasks:
        """The tasks into which the classes are divided."""
        groups = divide_classes(self.groups, self.tasks, classes)
        return lay_out(groups, self.task_target == "membership", device)

    def survey(self, c: Client) -> tuple[Tasks, Tensor]:
        """The tasks, and how many examples of each the client has."""
        tasks = self.make_tasks(c.classes, c.rng.device)
        return tasks, tasks.count_examples(c.counts)

    def split(self, w: Params) -> tuple[Params, Params]:
        """phi and omega; the head of a single task, which all clients have, belongs to phi."""
        if self.tasks == 1:
            return w, {}
        return part(w, "base"), part(w, "head")

    def init(self, new: New, clients: int) -> Server:
        w = new(0)
        base, first = self.split(w)
        rows = len(w["head.weight"])
        nothing = RoundSums(
            heads=tmap(torch.zeros_like, first),
            weight=torch.zeros(rows),
        )
        return Server(
            base=base,
            first=first,
            sums=(nothing,),
            senders=((),),
            owned={},
        )

    @property
    def knows_owners(self) -> bool:
        """Whether the server knows which tasks a client has."""
        return self.distribute == "own" and self.tasks != 1

    def setup(self, server: Server, cohort: Cohort) -> Server:
        if not self.knows_owners:
            return server
        owned = dict(server.owned)
        with suppress(NoReplies):  # they are asked again in their first round
            ups = cohort.run(self.tell_tasks, lambda k: self.greet(server, k))
            owned |= ups.by_client()
        return server._replace(owned=sort_clients(owned))

    def greet(self, server: Server, k: int) -> Down:
        """What a new client is sent: its first heads."""
        return self.send(server, k)._replace(base={})

    def tell_tasks(self, c: Client, down: Down, keep: Keep) -> tuple[Owned, Keep]:
        """Which tasks the client has."""
        tasks, examples = self.survey(c)
        is_owner = examples > 0
        told = Owned(
            rows=tasks.rows(is_owner * 1.0),
            tasks=is_owner.sum(),
        )
        return told, keep

    # ---------------------------------------------------------------- what a client has
    def send(self, server: Server, k: int) -> Down:
        if not self.knows_owners:
            return Down(server.base, server.first, server.sums)
        means = server.sums[0]
        rows = torch.zeros_like(means.weight)
        if k in server.owned:
            rows = server.owned[k].rows
        mine = take_rows(means, rows > 0)
        return Down(server.base, server.first, (mine,))

    def first_keep(self, c: Client, down: Down) -> Keep:
        return self.keep_heads(c, down.first)

    def keep_heads(self, c: Client, heads: Params) -> Keep:
        """The heads of the client's tasks and the others, in rows of their own; 0 elsewhere."""
        tasks, examples = self.survey(c)
        is_own = tasks.rows(examples > 0)
        nothing = tmap(torch.zeros_like, heads)
        return Keep(
            own=choose_heads(is_own, heads, nothing),
            other=choose_heads(~is_own, heads, nothing),
        )

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        """phi with a head for every task: the owners' newest mean, or the client's own (Eq. 7)."""
        tasks, examples = self.survey(c)
        is_own = tasks.rows(examples > 0)
        heads = choose_heads(is_own, keep.own, keep.other)
        # the newest last, so that it replaces older ones
        for sums in reversed(down.sums):
            is_known = is_own & (total_weight(sums) > 0)
            heads = choose_heads(is_known, owners_mean(sums), heads)
        return {**down.base, **heads}

    # ---------------------------------------------------------------- local training
    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        tasks, examples = self.survey(c)
        is_trained = (examples > 0) | (self.task_scope == "all")
        start = self.personal(c, down, keep)
        loss = self.make_loss(c, is_trained)
        w = c.train(loss, start)  # Eq. (5)
        base, trained = self.split(w)
        heads = choose_heads(tasks.rows(is_trained), trained, start)
        weight = tasks.rows(self.weigh_owner(examples))
        up = Up(
            base=base,
            heads=scale_heads(weight, heads),
            weight=weight,
        )
        return up, self.keep_heads(c, heads)

    def make_loss(self, c: Client, is_trained: Tensor) -> Loss:
        """Eq. (3), whose value is sum_c lambda_c L_c; its gradient is as ``head_step`` says."""
        tasks, examples = self.survey(c)
        boost = balance_positives(examples) if self.pos_weight else None

        def weigh(w: Params, losses: Tensor, errors: Tensor) -> Tensor:
            weight = w["head.weight"].detach()
            gram = head_gram(weight, errors, tasks.task_of, len(examples))
            return self.weigh_tasks(gram, losses.detach(), is_trained)

        def weighted(w: Params, batch: Batch) -> Tensor:
            logits = c.model(w, batch.x)
            losses, errors = tasks.losses_and_errors(logits, batch.y, boost)
            lam = weigh(w, losses, errors)
            return (lam * losses).sum()

        def full(w: Params, batch: Batch) -> Tensor:
            z: Tensor = c.model.base(w, batch.x)
            logits = c.model.head(w, z.detach())
            losses, errors = tasks.losses_and_errors(logits, batch.y, boost)
            lam = weigh(w, losses, errors)
            # sum_c lambda_c dL_c/dz, which goes on to phi
            pull = (errors * tasks.rows(lam)) @ w["head.weight"].detach()
            steps = (losses * is_trained).sum() + (z * pull).sum()
            value = (lam * losses.detach()).sum()
            return value + (steps - steps.detach())

        has_heads = self.tasks != 1
        return full if self.head_step == "full" and has_heads else weighted

    def weigh_tasks(self, gram: Tensor, losses: Tensor, is_trained: Tensor) -> Tensor:
        """lambda_c in Eq. (3), by MGDA-UB."""
        gram = normalise(gram, losses, self.grad_norm)
        steps = self.solver_steps * len(losses)
        lam = min_norm(gram, is_trained, steps)
        lam = lift(lam, is_trained, self.alpha_min)
        if self.lambda_sum == "tasks":
            lam = lam * is_trained.sum()
        return lam

    def weigh_owner(self, examples: Tensor) -> Tensor:
        """By task, the weight of the client's head in the mean of all owners."""
        if self.head_agg == "class_count":
            return examples
        is_owner = examples > 0
        if self.head_agg == "weighted":
            return is_owner * examples.sum()
        return is_owner * 1.0

    # ---------------------------------------------------------------- a round
    def round(self, server: Server, cohort: Cohort) -> Server:
        unknown = [k for k in cohort.clients if k not in server.owned]
        if unknown:
            server = self.setup(server, cohort.only(unknown))
        return super().round(server, cohort)

    def expected_upload(self, down: Down, t: int) -> dict[str, Params | Tensor]:
        heads = down.first
        rows = shape(down.sums[0].weight)
        if self.head_agg != "uniform":
            # heads times large weights are far from any download
            heads = tmap(shape, down.first)
        return {
            "base": down.base,
            "heads": heads,
            "weight": rows,
            "rows": rows,
            "tasks": shape(torch.zeros((), dtype=torch.int64)),
        }

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        base = ups.mean("base")  # Eq. (6)
        sums = RoundSums(
            heads=ups.sum("heads"),
            weight=ups.sum("weight"),
        )
        if self.knows_owners:
            means = update_means(sums, server.sums[0])
            owned = read_owned(ups) | server.owned
            return server._replace(base=base, sums=(means,), owned=sort_clients(owned))
        newest = Entry(sums, frozenset(ups.clients))
        history = drop_outdated([newest, *read_history(server)])
        history = fold_oldest(history, self.memory)
        senders = [sorted(entry.senders) for entry in history]
        return server._replace(
            base=base,
            sums=tuple(entry.sums for entry in history),
            senders=tuple(map(tuple, senders)),
        )

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        """theta_i as Algorithm 1 returns it (lines 9 to 12)."""
        tasks, examples = self.survey(c)
        is_own = tasks.rows(examples > 0)
        return {**up.base, **choose_heads(is_own, keep.own, keep.other)}

    # ---------------------------------------------------------------- answers
    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        tasks, examples = self.survey(c)
        logits = c.model(w, x)
        return tasks.score_classes(logits, examples > 0)

    def log_probabilities(self, c: Client, w: Params, x: Tensor) -> Tensor:
        """What each class's own task says; a client does not know classes that it lacks."""
        tasks, examples = self.survey(c)
        logits = c.model(w, x)
        return tasks.score_classes(logits, examples > 0, absent=-torch.inf)

    def diagnostics(
        self, c: Client, w: Params, x: Tensor, y: Tensor
    ) -> dict[str, Tensor]:
        tasks, examples = self.survey(c)
        logits = c.model(w, x)
        has_examples = examples > 0
        is_trained = has_examples | (self.task_scope == "all")
        return tasks.rate_answers(logits, y, has_examples, is_trained)

    def closing_remarks(self, server: Server) -> list[str]:
        single = [k for k, owned in server.owned.items() if int(owned.tasks) == 1]
        if not single:
            return []
        named = ", ".join(map(str, single[:10]))
        if len(single) > 10:
            named += ", ..."
        return [
            f"clients with a single task: {len(single)} of {len(server.owned)} ({named}); "
            "without negative examples they train its head to say yes to everything, "
            "and count as any other owner in its mean"
        ]
