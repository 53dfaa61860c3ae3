"""The clients of a run, near or far: who is there, what they answer, what becomes of their private states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fedtailor.config import Experiment, late
from fedtailor.executors import Executor
from fedtailor.executors.flower import Flower
from fedtailor.executors.site import Reply
from fedtailor.tree import Tree

SCORE = "@score"


class Clientele(Protocol):
    """What the loop must know of its clients."""

    patient: bool  # whether the scores of a round are better asked for with the next round's messages
    keeps_models: bool  # whether personal models stay where they are

    def present(self, t: int) -> list[int]:
        """The clients that may train in round t."""
        ...

    def ask(self, downs: Mapping[int, Tree], t: int, later: bool = False) -> None:
        """Ask for the scores of round t, now or with the next round's messages."""
        ...

    def answers(self) -> dict[int, Reply]:
        """The scores that were asked for."""
        ...

    def tell(self, *, covered: int | None = None, best: int | None = None) -> None:
        """Let them know up to which round a checkpoint covers, and which round's models are the best."""
        ...

    def digests(self, t: int) -> dict[int, Reply]:
        """Digests of the private states that are not in the executor's store."""
        ...

    def dismiss(self, downs: Mapping[int, Tree], t: int) -> dict[int, Reply]:
        """The run is over."""
        ...


class Near:
    """Clients on this machine, or on workers that belong to it."""

    patient, keeps_models = False, False

    def __init__(self, executor: Executor, options: Experiment, clients: int) -> None:
        self._executor, self._options, self._clients = executor, options, clients
        self._asked: tuple[Mapping[int, Tree], int] = ({}, 0)

    def present(self, t: int) -> list[int]:
        """All but those that are new or come later, who are the last ones."""
        many, at = late(self._options.late)
        trained = self._clients - self._options.new
        return list(range(trained - many if t < at else trained))

    def ask(self, downs: Mapping[int, Tree], t: int, later: bool = False) -> None:
        """Nothing yet: the visit is made when the answers are wanted."""
        self._asked = downs, t

    def answers(self) -> dict[int, Reply]:
        """The scores that were asked for."""
        downs, t = self._asked
        return self._executor.call(SCORE, downs, t, 0, lambda: None)

    def tell(self, *, covered: int | None = None, best: int | None = None) -> None:
        """They do not mind."""

    def digests(self, t: int) -> dict[int, Reply]:
        """None: all states are in the store."""
        return {}

    def dismiss(self, downs: Mapping[int, Tree], t: int) -> dict[int, Reply]:
        """Nobody has to go."""
        return {}


class Far:
    """Clients at their own sites, where an exchange costs more than the visit; what they keep is theirs alone."""

    patient, keeps_models = True, True

    def __init__(self, executor: Flower) -> None:
        self._flower = executor
        self._asked: tuple[Mapping[int, Tree], int] | None = None

    def present(self, t: int) -> list[int]:
        """The sites that are there."""
        return self._flower.present()

    def ask(self, downs: Mapping[int, Tree], t: int, later: bool = False) -> None:
        """Have an evaluation ride on the next messages, or remember to make the visit."""
        self._asked = None if later else (downs, t)
        if later:
            self._flower.ride(SCORE, downs, t)

    def answers(self) -> dict[int, Reply]:
        """What came of the visits that rode, or of those that are made now."""
        if self._asked is None:
            return self._flower.alight()
        downs, t = self._asked
        return self._flower.call(SCORE, downs, t, 0, lambda: None)

    def tell(self, *, covered: int | None = None, best: int | None = None) -> None:
        """Rides along with every letter."""
        self._flower.covered = self._flower.covered if covered is None else covered
        self._flower.best = self._flower.best if best is None else best

    def digests(self, t: int) -> dict[int, Reply]:
        """Of what the sites keep."""
        return self._flower.call("@digest", dict.fromkeys(self.present(t)), t, 0, lambda: None)

    def dismiss(self, downs: Mapping[int, Tree], t: int) -> dict[int, Reply]:
        """The sites may close the run; each keeps its model."""
        return self._flower.call("@close", downs, t, 0, lambda: None)
