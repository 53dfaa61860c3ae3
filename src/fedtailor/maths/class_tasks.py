"""A classification divided into tasks: which logits a task has, its loss, and how well it does.

The classes are divided into T groups, one task each. A task tells the classes of its group and
"another class" apart, with a logit for each. A group of a single class needs one logit, that of
"another class" being 0: this is the binary cross entropy. A single task for all classes has no
"another class": this is the plain softmax. With ``membership`` every task has one logit, whatever
the size of its group, and tells only whether an example belongs to the group.

A task has up to W slots, one for each of its possible answers. There are R logits, C classes and T
tasks; B is the number of examples in a batch.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from torch import Tensor

from fedtailor.core.errors import UserError, unknown
from fedtailor.core.tensors import onehot

CPU = torch.device("cpu")
FORMS = ("classes", "consecutive:T", "superclass")
SUPERCLASSES = 20
# score of a class of an absent task: finite, below any logarithm of a probability
ABSENT = -1e4
CONSTANT = -1  # stands for the logit that is always 0
# CIFAR-100: the superclass of every class, both in the official order, 20 classes a line
TABLE = """
4 1 14 8 0 6 7 7 18 3 3 14 9 18 7 11 3 9 7 11
6 11 5 10 7 6 13 15 3 15 0 11 1 10 12 14 16 9 11 5
5 19 8 8 15 13 14 17 18 10 16 4 17 4 2 0 17 4 18 17
10 3 2 12 12 16 12 1 9 19 2 10 0 1 16 12 9 13 15 13
16 19 2 4 6 19 5 5 8 19 18 1 2 15 6 0 17 8 14 13
"""
SUPERCLASS = tuple(int(number) for number in TABLE.split())

Groups = tuple[tuple[int, ...], ...]


# ---------------------------------------------------------------- tasks
@dataclass(frozen=True, eq=False)
class Tasks:
    """Which logits, slots and classes belong together.

    Slot 0 of a task is "another class" (unless there is only one task), then come its own classes.
    """

    members: Tensor  # (C, T) bool: whether the class is in the task's group
    # (T, W): the logit in each slot; R is a constant 0, R + 1 an empty slot
    slots: Tensor
    answer: Tensor  # (C, T): the slot that is right for an example of the class
    own_slot: Tensor  # (C,): the slot that stands for the class, among all T * W
    task_of: Tensor  # (R,): the task that a logit belongs to
    slot_of: Tensor  # (R,): the slot that a logit is in, among all T * W

    @property
    def logits(self) -> int:
        """R, how many logits there are."""
        return len(self.task_of)

    def count_examples(self, counts: Tensor) -> Tensor:
        """How many examples every task's group has, from the counts of every class."""
        return counts @ self.members.to(counts.dtype)

    def rows(self, values: Tensor) -> Tensor:
        """Every task's value (T,) at the rows of its logits, (R,)."""
        return values.index_select(0, self.task_of)

    def log_probabilities(self, logits: Tensor) -> Tensor:
        """The logarithm of the probability of every slot, (B, T, W)."""
        zero = torch.zeros_like(logits[:, :1])
        never = zero - torch.inf
        extended = torch.cat([logits, zero, never], 1)
        in_slots = extended.index_select(1, self.slots.flatten())
        by_task = in_slots.reshape(-1, *self.slots.shape)
        return by_task.log_softmax(-1)

    def losses_and_errors(
        self,
        logits: Tensor,
        y: Tensor,
        boost: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """The loss of every task and its derivative by the task's logits.

        Args:
            logits: (B, R)
            y: (B,), the classes.
            boost: (T,), multiplies the losses of a task's positive examples.

        Returns:
            Mean losses (T,), and derivatives (B, R) that are cut off from the graph.
        """
        log_p = self.log_probabilities(logits)
        answer = self.answer[y]
        loss = -log_p.gather(-1, answer[..., None]).squeeze(-1)
        width = log_p.shape[-1]
        error = log_p.detach().exp() - onehot(answer, width)
        if boost is not None:
            weight = torch.where(self.members[y], boost, 1.0)
            loss = loss * weight
            error = error * weight[..., None]
        in_slots = error.flatten(1)
        by_logit = in_slots.index_select(1, self.slot_of)
        return loss.mean(0), by_logit / len(y)

    def score_classes(
        self, logits: Tensor, present: Tensor, absent: float = ABSENT
    ) -> Tensor:
        """Every class as likely as its own task says, (B, C); ``absent`` for absent tasks'."""
        log_p = self.log_probabilities(logits).flatten(1)
        scores = log_p.index_select(1, self.own_slot)
        is_present = (self.members & present).any(1)
        return torch.where(is_present, scores, absent)

    def rate_answers(
        self,
        logits: Tensor,
        y: Tensor,
        present: Tensor,
        trained: Tensor | None = None,
    ) -> dict[str, Tensor]:
        """Per example, what share of the answers is right.

        * ``acc_multiclass``: the class with the best score.
        * ``acc_group``: the group of that class.
        * ``acc_task_all``: the answers of all tasks.
        * ``acc_task_present``: the answers of the tasks that are present.
        * ``acc_task_balanced``: of these, half for the example's own task, half for the others.

        A task that was not trained says no. Only one of T tasks should say yes to an example, so
        the last three are high without anything learnt: ``NAME_floor`` is what they are where all
        tasks say no, or yes where a single task is present (one class of C where T is 1).

        Args:
            logits, y: (B, R), and the classes (B,).
            present: (T,) bool, the tasks of which there are examples.
            trained: (T,) bool, the tasks whose heads were trained; those present unless given.
        """
        own = self.members[y]
        rates = self._rate_guesses(logits, y, present)
        is_trained = present if trained is None else trained
        answers = self.log_probabilities(logits).argmax(-1)
        answers = torch.where(is_trained, answers, 0)
        right = (answers == self.answer[y]).to(logits.dtype)
        rates |= _rate_tasks(right, own, present)
        blind = self._answer_blindly(y, present, right)
        for name, floor in _rate_tasks(blind, own, present).items():
            rates[f"{name}_floor"] = floor
        return rates

    def _rate_guesses(
        self, logits: Tensor, y: Tensor, present: Tensor
    ) -> dict[str, Tensor]:
        """Whether the class with the best score, and its group, are right."""
        guess = self.score_classes(logits, present).argmax(-1)
        same_class = guess == y
        same_group = (self.members[guess] & self.members[y]).any(-1)
        return {
            "acc_multiclass": same_class.to(logits.dtype),
            "acc_group": same_group.to(logits.dtype),
        }

    def _answer_blindly(self, y: Tensor, present: Tensor, like: Tensor) -> Tensor:
        """How right the answers are that need no look at the example, (B, T)."""
        if len(self.slots) == 1:
            return torch.full_like(like, 1 / len(self.members))
        own = self.members[y]
        no_is_right = ~own
        is_single = present & (present.sum() == 1)
        return torch.where(is_single, own, no_is_right).to(like.dtype)


def _rate_tasks(right: Tensor, own: Tensor, present: Tensor) -> dict[str, Tensor]:
    """The rates of tasks, for every example, from which of its answers are right."""
    others = ~own & present
    own_right = (right * (own & present)).sum(-1)
    balanced = (own_right + _share_right(right, others)) / 2
    return {
        "acc_task_all": right.mean(-1),
        "acc_task_present": _share_right(right, present),
        "acc_task_balanced": torch.where(others.any(-1), balanced, own_right),
    }


def _share_right(right: Tensor, counted: Tensor) -> Tensor:
    """What share of the counted tasks is right, for every example."""
    hits = (right * counted).sum(-1)
    return hits / counted.sum(-1).clamp(min=1)


# ---------------------------------------------------------------- groups of classes
@lru_cache(maxsize=64)
def divide_classes(groups: str, tasks: int | None, classes: int) -> Groups:
    """The classes of every task.

    Args:
        groups: ``classes``, ``consecutive:T`` (runs of neighbours) or ``superclass`` (CIFAR-100's).
        tasks: their number; as ``groups`` says, or one for each class, if None.
        classes: how many classes there are.
    """
    _check_groups(groups, classes)
    fixed = _count_groups(groups)
    count = tasks
    if count is None:
        count = classes if fixed is None else fixed
    if fixed is not None and count != fixed:
        raise UserError(
            f"groups={groups} makes {fixed} tasks, not tasks={tasks}: leave one of them out"
        )
    if not 1 <= count <= classes:
        raise UserError(
            f"{count} tasks cannot be made of {classes} classes: take 1 to {classes}"
        )
    if groups.startswith("superclass"):
        return _group_superclasses()
    runs = np.array_split(np.arange(classes), count)
    return tuple(tuple(run.tolist()) for run in runs)


def _check_groups(groups: str, classes: int) -> None:
    """Refuse groups that do not exist or do not fit the data."""
    form, _, number = groups.partition(":")
    forms = {known.partition(":")[0] for known in FORMS}
    if form not in forms or (number and form != "consecutive"):
        raise unknown("groups", groups, FORMS)
    if form == "superclass" and classes != len(SUPERCLASS):
        raise UserError(
            f"groups=superclass is CIFAR-100's, these data have {classes} classes: "
            "take groups=consecutive:T"
        )
    if form == "consecutive" and not number.isdecimal():
        raise UserError(
            f"groups={groups} does not say how many tasks: "
            "write a whole number, as in groups=consecutive:10"
        )


def _count_groups(groups: str) -> int | None:
    """How many tasks ``groups`` makes; None if it does not say."""
    form, _, number = groups.partition(":")
    if form == "superclass":
        return SUPERCLASSES
    if form == "consecutive":
        return int(number)
    return None


def _group_superclasses() -> Groups:
    """The classes of each of CIFAR-100's superclasses."""
    members: list[list[int]] = [[] for _ in range(SUPERCLASSES)]
    for c, superclass in enumerate(SUPERCLASS):
        members[superclass].append(c)
    return tuple(map(tuple, members))


# ---------------------------------------------------------------- logits of tasks
@lru_cache(maxsize=64)
def lay_out(groups: Groups, membership: bool, device: torch.device) -> Tasks:
    """The tasks of these groups. Where every class is a task, its logit has its number."""
    heads = _assign_logits(groups, membership)
    tasks = len(groups)
    classes = sum(len(group) for group in groups)
    logits = 1 + max(max(head) for head in heads)
    width = max(len(head) for head in heads)
    first = 1 if tasks > 1 else 0  # slot of a group's first class
    members = np.zeros((classes, tasks), bool)
    slots = np.full((tasks, width), logits + 1)
    answer = np.zeros((classes, tasks), np.int64)
    own_slot = np.zeros(classes, np.int64)
    task_of = np.zeros(logits, np.int64)
    slot_of = np.zeros(logits, np.int64)
    for t, head in enumerate(heads):
        for slot, logit in enumerate(head):
            if logit == CONSTANT:
                slots[t, slot] = logits
                continue
            slots[t, slot] = logit
            task_of[logit] = t
            slot_of[logit] = t * width + slot
        for i, c in enumerate(groups[t]):
            members[c, t] = True
            # with membership, classes share a slot
            answer[c, t] = min(first + i, len(head) - 1)
            own_slot[c] = t * width + answer[c, t]
    arrays = (members, slots, answer, own_slot, task_of, slot_of)
    return Tasks(*(_make_tensor(array, device) for array in arrays))


def _make_tensor(array: np.ndarray[Any, Any], device: torch.device) -> Tensor:
    # not torch.tensor: under vmap it gives tensors that outlive the call they belong to
    return torch.from_numpy(array).to(device)


def _assign_logits(groups: Groups, membership: bool) -> list[list[int]]:
    """By task, the logit in each of its slots."""
    has_other = len(groups) > 1  # "another class"
    heads = []
    used = 0
    for group in groups:
        if has_other and (membership or len(group) == 1):
            heads.append([CONSTANT, used])
            used += 1
        else:
            size = len(group) + has_other
            heads.append(list(range(used, used + size)))
            used += size
    return heads
