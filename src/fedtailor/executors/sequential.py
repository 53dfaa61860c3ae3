"""One client after another: plain PyTorch, where print and pdb work."""

from __future__ import annotations

from collections.abc import Mapping

from fedtailor.core.errors import NoRoom
from fedtailor.core.tree import Tree
from fedtailor.executors import Tick
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.visit import Reply


class Sequential:
    """The reference executor."""

    def __init__(self, site: ClientRunner) -> None:
        self.site, self.store = site, site.store

    def call(
        self, name: str, downs: Mapping[int, Tree], t: int, call: int, tick: Tick
    ) -> dict[int, Reply]:
        """The replies by client, in client order."""
        out: dict[int, Reply] = {}
        for k in sorted(downs):
            out[k] = attempt(self.site, name, k, downs[k], t, call)
            tick()
        return out

    def notices(self) -> list[str]:
        """Nothing to tell."""
        return []

    def close(self) -> None:
        """Nothing to let go of."""


def attempt(site: ClientRunner, name: str, k: int, down: Tree, t: int, call: int) -> Reply:
    """One visit; what a client raises becomes the reason of its silence, and its private state stays as it was."""
    try:
        return site.visit(name, k, down, t, call)
    except NoRoom:  # a run that left the client out would quietly be another run
        raise
    except Exception as error:
        return Reply(0, None, describe(error))


def describe(error: Exception) -> str:
    """An exception as one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
