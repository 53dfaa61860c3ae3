"""A site's private state on its own disk: one file per visit, so that a visit can be repeated.

Every version has a tag (round, call). A visit starts from the newest version before its own tag,
whatever was written later: a round that is run again, because the server went on from a checkpoint
or a message came twice, gives the same result. The server tells which round its last checkpoint
covers; versions that no later start can need are deleted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

from fedtailor.core.errors import UserError
from fedtailor.core.wire import Flat
from fedtailor.filters import SETUP_CALLS
from fedtailor.storage.files import digest_flat, dump_flat, read_flat_file, write_bytes

Tag = tuple[int, int]  # round, call
NEWEST: Tag = (1 << 40, 0)  # after every tag


class VersionedState:
    """The private state of one site in one run: a Store that remembers earlier versions."""

    def __init__(self, folder: Path, run: str, site: str) -> None:
        self.folder = folder / "keep"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self.attempt = 0  # which start of the server the state belongs to
        self._owner = {"run": run, "site": site}
        self._owner_file = folder / "about.json"
        self._before: Tag = NEWEST  # ``get`` gives the newest version before this tag
        self._current: Tag = (0, 0)  # ``put`` writes the version with this tag
        if self._owner_file.exists():
            self._read_owner()
        else:
            self._write_owner()

    def _read_owner(self) -> None:
        known = json.loads(self._owner_file.read_text())
        run = known.get("run")
        site = known.get("site")
        if {"run": run, "site": site} != self._owner:
            folder = self._owner_file.parent
            raise UserError(f"{folder} belongs to run {run} of site '{site}'")
        self.attempt = int(known["attempt"])

    def _write_owner(self) -> None:
        owner = {**self._owner, "attempt": self.attempt}
        write_bytes(self._owner_file, json.dumps(owner).encode())

    # ---------------------------------------------------------------- a Store
    def get(self, k: int) -> Flat | None:
        """The newest state before the current visit."""
        earlier = [tag for tag in self.tags() if tag < self._before]
        if not earlier:
            return None
        return read_flat_file(self._path(earlier[-1]))

    def put(self, k: int, state: Flat) -> None:
        """Write the state after the current visit."""
        write_bytes(self._path(self._current), dump_flat(state))

    def clients(self) -> list[int]:
        """None: the number of the only client is not known here."""
        return []

    # ---------------------------------------------------------------- versions
    def tags(self) -> list[Tag]:
        """The tags of all versions, in order."""
        tags: list[Tag] = []
        for path in self.folder.glob("[0-9]*.safetensors"):
            t, call = path.stem.split("-")
            tags.append((int(t), int(call)))
        return sorted(tags)

    def begin_visit(self, t: int, call: int) -> None:
        """Begin a visit: versions that it or a later one wrote before are deleted."""
        self._before = (t, call)
        self._current = (t, call)
        self._delete(lambda tag: tag >= (t, call))

    def begin_evaluation(self, t: int | None = None) -> None:
        """Begin an evaluation of the newest state, or of the state after round t."""
        self._before = NEWEST if t is None else (t, SETUP_CALLS + 1)

    def begin_attempt(self, attempt: int, since: int) -> None:
        """The server runs its start number ``attempt``, which went on after round ``since``.

        What was written after that round by an earlier start is deleted.
        """
        if attempt < self.attempt:
            raise UserError(
                f"the message is of start {attempt} of the run, "
                f"which has been started {self.attempt} times"
            )
        if attempt > self.attempt:
            self._delete(lambda tag: tag > (since, SETUP_CALLS))
            self.attempt = attempt
            self._write_owner()

    def delete_covered(self, covered: int) -> None:
        """Delete what is older than the version that a checkpoint after this round needs."""
        needed = [tag for tag in self.tags() if tag <= (covered, SETUP_CALLS)]
        if needed:
            self._delete(lambda tag: tag < needed[-1])

    def digest_newest(self) -> str:
        """A digest of the newest state; empty where there is none."""
        tags = self.tags()
        if not tags:
            return ""
        return digest_flat(read_flat_file(self._path(tags[-1])))

    def _delete(self, is_void: Callable[[Tag], bool]) -> None:
        for tag in self.tags():
            if is_void(tag):
                self._path(tag).unlink()

    def _path(self, tag: Tag) -> Path:
        t, call = tag
        return self.folder / f"{t:08d}-{call:08d}.safetensors"


def delete_leftovers(folder: Path) -> None:
    """Delete what a killed process left half written."""
    for path in folder.rglob(".*.safetensors.*"):
        path.unlink()
    for path in folder.rglob(".model-*"):
        shutil.rmtree(path, ignore_errors=True)
