"""A site's private state on its own disk: one file per visit, so that a visit can be made again from where it began.

Versions are tagged (round, call). A visit starts from the newest version before its own tag, whatever was written
later: a round that is played again, because the server went on from a checkpoint or a message came twice, gives the
same result. The server tells which round its last checkpoint covers; older versions than that round's are deleted.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from fedtailor.core.errors import UserError
from fedtailor.core.wire import Flat
from fedtailor.engine.exchange import LATER
from fedtailor.storage.files import digest_flat, dump_flat, read_flat_file, write_bytes

Tag = tuple[int, int]  # round, call
NEWEST: Tag = (1 << 40, 0)


class Versions:
    """The private state of one site in one run: a Store with a memory."""

    def __init__(self, folder: Path, run: str, site: str) -> None:
        self.folder, self._before, self._now = folder / "keep", NEWEST, (0, 0)
        self._about = folder / "about.json"
        self.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        owner = {"run": run, "site": site}
        if self._about.exists():
            known = json.loads(self._about.read_text())
            if {k: known.get(k) for k in owner} != owner:
                raise UserError(
                    f"{folder} belongs to run {known.get('run')} of site '{known.get('site')}'"
                )
            self.attempt = int(known["attempt"])
        else:
            self.attempt = 0
            self._note(owner)
        self._owner = owner

    def _note(self, owner: dict[str, Any]) -> None:
        write_bytes(self._about, json.dumps({**owner, "attempt": self.attempt}).encode())

    # ---------------------------------------------------------------- a Store
    def get(self, k: int) -> Flat | None:
        """The newest state before the visit that is going on."""
        tags = [tag for tag in self.tags() if tag < self._before]
        return read_flat_file(self._path(tags[-1])) if tags else None

    def put(self, k: int, state: Flat) -> None:
        """The state after the visit that is going on."""
        write_bytes(self._path(self._now), dump_flat(state))

    def clients(self) -> list[int]:
        """Nobody: the number of the only client is not known here."""
        return []

    # ---------------------------------------------------------------- versions
    def tags(self) -> list[Tag]:
        """What versions there are, in order."""
        names = (p.stem.split("-") for p in self.folder.glob("[0-9]*.safetensors"))
        return sorted((int(t), int(call)) for t, call in names)

    def begin(self, t: int, call: int) -> None:
        """A visit begins: what it or a later one left behind at another time counts no more."""
        self._before = self._now = (t, call)
        self._drop(lambda tag: tag >= (t, call))

    def observe(self, t: int | None = None) -> None:
        """An evaluation begins, of the newest state or of the one after round t."""
        self._before = NEWEST if t is None else (t, LATER + 1)

    def go_on(self, attempt: int, since: int) -> None:
        """The server was started anew from a checkpoint after round ``since``: what came later never happened."""
        if attempt < self.attempt:
            raise UserError(
                f"the message is of start {attempt} of the run, which has been started {self.attempt} times"
            )
        if attempt > self.attempt:
            self._drop(lambda tag: tag > (since, LATER))
            self.attempt = attempt
            self._note(self._owner)

    def forget(self, covered: int) -> None:
        """Delete what no checkpoint can ask for any more."""
        old = [tag for tag in self.tags() if tag <= (covered, LATER)]
        if old:
            self._drop(lambda tag: tag < old[-1])

    def digest(self) -> str:
        """A digest of the newest state; empty where there is none."""
        tags = self.tags()
        return digest_flat(read_flat_file(self._path(tags[-1]))) if tags else ""

    def _drop(self, which: Any) -> None:
        for tag in self.tags():
            if which(tag):
                self._path(tag).unlink()

    def _path(self, tag: Tag) -> Path:
        return self.folder / f"{tag[0]:08d}-{tag[1]:08d}.safetensors"


def tidy(folder: Path) -> None:
    """Remove what a killed process left half written."""
    for path in folder.rglob(".*.safetensors.*"):
        path.unlink()
    for path in folder.rglob(".model-*"):
        shutil.rmtree(path, ignore_errors=True)
