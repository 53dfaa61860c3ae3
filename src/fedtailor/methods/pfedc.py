"""pFedC: the classifier is taken apart into a small head per task, shared only by the clients that have the task.

Anonymous authors, Disentangled Knowledge Transfer: A New Perspective for Personalized Federated Learning,
submitted to ICLR 2023, Algorithm 1.

All samples of a client teach all its tasks: Eq. (3) as printed averages over a class's own samples, of which there are
no negative ones. Tasks that a client does not have are left alone: their gradients vanish, and MGDA would give them
all the weight (``task_scope``). Eq. (13) weighs by data sizes and then divides by the number of owners; here either
counts (``head_agg``). One task is FedAvg: its head is everybody's, so it counts as representation.

The server adds heads up without looking at them, so that they may be encrypted (Algorithm 2): a client sends its heads
times its weights, zero where it has no such task, and the weights; who downloads the sums divides, which line 17
forgets. The server cannot see which tasks a round has, so it keeps the sums of earlier rounds until everybody in them
has been heard again, those beyond ``memory`` added up, and a client takes each task's newest.
"""

import copy
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Self, cast

import torch
from torch import Tensor, nn

from fedtailor.client import Batch, Client
from fedtailor.method import Count, Method, New, Share, Uploads
from fedtailor.mgda import head_gram, lift, min_norm, normalise
from fedtailor.models.backbone import Backbone
from fedtailor.tasks import Tasks, count_examples, divide_classes, lay_out, match_groups, measure_losses
from fedtailor.tasks import rate_tasks, score_classes
from fedtailor.tree import Params, add, average, part, tmap, total


class Sums(NamedTuple):
    """The heads of some rounds, added up over the clients that have the task."""

    heads: Params  # sum of weight_n^c omega_n^c
    weight: Tensor  # sum of weight_n^c, by task


class Server(NamedTuple):
    """What the server remembers."""

    base: Params  # phi, representation
    first: Params  # everybody's first heads
    sums: tuple[Sums, ...]  # newest first
    senders: tuple[tuple[int, ...], ...]  # whose heads they are


class Down(NamedTuple):
    """What goes down."""

    base: Params
    first: Params
    sums: tuple[Sums, ...]


class Keep(NamedTuple):
    """What never leaves the client."""

    heads: Params  # omega_i, of all tasks


class Up(NamedTuple):
    """What goes up."""

    base: Params  # phi_i
    heads: Params  # weight_i^c omega_i^c, so 0 for a task the client does not have
    weight: Tensor  # pi_i^c, times what head_agg says


@dataclass(frozen=True)
class PFedC(Method[Server, Down, Keep, Up]):
    """Multi-task learning at every client; a task's head is averaged over its owners."""

    tasks: Count | None = None  # T, number of tasks, of neighbouring classes; C (Sec. 3.2), 10 and 20 for CIFAR-100
    groups: str = "classes"  # which classes are a task: classes, consecutive:T or superclass (CIFAR-100's 20, Sec. 5)
    task_target: Literal["group_softmax", "membership"] = "group_softmax"  # tell a group's classes, or only the group
    task_scope: Literal["present", "all"] = "present"  # tasks a client trains; with all, those it lacks stop phi
    grad_norm: Literal["none", "l2", "loss", "loss+"] | None = "l2"  # what MGDA divides gradients by; its authors' l2
    alpha_min: Share = 0.0  # least weight lambda_c of a task the client trains; none in the paper
    pos_weight: bool = False  # weigh a task's positives by the ratio of negatives to positives; none in the paper
    head_agg: Literal["uniform", "weighted", "class_count"] = "uniform"  # weight of an owner: 1 (Eq. 7), D_i or D_i^c
    rep_dim: Count | None = None  # width of phi's output, by one more layer; the backbone's own (the paper's has 50)
    memory: Count = 8  # rounds whose sums of heads are kept apart under partial participation; not in the paper
    solver_steps: Count = 2  # steps of MGDA's solver per task; Sener and Koltun take up to 250 shorter ones

    def resolve(self, backbone: Backbone) -> Self:
        return replace(self, tasks=len(divide_classes(self.groups, self.tasks, backbone.classes)))

    def doubts(self) -> list[str]:
        tests = {
            "tasks=1: with a single task pFedC is FedAvg": self.tasks == 1 or self.groups == "consecutive:1",
            "task_scope=all: tasks a client lacks get nearly all of MGDA's weight": self.task_scope == "all",
            "alpha_min=1: all tasks weigh the same, MGDA decides nothing": self.alpha_min * (self.tasks or 1) >= 1,
            "task_target=membership: the classes of a group are not told apart": self.task_target == "membership",
        }
        return [line for line, holds in tests.items() if holds]

    def net(self, backbone: Backbone) -> nn.Module:
        base, last = backbone.base, cast(nn.Linear, backbone.get_submodule(backbone.last))
        width = last.in_features
        with torch.device("meta"):
            if backbone.last != "head":  # a head of several layers: all but the last belong to phi
                neck = copy.deepcopy(backbone.head)
                neck.set_submodule(backbone.last.removeprefix("head."), nn.Identity())
                base = nn.Sequential(base, neck)
            if self.rep_dim:
                base = nn.Sequential(base, nn.Linear(width, self.rep_dim), nn.ReLU())
                width = self.rep_dim
            logits = len(self.lay_out(backbone.classes, "cpu").task)
            head = nn.Linear(width, logits, bias=last.bias is not None)
        return Backbone(base, head, features=width, kind=backbone.kind)

    def lay_out(self, classes: int, device: torch.device | str) -> Tasks:
        """Which logits are which task's."""
        groups = divide_classes(self.groups, self.tasks, classes)
        return lay_out(groups, self.task_target == "membership", torch.device(device))

    def survey(self, c: Client) -> tuple[Tasks, Tensor]:
        """The tasks, and how many examples of each the client has."""
        tasks = self.lay_out(c.classes, c.rng.device)
        return tasks, count_examples(tasks, c.counts)

    def split(self, w: Params) -> tuple[Params, Params]:
        """phi and omega."""
        return (w, {}) if self.tasks == 1 else (part(w, "base"), part(w, "head"))

    def init(self, new: New, clients: int) -> Server:
        base, first = self.split(new(0))
        nobody = Sums(tmap(torch.zeros_like, first), torch.zeros(self.tasks or len(first["head.weight"])))
        return Server(base, first, (nobody,), ((),))

    def send(self, server: Server, k: int) -> Down:
        return Down(server.base, server.first, server.sums)

    def join(self, c: Client, down: Down) -> Keep:
        return Keep(down.first)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        tasks, amount = self.survey(c)
        active = (amount > 0) | (self.task_scope == "all")
        ratio = (amount.sum() - amount) / amount.clamp(min=1)
        boost = torch.where(ratio > 0, ratio, 1.0) if self.pos_weight else None

        def loss(w: Params, batch: Batch) -> Tensor:  # Eq. (3), with lambda from MGDA-UB
            losses, error = measure_losses(tasks, c.model(w, batch.x), batch.y, boost)
            gram = head_gram(w["head.weight"].detach(), error, tasks.task, len(amount))
            gram = normalise(gram, losses.detach(), self.grad_norm)
            lam = min_norm(gram, active, self.solver_steps * len(amount))
            return (lift(lam, active, self.alpha_min) * losses).sum()

        w = self.personal(c, down, keep)
        base, trained = self.split(c.train(loss, w))
        heads = {k: torch.where(rows(active, tasks, v), v, w[k]) for k, v in trained.items()}
        weight = {"uniform": (amount > 0).to(amount.dtype), "weighted": (amount > 0) * amount.sum()}
        mine = weight.get(self.head_agg, amount)
        return Up(base, tmap(lambda v: v * rows(mine, tasks, v), heads), mine), Keep(heads)

    def expected(self, down: Down, t: int) -> dict[str, Params | Tensor]:
        return {"base": down.base, "heads": down.sums[0].heads, "weight": down.sums[0].weight}

    def merge(self, server: Server, ups: Uploads) -> Server:
        sums, senders = [Sums(total(ups.heads), total(ups.weight))], [tuple(ups.clients)]
        for old, who in zip(server.sums, server.senders, strict=True):
            if not set(who) <= set().union(*senders):  # else all its tasks have newer heads
                sums, senders = [*sums, old], [*senders, who]
        while len(sums) > self.memory + 1:
            sums[-2:], senders[-2:] = [add(sums[-2], sums[-1])], [tuple({*senders[-2], *senders[-1]})]
        return Server(average(ups.base, ups.n), server.first, tuple(sums), tuple(senders))  # Eq. (6)

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        """phi, and for every task the client has the owners' newest mean (Eq. 7); other heads as they were."""
        tasks, amount = self.survey(c)
        heads = keep.heads
        for sums in reversed(down.sums):
            weight = sums.weight.round()  # a whole number, also when it comes back from encryption
            newer = (amount > 0) & (weight > 0)
            heads = {
                k: torch.where(rows(newer, tasks, v), sums.heads[k] / rows(weight.clamp(min=1), tasks, v), v)
                for k, v in heads.items()
            }
        return {**down.base, **heads}

    def after(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return {**up.base, **keep.heads}

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        tasks, amount = self.survey(c)
        return score_classes(tasks, c.model(w, x), amount > 0)

    def notes(self, c: Client, w: Params, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        tasks, amount = self.survey(c)
        guess = self.predict(c, w, x).argmax(-1)
        hits = {"acc_multiclass": guess == y, "acc_group": match_groups(tasks, guess, y)}
        rates = rate_tasks(tasks, c.model(w, x), y, amount > 0)
        return {k: v.to(amount.dtype) for k, v in hits.items()} | rates


def rows(values: Tensor, tasks: Tasks, like: Tensor) -> Tensor:
    """Every task's value at the task's rows of a layer."""
    return values.index_select(0, tasks.task).reshape(-1, *[1] * (like.dim() - 1))
