"""The loop: sample, round (send, local, merge), evaluate, record, checkpoint."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from typing import Any

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Tree
from fedtailor.core.wire import Flat, decode, encode
from fedtailor.deploy.server.executor import Flower
from fedtailor.engine.choose_executor import settle_on, start
from fedtailor.engine.clientele import Clientele, Far, Near
from fedtailor.engine.exchange import LATER, Exchange, Ledger
from fedtailor.engine.final_views import look
from fedtailor.engine.progress import Watcher
from fedtailor.engine.result import compose
from fedtailor.engine.run_state import (
    Course,
    choose_models,
    choose_whom,
    identity_of,
    portable,
    title,
)
from fedtailor.engine.stopping import Stopped, polite
from fedtailor.evaluation import summary
from fedtailor.evaluation.score import Score
from fedtailor.evaluation.summary import Evaluation
from fedtailor.executors import Executor
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.visit import Reply
from fedtailor.experiment.config import parse_participation
from fedtailor.experiment.prepare import Setup
from fedtailor.experiment.run_folder import JOURNAL, RunFolder, read_journal
from fedtailor.method import Cohort, Method, NoReplies
from fedtailor.method_types import server_type
from fedtailor.report.curves import draw_curves
from fedtailor.report.diagnostics import draw_diagnostics
from fedtailor.storage.checkpoint import Checkpoints
from fedtailor.storage.files import fingerprint

__all__ = ["conduct", "identity_of"]


def conduct(
    setup: Setup,
    folder: RunFolder,
    watcher: Watcher,
    *,
    resume: bool = False,
    executor: Executor | None = None,
) -> dict[str, Any]:
    """Run an experiment to its end (or go on with it) and give its result; an executor that is given is used."""
    # Whoever starts a deployed run also stops it; its last checkpoint is never more than a round old.
    stopping = polite(watcher) if executor is None else nullcontext(list[bool]())
    with torch_settings(setup.world.dtype, setup.world.device), stopping as stop:
        return _Run(setup, folder, watcher, resume, executor).go(stop)


class _Run:
    """One run; all state is in ``course``, the executor's store and the folder."""

    def __init__(
        self,
        setup: Setup,
        folder: RunFolder,
        watcher: Watcher,
        resume: bool,
        executor: Executor | None = None,
    ) -> None:
        self.options, self.world, self.folder, self.watcher = (
            setup.options,
            setup.world,
            folder,
            watcher,
        )
        self.method = setup.world.method
        far = isinstance(executor, Flower)
        self.identity = identity_of(setup, deployed=far)
        folder.claim(self.identity, resume)
        self.executor_name, why = (
            ("flower", "") if far else settle_on(self.options, self.world, folder, resume)
        )
        self.watcher.begin(title(setup), self.options.rounds, 0)
        for notice in setup.notices:
            watcher.say(notice)
        if why and self.options.executor == "auto":
            watcher.say(f"executor: {self.executor_name}, because {why}")
        self.executor = executor or start(self.executor_name, self.world, self.options, folder)
        near = Near(self.executor, self.options, self.world.federation.clients)
        self.clients: Clientele = Far(executor) if isinstance(executor, Flower) else near
        # A deployed run equals the sequential one, which is what its configuration says when it is run again.
        recorded = self.options.model_copy(
            update={"executor": "sequential" if far else self.executor_name}
        )
        folder.begin(recorded, self.identity, None if far else self.world.federation)
        self.site = ClientRunner(self.world, self.executor.store)
        o = self.options
        self.exchange = Exchange(
            self.method,
            self.executor,
            o.seed,
            o.rounds,
            o.drop,
            watcher.tick,
            stays=self.site.stays,
        )
        self.checkpoints = Checkpoints(folder.path)
        self.course = self._begin(resume)

    # ---------------------------------------------------------------- beginning
    def _begin(self, resume: bool) -> Course:
        saved = self.checkpoints.load(self.executor.store, self.identity) if resume else None
        if saved is None:
            if resume:
                self.watcher.say("nothing to go on with yet: starting from the beginning")
            self.folder.truncate_journal(0)
            return Course(server=self.method.init(self.site.new, self.world.federation.clients))
        if saved.t > self.options.rounds:
            raise UserError(
                f"the run is at round {saved.t} already; rounds={self.options.rounds} is less"
            )
        owed = saved.about.get(
            "owed"
        )  # its record may have been written after the checkpoint, and will be again
        records = self.folder.truncate_journal(owed["t"] - 1 if owed else saved.t)
        history = [
            (r["t"], Evaluation.read(r["evaluation"])) for r in records if r.get("evaluation")
        ]
        server = decode(server_type(self.method), saved.server, "server")
        self.watcher.begin(title(Setup(self.options, self.world, [])), self.options.rounds, saved.t)
        self.clients.tell(covered=saved.t)
        return Course.read(saved.t, server, history, saved.about)

    # ---------------------------------------------------------------- the loop
    def go(self, stop: list[bool]) -> dict[str, Any]:
        """All rounds, then the result."""
        course, options = self.course, self.options
        try:
            self.ask(stop)
            while course.t < options.rounds:
                began = time.monotonic()
                course.t += 1
                record = self.round(course.t)
                self.settle()
                if course.t % options.evaluate_every == 0 or course.t == options.rounds:
                    whom = choose_whom(options, self.clients.present(course.t), record["clients"])
                    course.owed = record | {"evaluated": whom}
                    self.ask(stop)
                else:
                    self.tell(record, None)
                for notice in self.executor.notices():
                    self.watcher.say(notice)
                course.total += time.monotonic() - began
                if course.t % options.checkpoint_every == 0 or course.t == options.rounds or stop:
                    self.save()
                if stop and course.t < options.rounds:
                    raise Stopped(f"stopped after round {course.t}; go on with --resume")
            self.settle()
            return self.finish()
        finally:
            self.watcher.end()
            self.executor.close()

    def tell(self, record: dict[str, Any], evaluation: Evaluation | None) -> None:
        """Write a round down and show it."""
        self.folder.append_to_journal(
            record if evaluation is None else record | {"evaluation": evaluation.record()}
        )
        self.watcher.round(record["t"], evaluation.test.accuracy if evaluation else None)

    def ask(self, stop: list[bool]) -> None:
        """Ask for the evaluation that is owed: on the next round's visits where the clients would rather have it so."""
        owed, best = self.course.owed, self.saving() == "best"
        if not owed:
            return
        whom = owed["evaluated"]
        waits = self.clients.patient and self.course.t < self.options.rounds and not stop
        later = waits and (not best or portable(self.world, whom))
        self.clients.ask(
            {k: self.method.send(self.course.server, k) for k in whom}, owed["t"], later, best
        )
        if not later:
            self.settle()

    def settle(self) -> None:
        """Take in the evaluation that is owed, and keep the models of the best round."""
        owed, self.course.owed = self.course.owed, None
        if not owed:
            return
        t = owed["t"]
        evaluation = summary.evaluate(self.usable(self.clients.answers(), t))
        self.course.history.append((t, evaluation))
        best = summary.choose(self.course.history)
        self.clients.tell(best=best)
        if best == t and self.saving() == "best":
            self.keep_models(t, "best")
        self.tell({k: v for k, v in owed.items() if k != "evaluated"}, evaluation)

    def round(self, t: int) -> dict[str, Any]:
        """Sample and run one round; tells what it cost and whom it lost."""
        course, began = self.course, time.monotonic()
        self.exchange.ledger = Ledger()
        present = self.clients.present(t)
        ids: list[int] = []
        try:
            self.welcome(t, present)
            low, high = parse_participation(self.options.participation)
            share = low + (high - low) * float(
                Rng.seed(self.options.seed, Purpose.SHARE, t).uniform(1)
            )
            ids = self.method.sample(
                course.server, present, share, Rng.seed(self.options.seed, Purpose.SAMPLE, t)
            )
            course.server = self.method.round(course.server, Cohort(self.exchange, ids, t))
            course.silent = 0
        except NoReplies as nothing:
            course.silent += 1
            self.watcher.say(f"warning: round {t} is skipped: {nothing}")
        ledger, seconds = self.exchange.ledger, time.monotonic() - began
        for k, why in sorted(ledger.lost.items()):
            if "(--drop)" not in why:
                self.watcher.say(f"warning: round {t}: client {k} is left out: {why}")
        if course.silent >= self.options.max_silent_rounds:
            reason = next(iter(ledger.lost.values()), "no client replied")
            raise UserError(
                f"no usable reply in {course.silent} rounds in a row, the last one because {reason}"
            )
        course.up, course.down = course.up + ledger.up, course.down + ledger.down
        course.calls, course.seconds = course.calls + ledger.calls, course.seconds + seconds
        return {
            "t": t,
            "clients": ids,
            "lost": {str(k): why for k, why in ledger.lost.items()},
            "visits": ledger.visits,
            "calls": ledger.calls,
            "bytes": {"up": ledger.up, "down": ledger.down},
            "seconds": seconds,
        }

    def welcome(self, t: int, present: Sequence[int]) -> None:
        """Let the method ask clients it has not seen yet what it must know."""
        known = set(self.course.seen)
        unseen = [k for k in present if k not in known]
        self.course.server = self.introduce(t, unseen)
        self.course.seen += unseen

    def introduce(self, t: int, unseen: Sequence[int]) -> Tree:
        """The server's state once the method has asked some clients what it must know."""
        server = self.course.server
        if not unseen or type(self.method).setup is Method.setup:
            return server
        return self.method.setup(server, Cohort(self.exchange, unseen, t - 1, LATER))

    # ---------------------------------------------------------------- evaluation, saving, result
    def scores(self, name: str, ids: Sequence[int], t: int, down: Tree = None) -> dict[int, Score]:
        """Scores of some clients' models."""
        server = self.course.server
        downs = {k: self.method.send(server, k) if down is None else down for k in ids}
        return self.replies(name, downs, t)

    def replies(self, name: str, downs: dict[int, Tree], t: int) -> dict[int, Any]:
        """What clients answer; those that fail are named and left out."""
        return self.usable(self.executor.call(name, downs, t, 0, lambda: None), t)

    def usable(self, answers: dict[int, Reply], t: int) -> dict[int, Any]:
        """The answers that came; those who failed are named."""
        for k, reply in answers.items():
            if reply.error:
                self.watcher.say(
                    f"warning: round {t}: client {k} cannot be evaluated: {reply.error}"
                )
        return {k: r.up for k, r in answers.items() if not r.error}

    def saving(self) -> str:
        """Which personal models are kept here; the sites of a deployed run keep their models themselves."""
        away = self.clients.keeps_models or not self.folder.kept
        return "none" if away else choose_models(self.options, self.world)

    def keep_models(self, t: int, which: str) -> None:
        """Write the personal models of round t: those that came with its scores, or else as they are now."""
        came = self.clients.models()
        if came is None:
            downs = {
                k: self.method.send(self.course.server, k)
                for k in range(self.world.federation.clients)
            }
            came = self.executor.call("@personal", downs, t, 0, lambda: None)
        self.folder.keep_models(t, which, self.usable(came, t).items())

    def save(self) -> None:
        """Write a checkpoint."""
        c = self.course
        if not self.folder.kept:
            return
        about = {"identity": self.identity, **c.about()}
        self.checkpoints.save(c.t, encode(c.server, "server"), self.executor.store, about)
        self.clients.tell(covered=c.t)

    def private(self) -> Iterator[tuple[int, Flat | str]]:
        """Every private state that is here, or the digest of one that is not."""
        t, store = self.course.t, self.executor.store
        digests = self.usable(self.clients.digests(t), t)
        yield from ((k, str(digest)) for k, digest in sorted(digests.items()) if digest)
        yield from ((k, store.get(k) or {}) for k in store.clients())

    def finish(self) -> dict[str, Any]:
        """Look at the final models in the ways asked for, and write the result."""
        c, began = self.course, time.monotonic()
        if self.saving() == "last" or (
            self.saving() == "best" and self.folder.kept_models() is None
        ):
            self.keep_models(c.t, "last")
        digest = fingerprint(encode(c.server, "server"), self.private())
        views = look(self, self.clients.present(c.t))
        last = {k: self.method.send(c.server, k) for k in self.clients.present(c.t)}
        self.usable(self.clients.dismiss(last, c.t), c.t)
        c.total += time.monotonic() - began
        own = {
            "views": views,
            "executor": self.executor_name,
            "models": self.folder.kept_models(),
            "hash": digest,
        }
        remarks = self.method.closing_remarks(c.server)
        result = compose(self.options, self.world.federation, c, **own, remarks=remarks)
        for remark in remarks:
            self.watcher.say(remark)
        self.folder.write_result(result)
        if self.folder.kept:
            records = [r for r in read_journal(self.folder.path / JOURNAL) if r.get("evaluation")]
            draw_curves(self.folder.path, records)
            draw_diagnostics(self.folder.path, records)
        return result
