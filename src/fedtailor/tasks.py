"""A classification taken apart into tasks: which logits are whose, what each task has to say, how well it does.

The classes are divided into T groups, one task each. A task tells the classes of its group and "another" apart: with a
logit for each, or, where the group has a single class, with one logit, the other's being 0, which is the binary cross
entropy. A single task for all classes has no "another": that is the plain softmax. With ``membership`` every task has
one logit, whatever the size of its group, and tells only whether a class is in it.

R logits in all, C classes, T tasks with up to W seats each; B examples.
"""

from __future__ import annotations

from functools import lru_cache
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from fedtailor.client import onehot
from fedtailor.errors import UserError, unknown

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


class Tasks(NamedTuple):
    """Where everything is. Seat 0 of a task is "another" (unless there is but one task), then come its classes."""

    members: Tensor  # (C, T) bool: the class is in the task's group
    seats: Tensor  # (T, W): the logit of each seat; R stands for a constant 0, R + 1 for an empty seat
    seat: Tensor  # (C, T): the seat where a class belongs in each task
    own: Tensor  # (C,): the seat that tells the class, among all T * W
    task: Tensor  # (R,): whose logit it is
    place: Tensor  # (R,): its seat, among all T * W


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
        raise UserError(f"groups={groups} makes {fixed} tasks, not tasks={tasks}: leave one of them out")
    if not 1 <= count <= classes:
        raise UserError(f"{count} tasks cannot be made of {classes} classes: take 1 to {classes}")
    if form == "superclass":
        return tuple(tuple(c for c in range(classes) if SUPERCLASS[c] == t) for t in range(count))
    return tuple(tuple(run.tolist()) for run in np.array_split(np.arange(classes), count))


@lru_cache(maxsize=64)
def lay_out(groups: Groups, membership: bool, device: torch.device) -> Tasks:
    """The tasks of these groups. A class that is a task has the logit of its own number."""
    alone = len(groups) == 1
    heads: list[list[int]] = []  # for every task the logits of its seats; -1 for the constant 0
    rows = 0
    for group in groups:
        one = not alone and (membership or len(group) == 1)
        size = 1 if one else len(group) + (not alone)
        heads.append([*([-1] if one else []), *range(rows, rows + size)])
        rows += size
    width = max(map(len, heads))
    seats = np.full((len(groups), width), rows + 1)
    seat, own = np.zeros((sum(map(len, groups)), len(groups)), np.int64), np.zeros(sum(map(len, groups)), np.int64)
    task, place = np.zeros(rows, np.int64), np.zeros(rows, np.int64)
    for t, (group, head) in enumerate(zip(groups, heads, strict=True)):
        seats[t, : len(head)] = [rows if r < 0 else r for r in head]
        for i, r in enumerate(head):
            if r >= 0:
                task[r], place[r] = t, t * width + i
        for i, c in enumerate(group):
            seat[c, t] = 1 if membership and not alone else i + (not alone)
            own[c] = t * width + seat[c, t]
    members = np.zeros(seat.shape, bool)
    for t, group in enumerate(groups):
        members[list(group), t] = True
    # from_numpy, because torch.tensor gives wrapped tensors under vmap, which must not be remembered
    return Tasks(*(torch.from_numpy(a).to(device) for a in (members, seats, seat, own, task, place)))


def count_examples(tasks: Tasks, counts: Tensor) -> Tensor:
    """Examples of every task's group, from those of every class."""
    return counts @ tasks.members.to(counts.dtype)


def read_logits(tasks: Tasks, logits: Tensor) -> Tensor:
    """The logarithm of the probability of every seat, (B, T, W)."""
    zero = torch.zeros_like(logits[:, :1])
    wide = torch.cat([logits, zero, zero - torch.inf], 1)
    return wide.index_select(1, tasks.seats.flatten()).reshape(-1, *tasks.seats.shape).log_softmax(-1)


def measure_losses(tasks: Tasks, logits: Tensor, y: Tensor, boost: Tensor | None) -> tuple[Tensor, Tensor]:
    """Mean loss of every task (T,), and its derivative by each of the task's own logits (B, R), which has no graph.

    ``boost`` (T,) multiplies the losses of a task's positive examples.
    """
    said, seat = read_logits(tasks, logits), tasks.seat[y]
    loss = -said.gather(-1, seat[..., None]).squeeze(-1)
    error = said.detach().exp() - onehot(seat, said.shape[-1])
    if boost is not None:
        weight = torch.where(tasks.members[y], boost, 1.0)
        loss, error = loss * weight, error * weight[..., None]
    return loss.mean(0), error.flatten(1).index_select(1, tasks.place) / len(y)


def score_classes(tasks: Tasks, logits: Tensor, present: Tensor) -> Tensor:
    """Every class as likely as its own task says, (B, C); classes of tasks not present come last."""
    score = read_logits(tasks, logits).flatten(1).index_select(1, tasks.own)
    return torch.where((tasks.members & present).any(1), score, ABSENT)


def rate_tasks(tasks: Tasks, logits: Tensor, y: Tensor, present: Tensor) -> dict[str, Tensor]:
    """Per example, the share of right answers among those of all tasks and of those present, and that with balance.

    Only one task in T has to say yes to an example: who never does is right in ``acc_task_floor`` of all answers,
    having learnt nothing. Balance gives one half to the example's own task, if present, and one half to the others.
    """
    hit = (read_logits(tasks, logits).argmax(-1) == tasks.seat[y]).to(logits.dtype)
    mine, others = tasks.members[y] & present, ~tasks.members[y] & present
    yes, no = (hit * mine).sum(-1), (hit * others).sum(-1) / others.sum(-1).clamp(min=1)
    return {
        "acc_task_all": hit.mean(-1),
        "acc_task_present": (hit * present).sum(-1) / present.sum().clamp(min=1),
        "acc_task_balanced": torch.where(others.any(-1), (yes + no) / 2, yes),
        "acc_task_floor": torch.full_like(yes, 1 - 1 / hit.shape[1]),
    }


def match_groups(tasks: Tasks, guess: Tensor, y: Tensor) -> Tensor:
    """Whether two classes are of one group."""
    return (tasks.members[guess] & tasks.members[y]).any(-1)
