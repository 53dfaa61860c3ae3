"""Private states of clients: in memory, or one file for each client.

With files, memory holds only the states of the clients at work, however many clients there are.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from fedtailor.core.wire import Flat
from fedtailor.storage.files import read_flat_file, write_flat_file


class Store(Protocol):
    """Flat private states by client."""

    def get(self, k: int) -> Flat | None:
        """The state of client k, if it has one."""
        ...

    def put(self, k: int, state: Flat) -> None:
        """Replace the state of client k."""
        ...

    def clients(self) -> list[int]:
        """Ids of the clients that have a state, in order."""
        ...


class MemoryStore:
    """Private states in a dict."""

    def __init__(self) -> None:
        self._states: dict[int, Flat] = {}

    def get(self, k: int) -> Flat | None:
        """The state of client k, if it has one."""
        return self._states.get(k)

    def put(self, k: int, state: Flat) -> None:
        """Replace the state of client k."""
        self._states[k] = state

    def clients(self) -> list[int]:
        """Ids of the clients that have a state, in order."""
        return sorted(self._states)


class FileStore:
    """Private states in a folder, one file for each client.

    Files are replaced atomically: any process may read and write any client.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir(parents=True, exist_ok=True)

    def path(self, k: int) -> Path:
        """The file of client k."""
        return self.folder / f"{k}.safetensors"

    def get(self, k: int) -> Flat | None:
        """The state of client k, if it has one."""
        path = self.path(k)
        return read_flat_file(path) if path.exists() else None

    def put(self, k: int, state: Flat) -> None:
        """Replace the state of client k."""
        write_flat_file(self.path(k), state)

    def clients(self) -> list[int]:
        """Ids of the clients that have a state, in order."""
        paths = self.folder.glob("*.safetensors")
        return sorted(int(path.stem) for path in paths)
