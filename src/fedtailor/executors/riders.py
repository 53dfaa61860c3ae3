"""Evaluations that ride: what is asked about a round that is over is answered on the next round's visits."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping

from fedtailor.core.tree import Tree
from fedtailor.executors import Tick
from fedtailor.executors.visit import Reply, Visit


class Carrier(ABC):
    """An executor that carries evaluations along: they wait for a call to ride on, and their answers to be fetched."""

    def __init__(self) -> None:
        self._waiting: dict[int, Visit] = {}
        self._made: dict[int, Reply] = {}

    def ride(self, name: str, downs: Mapping[int, Tree], t: int) -> None:
        """Have an evaluation of round t ride on the visits of the next call."""
        self._waiting = {k: Visit(name, t, 0, down, before=True) for k, down in downs.items()}

    def alight(self) -> dict[int, Reply]:
        """What came of the evaluations that rode; they are made now if there was no call to ride on."""
        if self._waiting:
            self.carry({}, lambda: None)
        made, self._made = self._made, {}
        return {k: made[k] for k in sorted(made)}

    def carry(self, visits: Mapping[int, Visit], tick: Tick) -> dict[int, Reply]:
        """Make these visits and give their answers, in client order.

        A client that is also to be evaluated is evaluated first, before the visit changes its state.
        """
        riders, self._waiting = self._waiting, {}
        bundles = {
            k: [v for v in (riders.get(k), visits.get(k)) if v] for k in sorted({*riders, *visits})
        }
        answers = self.exchange(bundles, lambda k: tick() if k in visits else None)
        self._made |= {k: answers[k][0] for k in riders}
        return {k: answers[k][-1] for k in sorted(visits)}

    @abstractmethod
    def exchange(
        self, bundles: dict[int, list[Visit]], done: Callable[[int], None]
    ) -> dict[int, list[Reply]]:
        """Ask every client what is in its bundle, in that order; ``done`` is told of each that has answered."""
