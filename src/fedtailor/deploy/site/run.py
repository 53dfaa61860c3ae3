"""A site's part in one run: its client, its private state, and the personal model it keeps."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from pathlib import Path

from fedtailor.core.errors import NoRoom, UserError, describe_error
from fedtailor.core.tree import Params, Tree
from fedtailor.deploy.messages import RequestHeader
from fedtailor.deploy.site.data import Source, split_data
from fedtailor.deploy.site.state import VersionedState, delete_leftovers
from fedtailor.evaluation.score import Score
from fedtailor.executors import looks
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.sequential import attempt
from fedtailor.executors.visit import Look, Reply, Visit
from fedtailor.experiment.config import make_experiment
from fedtailor.experiment.prepare import Setup, prepare
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.storage.files import dump_flat, read_flat_file, write_bytes

RECENT = 3  # rounds whose evaluated models are kept until the best round is known
SITE_LOOKS = (Look.SCORE, Look.GLOBAL, Look.FILTER, Look.DIGEST, Look.CLOSE)


@dataclass
class SiteRun:
    """One client of one run."""

    k: int
    runner: ClientRunner
    state: VersionedState
    setup: Setup
    folder: Path
    # the round with the best models, as far as the server has told
    best: int | None = None

    def catch_up(self, header: RequestHeader) -> None:
        """Learn where the server continues, what it has saved, which round is best."""
        self.state.begin_attempt(header.attempt, header.since)
        self.state.delete_covered(header.covered)
        self.best = header.best

    def call(self, visit: Visit) -> Reply:
        """Run a client function, from the private state before it."""
        self.state.begin_visit(visit.t, visit.call)
        try:
            return attempt(self.runner, self.k, visit)
        except NoRoom as error:  # on this site's machine: the other sites continue
            return Reply(0, None, describe_error(error))

    def look(self, visit: Visit) -> Reply:
        """An evaluation, or something else that changes no private state."""
        if visit.function not in SITE_LOOKS:
            raise UserError(f"sites do not answer {visit.function}")
        began = time.monotonic()
        reply = self._look(visit)
        return reply._replace(seconds=time.monotonic() - began)

    def _look(self, visit: Visit) -> Reply:
        """``look``, without the time it takes."""
        self.state.begin_evaluation(visit.t if visit.before else None)
        n = self.runner.count(self.k)
        try:
            if visit.function is Look.DIGEST:
                return Reply(n, self.state.digest_newest())
            if visit.function is Look.SCORE:
                return Reply(n, self._score(visit.down, visit.t))
            if visit.function is Look.CLOSE:
                self._close(visit.down, visit.t)
                return Reply(n, "kept")
            return attempt(self.runner, self.k, visit)
        except (
            Exception
        ) as error:  # as in ``attempt``: the client is left out, with the reason
            return Reply(0, None, describe_error(error))

    # ---------------------------------------------------------------- the personal model
    def _score(self, down: Tree, t: int) -> Score:
        """The score of the personal model; the model stays here, in case its round is the best."""
        candidate = looks.candidate(self.runner, self.k, down, t)
        self._candidates().write(t, candidate.model)
        return candidate.score

    def _candidates(self) -> CandidateModels:
        return CandidateModels(self.folder / "models", self.best)

    def _close(self, down: Tree, t: int) -> None:
        """Put the best round's model where ``fedtailor predict`` finds it."""
        kept_round = t if self.best is None else self.best
        model = self._candidates().read(kept_round)
        # this site was not evaluated in that round: keep what it has now
        if model is None:
            kept_round = t
            model = looks.personal(self.runner, self.k, down, t)
        run = RunFolder(self.folder / "model")
        shutil.rmtree(run.path, ignore_errors=True)
        run.begin(self.setup.options, "site", self.setup.world.federation)
        which = "best" if kept_round == self.best else "last"
        run.keep_models(kept_round, which, [(self.k, model)])


@dataclass
class CandidateModels:
    """Personal models of evaluated rounds: the best one so far, and the latest ones."""

    folder: Path
    best: int | None

    def write(self, t: int, model: Params) -> None:
        """Keep the model of round t; delete those that can no longer be chosen."""
        self.folder.mkdir(parents=True, exist_ok=True)
        write_bytes(self._path(t), dump_flat(dict(model)))
        rounds = sorted(
            int(path.stem) for path in self.folder.glob("[0-9]*.safetensors")
        )
        for old in rounds[:-RECENT]:
            if old != self.best:
                self._path(old).unlink()

    def read(self, t: int) -> Params | None:
        """The model of round t, if it is there."""
        path = self._path(t)
        return read_flat_file(path) if path.exists() else None

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
    he_key: Path | None = None,
) -> SiteRun:
    """Set a site up for a run; ``he_key`` is the file of the key that its owner gave it."""
    delete_leftovers(folder)
    options = make_experiment({**header.experiment, "method": method, "device": device})
    data = header.data
    site_data = split_data(source, options, words)
    federation = site_data.to_federation(header.client, data.classes, data.labels)
    if federation.shape != data.shape:
        raise UserError(
            f"this site's inputs have the shape {federation.shape}, the run's {data.shape}"
        )
    if bool((federation.y >= federation.classes).any()):
        largest = int(federation.y.max())
        raise UserError(
            f"this site has labels up to {largest}, the run {federation.classes} classes"
        )
    setup = prepare(options, data=federation, check_data=False)
    for f in setup.world.filters:
        f.begin_at_site(he_key, header.run, folder.parent)
    state = VersionedState(folder, header.run, name)
    return SiteRun(
        header.client, ClientRunner(setup.world, state), state, setup, folder
    )
