"""A run played again, with a tap on the server's side and an eye on one client's private state.

The attacks see the traffic alone. The private state and the data are there to measure
how well an attack did, and for attackers who are said to know more.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from fedtailor.core.errors import UserError
from fedtailor.core.sealed import has_sealed
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, Tree, is_statistic
from fedtailor.core.wire import encode
from fedtailor.engine.loop import draw_share, sample_clients, set_up_new_clients
from fedtailor.engine.observer import Observer
from fedtailor.engine.run import Run
from fedtailor.executors.client_runner import ClientRunner, State
from fedtailor.executors.world import AnyMethod, World
from fedtailor.experiment.prepare import Setup
from fedtailor.experiment.run_folder import RunFolder
from fedtailor.filters.tap import Tap
from fedtailor.method import Cohort, NoReplies

Say = Callable[[str], None]
SEALED = "uploads are sealed (--encrypt, --secure-sum), and nobody can read them"
SMALLEST_CHANGE = 1e-9  # of an upload that counts as trained


@dataclass(frozen=True)
class Upload:
    """One message of the victim, with what it was sent before."""

    function: str  # of the method, which the client ran
    t: int
    down: Tree
    up: Tree


@dataclass
class Recording:
    """What happened, up to the audited round."""

    runner: ClientRunner
    k: int  # the victim
    t: int  # rounds that were played
    server: Tree  # after the last of them
    uploads: list[Upload] = field(default_factory=list)  # the victim's, in order
    # the victim's private state before the round, by round
    before: dict[int, State] = field(default_factory=dict)

    @property
    def method(self) -> AnyMethod:
        """The method, with its defaults filled in."""
        return self.runner.method

    @property
    def world(self) -> World:
        """What all clients of the run have in common."""
        return self.runner.world

    @property
    def is_sealed(self) -> bool:
        """Whether parts of what the victim sent cannot be read."""
        return any(has_sealed(upload.up) for upload in self.uploads)

    def last(self, function: str) -> Upload:
        """The newest upload of a client function."""
        for upload in reversed(self.uploads):
            if upload.function == function:
                return upload
        raise UserError(
            f"client {self.k} took no part in the first {self.t} rounds: give a later --round"
        )

    def last_trained(self) -> Upload:
        """The newest upload that tells how training changed parameters."""
        for upload in reversed(self.uploads):
            if change_of(self.method, upload):
                return upload
        if self.is_sealed:
            raise UserError(SEALED)
        raise UserError(
            f"client {self.k} of {type(self.method).__name__} sent no trained parameters"
            f" in {self.t} rounds that a gradient attack could match"
        )

    def state_before(self, upload: Upload) -> State:
        """The victim's private state in the upload's round; its first one if it had none."""
        state = self.before[upload.t]
        if not state.is_new:
            return state
        down = self.runner.filters.client_receives(upload.down, state.memories)
        keep = self.runner.first_keep(self.k, upload.function, down, upload.t)
        return State(keep, state.memories)

    def received(self, upload: Upload) -> Tree:
        """What the victim's function was given: the message after its client-side filters."""
        memories = self.before[upload.t].memories
        return self.runner.filters.client_receives(upload.down, memories)


def record(setup: Setup, k: int, rounds: int, say: Say = print) -> Recording:
    """Play the first rounds of an experiment, and keep what client k sent."""
    world = setup.world
    clients = world.federation.clients - setup.options.new_clients
    if not 0 <= k < clients:
        raise UserError(f"no client {k}: those that train are 0 to {clients - 1}")
    if rounds > setup.options.rounds:
        raise UserError(f"round {rounds} is none: there are {setup.options.rounds}")
    tap = Tap()
    # the last filter: nearest to the network on the server's side
    tapped = replace(world, filters=[*world.filters, tap])
    options = setup.options.model_copy(update={"executor": "sequential"})
    folder = RunFolder(None)
    with torch_settings(world.dtype, world.device):
        run = Run(Setup(options, tapped, []), folder, Observer(), resume=False)
        recording = Recording(run.runner, k, 0, None)
        try:
            run.state.server = run.method.init(run.runner.new, world.federation.clients)
            for t in range(1, rounds + 1):
                play_round(run, t, recording)
                if t == 1 or t == rounds or t % 10 == 0:
                    say(f"round {t} of {rounds} played")
        finally:
            run.executor.close()
            folder.close()
    recording.t = rounds
    recording.server = run.state.server
    recording.uploads = list_uploads(tap, k)
    return recording


def play_round(run: Run, t: int, recording: Recording) -> None:
    """One round as ``engine/loop.py`` has it, without evaluation and records."""
    run.state.t = t
    available = run.available_clients(t)
    share = draw_share(run.config, t)
    try:
        set_up_new_clients(run, t, available)
        recording.before[t] = copy.deepcopy(run.runner.load(recording.k))
        run.begin_round(run.plan_round(t, share, available))
        cohort = sample_clients(run, available, share)
        server = run.state.server
        run.state.server = run.method.round(server, Cohort(run.exchange, cohort, t))
    except NoReplies:
        pass
    run.exchange.filters.after_round(t)


def list_uploads(tap: Tap, k: int) -> list[Upload]:
    """What client k sent, in order."""
    uploads = []
    for traffic in tap.traffic:
        if k in traffic.up:
            function = traffic.call.function
            down = traffic.down[k]
            uploads.append(Upload(function, traffic.t, down, traffic.up[k]))
    return uploads


# ---------------------------------------------------------------- what training changed
def change_of(method: AnyMethod, upload: Upload) -> Params:
    """By name, what left minus what the method expects it to be near: the trained parameters.

    Empty if nothing that is comparable was changed.
    """
    change = compare_upload(method, upload.down, upload.up, upload.t)
    sizes = [float(value.abs().max()) for value in change.values() if value.numel()]
    if max(sizes, default=0.0) < SMALLEST_CHANGE:
        return {}
    return change


def compare_upload(method: AnyMethod, down: Tree, up: Tree, t: int) -> Params:
    """By name, an upload minus the like-named part of what was sent."""
    if not hasattr(up, "_fields"):
        return {}
    expected = method.expected_upload(down, t)
    change: Params = {}
    for name in up._fields:
        if expected.get(name) is None:
            continue
        sent = encode(expected[name], name)
        for path, value in encode(getattr(up, name), name).items():
            if is_comparable(value, sent.get(path)) and not is_statistic(path):
                # an exact zero is nothing that was trained: pFedC's heads of other tasks
                change[path] = torch.where(value == 0, 0.0, value - sent[path])
    return change


def is_comparable(value: Any, reference: Any) -> bool:
    """Whether both are tensors of numbers of one shape, with values."""
    if not isinstance(value, Tensor) or not isinstance(reference, Tensor):
        return False
    if reference.device.type == "meta" or value.shape != reference.shape:
        return False
    return value.is_floating_point()


def cut_training_data(setup: Setup, k: int, examples: int) -> Setup:
    """The experiment in which client k has only its first few training examples."""
    federation = setup.world.federation
    train = list(federation.train)
    train[k] = train[k][:examples]
    world = replace(setup.world, federation=replace(federation, train=train))
    return replace(setup, world=world)


def training_images(recording: Recording) -> tuple[Tensor, Tensor]:
    """The victim's training inputs, as the network takes them, and labels: the truth."""
    train, _, _ = recording.runner.indices(recording.k)
    data = recording.runner.examples(train, len(train), torch.contiguous_format)
    return data.x, data.y
