"""pFedC: the classifier is split into a small head per task, shared by the owners of the task.

Anonymous authors, Disentangled Knowledge Transfer: A New Perspective for Personalized Federated
Learning, submitted to ICLR 2023, Algorithm 1.

The owners of a task are the clients that have examples of it. Where the paper is unclear:

* All examples of a client train all its tasks. Eq. (3) as printed averages over the examples of a
  class, none of which is negative.
* A client does not train tasks of which it has no example: their gradients vanish, and MGDA would
  give them all the weight (``task_scope``).
* Eq. (13) weighs heads by data sizes and then divides by the number of owners; here it is one or
  the other (``head_agg``).
* With a single task all clients have the same head, which counts as representation: this is FedAvg.
* MGDA's solver moves weight between pairs of tasks, in a fixed number of steps.

The server only adds heads up, so it need not know which tasks a client has. A client uploads each
head times the client's weight, 0 for tasks it does not have, and the weights. The server sends the
sums of heads and weights to all clients, and each divides (which line 17 of Algorithm 2 forgets).
If only some clients take part in a round, the server also keeps the sums of earlier rounds, until
all their clients have been heard again; the oldest are added up if there are more than ``memory``.
A client takes the newest mean there is for each of its tasks.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from fedtailor.client import Batch, Client
from fedtailor.core.tree import Params, add, part, tmap
from fedtailor.maths.class_tasks import CPU, Tasks, divide_classes, lay_out
from fedtailor.maths.mgda import head_gram, lift, min_norm, normalise
from fedtailor.method import Count, Doc, Method, New, Share, Uploads, hyper, shape
from fedtailor.models.backbone import Backbone
from fedtailor.models.task_heads import mount_heads


# ---------------------------------------------------------------- states and messages
class RoundSums(NamedTuple):
    """What the clients of a round (or of several rounds) sent, added up."""

    heads: Annotated[Params, Doc("sum of weight_n^c omega_n^c")]
    weight: Annotated[Tensor, Doc("sum of weight_n^c, by task")]


class Server(NamedTuple):
    """What the server remembers."""

    base: Annotated[Params, Doc("phi, representation")]
    first: Annotated[Params, Doc("every client's first heads")]
    sums: Annotated[tuple[RoundSums, ...], Doc("sums of heads, newest first")]
    senders: Annotated[
        tuple[tuple[int, ...], ...], Doc("the clients in each of the sums")
    ]


class Down(NamedTuple):
    """What goes down."""

    base: Annotated[Params, Doc("phi")]
    first: Annotated[Params, Doc("every client's first heads")]
    sums: Annotated[tuple[RoundSums, ...], Doc("sums of heads, newest first")]


class Keep(NamedTuple):
    """What never leaves the client."""

    heads: Annotated[Params, Doc("omega_i, of all tasks")]


class Up(NamedTuple):
    """What goes up."""

    base: Annotated[Params, Doc("phi_i")]
    heads: Annotated[
        Params, Doc("weight_i^c omega_i^c, so 0 for a task the client does not have")
    ]
    weight: Annotated[Tensor, Doc("pi_i^c, times what head_agg says")]


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


# ---------------------------------------------------------------- heads of tasks
def owners_mean(sums: RoundSums, tasks: Tasks) -> Params:
    """Eq. (7): for every task, the mean of its owners' heads; 0 where there are no owners."""
    weight = total_weight(sums)
    divisor = weight.clamp(min=1)
    means: Params = {}
    for name, total in sums.heads.items():
        means[name] = total / tasks.spread(divisor, total)
    return means


def total_weight(sums: RoundSums) -> Tensor:
    """The weight of all owners of every task: a whole number, to which a filter may add noise."""
    return sums.weight.round()


def choose_heads(tasks: Tasks, is_new: Tensor, new: Params, old: Params) -> Params:
    """The new heads of some tasks, the old heads of the others."""
    chosen: Params = {}
    for name, value in new.items():
        is_new_row = tasks.spread(is_new, value)
        chosen[name] = torch.where(is_new_row, value, old[name])
    return chosen


def scale_heads(tasks: Tasks, weight: Tensor, heads: Params) -> Params:
    """The head of every task times the task's weight."""
    scaled: Params = {}
    for name, value in heads.items():
        scaled[name] = value * tasks.spread(weight, value)
    return scaled


def balance_positives(examples: Tensor) -> Tensor:
    """By task, negative examples for each positive one; 1 where there are no negative ones."""
    negatives = examples.sum() - examples
    ratio = negatives / examples.clamp(min=1)
    return torch.where(ratio > 0, ratio, 1.0)


# ---------------------------------------------------------------- the method
@dataclass(frozen=True)
class PFedC(Method[Server, Down, Keep, Up]):
    """Clients learn several tasks at once; the head of a task is averaged over its owners."""

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
    grad_norm: Literal["none", "l2", "loss", "loss+"] | None = hyper(
        "l2", "MGDA divides gradients by it; option of its code"
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
    rep_dim: Count | None = hyper(
        None,
        "width of phi's output, by one more layer; the backbone's own (the paper's has 50)",
    )
    memory: Count = hyper(
        8,
        "rounds whose sums of heads are kept apart under partial participation; not in the paper",
    )
    solver_steps: Count = hyper(
        2,
        "steps of MGDA's solver per task; Sener and Koltun take up to 250 shorter ones",
    )

    def with_defaults_for(self, backbone: Backbone) -> Self:
        groups = divide_classes(self.groups, self.tasks, backbone.classes)
        return replace(self, tasks=len(groups))

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
        base, first = self.split(new(0))
        count = self.tasks or len(first["head.weight"])
        nothing = RoundSums(
            heads=tmap(torch.zeros_like, first),
            weight=torch.zeros(count),
        )
        return Server(
            base=base,
            first=first,
            sums=(nothing,),
            senders=((),),
        )

    def send(self, server: Server, k: int) -> Down:
        return Down(server.base, server.first, server.sums)

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(down.first)

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        """phi with a head for every task: the owners' newest mean, or the client's own (Eq. 7)."""
        tasks, examples = self.survey(c)
        is_owner = examples > 0
        heads = keep.heads
        # the newest last, so that it replaces older ones
        for sums in reversed(down.sums):
            has_owners = total_weight(sums) > 0
            mean = owners_mean(sums, tasks)
            heads = choose_heads(tasks, is_owner & has_owners, mean, heads)
        return {**down.base, **heads}

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        tasks, examples = self.survey(c)
        is_trained = (examples > 0) | (self.task_scope == "all")
        boost = balance_positives(examples) if self.pos_weight else None

        def loss(w: Params, batch: Batch) -> Tensor:  # Eq. (3)
            logits = c.model(w, batch.x)
            losses, errors = tasks.losses_and_errors(logits, batch.y, boost)
            weight = w["head.weight"].detach()
            gram = head_gram(weight, errors, tasks.task_of, len(examples))
            lam = self.weigh_tasks(gram, losses.detach(), is_trained)
            return (lam * losses).sum()

        start = self.personal(c, down, keep)
        w = c.train(loss, start)  # Eq. (5)
        base, trained = self.split(w)
        heads = choose_heads(tasks, is_trained, trained, start)
        weight = self.weigh_owner(examples)
        up = Up(
            base=base,
            heads=scale_heads(tasks, weight, heads),
            weight=weight,
        )
        return up, Keep(heads)

    def weigh_tasks(self, gram: Tensor, losses: Tensor, is_trained: Tensor) -> Tensor:
        """lambda_c in Eq. (3), by MGDA-UB."""
        gram = normalise(gram, losses, self.grad_norm)
        steps = self.solver_steps * len(losses)
        lam = min_norm(gram, is_trained, steps)
        return lift(lam, is_trained, self.alpha_min)

    def weigh_owner(self, examples: Tensor) -> Tensor:
        """By task, the weight of the client's head in the mean of all owners."""
        if self.head_agg == "class_count":
            return examples
        is_owner = examples > 0
        if self.head_agg == "weighted":
            return is_owner * examples.sum()
        return is_owner * 1.0

    def expected_upload(self, down: Down, t: int) -> dict[str, Params | Tensor]:
        heads = down.first
        if self.head_agg != "uniform":
            # heads times large weights are far from any download
            heads = tmap(shape, down.first)
        return {
            "base": down.base,
            "heads": heads,
            "weight": shape(down.sums[0].weight),
        }

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        sums = RoundSums(
            heads=ups.sum("heads"),
            weight=ups.sum("weight"),
        )
        newest = Entry(sums, frozenset(ups.clients))
        history = drop_outdated([newest, *read_history(server)])
        history = fold_oldest(history, self.memory)
        senders = [sorted(entry.senders) for entry in history]
        return Server(
            base=ups.mean("base"),  # Eq. (6)
            first=server.first,
            sums=tuple(entry.sums for entry in history),
            senders=tuple(map(tuple, senders)),
        )

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return {**up.base, **keep.heads}

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        tasks, examples = self.survey(c)
        logits = c.model(w, x)
        return tasks.score_classes(logits, examples > 0)

    def diagnostics(
        self, c: Client, w: Params, x: Tensor, y: Tensor
    ) -> dict[str, Tensor]:
        tasks, examples = self.survey(c)
        logits = c.model(w, x)
        return tasks.rate_answers(logits, y, examples > 0)
