"""The parts of one run, and how it is begun, saved and looked at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fedtailor.core.errors import UserError
from fedtailor.core.sealed import has_sealed
from fedtailor.core.tree import Params, Tree
from fedtailor.core.wire import decode, encode
from fedtailor.engine.choose_executor import Choice, choose_executor, start_executor
from fedtailor.engine.exchange import Exchange
from fedtailor.engine.observer import Observer, RoundRecord
from fedtailor.engine.run_state import RunState
from fedtailor.evaluation.score import find_wrong_tally
from fedtailor.evaluation.summary import Evaluation
from fedtailor.executors import Executor
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.visit import Look, Reply
from fedtailor.executors.world import World
from fedtailor.experiment.config import Experiment, parse_late_clients
from fedtailor.experiment.data_outline import without_labels, write_outline
from fedtailor.experiment.prepare import Setup
from fedtailor.experiment.run_folder import OUTLINE, RunFolder
from fedtailor.filters import SETUP_CALLS, RoundPlan
from fedtailor.filters.by_option.attack import choose_attackers
from fedtailor.method import Cohort, Method
from fedtailor.method_types import server_type
from fedtailor.storage.checkpoint import Checkpoints

# bytes of personal models above which only the last ones are kept
LARGE_MODELS = 512 << 20


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
        self._claim_folder(resume)
        if executor is None:
            choice = choose_executor(self.config, self.world, folder, resume)
        else:
            choice = Choice("flower" if self.is_remote else "given", "")
        self.executor_name = choice.name
        self.notices = list(setup.notices)
        if choice.why and self.config.executor == "auto":
            self.notices.append(f"executor: {choice.name}, because {choice.why}")
        self.executor = executor or start_executor(
            choice.name, self.world, self.config, folder
        )
        self.runner = ClientRunner(self.world, self.executor.store)
        self.exchange = Exchange(
            self.method,
            self.executor,
            self.runner.filters.for_server(),
            self.config.seed,
            self.config.rounds,
            self.config.drop,
            observer.client_done,
        )
        self.checkpoints = Checkpoints(folder.path)
        self.state = RunState()
        self._shared: tuple[int, Params | None] = (-1, None)  # of a round

    def _claim_folder(self, resume: bool) -> None:
        """Take the folder; in a simulation, let filters make what clients keep secret."""
        self.folder.claim(self.identity, resume)
        if self.is_remote:
            return
        folder = self.folder.path if self.folder.kept else None
        for f in self.world.filters:
            f.begin_simulation(folder, resume)

    # ---------------------------------------------------------------- begin and save
    def begin(self, resume: bool) -> None:
        """Write down what is run, and start from the beginning or from the checkpoint."""
        if self.is_remote:
            refuse_known_noise(self.config)
        # A deployed run equals the sequential one, as which its configuration can be run again.
        name = "sequential" if self.is_remote else self.executor_name
        config = self.config.model_copy(update={"executor": name})
        federation = None if self.is_remote else self.world.federation
        self.folder.begin(config, self.identity, federation)
        saved = (
            self.checkpoints.load(self.executor.store, self.identity)
            if resume
            else None
        )
        if saved is None:
            self.state.server = self.method.init(
                self.runner.new, self.world.federation.clients
            )
            self.folder.truncate_journal(0)
        elif saved.t > self.config.rounds:
            raise UserError(
                f"the run is at round {saved.t} already; rounds={self.config.rounds} is less"
            )
        else:
            server = decode(server_type(self.method), saved.server, "server")
            self.state = RunState.from_json(saved.t, server, [], saved.about)
            self.state.history = self._read_history()
            self.exchange.filters.restore(saved.about.get("filters", {}))
            self.executor.inform(saved=saved.t)
        if resume:  # the ledger may be ahead of the checkpoint
            self.exchange.filters.restore(self.folder.read_ledger())
        self.observer.begin(self.config, self.state.t + 1)
        for notice in self.notices:
            self.observer.message(notice)
        if resume and saved is None:
            self.observer.message(
                "nothing to go on with yet: starting from the beginning"
            )

    def _read_history(self) -> list[tuple[int, Evaluation]]:
        """Evaluations in the journal up to the checkpoint; what came after it is deleted.

        The record of a pending evaluation may have been written after the checkpoint, and will be
        written again.
        """
        pending = self.state.pending
        last = self.state.t if pending is None else pending.record.t - 1
        records = [
            RoundRecord.from_json(record)
            for record in self.folder.truncate_journal(last)
        ]
        if records and records[-1].evaluation and pending is None:
            evaluated = list(records[-1].evaluation.clients)
            self.state.views = (records[-1].t, evaluated, records[-1].views)
        return [
            (record.t, record.evaluation) for record in records if record.evaluation
        ]

    def save_checkpoint(self) -> None:
        """Write everything that is needed to continue after this round."""
        if not self.folder.kept:
            return
        state = self.state
        kept = self.exchange.filters.save()
        about = {"identity": self.identity, **state.to_json(), "filters": kept}
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

    @property
    def attackers(self) -> frozenset[int]:
        """The simulated malicious clients."""
        if self.config.attack is None:
            return frozenset()
        clients = self.world.federation.clients
        return choose_attackers(self.config.seed, clients, self.config.attackers)

    def honest(self, clients: Sequence[int]) -> list[int]:
        """Those of the clients that do not attack: the others' scores do not count."""
        attackers = self.attackers
        return [k for k in clients if k not in attackers]

    # ---------------------------------------------------------------- filters, at the server
    def plan_round(self, t: int, share: float, available: Sequence[int]) -> RoundPlan:
        """What filters are told of a round before it begins."""
        down = None
        if self.exchange.filters.filters and available:
            down = self.method.send(self.state.server, available[0])
        return RoundPlan(
            t=t,
            clients=len(available),
            share=share,
            is_poisson=self.config.sampling == "poisson",
            down=down,
            is_remote=self.is_remote,
        )

    def begin_round(self, plan: RoundPlan) -> None:
        """Tell the filters; what they must not forget is on disk before anything is sent."""
        filters = self.exchange.filters
        filters.before_round(plan)
        ledger = filters.save()
        if ledger:
            self.folder.write_ledger(ledger)

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

    def is_asked(self, view: str) -> bool:
        """Whether ``--views`` names it."""
        return view in self.config.views.split(",")

    def usable(self, replies: dict[int, Reply], t: int) -> dict[int, Any]:
        """The answers without errors; clients with errors are named to the user."""
        usable: dict[int, Any] = {}
        for k, reply in replies.items():
            error = reply.error or find_wrong_tally(self.world.task, reply.up)
            if error:
                self.observer.message(
                    f"warning: round {t}: client {k} cannot be evaluated: {error}"
                )
            else:
                usable[k] = reply.up
        return usable

    # ---------------------------------------------------------------- personal models
    def models_to_keep(self) -> str:
        """Which personal models the folder keeps: best, last or none."""
        if self.is_remote or not self.folder.kept:
            return "none"
        return choose_models(self.config, self.world)

    def keep_models(
        self, t: int, which: str, models: dict[int, Reply] | None = None
    ) -> None:
        """Write the personal models of round t: the given ones, or as they are now."""
        if models is None:
            clients = range(self.world.federation.clients)
            models = self.exchange.look(Look.PERSONAL, self.downs(clients), t)
        if self._shared[0] != t:
            self.note_shared(t)
        found = self.usable(models, t).items()
        self.folder.keep_models(t, which, found, self._shared[1])

    def note_shared(self, t: int) -> None:
        """Remember the global model: by the time a round proves the best, another is over."""
        if self.models_to_keep() != "none":
            self._shared = (t, self._readable_shared())

    def _readable_shared(self) -> Params | None:
        """The global model, if there is one and the server can read it."""
        shared = self.method.shared(self.state.server)
        return None if has_sealed(shared) else shared

    def keep_server_models(self) -> None:
        """Of a deployed run: the global model; personal models are at the sites."""
        shared = self._readable_shared()
        outline = without_labels(self.world.federation)
        write_outline(outline, self.folder.path / OUTLINE)
        self.folder.keep_models(self.state.t, "last", [], shared)


def refuse_known_noise(config: Experiment) -> None:
    """At sites, noise that clients draw follows from the seed, which the server knows."""
    if config.dp == "sample" or (config.dp and config.dp_where == "clients"):
        raise UserError(
            "dp: the noise that clients draw follows from the run's seed, which the"
            " server knows, so at sites it would hide nothing; take --dp client with"
            " --dp-where server"
        )


def choose_models(config: Experiment, world: World) -> str:
    """Which personal models to keep: best, last (if they are very large) or none."""
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
    """A digest of what decides a run's results: options, data, perhaps its length."""
    config = setup.options
    data = setup.world.federation.hash
    if deployed:  # sites may join while it runs
        config = config.model_copy(update={"clients": None})
        data = "sites"
    length = f"/{setup.options.rounds}" if setup.world.method.depends_on_rounds else ""
    return f"{config.identity}/{data}{length}"
