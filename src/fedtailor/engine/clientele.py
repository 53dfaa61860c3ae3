"""The clients of a run, near or far: who is there, what they answer, what becomes of their private states."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from fedtailor.core.tree import Tree
from fedtailor.deploy.server.executor import Flower
from fedtailor.executors import Executor
from fedtailor.executors.riders import Carrier
from fedtailor.executors.visit import Candidate, Reply
from fedtailor.experiment.config import Experiment, parse_late_clients

SCORE, CANDIDATE = "@score", "@candidate"


class Clientele(Protocol):
    """What the loop must know of its clients."""

    patient: (
        bool  # whether the scores of a round are better asked for with the next round's messages
    )
    keeps_models: bool  # whether personal models stay where they are

    def present(self, t: int) -> list[int]:
        """The clients that may train in round t."""
        ...

    def ask(
        self, downs: Mapping[int, Tree], t: int, later: bool = False, models: bool = False
    ) -> None:
        """Ask for the scores of round t, now or with the next round's messages, and then for the models as well."""
        ...

    def answers(self) -> dict[int, Reply]:
        """The scores that were asked for."""
        ...

    def models(self) -> dict[int, Reply] | None:
        """The personal models that came with the last answers, if they were asked for; given once."""
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

    keeps_models = False

    def __init__(self, executor: Executor, options: Experiment, clients: int) -> None:
        self._executor, self._options, self._clients = executor, options, clients
        self._rides = executor if isinstance(executor, Carrier) else None
        self.patient = self._rides is not None
        self._asked: tuple[Mapping[int, Tree], int] | None = None
        self._models: dict[int, Reply] | None = None

    def present(self, t: int) -> list[int]:
        """All but those that are new or come later, who are the last ones."""
        many, at = parse_late_clients(self._options.late_clients)
        trained = self._clients - self._options.new_clients
        return list(range(trained - many if t < at else trained))

    def ask(
        self, downs: Mapping[int, Tree], t: int, later: bool = False, models: bool = False
    ) -> None:
        """Have an evaluation made on the next round's visits, or remember to make it when the answers are wanted."""
        rides = self._rides if later else None
        self._asked = None if rides else (downs, t)
        if rides:
            rides.ride(CANDIDATE if models else SCORE, downs, t)

    def answers(self) -> dict[int, Reply]:
        """The scores that were asked for; models that came with them are put aside."""
        self._models = None
        if self._asked is not None:
            downs, t = self._asked
            return self._executor.call(SCORE, downs, t, 0, lambda: None)
        rode = self._rides.alight() if self._rides else {}
        came = {k: r.up for k, r in rode.items() if isinstance(r.up, Candidate)}
        self._models = {k: Reply(rode[k].n, c.model) for k, c in came.items()} or None
        return {k: Reply(r.n, came[k].score) if k in came else r for k, r in rode.items()}

    def models(self) -> dict[int, Reply] | None:
        """Those that came with the last answers, if models were asked for."""
        models, self._models = self._models, None
        return models

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

    def ask(
        self, downs: Mapping[int, Tree], t: int, later: bool = False, models: bool = False
    ) -> None:
        """Have an evaluation ride on the next messages, or remember to make the visit; models stay at the sites."""
        self._asked = None if later else (downs, t)
        if later:
            self._flower.ride(SCORE, downs, t)

    def answers(self) -> dict[int, Reply]:
        """What came of the visits that rode, or of those that are made now."""
        if self._asked is None:
            return self._flower.alight()
        downs, t = self._asked
        return self._flower.call(SCORE, downs, t, 0, lambda: None)

    def models(self) -> dict[int, Reply] | None:
        """None: they stay at the sites."""
        return None

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
