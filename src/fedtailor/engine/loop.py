"""The loop: sample, run a round of the method, evaluate, record, save.

``run_rounds`` is the whole algorithm; read it first.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from dataclasses import replace
from typing import Any

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Tree
from fedtailor.core.wire import Flat, decode, encode
from fedtailor.engine.choose_executor import Choice, choose_executor, start_executor
from fedtailor.engine.exchange import SETUP_CALLS, Exchange, Traffic
from fedtailor.engine.final_views import evaluate_views
from fedtailor.engine.journal import Journal
from fedtailor.engine.observer import Observer, Observers, RoundRecord
from fedtailor.engine.result import compose_result
from fedtailor.engine.run_state import PendingEvaluation, RunState
from fedtailor.engine.stopping import Stopped, stop_politely
from fedtailor.evaluation import summary
from fedtailor.evaluation.summary import Evaluation
from fedtailor.executors import Executor
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.visit import Look, Reply
from fedtailor.executors.world import World
from fedtailor.experiment.config import Experiment, parse_late_clients, parse_participation
from fedtailor.experiment.prepare import Setup
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.method import Cohort, Method, NoReplies
from fedtailor.method_types import server_type
from fedtailor.storage.checkpoint import Checkpoints
from fedtailor.storage.files import fingerprint

LARGE_MODELS = 512 << 20  # bytes of personal models above which only the last ones are kept


def run_experiment(
    setup: Setup,
    folder: RunFolder,
    observers: Sequence[Observer] = (),
    *,
    resume: bool = False,
    executor: Executor | None = None,
) -> dict[str, Any]:
    """Run an experiment to its end, or continue it, and give its result.

    Args:
        setup: the experiment with its data, network and method.
        folder: where the run is written.
        observers: who is told how it goes; the journal is written in any case.
        resume: continue from the folder's checkpoint.
        executor: runs the clients; chosen by the options unless given.
    """
    observer = Observers([Journal(folder), *observers])
    # A deployed run is stopped by whoever started it; its checkpoint is at most one round old.
    stopping = nullcontext(list[bool]()) if executor else stop_politely(observer)
    with torch_settings(setup.world.dtype, setup.world.device), stopping as stop:
        run = Run(setup, folder, observer, resume, executor)
        result = None
        try:
            run.begin(resume)
            run_rounds(run, stop)
            result = finish_run(run)
        finally:
            observer.end(result)
            run.executor.close()
        return result


def run_rounds(run: Run, stop: list[bool]) -> None:
    """All rounds that are left."""
    config, state, method = run.config, run.state, run.method
    if state.pending:
        request_evaluation(run, stop)  # of the round before the checkpoint

    while state.t < config.rounds:
        began = time.monotonic()
        state.t += 1
        t = state.t
        run.exchange.traffic = Traffic()
        cohort: list[int] = []
        try:
            # newcomers are asked what the method must know of them
            available = run.available_clients(t)
            set_up_new_clients(run, t, available)

            # the clients of this round
            share = draw_share(config, t)
            rng = Rng.seed(config.seed, Purpose.SAMPLE, t)
            cohort = method.sample(state.server, available, share, rng)

            # the method's round: send, train, merge
            state.server = method.round(state.server, Cohort(run.exchange, cohort, t))
            state.silent = 0
        except NoReplies as nothing:
            state.silent += 1
            run.observer.message(f"warning: round {t} is skipped: {nothing}")
        record = record_round(run, cohort, time.monotonic() - began)
        give_up_if_silent(run, record)

        # the scores of the round before came with this round's visits
        finish_evaluation(run)

        # this round's scores are requested, and come now or with the next round's visits
        if t % config.evaluate_every == 0 or t == config.rounds:
            clients = choose_clients_to_evaluate(config, run.available_clients(t), cohort)
            state.pending = PendingEvaluation(record, clients)
            request_evaluation(run, stop)
        else:
            run.observer.round(record)

        # save, and stop if asked to
        for notice in run.executor.notices():
            run.observer.message(notice)
        state.total_seconds += time.monotonic() - began
        if t % config.checkpoint_every == 0 or t == config.rounds or stop:
            run.save_checkpoint()
        if stop and t < config.rounds:
            raise Stopped(f"stopped after round {t}; go on with --resume")
    finish_evaluation(run)


class Run:
    """The parts of one run. What changes is in ``state``, the executor's store and the folder."""

    def __init__(
        self,
        setup: Setup,
        folder: RunFolder,
        observer: Observer,
        resume: bool,
        executor: Executor | None = None,
    ) -> None:
        self.config = setup.options
        self.world = setup.world
        self.method = setup.world.method
        self.folder = folder
        self.observer = observer
        self.is_remote = executor is not None and executor.remote
        self.identity = identity_of(setup, deployed=self.is_remote)
        folder.claim(self.identity, resume)
        if executor is None:
            choice = choose_executor(self.config, self.world, folder, resume)
        else:
            choice = Choice("flower" if self.is_remote else "given", "")
        self.executor_name = choice.name
        self.notices = list(setup.notices)
        if choice.why and self.config.executor == "auto":
            self.notices.append(f"executor: {choice.name}, because {choice.why}")
        self.executor = executor or start_executor(choice.name, self.world, self.config, folder)
        self.runner = ClientRunner(self.world, self.executor.store)
        self.exchange = Exchange(
            self.method,
            self.executor,
            self.runner.filters,
            self.config.seed,
            self.config.rounds,
            self.config.drop,
            observer.client_done,
        )
        self.checkpoints = Checkpoints(folder.path)
        self.state = RunState()

    # ---------------------------------------------------------------- begin and save
    def begin(self, resume: bool) -> None:
        """Write down what is run, and start from the beginning or from the checkpoint."""
        # A deployed run equals the sequential one, as which its configuration can be run again.
        name = "sequential" if self.is_remote else self.executor_name
        config = self.config.model_copy(update={"executor": name})
        federation = None if self.is_remote else self.world.federation
        self.folder.begin(config, self.identity, federation)
        saved = self.checkpoints.load(self.executor.store, self.identity) if resume else None
        if saved is None:
            self.state.server = self.method.init(self.runner.new, self.world.federation.clients)
            self.folder.truncate_journal(0)
        elif saved.t > self.config.rounds:
            raise UserError(
                f"the run is at round {saved.t} already; rounds={self.config.rounds} is less"
            )
        else:
            server = decode(server_type(self.method), saved.server, "server")
            self.state = RunState.from_json(saved.t, server, [], saved.about)
            self.state.history = self._read_history()
            self.executor.inform(saved=saved.t)
        self.observer.begin(self.config, self.state.t + 1)
        for notice in self.notices:
            self.observer.message(notice)
        if resume and saved is None:
            self.observer.message("nothing to go on with yet: starting from the beginning")

    def _read_history(self) -> list[tuple[int, Evaluation]]:
        """Evaluations in the journal up to the checkpoint; what came after it is deleted.

        The record of a pending evaluation may have been written after the checkpoint, and will be
        written again.
        """
        pending = self.state.pending
        last = self.state.t if pending is None else pending.record.t - 1
        records = [RoundRecord.from_json(record) for record in self.folder.truncate_journal(last)]
        return [(record.t, record.evaluation) for record in records if record.evaluation]

    def save_checkpoint(self) -> None:
        """Write everything that is needed to continue after this round."""
        if not self.folder.kept:
            return
        state = self.state
        about = {"identity": self.identity, **state.to_json()}
        server = encode(state.server, "server")
        self.checkpoints.save(state.t, server, self.executor.store, about)
        self.executor.inform(saved=state.t)

    # ---------------------------------------------------------------- clients
    def available_clients(self, t: int) -> list[int]:
        """Ids of the clients that may train in round t."""
        many, first_round = parse_late_clients(self.config.late_clients)
        trained = self.world.federation.clients - self.config.new_clients
        scheduled = trained - many if t < first_round else trained
        return self.executor.available(range(scheduled))

    def introduce(self, t: int, new: Sequence[int]) -> Tree:
        """The server's state after the method's ``setup`` with these clients."""
        server = self.state.server
        has_setup = type(self.method).setup is not Method.setup
        if not new or not (has_setup or self.method.given(server) is not None):
            return server
        return self.method.setup(server, Cohort(self.exchange, new, t - 1, SETUP_CALLS))

    def downs(self, clients: Sequence[int]) -> dict[int, Tree]:
        """What each client is sent for an evaluation."""
        return {k: self.method.send(self.state.server, k) for k in clients}

    def look(self, look: Look, downs: dict[int, Tree]) -> dict[int, Any]:
        """Ask clients for something; those that fail are named and left out."""
        return self.usable(self.exchange.look(look, downs, self.state.t), self.state.t)

    def usable(self, replies: dict[int, Reply], t: int) -> dict[int, Any]:
        """The answers without errors; clients with errors are named to the user."""
        for k, reply in replies.items():
            if reply.error:
                self.observer.message(
                    f"warning: round {t}: client {k} cannot be evaluated: {reply.error}"
                )
        return {k: reply.up for k, reply in replies.items() if not reply.error}

    # ---------------------------------------------------------------- personal models
    def models_to_keep(self) -> str:
        """Which personal models are kept in the folder: best, last or none; sites keep their own."""
        if self.is_remote or not self.folder.kept:
            return "none"
        return choose_models(self.config, self.world)

    def keep_models(self, t: int, which: str, models: dict[int, Reply] | None = None) -> None:
        """Write the personal models of round t: the given ones, or as they are now."""
        if models is None:
            clients = range(self.world.federation.clients)
            models = self.exchange.look(Look.PERSONAL, self.downs(clients), t)
        self.folder.keep_models(t, which, self.usable(models, t).items())


# ---------------------------------------------------------------- steps of a round
def set_up_new_clients(run: Run, t: int, available: Sequence[int]) -> None:
    """Let the method ask clients that it has not seen yet what it must know."""
    seen = set(run.state.seen)
    new = [k for k in available if k not in seen]
    run.state.server = run.introduce(t, new)
    run.state.seen += new


def draw_share(config: Experiment, t: int) -> float:
    """The share of clients in round t; drawn where the option is a range."""
    low, high = parse_participation(config.participation)
    drawn = float(Rng.seed(config.seed, Purpose.SHARE, t).uniform(1))
    return low + (high - low) * drawn


def record_round(run: Run, cohort: list[int], seconds: float) -> RoundRecord:
    """What the round cost and which clients it lost; adds it to the run's totals."""
    state, traffic = run.state, run.exchange.traffic
    for k, why in sorted(traffic.lost.items()):
        if "(--drop)" not in why:
            run.observer.message(f"warning: round {state.t}: client {k} is left out: {why}")
    state.bytes_up += traffic.bytes_up
    state.bytes_down += traffic.bytes_down
    state.calls += traffic.calls
    state.seconds += seconds
    return RoundRecord(
        t=state.t,
        clients=cohort,
        lost=traffic.lost,
        visits=traffic.visits,
        calls=traffic.calls,
        bytes_up=traffic.bytes_up,
        bytes_down=traffic.bytes_down,
        seconds=seconds,
    )


def give_up_if_silent(run: Run, record: RoundRecord) -> None:
    """Stop a run whose clients have not replied for several rounds."""
    if run.state.silent >= run.config.max_silent_rounds:
        reason = next(iter(record.lost.values()), "no client replied")
        raise UserError(
            f"no usable reply in {run.state.silent} rounds in a row, the last one because {reason}"
        )


def choose_clients_to_evaluate(
    config: Experiment, available: Sequence[int], cohort: Sequence[int]
) -> list[int]:
    """Ids of the clients whose personal models are evaluated after a round."""
    if config.evaluate_clients == "cohort":
        return list(cohort)
    if config.evaluate_clients == "all":
        return list(available)
    rng = Rng.seed(config.seed, Purpose.EVALUATE)
    chosen = rng.permutation(len(available))[: int(config.evaluate_clients)].tolist()
    return sorted(available[i] for i in chosen)


def request_evaluation(run: Run, stop: list[bool]) -> None:
    """Request the pending evaluation; where that is cheaper, with the next round's visits."""
    pending = run.state.pending
    assert pending is not None
    with_models = run.models_to_keep() == "best"
    is_last = run.state.t >= run.config.rounds or bool(stop)
    late = run.executor.late_evaluation and not is_last
    if with_models and not can_hold_models(run.world, pending.clients):
        late = False
    downs = run.downs(pending.clients)
    run.exchange.request_evaluation(downs, pending.record.t, late=late, with_models=with_models)
    if not late:
        finish_evaluation(run)


def finish_evaluation(run: Run) -> None:
    """Take in the pending evaluation, and keep the models if its round is the best so far."""
    state = run.state
    pending = state.pending
    if pending is None:
        return
    state.pending = None
    t = pending.record.t
    scores, models = run.exchange.finish_evaluation()
    evaluation = summary.summarise(run.world.task, run.usable(scores, t))
    state.history.append((t, evaluation))
    best = summary.choose_round(run.world.task, state.history)
    run.executor.inform(best=best)
    if best == t and run.models_to_keep() == "best":
        run.keep_models(t, "best", models)
    run.observer.round(replace(pending.record, evaluation=evaluation))


# ---------------------------------------------------------------- the end
def finish_run(run: Run) -> dict[str, Any]:
    """Evaluate the final models in all ways asked for, and write the result."""
    state = run.state
    began = time.monotonic()
    keep = run.models_to_keep()
    if keep == "last" or (keep == "best" and run.folder.kept_models() is None):
        run.keep_models(state.t, "last")
    digest = fingerprint(encode(state.server, "server"), private_states(run))
    clients = run.available_clients(state.t)
    views = evaluate_views(run, clients)
    if run.is_remote:
        run.look(Look.CLOSE, run.downs(run.available_clients(state.t)))
    state.total_seconds += time.monotonic() - began
    remarks = run.method.closing_remarks(state.server)
    result = compose_result(
        run.config,
        run.world,
        state,
        views=views,
        executor=run.executor_name,
        models=run.folder.kept_models(),
        hash=digest,
        remarks=remarks,
    )
    for remark in remarks:
        run.observer.message(remark)
    run.folder.write_result(result)
    return result


def private_states(run: Run) -> Iterator[tuple[int, Flat | str]]:
    """Every private state, or its digest where the state is at a site."""
    if run.is_remote:
        clients = run.available_clients(run.state.t)
        digests = run.look(Look.DIGEST, dict.fromkeys(clients))
        for k, digest in sorted(digests.items()):
            if digest:
                yield k, str(digest)
    store = run.executor.store
    for k in store.clients():
        yield k, store.get(k) or {}


def choose_models(config: Experiment, world: World) -> str:
    """Which personal models to keep: the best, unless they are very large or nothing can choose them."""
    if config.save == "none":
        return "none"
    if config.validation == 0:
        return "last"
    return config.save or ("best" if are_models_small(world) else "last")


def can_hold_models(world: World, clients: Sequence[int]) -> bool:
    """Whether the models of a round can be held until it is known whether they are the best."""
    return len(clients) == world.federation.clients and are_models_small(world)


def are_models_small(world: World) -> bool:
    """Whether all personal models fit in memory beside everything else."""
    parameters = sum(p.numel() for p in world.backbone.parameters())
    return parameters * 4 * world.federation.clients < LARGE_MODELS


def identity_of(setup: Setup, deployed: bool = False) -> str:
    """A digest of all that decides a run's results: options, data, and its length if that matters."""
    config = setup.options
    data = setup.world.federation.hash
    if deployed:  # sites may join while it runs
        config = config.model_copy(update={"clients": None})
        data = "sites"
    length = f"/{setup.options.rounds}" if setup.world.method.depends_on_rounds else ""
    return f"{config.identity}/{data}{length}"
