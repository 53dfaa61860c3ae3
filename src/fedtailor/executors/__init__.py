"""Ways to run client functions; a method cannot tell them apart."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from fedtailor.core.tree import Tree
from fedtailor.executors.visit import Reply
from fedtailor.storage.private_state import Store

Tick = Callable[[], None]  # called as each client is done, for the progress bar


class Executor(Protocol):
    """Carries one call to many clients."""

    @property
    def store(self) -> Store:
        """Where private states are kept."""
        ...

    def call(
        self, name: str, downs: Mapping[int, Tree], t: int, call: int, tick: Tick
    ) -> dict[int, Reply]:
        """The replies by client, in client order; one that failed carries its error."""
        ...

    def notices(self) -> list[str]:
        """What the user should know about how things are run; each is given once."""
        ...

    def close(self) -> None:
        """Let go of processes and memory."""
        ...
