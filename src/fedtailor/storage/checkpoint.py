"""Checkpoints: the server's state, every private state and the round, complete or not there.

A checkpoint is a folder ``checkpoint/round-000010`` with ``server.safetensors``,
``keep/<client>.safetensors`` and, written last, ``state.json`` with the checksums of the others.
Files that did not change since the checkpoint before are linked, not copied. No pickle anywhere.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor.core.errors import UserError
from fedtailor.core.wire import Flat
from fedtailor.storage.files import dump_flat, parse_flat, write_bytes
from fedtailor.storage.private_state import FileStore, Store

FORMAT = 1
STATE = "state.json"
SERVER = "server.safetensors"
FOLDER = "checkpoint"  # in that of a run


@dataclass(frozen=True)
class SavedState:
    """What a checkpoint holds beside the private states."""

    t: int
    server: Flat
    about: dict[str, Any]  # the run it belongs to, and what the loop remembers


@dataclass(frozen=True)
class _Contents:
    """What ``state.json`` says."""

    format: int
    t: int
    about: dict[str, Any]
    checksums: dict[str, str]  # by file name


class Checkpoints:
    """The checkpoints of one run folder; only the newest is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / FOLDER

    def newest(self) -> Path | None:
        """The folder of the newest complete checkpoint."""
        complete = sorted(self.folder.glob(f"round-*/{STATE}"))
        return complete[-1].parent if complete else None

    def save(self, t: int, server: Flat, store: Store, about: dict[str, Any]) -> None:
        """Write the state after round t and delete the checkpoint before."""
        path = self.folder / f"round-{t:06d}"
        before = self.newest()
        known = _read_checksums(before)
        if path.exists():
            shutil.rmtree(path)
        (path / "keep").mkdir(parents=True)

        checksums = {SERVER: write_bytes(path / SERVER, dump_flat(server))}
        for k in store.clients():
            name = f"keep/{k}.safetensors"
            data = _dump_private_state(store, k)
            checksum = hashlib.sha256(data).hexdigest()
            if before and known.get(name) == checksum:
                os.link(before / name, path / name)
            else:
                write_bytes(path / name, data)
            checksums[name] = checksum

        state = {"format": FORMAT, "round": t, "about": about, "files": checksums}
        write_bytes(path / STATE, json.dumps(state).encode())
        for old in self.folder.glob("round-*"):
            if old != path:
                shutil.rmtree(old)

    def load(self, store: Store, identity: str) -> SavedState | None:
        """Read the newest checkpoint and put its private states into ``store``.

        Refuses a checkpoint that is damaged or belongs to another run, before ``store`` changes.
        """
        path = self.newest()
        if path is None:
            return None
        contents = self._read_contents(path)
        if contents.format != FORMAT:
            raise UserError(
                f"{path} was written by another version of fedtailor"
                f" (format {contents.format}, not {FORMAT})"
            )
        if contents.about.get("identity") != identity:
            raise UserError(f"{path} belongs to a run with another configuration")
        states: dict[str, Flat] = {}
        for name, checksum in contents.checksums.items():
            states[name] = _read_checked(path / name, checksum)
        for name, state in states.items():
            if name.startswith("keep/"):
                store.put(int(Path(name).stem), state)
        return SavedState(contents.t, states[SERVER], contents.about)

    def _read_contents(self, path: Path) -> _Contents:
        try:
            state = json.loads((path / STATE).read_text())
            return _Contents(
                state["format"], state["round"], state["about"], state["files"]
            )
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{path / STATE} is damaged: delete {self.folder} to start again"
            ) from None


def _read_checksums(checkpoint: Path | None) -> dict[str, str]:
    """The checksums in a checkpoint by file name; none without a checkpoint."""
    if checkpoint is None:
        return {}
    state = json.loads((checkpoint / STATE).read_text())
    checksums: dict[str, str] = state["files"]
    return checksums


def _dump_private_state(store: Store, k: int) -> bytes:
    """The private state of client k as the bytes of a file."""
    if isinstance(store, FileStore):
        return store.path(k).read_bytes()
    return dump_flat(store.get(k) or {})


def _read_checked(path: Path, checksum: str) -> Flat:
    """The flat tree in a file of a checkpoint, if the file is what was written."""
    try:
        data = path.read_bytes()
    except OSError:
        raise UserError(f"the checkpoint is incomplete: {path} is missing") from None
    if hashlib.sha256(data).hexdigest() != checksum:
        raise UserError(
            f"the checkpoint is damaged: {path} has another checksum than recorded"
        )
    return parse_flat(data, str(path))
