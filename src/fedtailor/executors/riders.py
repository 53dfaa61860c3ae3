"""Evaluations that ride: what is asked about a round that is over is answered on the next round's visits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from fedtailor.executors.site import Reply
from fedtailor.tree import Tree


class Visit(NamedTuple):
    """One call of a client function, or one evaluation ('@...')."""

    name: str
    t: int
    call: int
    down: Tree
    before: bool = False  # look at the state as it was when round t was over, though the next may have begun


class Riders:
    """Evaluations that wait for a call to ride on, and the answers of those that have ridden."""

    def __init__(self) -> None:
        self.waiting: dict[int, Visit] = {}
        self._made: dict[int, Reply] = {}

    def board(self, name: str, downs: Mapping[int, Tree], t: int) -> None:
        """Have an evaluation of round t ride on the next call."""
        self.waiting = {k: Visit(name, t, 0, down, before=True) for k, down in downs.items()}

    def bundle(self, visits: Mapping[int, Visit]) -> dict[int, list[Visit]]:
        """What every client is asked at once: the evaluation comes first, before the visit changes its state."""
        both = {k: [v for v in (self.waiting.get(k), visits.get(k)) if v] for k in sorted({*self.waiting, *visits})}
        self.waiting = {}
        return both

    def part(self, bundles: Mapping[int, list[Visit]], answers: Mapping[int, list[Reply]]) -> dict[int, Reply]:
        """The answers to the visits, in client order; those of the riders are put aside."""
        for k, asked in bundles.items():
            if asked[0].before:
                self._made[k] = answers[k][0]
        return {k: answers[k][-1] for k, asked in bundles.items() if not asked[-1].before}

    def alight(self) -> dict[int, Reply]:
        """The answers of those that have ridden, in client order."""
        made, self._made = self._made, {}
        return {k: made[k] for k in sorted(made)}
