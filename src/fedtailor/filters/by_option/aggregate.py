"""Robust merging: another rule than the mean beneath every method that averages.

Methods merge by ``ups.mean(field)``; this filter puts another rule in the mean's place.
Each field that a method merges is merged on its own, and all senders count alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.tree import Tree, fill, leaves
from fedtailor.filters import Call, Filter, RoundNotes
from fedtailor.maths.robust import Rule, make_rule, parse_rule
from fedtailor.method import Uploads


class Aggregate(Filter):
    """Merges by a rule; says what of the uploads the rule did not reach."""

    needs_trial = True

    def __init__(self, rule: str, method: str) -> None:
        self.text = rule
        self.method = method
        self._calls: list[Uploads[Any]] = []
        self._merged: set[int] = set()  # identities of the trees that were merged
        self._is_used = False
        self._told = False

    def server_receives(self, call: Call, ups: Uploads[Any]) -> Uploads[Any]:
        """The same uploads, merged by the rule."""
        self._calls.append(ups)
        rule = make_rule(parse_rule(self.text))

        def reduce(trees: Sequence[Tree], weights: Tensor) -> Tree:
            self._is_used = True
            self._merged.update(map(id, trees))
            return merge_trees(rule, trees)

        return ups.with_reduction(reduce)

    def after_round(self, t: int) -> RoundNotes:
        """Refuse a method that did not merge by the rule; name fields that it missed."""
        calls = self._calls
        merged = self._merged
        self._calls = []
        self._merged = set()
        if self._told or not any(len(ups) for ups in calls):
            return RoundNotes()
        if not self._is_used:
            raise UserError(
                f"aggregate={self.text}: {self.method} does not merge uploads by their"
                " mean, so the rule would protect nothing; leave --aggregate out"
            )
        self._told = True
        missed = find_missed_fields(calls, merged)
        if not missed:
            return RoundNotes()
        text = (
            f"warning: aggregate={self.text}: {self.method} uses {', '.join(missed)}"
            " of its uploads otherwise than by their mean; the rule does not reach that"
        )
        return RoundNotes([text])


def merge_trees(rule: Rule, trees: Sequence[Tree]) -> Tree:
    """Apply a rule to the numbers of several trees, laid out as rows of a matrix."""
    first = trees[0]
    if len(trees) == 1 or not leaves(first):
        return first
    rows = torch.stack([_flatten(tree) for tree in trees])
    merged = rule(rows)
    parts: list[Tensor] = []
    start = 0
    for leaf in leaves(first):
        like = torch.as_tensor(leaf)
        part = merged[start : start + like.numel()].reshape(like.shape)
        kind = like.dtype if like.is_floating_point() else torch.get_default_dtype()
        parts.append(part.to(kind))
        start += like.numel()
    return fill(first, parts)


def _flatten(tree: Tree) -> Tensor:
    """All numbers of a tree in one row, in double precision."""
    values = [torch.as_tensor(leaf).reshape(-1).double() for leaf in leaves(tree)]
    return torch.cat(values)


def find_missed_fields(calls: Sequence[Uploads[Any]], merged: set[int]) -> list[str]:
    """Fields of uploads that no mean was taken of.

    A method may merge what it computed from the uploads; then nothing can be said.
    """
    fields: dict[str, bool] = {}
    known: set[int] = set()
    for ups in calls:
        for up in ups.by_client().values():
            for field in getattr(up, "_fields", ()):
                tree = getattr(up, field)
                if leaves(tree):
                    known.add(id(tree))
                    fields[field] = fields.get(field, False) or id(tree) in merged
    if not merged <= known:
        return []
    return [field for field, is_merged in fields.items() if not is_merged]
