"""Checkpoints: the server's state, every private state and the round, written so that they are whole or not there.

A checkpoint is a folder ``checkpoint/round-000010`` with ``server.safetensors``, ``keep/<client>.safetensors`` and,
written last, ``state.json`` with the checksums of all the others. Files that did not change since the checkpoint
before are linked, not copied. No pickle anywhere.
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
from fedtailor.storage.files import dump, parse, write_bytes
from fedtailor.storage.private_state import FileStore, Store

FORMAT = 1


@dataclass(frozen=True)
class Saved:
    """What a checkpoint holds beside the private states."""

    t: int
    server: Flat
    about: dict[str, Any]  # the run it belongs to, and what the loop remembers


class Checkpoints:
    """The checkpoints of one run folder; only the newest is kept."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "checkpoint"

    def newest(self) -> Path | None:
        """The newest complete checkpoint."""
        found = sorted(p.parent for p in self.folder.glob("round-*/state.json"))
        return found[-1] if found else None

    def save(self, t: int, server: Flat, store: Store, about: dict[str, Any]) -> None:
        """Write the state after round t and forget the checkpoint before."""
        before = self.newest()
        known: dict[str, str] = (
            json.loads((before / "state.json").read_text())["files"] if before else {}
        )
        path = self.folder / f"round-{t:06d}"
        if path.exists():
            shutil.rmtree(path)
        (path / "keep").mkdir(parents=True)
        files = {"server.safetensors": write_bytes(path / "server.safetensors", dump(server))}
        for k in store.clients():
            name = f"keep/{k}.safetensors"
            data = (
                store.path(k).read_bytes()
                if isinstance(store, FileStore)
                else dump(store.get(k) or {})
            )
            files[name] = hashlib.sha256(data).hexdigest()
            if before and known.get(name) == files[name]:
                os.link(before / name, path / name)
            else:
                write_bytes(path / name, data)
        state = {"format": FORMAT, "round": t, "about": about, "files": files}
        write_bytes(path / "state.json", json.dumps(state).encode())
        for old in self.folder.glob("round-*"):
            if old != path:
                shutil.rmtree(old)

    def load(self, store: Store, identity: str) -> Saved | None:
        """Read the newest checkpoint into ``store``; refuse one that is damaged or belongs to another run."""
        path = self.newest()
        if path is None:
            return None
        try:
            state = json.loads((path / "state.json").read_text())
            form, t, about, files = state["format"], state["round"], state["about"], state["files"]
        except (ValueError, KeyError, TypeError):
            raise UserError(
                f"{path / 'state.json'} is damaged: delete {self.folder} to start again"
            ) from None
        if form != FORMAT:
            raise UserError(
                f"{path} was written by another version of fedtailor (format {form}, not {FORMAT})"
            )
        if about.get("identity") != identity:
            raise UserError(f"{path} belongs to a run with another configuration")
        contents = {
            name: _checked(path / name, digest) for name, digest in files.items()
        }  # all before any is used
        for name, flat in contents.items():
            if name.startswith("keep/"):
                store.put(int(Path(name).stem), flat)
        return Saved(t, contents["server.safetensors"], about)


def _checked(path: Path, digest: str) -> Flat:
    try:
        data = path.read_bytes()
    except OSError:
        raise UserError(f"the checkpoint is incomplete: {path} is missing") from None
    if hashlib.sha256(data).hexdigest() != digest:
        raise UserError(f"the checkpoint is damaged: {path} has another checksum than recorded")
    return parse(data, str(path))
