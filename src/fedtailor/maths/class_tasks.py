"""A classification taken apart into tasks: which logits are whose, what each task has to say, how well it does.

The classes are divided into T groups, one task each. A task tells the classes of its group and "another" apart: with a
logit for each, or, where the group has a single class, with one logit, the other's being 0, which is the binary cross
entropy. A single task for all classes has no "another": that is the plain softmax. With ``membership`` every task has
one logit, whatever the size of its group, and tells only whether a class is in it.

R logits in all, C classes, T tasks with up to W seats each; B examples.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from functools import lru_cache
from typing import cast

import numpy as np
import torch
from torch import Tensor, nn

from fedtailor.core.errors import UserError, unknown
from fedtailor.core.tensors import onehot
from fedtailor.models.backbone import Backbone

CPU = torch.device("cpu")
FORMS = ("classes", "consecutive:T", "superclass")
ABSENT = -1e4  # score of a class whose task the client does not have: below any logarithm of a probability, yet finite
# CIFAR-100: the superclass of every class, both in the official order
SUPERCLASS = (
    *(4, 1, 14, 8, 0, 6, 7, 7, 18, 3, 3, 14, 9, 18, 7, 11, 3, 9, 7, 11, 6, 11, 5, 10, 7),
    *(6, 13, 15, 3, 15, 0, 11, 1, 10, 12, 14, 16, 9, 11, 5, 5, 19, 8, 8, 15, 13, 14, 17, 18, 10),
    *(16, 4, 17, 4, 2, 0, 17, 4, 18, 17, 10, 3, 2, 12, 12, 16, 12, 1, 9, 19, 2, 10, 0, 1, 16),
    *(12, 9, 13, 15, 13, 16, 19, 2, 4, 6, 19, 5, 5, 8, 19, 18, 1, 2, 15, 6, 0, 17, 8, 14, 13),
)

Groups = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, eq=False)
class Tasks:
    """Where everything is. Seat 0 of a task is "another" (unless there is but one task), then come its classes."""

    members: Tensor  # (C, T) bool: the class is in the task's group
    seats: (
        Tensor  # (T, W): the logit of each seat; R stands for a constant 0, R + 1 for an empty seat
    )
    seat: Tensor  # (C, T): the seat where a class belongs in each task
    own: Tensor  # (C,): the seat that tells the class, among all T * W
    task: Tensor  # (R,): whose logit it is
    place: Tensor  # (R,): its seat, among all T * W

    @property
    def logits(self) -> int:
        """R, how many logits there are."""
        return len(self.task)

    def count(self, counts: Tensor) -> Tensor:
        """Examples of every task's group, from those of every class."""
        return counts @ self.members.to(counts.dtype)

    def spread(self, values: Tensor, like: Tensor) -> Tensor:
        """Every task's value at the task's rows of ``like``, a parameter of the layer that gives the logits."""
        return values.index_select(0, self.task).reshape(-1, *[1] * (like.dim() - 1))

    def read(self, logits: Tensor) -> Tensor:
        """The logarithm of the probability of every seat, (B, T, W)."""
        zero = torch.zeros_like(logits[:, :1])
        wide = torch.cat([logits, zero, zero - torch.inf], 1)
        return (
            wide.index_select(1, self.seats.flatten())
            .reshape(-1, *self.seats.shape)
            .log_softmax(-1)
        )

    def measure(
        self, logits: Tensor, y: Tensor, boost: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Mean loss of every task (T,), and its derivative by each of the task's logits (B, R), which has no graph.

        ``boost`` (T,) multiplies the losses of a task's positive examples.
        """
        said, seat = self.read(logits), self.seat[y]
        loss = -said.gather(-1, seat[..., None]).squeeze(-1)
        error = said.detach().exp() - onehot(seat, said.shape[-1])
        if boost is not None:
            weight = torch.where(self.members[y], boost, 1.0)
            loss, error = loss * weight, error * weight[..., None]
        return loss.mean(0), error.flatten(1).index_select(1, self.place) / len(y)

    def score(self, logits: Tensor, present: Tensor) -> Tensor:
        """Every class as likely as its own task says, (B, C); classes of tasks not present come last."""
        said = self.read(logits).flatten(1).index_select(1, self.own)
        return torch.where((self.members & present).any(1), said, ABSENT)

    def rate(self, logits: Tensor, y: Tensor, present: Tensor) -> dict[str, Tensor]:
        """Per example, what part of the answers is right.

        ``acc_multiclass``: the class with the best score. ``acc_group``: its group. ``acc_task_all``: the answers of
        all tasks; only one in T has to say yes to an example, so who never does gets ``acc_task_all_floor``, having
        learnt nothing. ``acc_task_present``: the answers of the tasks present. ``acc_task_balanced``: of these, half
        for that of the example's own task and one half for the others'.
        """
        guess, mine = self.score(logits, present).argmax(-1), self.members[y]
        hit = (self.read(logits).argmax(-1) == self.seat[y]).to(logits.dtype)
        others = ~mine & present
        yes, no = (
            (hit * (mine & present)).sum(-1),
            (hit * others).sum(-1) / others.sum(-1).clamp(min=1),
        )
        return {
            "acc_multiclass": (guess == y).to(hit.dtype),
            "acc_group": (self.members[guess] & mine).any(-1).to(hit.dtype),
            "acc_task_all": hit.mean(-1),
            "acc_task_present": (hit * present).sum(-1) / present.sum().clamp(min=1),
            "acc_task_balanced": torch.where(others.any(-1), (yes + no) / 2, yes),
            "acc_task_all_floor": torch.full_like(yes, 1 - 1 / hit.shape[1]),
        }


@lru_cache(maxsize=64)
def divide_classes(groups: str, tasks: int | None, classes: int) -> Groups:
    """The classes of every task: by default one each, else runs of neighbours or CIFAR-100's superclasses."""
    form, _, number = groups.partition(":")
    if form not in {f.partition(":")[0] for f in FORMS} or (number and form != "consecutive"):
        raise unknown("groups", groups, FORMS)
    if form == "superclass" and classes != len(SUPERCLASS):
        raise UserError(
            f"groups=superclass is CIFAR-100's, these data have {classes} classes: take groups=consecutive:T"
        )
    if form == "consecutive" and not number.isdecimal():
        raise UserError(
            f"groups={groups} does not say how many tasks: write a whole number, as in groups=consecutive:10"
        )
    fixed = {"superclass": 20, "consecutive": int(number or 0), "classes": None}[form]
    count = next(t for t in (tasks, fixed, classes) if t is not None)
    if fixed is not None and count != fixed:
        raise UserError(
            f"groups={groups} makes {fixed} tasks, not tasks={tasks}: leave one of them out"
        )
    if not 1 <= count <= classes:
        raise UserError(f"{count} tasks cannot be made of {classes} classes: take 1 to {classes}")
    if form == "superclass":
        return tuple(tuple(c for c in range(classes) if SUPERCLASS[c] == t) for t in range(count))
    return tuple(tuple(run.tolist()) for run in np.array_split(np.arange(classes), count))


@lru_cache(maxsize=64)
def lay_out(groups: Groups, membership: bool, device: torch.device) -> Tasks:
    """The tasks of these groups. Where every class is a task, its logit has its number."""
    another = len(groups) > 1
    heads: list[list[int]] = []  # by task, the logits of its seats; -1 stands for the constant 0
    rows = 0
    for group in groups:
        single = another and (membership or len(group) == 1)
        size = 1 if single else len(group) + another
        heads.append([-1] * single + list(range(rows, rows + size)))
        rows += size
    classes, width = sum(map(len, groups)), max(map(len, heads))
    members, seat = (
        np.zeros((classes, len(groups)), bool),
        np.zeros((classes, len(groups)), np.int64),
    )
    seats, own = np.full((len(groups), width), rows + 1), np.zeros(classes, np.int64)
    task, place = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for t, (group, head) in enumerate(zip(groups, heads, strict=True)):
        for i, row in enumerate(head):
            seats[t, i] = rows if row < 0 else row
            if row >= 0:
                task[row], place[row] = t, t * width + i
        for i, c in enumerate(group):
            members[c, t], seat[c, t] = True, min(i + another, len(head) - 1)
            own[c] = t * width + seat[c, t]
    # from_numpy: under vmap, torch.tensor would give tensors that outlive the call they belong to
    return Tasks(
        *(torch.from_numpy(a).to(device) for a in (members, seats, seat, own, task, place))
    )


def mount_heads(backbone: Backbone, logits: int, width: int | None) -> Backbone:
    """The backbone under another last layer, with so many logits; ``width`` puts a bottleneck between them.

    Of a head of several layers all but the last belong to the base.
    """
    base, last = backbone.base, cast(nn.Linear, backbone.get_submodule(backbone.last))
    features = width or last.in_features
    if backbone.last != "head":
        neck = copy.deepcopy(backbone.head)
        neck.set_submodule(backbone.last.removeprefix("head."), nn.Identity())
        base = nn.Sequential(base, neck)
    if width:
        base = nn.Sequential(base, nn.Linear(last.in_features, width, device="meta"), nn.ReLU())
    head = nn.Linear(
        features, logits, bias=last.bias is not None, device="meta"
    )  # on meta: draws no random numbers
    return Backbone(base, head, features=features, kind=backbone.kind)
