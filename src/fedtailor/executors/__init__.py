"""Ways to run client functions; a method cannot tell them apart."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence

from fedtailor.executors.visit import Reply, Visit
from fedtailor.storage.private_state import Store

# is called with a client's id and its replies when its visits are over; may end the run
Done = Callable[[int, Sequence[Reply]], None]


class Executor(ABC):
    """Makes visits to clients.

    Attributes:
        store: private states of the clients, as far as they are within this process's reach.
        late_evaluation: whether an evaluation is cheaper together with the next round's visits.
        remote: whether private states and personal models stay at the clients' own sites.
    """

    store: Store
    late_evaluation: bool = False
    remote: bool = False

    @abstractmethod
    def run(
        self, visits: Mapping[int, Sequence[Visit]], done: Done
    ) -> dict[int, list[Reply]]:
        """Make every client's visits, in order; gives the replies by client, in client order."""

    def available(self, clients: Sequence[int]) -> list[int]:
        """Those of the given clients that can be visited now."""
        return list(clients)

    def inform(self, *, saved: int | None = None, best: int | None = None) -> None:
        """Learn which round a checkpoint covers, and which round has the best models."""
        return

    def notices(self) -> list[str]:
        """What the user should know about how clients are run; each notice is given once."""
        return []

    def close(self) -> None:
        """Release processes and memory."""
        return
