"""The loop: sample, round (send, local, merge), evaluate, record, checkpoint."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from fedtailor.arithmetic import settings
from fedtailor.checkpoint import Checkpoints
from fedtailor.choice import choose, start
from fedtailor.config import late, shares
from fedtailor.errors import UserError
from fedtailor.exchange import Exchange, Ledger
from fedtailor.executors.site import Site
from fedtailor.folder import Folder
from fedtailor.method import Cohort, Method, NoReplies
from fedtailor.metrics import summary
from fedtailor.metrics.score import Score
from fedtailor.metrics.summary import Evaluation
from fedtailor.prepare import Setup
from fedtailor.progress import Watcher
from fedtailor.report.pictures import curves
from fedtailor.rng import Purpose, Rng
from fedtailor.stopping import Stopped, polite
from fedtailor.store import fingerprint
from fedtailor.tree import Tree
from fedtailor.views import look
from fedtailor.wire import decode, encode, server_type

LATER = 1000  # calls of setup are counted from here, apart from those of the round
LARGE = 512 << 20  # bytes of personal models above which only the last ones are kept


@dataclass
class Course:
    """What the loop remembers from round to round."""

    t: int = 0
    server: Tree = None
    seen: list[int] = field(default_factory=list)  # clients that setup has asked
    history: list[tuple[int, Evaluation]] = field(default_factory=list)
    silent: int = 0  # rounds in a row without a reply
    up: int = 0
    down: int = 0
    seconds: float = 0.0  # of rounds
    total: float = 0.0  # with evaluation and saving


def conduct(setup: Setup, folder: Folder, watcher: Watcher, *, resume: bool = False) -> dict[str, Any]:
    """Run an experiment to its end (or go on with it) and give its result."""
    with settings(setup.world.dtype, setup.world.device), polite(watcher) as stop:
        return _Run(setup, folder, watcher, resume).go(stop)


class _Run:
    """One run; all state is in ``course``, the executor's store and the folder."""

    def __init__(self, setup: Setup, folder: Folder, watcher: Watcher, resume: bool) -> None:
        self.options, self.world, self.folder, self.watcher = setup.options, setup.world, folder, watcher
        self.method = setup.world.method
        self.identity = identity_of(setup)
        folder.claim(self.identity, resume)
        self.executor_name, why = self._executor_name(resume)
        self.watcher.begin(title(setup), self.options.rounds, 0)
        for notice in setup.notices:
            watcher.say(notice)
        if self.options.executor == "auto":
            watcher.say(f"executor: {self.executor_name}, because {why}")
        recorded = self.options.model_copy(update={"executor": self.executor_name})
        folder.begin(recorded, self.identity, self.world.federation)
        self.executor = start(self.executor_name, self.world, self.options, folder)
        self.site = Site(self.world, self.executor.store)
        o = self.options
        self.exchange = Exchange(
            self.method, self.executor, o.seed, o.rounds, o.drop, watcher.tick, stays=self.site.stays
        )
        self.checkpoints = Checkpoints(folder.path)
        self.course = self._begin(resume)

    def _executor_name(self, resume: bool) -> tuple[str, str]:
        if self.options.batching == "keep" and self.options.executor == "vmap":
            raise UserError(
                "batching=keep gives batches of different sizes, which vmap cannot run; choose fill or drop"
            )
        if resume and (self.folder.path / "config.toml").exists():
            before = str(self.folder.options()["executor"])
            wanted = before if self.options.executor == "auto" else self.options.executor
            if "vmap" in (before, wanted) and before != wanted:
                raise UserError(f"the run began with executor {before}, whose rounding differs from {wanted}'s")
            return wanted, "the run began so"
        if self.options.executor != "auto":
            return self.options.executor, ""
        return choose(self.world, self.options.workers)

    # ---------------------------------------------------------------- beginning
    def _begin(self, resume: bool) -> Course:
        saved = self.checkpoints.load(self.executor.store, self.identity) if resume else None
        if saved is None:
            if resume:
                self.watcher.say("nothing to go on with yet: starting from the beginning")
            self.folder.cut(0)
            return Course(server=self.method.init(self.site.new, self.world.federation.clients))
        if saved.t > self.options.rounds:
            raise UserError(f"the run is at round {saved.t} already; rounds={self.options.rounds} is less")
        records = self.folder.cut(saved.t)
        history = [(r["t"], Evaluation.read(r["evaluation"])) for r in records if r.get("evaluation")]
        about = saved.about
        server = decode(server_type(self.method), saved.server, "server")
        self.watcher.begin(title(Setup(self.options, self.world, [])), self.options.rounds, saved.t)
        return Course(saved.t, server, about["seen"], history, about["silent"], about["up"], about["down"],
                      about["seconds"], about["total"])  # fmt: skip

    # ---------------------------------------------------------------- the loop
    def go(self, stop: list[bool]) -> dict[str, Any]:
        """All rounds, then the result."""
        course, options = self.course, self.options
        try:
            while course.t < options.rounds:
                began = time.monotonic()
                course.t += 1
                record = self.round(course.t)
                evaluation = None
                if course.t % options.every == 0 or course.t == options.rounds:
                    evaluation = self.evaluate(course.t, record["clients"])
                    record["evaluation"] = evaluation.record()
                for notice in self.executor.notices():
                    self.watcher.say(notice)
                course.total += time.monotonic() - began
                self.folder.append(record)
                self.watcher.round(course.t, evaluation.test.accuracy if evaluation else None)
                if course.t % options.checkpoint_every == 0 or course.t == options.rounds or stop:
                    self.save()
                if stop and course.t < options.rounds:
                    raise Stopped(f"stopped after round {course.t}; go on with --resume")
            return self.finish()
        finally:
            self.watcher.end()
            self.executor.close()

    def round(self, t: int) -> dict[str, Any]:
        """Sample and run one round; tells what it cost and whom it lost."""
        course, began = self.course, time.monotonic()
        self.exchange.ledger = Ledger()
        present = self.present(t)
        ids: list[int] = []
        try:
            self.welcome(t, present)
            low, high = shares(self.options.join)
            share = low + (high - low) * float(Rng.seed(self.options.seed, Purpose.SHARE, t).uniform(1))
            ids = self.method.sample(course.server, present, share, Rng.seed(self.options.seed, Purpose.SAMPLE, t))
            course.server = self.method.round(course.server, Cohort(self.exchange, ids, t))
            course.silent = 0
        except NoReplies as nothing:
            course.silent += 1
            self.watcher.say(f"warning: round {t} is skipped: {nothing}")
        ledger, seconds = self.exchange.ledger, time.monotonic() - began
        for k, why in sorted(ledger.lost.items()):
            if "(--drop)" not in why:
                self.watcher.say(f"warning: round {t}: client {k} is left out: {why}")
        if course.silent >= self.options.give_up:
            reason = next(iter(ledger.lost.values()), "no client replied")
            raise UserError(f"no usable reply in {course.silent} rounds in a row, the last one because {reason}")
        course.up, course.down = course.up + ledger.up, course.down + ledger.down
        course.seconds += seconds
        return {
            "t": t, "clients": ids, "lost": {str(k): why for k, why in ledger.lost.items()}, "visits": ledger.visits,
            "bytes": {"up": ledger.up, "down": ledger.down}, "seconds": seconds,
        }  # fmt: skip

    def present(self, t: int) -> list[int]:
        """The clients that may train in round t: the last ones are new or come late."""
        many, at = late(self.options.late)
        trained = self.world.federation.clients - self.options.new
        return list(range(trained - many if t < at else trained))

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
    def evaluate(self, t: int, cohort: Sequence[int]) -> Evaluation:
        """Personal models on their clients' validation and test data; models of the best round are kept."""
        which, trained = self.options.evaluate, self.present(t)
        ids = list(cohort) if which == "cohort" else trained
        if which.isdigit():
            chosen = Rng.seed(self.options.seed, Purpose.EVALUATE).permutation(len(trained))[: int(which)].tolist()
            ids = sorted(trained[i] for i in chosen)
        evaluation = summary.evaluate(self.scores("@score", ids, t))
        self.course.history.append((t, evaluation))
        if self.saving() == "best" and summary.choose(self.course.history) == t:
            self.keep_models(t, "best")
        return evaluation

    def scores(self, name: str, ids: Sequence[int], t: int, down: Tree = None) -> dict[int, Score]:
        """Scores of some clients' models."""
        server = self.course.server
        downs = {k: self.method.send(server, k) if down is None else down for k in ids}
        return self.replies(name, downs, t)

    def replies(self, name: str, downs: dict[int, Tree], t: int) -> dict[int, Any]:
        """What clients answer; those that fail are named and left out."""
        answers = self.executor.call(name, downs, t, 0, lambda: None)
        for k, reply in answers.items():
            if reply.error:
                self.watcher.say(f"warning: round {t}: client {k} cannot be evaluated: {reply.error}")
        return {k: r.up for k, r in answers.items() if not r.error}

    def saving(self) -> str:
        """Which personal models are kept: the best, unless they are very large or there is no validation data."""
        if not self.folder.kept or self.options.save == "none":
            return "none"
        if self.options.validation == 0:
            return "last"
        size = sum(p.numel() for p in self.world.backbone.parameters()) * 4 * self.world.federation.clients
        return self.options.save or ("best" if size < LARGE else "last")

    def keep_models(self, t: int, which: str) -> None:
        """Write the personal models of round t."""
        downs = {k: self.method.send(self.course.server, k) for k in range(self.world.federation.clients)}
        self.folder.keep_models(t, which, self.replies("@personal", downs, t).items())

    def save(self) -> None:
        """Write a checkpoint."""
        c = self.course
        if not self.folder.kept:
            return
        about = {"identity": self.identity, "seen": c.seen, "silent": c.silent, "up": c.up, "down": c.down,
                 "seconds": c.seconds, "total": c.total}  # fmt: skip
        self.checkpoints.save(c.t, encode(c.server, "server"), self.executor.store, about)

    def finish(self) -> dict[str, Any]:
        """Look at the final models in the ways asked for, and write the result."""
        c, o, began = self.course, self.options, time.monotonic()
        if self.saving() == "last" or (self.saving() == "best" and self.folder.models() is None):
            self.keep_models(c.t, "last")
        f, store = self.world.federation, self.executor.store
        digest = fingerprint(encode(c.server, "server"), ((k, store.get(k) or {}) for k in store.clients()))
        views = look(self, self.present(c.t))
        best = summary.choose(c.history)
        at = dict(c.history)[best if best is not None else c.history[-1][0]]
        result = {
            "method": o.method, "data": o.data, "model": o.model, "seed": o.seed, "rounds": c.t,
            "accuracy": summary.accuracies(c.history),
            "accuracy_mean_of_clients": summary.accuracies(c.history, "mean"),
            "views": views, "fairness": at.record()["fairness"],
            "clients": [{"id": k, "n_train": len(f.train[k]), "n_test": len(f.test[k]), "accuracy": a}
                        for k, a in at.clients.items()],
            "notes": at.notes, "bytes": {"up": c.up, "down": c.down},
            "seconds": {"total": c.total + time.monotonic() - began, "per_round": c.seconds / c.t},
            "executor": self.executor_name, "partition": f.hash, "models": self.folder.models(),
            "hash": digest,
        }  # fmt: skip
        for remark in self.method.remarks(c.server):
            self.watcher.say(remark)
        self.folder.finish(result)
        if self.folder.kept:
            curves(self.folder.path)
        return result


def identity_of(setup: Setup) -> str:
    """A digest of all that decides a run's results: options, data, and its length where the method reads that."""
    length = f"/{setup.options.rounds}" if setup.world.method.reads_rounds else ""
    return f"{setup.options.identity}/{setup.world.federation.hash}{length}"


def title(setup: Setup) -> str:
    """What a run is called on the screen."""
    return f"{setup.options.method} on {setup.options.data}, seed {setup.options.seed}"
