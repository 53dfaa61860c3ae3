"""Server optimisers beneath every method that averages.

Reddi et al., Adaptive Federated Optimization, ICLR 2021, Algorithm 2 (FedAdam, FedYogi and
FedAdagrad); momentum is Hsu et al. 2019 (FedAvgM). The mean of what clients send is not the new
model: its difference from what they were sent is a direction, along which the optimiser steps.

A field of an upload has such a difference where clients were sent tensors of its names. Statistics
(BatchNorm's) and fields without are merged by their mean as before.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.tree import Params, Tree
from fedtailor.filters import Call, Filter, RoundNotes
from fedtailor.filters.by_option.changes import named_tensors, replace_tensors
from fedtailor.method import Uploads
from fedtailor.training.net import Template

BETA2 = 0.99  # the paper's


@dataclass(frozen=True)
class ServerRule:
    """One of the optimisers, with its constants."""

    kind: str  # a key of DEFAULT_RATES
    lr: float  # eta
    momentum: float = 0.9  # beta_1
    tau: float = 1e-3  # how adaptive: the smaller, the more

    def step(
        self, change: Tensor, state: Mapping[str, Tensor]
    ) -> tuple[Tensor, dict[str, Tensor]]:
        """What is added to the model, and the new state, from the mean change (Delta_t)."""
        before = state.get("first", torch.zeros_like(change))
        if self.kind == "sgd":
            return self.lr * change, {}
        if self.kind == "momentum":
            first = self.momentum * before + change
            return self.lr * first, {"first": first}
        first = self.momentum * before + (1 - self.momentum) * change
        square = change.square()
        start = torch.full_like(change, self.tau**2)
        second = self._second(state.get("second", start), square)
        moved = self.lr * first / (second.sqrt() + self.tau)
        return moved, {"first": first, "second": second}

    def _second(self, before: Tensor, square: Tensor) -> Tensor:
        """v_t"""
        if self.kind == "adagrad":
            return before + square
        if self.kind == "yogi":
            return before - (1 - BETA2) * square * (before - square).sign()
        return BETA2 * before + (1 - BETA2) * square


DEFAULT_RATES = {
    "sgd": 1.0,
    "momentum": 1.0,
    "adam": 0.01,
    "yogi": 0.01,
    "adagrad": 0.01,
}


class ServerOptimiser(Filter):
    """Puts a step in the place of every mean; its state is in the checkpoint."""

    name = "server_optimiser"
    needs_trial = True

    def __init__(self, rule: ServerRule, method: str) -> None:
        self.rule = rule
        self.method = method
        self._statistics: frozenset[str] = frozenset()
        self._state: dict[str, Tensor] = {}  # "first/w/head.weight"
        self._downs: dict[int, Params] = {}
        self._merged: list[str] = []  # fields of this round
        self._was_asked = False

    def for_network(self, template: Template) -> Self:
        """Remembers which tensors are statistics."""
        self._statistics = template.buffers
        return self

    # ---------------------------------------------------------------- rounds
    def after_round(self, t: int) -> RoundNotes:
        """Refuse a method that has no use for it."""
        merged = self._merged
        was_asked = self._was_asked
        self._merged = []
        self._was_asked = False
        if was_asked and not merged:
            raise UserError(
                f"server_optimizer={self.rule.kind}: {self.method} does not merge what it"
                " sent by its mean, so there is nothing to step along; leave it out"
            )
        twice = [field for field in merged if merged.count(field) > 1]
        if twice:
            raise UserError(
                f"server_optimizer={self.rule.kind}: {self.method} takes several means of"
                f" '{twice[0]}' in a round (clusters), and they have no one state; leave it out"
            )
        return RoundNotes()

    def save_tensors(self) -> Params:
        """The moments."""
        return dict(self._state)

    def restore_tensors(self, saved: Params) -> None:
        """The moments of a checkpoint."""
        self._state = dict(saved)

    # ---------------------------------------------------------------- messages
    def server_sends(self, call: Call, downs: dict[int, Tree]) -> dict[int, Tree]:
        """Remembers what is sent."""
        if not call.is_look and not call.is_setup:
            self._downs = {k: named_tensors(down) for k, down in downs.items()}
        return downs

    def server_receives(self, call: Call, ups: Uploads[Any]) -> Uploads[Any]:
        """The same uploads, whose mean is a step."""
        if call.is_setup or not len(ups):
            return ups
        self._was_asked = True
        fields = find_fields(ups)
        inner = ups.reduction
        downs = self._downs

        def reduce(trees: Sequence[Tree], weights: Tensor) -> Tree:
            mean = inner(trees, weights)
            field, k = fields.get(id(trees[0]), ("", -1))
            if not field or k not in downs:
                return mean
            return self._step(field, mean, downs[k])

        return ups.with_reduction(reduce)

    def _step(self, field: str, mean: Tree, sent: Params) -> Tree:
        """The mean of a field, replaced by a step from what was sent."""
        new = named_tensors(mean)
        is_known = False
        for path, value in list(new.items()):
            place = f"{field}/{path}" if path else field
            centre = sent.get(place)
            is_weight = value.is_floating_point() and path not in self._statistics
            if centre is None or centre.shape != value.shape or not is_weight:
                continue
            is_known = True
            state = self._state_of(place)
            moved, after = self.rule.step(value - centre, state)
            new[path] = centre + moved
            for name, moment in after.items():
                self._state[f"{name}/{place}"] = moment
        if is_known:
            self._merged.append(field)
        return replace_tensors(mean, new)

    def _state_of(self, place: str) -> dict[str, Tensor]:
        found = {}
        for name in ("first", "second"):
            if f"{name}/{place}" in self._state:
                found[name] = self._state[f"{name}/{place}"]
        return found


def find_fields(ups: Uploads[Any]) -> dict[int, tuple[str, int]]:
    """By identity of a field's value, its name and the client that sent it."""
    found = {}
    for k, up in ups.by_client().items():
        for field in getattr(up, "_fields", ()):
            found[id(getattr(up, field))] = (field, k)
    return found
