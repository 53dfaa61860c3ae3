"""pFedC: the classifier is taken apart into a small head per task, shared only by the clients that have the task.

Anonymous authors, Disentangled Knowledge Transfer: A New Perspective for Personalized Federated Learning,
submitted to ICLR 2023, Algorithm 1.

All samples of a client teach all its tasks: Eq. (3) as printed averages over a class's own samples, of which there are
no negative ones. Tasks that a client does not have are left alone: their gradients vanish, and MGDA would give them
all the weight (``task_scope``). Eq. (13) weighs by data sizes and then divides by the number of owners; here either
counts (``head_agg``). One task is FedAvg: its head is everybody's, so it counts as representation.

The server adds heads up without looking at them, so that they may be encrypted (Algorithm 2): a client sends its heads
times its weights, zero where it has no such task, and the weights; who downloads the sums divides, which line 17
forgets. The server cannot see which tasks a round or a client has, so everybody downloads all sums, it keeps those of
earlier rounds until everybody in them has been heard again, those beyond ``memory`` added up, and a client takes each
task's newest. phi goes in clear (Algorithm 2). MGDA's solver is pairwise, with a fixed number of steps.
"""

from dataclasses import dataclass, replace
from typing import Annotated, Literal, NamedTuple, Self

import torch
from torch import Tensor, nn

from fedtailor.client import Batch, Client
from fedtailor.core.tree import Params, add, part, tmap, total
from fedtailor.maths.class_tasks import CPU, Tasks, divide_classes, lay_out, mount_heads
from fedtailor.maths.mgda import head_gram, lift, min_norm, normalise
from fedtailor.method import Count, Doc, Method, New, Share, Uploads, hyper, shape
from fedtailor.models.backbone import Backbone


class Sums(NamedTuple):
    """The heads of some rounds, added up over the clients that have the task."""

    heads: Annotated[Params, Doc("sum of weight_n^c omega_n^c")]
    weight: Annotated[Tensor, Doc("sum of weight_n^c, by task")]


class Server(NamedTuple):
    """What the server remembers."""

    base: Annotated[Params, Doc("phi, representation")]
    first: Annotated[Params, Doc("everybody's first heads")]
    sums: Annotated[tuple[Sums, ...], Doc("newest first")]
    senders: Annotated[tuple[tuple[int, ...], ...], Doc("whose heads they are")]


class Down(NamedTuple):
    """What goes down."""

    base: Params
    first: Params
    sums: tuple[Sums, ...]


class Keep(NamedTuple):
    """What never leaves the client."""

    heads: Annotated[Params, Doc("omega_i, of all tasks")]


class Up(NamedTuple):
    """What goes up."""

    base: Annotated[Params, Doc("phi_i")]
    heads: Annotated[Params, Doc("weight_i^c omega_i^c, so 0 for a task the client does not have")]
    weight: Annotated[Tensor, Doc("pi_i^c, times what head_agg says")]


@dataclass(frozen=True)
class PFedC(Method[Server, Down, Keep, Up]):
    """Multi-task learning at every client; a task's head is averaged over its owners."""

    tasks: Count | None = hyper(
        None, "T, number of tasks, runs of neighbouring classes; C (Sec. 3.2), 10 in Table 4"
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
        False, "weigh a task's positives by the ratio of negatives to positives; none in the paper"
    )
    head_agg: Literal["uniform", "weighted", "class_count"] = hyper(
        "uniform", "weight of an owner: 1 (Eq. 7), D_i or D_i^c"
    )
    rep_dim: Count | None = hyper(
        None, "width of phi's output, by one more layer; the backbone's own (the paper's has 50)"
    )
    memory: Count = hyper(
        8, "rounds whose sums of heads are kept apart under partial participation; not in the paper"
    )
    solver_steps: Count = hyper(
        2, "steps of MGDA's solver per task; Sener and Koltun take up to 250 shorter ones"
    )

    def with_defaults_for(self, backbone: Backbone) -> Self:
        return replace(self, tasks=len(divide_classes(self.groups, self.tasks, backbone.classes)))

    def warnings(self) -> list[str]:
        tests = {
            "tasks=1: with a single task pFedC is FedAvg": self.tasks == 1
            or self.groups == "consecutive:1",
            "task_scope=all: MGDA gives most weight to tasks a client does not have": self.task_scope
            == "all",
            f"alpha_min={self.alpha_min}: all tasks weigh the same": self.alpha_min
            * (self.tasks or 1)
            >= 1,
            "task_target=membership: classes of one group are not told apart": self.task_target
            == "membership",
        }
        return [line for line, holds in tests.items() if holds]

    def net(self, backbone: Backbone) -> nn.Module:
        return mount_heads(backbone, self.layout(backbone.classes).logits, self.rep_dim)

    def layout(self, classes: int, device: torch.device = CPU) -> Tasks:
        """Which logits are which task's."""
        return lay_out(
            divide_classes(self.groups, self.tasks, classes),
            self.task_target == "membership",
            device,
        )

    def survey(self, c: Client) -> tuple[Tasks, Tensor]:
        """The tasks, and how many examples of each the client has."""
        tasks = self.layout(c.classes, c.rng.device)
        return tasks, tasks.count(c.counts)

    def split(self, w: Params) -> tuple[Params, Params]:
        """phi and omega; what everybody has is phi."""
        return (w, {}) if self.tasks == 1 else (part(w, "base"), part(w, "head"))

    def init(self, new: New, clients: int) -> Server:
        base, first = self.split(new(0))
        nobody = Sums(
            tmap(torch.zeros_like, first), torch.zeros(self.tasks or len(first["head.weight"]))
        )
        return Server(base, first, (nobody,), ((),))

    def send(self, server: Server, k: int) -> Down:
        return Down(server.base, server.first, server.sums)

    def first_keep(self, c: Client, down: Down) -> Keep:
        return Keep(down.first)

    def local(self, c: Client, down: Down, keep: Keep) -> tuple[Up, Keep]:
        tasks, amount = self.survey(c)
        active = (amount > 0) | (self.task_scope == "all")
        ratio = (amount.sum() - amount) / amount.clamp(min=1)
        boost = torch.where(ratio > 0, ratio, 1.0) if self.pos_weight else None

        def loss(w: Params, batch: Batch) -> Tensor:  # Eq. (3), with lambda from MGDA-UB
            losses, error = tasks.measure(c.model(w, batch.x), batch.y, boost)
            gram = head_gram(w["head.weight"].detach(), error, tasks.task, len(amount))
            gram = normalise(gram, losses.detach(), self.grad_norm)
            lam = min_norm(gram, active, self.solver_steps * len(amount))
            return (lift(lam, active, self.alpha_min) * losses).sum()

        w = self.personal(c, down, keep)
        base, trained = self.split(c.train(loss, w))
        heads = {k: torch.where(tasks.spread(active, v), v, w[k]) for k, v in trained.items()}
        each = amount.sum() if self.head_agg == "weighted" else 1.0
        weight = amount if self.head_agg == "class_count" else (amount > 0) * each
        return Up(base, tmap(lambda v: v * tasks.spread(weight, v), heads), weight), Keep(heads)

    def expected_upload(self, down: Down, t: int) -> dict[str, Params | Tensor]:
        heads = (
            down.first if self.head_agg == "uniform" else tmap(shape, down.first)
        )  # weights blow up the others
        return {"base": down.base, "heads": heads, "weight": shape(down.sums[0].weight)}

    def merge(self, server: Server, ups: Uploads[Up]) -> Server:
        sums, senders = [Sums(total(ups.heads), total(ups.weight))], [tuple(ups.clients)]
        for old, who in zip(server.sums, server.senders, strict=True):
            if not set(who) <= set().union(*senders):  # else all its tasks have newer heads
                sums, senders = [*sums, old], [*senders, who]
        while len(sums) > self.memory + 1:
            sums[-2:], senders[-2:] = (
                [add(sums[-2], sums[-1])],
                [tuple(sorted({*senders[-2], *senders[-1]}))],
            )
        return Server(ups.mean("base"), server.first, tuple(sums), tuple(senders))  # Eq. (6)

    def personal(self, c: Client, down: Down, keep: Keep) -> Params:
        """phi, and for every task the client has the owners' newest mean (Eq. 7); other heads as they were."""
        tasks, amount = self.survey(c)
        heads = keep.heads
        for sums in reversed(down.sums):
            weight = sums.weight.round()  # a whole number, also when it comes back from encryption
            newer = (amount > 0) & (weight > 0)
            means = {k: v / tasks.spread(weight.clamp(min=1), v) for k, v in sums.heads.items()}
            heads = {k: torch.where(tasks.spread(newer, v), means[k], v) for k, v in heads.items()}
        return {**down.base, **heads}

    def after_training(self, c: Client, down: Down, up: Up, keep: Keep) -> Params:
        return {**up.base, **keep.heads}

    def predict(self, c: Client, w: Params, x: Tensor) -> Tensor:
        tasks, amount = self.survey(c)
        return tasks.score(c.model(w, x), amount > 0)

    def diagnostics(self, c: Client, w: Params, x: Tensor, y: Tensor) -> dict[str, Tensor]:
        tasks, amount = self.survey(c)
        return tasks.rate(c.model(w, x), y, amount > 0)
