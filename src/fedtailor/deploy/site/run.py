"""A site's part in one run: the client it plays, its private state, and the personal model it keeps."""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedtailor.core.errors import NoRoom, UserError
from fedtailor.core.tree import Params, Tree
from fedtailor.deploy.messages import Message, RequestHeader
from fedtailor.deploy.site.data import Source, split_data
from fedtailor.deploy.site.state import VersionedState, delete_leftovers
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.sequential import attempt, describe
from fedtailor.executors.visit import Reply, down_type
from fedtailor.experiment.config import experiment
from fedtailor.experiment.prepare import Setup, prepare
from fedtailor.experiment.run_folder import Folder
from fedtailor.storage.files import dump, read, write_bytes

RECENT = 3  # rounds whose evaluated models wait to be found the best


@dataclass
class SiteRun:
    """One client of one run."""

    k: int
    site: ClientRunner
    state: VersionedState
    setup: Setup
    folder: Path
    best: int | None = None

    def catch_up(self, header: RequestHeader) -> None:
        """Learn what every message tells: how the server goes on, what it has safe, which models are the best."""
        self.state.begin_attempt(header.attempt, header.since)
        self.state.delete_covered(header.covered)
        self.best = header.best

    def call(self, name: str, message: Message, i: int, t: int, call: int) -> Reply:
        """Run a client function from the state before it."""
        self.state.begin_visit(t, call)
        try:
            return attempt(
                self.site,
                name,
                self.k,
                message.decode_tree(i, down_type(self.site.world, name)),
                t,
                call,
            )
        except NoRoom as error:  # on this site's machine: the others go on
            return Reply(0, None, describe(error))

    def look(self, name: str, message: Message, i: int, t: int, before: bool) -> Reply:
        """An evaluation, or something else that changes no private state."""
        self.state.begin_evaluation(t if before else None)
        n = len(self.site.indices(self.k)[0])
        if name == "@digest":
            return Reply(n, self.state.digest_newest())
        if name not in ("@score", "@after", "@global", "@close"):
            raise UserError(f"sites do not answer '{name}'")
        down = message.decode_tree(i, down_type(self.site.world, name))
        try:
            if name == "@score":
                return Reply(n, self._score(down, t))
            if name == "@close":
                self._close(down, t)
                return Reply(n, "kept")
            return attempt(self.site, name, self.k, down, t, 0)
        except Exception as error:  # as in ``attempt``: a client that fails is left out, by name
            return Reply(0, None, describe(error))

    # ---------------------------------------------------------------- the personal model
    def _personal(self, down: Tree, t: int) -> tuple[Any, Params]:
        c, down, keep = self.site.owned(self.k, down, t)
        return c, dict(self.site.method.personal(c, down, keep))

    def _score(self, down: Tree, t: int) -> Tree:
        """As ``Site`` scores it; the model stays here, in case that round is chosen."""
        c, w = self._personal(down, t)
        score = self.site.judge(c, w, self.site.test(self.k), notes=True)
        self._candidates().write(t, w)
        return score

    def _candidates(self) -> Candidates:
        return Candidates(self.folder / "models", self.best)

    def _close(self, down: Tree, t: int) -> None:
        """Put the best round's model where ``fedtailor predict`` finds it."""
        at = t if self.best is None else self.best
        w = self._candidates().read(at)
        if (
            w is None
        ):  # this site was not looked at in that round: what it has now is the best it has
            at, w = t, self._personal(down, t)[1]
        run = Folder(self.folder / "model")
        shutil.rmtree(run.path, ignore_errors=True)
        run.begin(self.setup.options, "site", self.setup.world.federation)
        run.keep_models(at, "best" if at == self.best else "last", [(self.k, w)])


@dataclass
class Candidates:
    """Personal models of evaluated rounds: the best one so far, and some later ones."""

    folder: Path
    best: int | None

    def write(self, t: int, w: Params) -> None:
        """Keep the model of round t; forget those that can no more be chosen."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_bytes(self._path(t), dump(dict(w)))
        rounds = sorted(int(p.stem) for p in self.folder.glob("[0-9]*.safetensors"))
        for old in rounds[:-RECENT]:
            if old != self.best:
                self._path(old).unlink()

    def read(self, t: int) -> Params | None:
        """The model of round t, if it is there."""
        return read(self._path(t)) if self._path(t).exists() else None

    def _path(self, t: int) -> Path:
        return self.folder / f"{t:08d}.safetensors"


def open_run(
    method: str,
    header: RequestHeader,
    source: Source,
    words: list[str],
    folder: Path,
    name: str,
    device: str,
) -> SiteRun:
    """Set a site up for a run."""
    delete_leftovers(folder)
    options = experiment({**header.experiment, "method": method, "device": device})
    data, k = header.data, header.client
    site_data = split_data(source, options, words)
    federation = site_data.to_federation(k, data.classes, data.labels)
    if federation.shape != data.shape:
        raise UserError(
            f"this site's inputs have the shape {federation.shape}, the run's {data.shape}"
        )
    if bool((federation.y >= federation.classes).any()):
        raise UserError(
            f"this site has labels up to {int(federation.y.max())}, the run {federation.classes} classes"
        )
    setup = prepare(options, data=federation, check_data=False)
    state = VersionedState(folder, header.run, name)
    return SiteRun(k, ClientRunner(setup.world, state), state, setup, folder)
