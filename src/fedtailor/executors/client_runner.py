"""Runs client functions and evaluations, one client at a time."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from fedtailor.client import Client, Examples, RunSettings
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.tensors import finite
from fedtailor.core.tree import Params, Tree
from fedtailor.core.wire import Flat, decode, encode, own
from fedtailor.evaluation.score import Score
from fedtailor.executors.private_client import PrivateClient
from fedtailor.executors.scoring import score
from fedtailor.executors.visit import Reply, Report, Visit
from fedtailor.executors.world import World
from fedtailor.filters import FilterChain, Memories
from fedtailor.method import Method
from fedtailor.method_types import keep_type
from fedtailor.models.backbone import fresh
from fedtailor.storage.private_state import Store
from fedtailor.training.net import Net, Template


class Refused(Exception):
    """A client's result that must not be used."""


class State(NamedTuple):
    """What a client remembers between visits."""

    keep: Tree  # the method's private state
    memories: Memories  # the filters'

    @property
    def is_new(self) -> bool:
        """Whether the client has never stored anything."""
        return self.keep is None and not any(self.memories.values())


class ClientRunner:
    """Runs the clients of a run, with their private states in a store."""

    def __init__(self, world: World, store: Store) -> None:
        self.world = world
        self.store = store
        self.method = world.method
        self.device = torch.device(world.device)
        # modules draw values that are never used
        with torch.random.fork_rng(devices=[]):
            network = world.method.net(world.backbone)
        self.template = Template(network)
        net = Net(self.template)
        self.settings = RunSettings(
            template=self.template,
            net=net,
            plan=world.plan,
            task=world.task,
            rounds=world.rounds,
            sample_noise=world.sample_noise,
        )
        self.filters = FilterChain(world.filters, self.template)
        federation = world.federation
        self.x = federation.x.to(self.device)
        self.y = federation.y.to(self.device)
        self.row = federation.row
        if self.row is not None:
            self.row = self.row.to(self.device)

    # ---------------------------------------------------------------- parts of a client
    def new(self, i: int = 0) -> Params:
        """The i-th set of initial parameters."""
        rng = self.rng(Purpose.INITIAL, i)
        return fresh(self.template.blank, rng)

    def rng(self, *path: int) -> Rng:
        """A stream of the run's randomness."""
        return Rng.seed(self.world.seed, *path, device=self.device)

    def examples(
        self, index: Tensor, n: int | Tensor, layout: torch.memory_format | None = None
    ) -> Examples:
        """Some samples of the data, in the memory layout that suits the network."""
        return Examples(
            all_x=self.x,
            all_y=self.y,
            row=self.row,
            index=index.to(self.device),
            n=n,
            classes=self.world.federation.classes,
            layout=layout or self.template.layout,
        )

    def indices(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Train, validation and test samples of client k."""
        federation = self.world.federation
        return federation.train[k], federation.val[k], federation.test[k]

    def count(self, k: int) -> int:
        """Number of training examples of client k."""
        return len(self.world.federation.train[k])

    def client(self, k: int, t: int, *path: int, epochs: int | None = None) -> Client:
        """Client k in round t, with the stream of randomness named by ``path``.

        ``epochs``: its local epochs, if not the experiment's.
        """
        train, val, _ = self.indices(k)
        data = self.examples(train, len(train))
        held_out = self.examples(val, len(val))
        rng = self.rng(*path, k)
        purpose = path[0] if path else None
        return self.make_client(
            purpose,
            data,
            held_out,
            rng,
            t,
            epochs=epochs,
        )

    def make_client(
        self,
        purpose: int | None,
        data: Examples,
        val: Examples,
        rng: Rng,
        t: int,
        epochs: int | None = None,
        **vmap: Any,
    ) -> Client:
        """A client; a private one, if so asked, wherever a result of it may leave."""
        settings = self.settings
        if epochs is not None:
            plan = replace(settings.plan, epochs=epochs)
            settings = replace(settings, plan=plan)
        noise = settings.sample_noise
        if noise is None or purpose not in (Purpose.CALL, Purpose.JOIN):
            return Client(settings, data, val, rng, t, **vmap)
        return PrivateClient(settings, data, val, rng, t, noise, **vmap)

    def test_examples(self, k: int) -> Examples:
        """The test part of client k, which no method sees."""
        _, _, index = self.indices(k)
        return self.examples(index, len(index))

    # ---------------------------------------------------------------- private state
    def load(self, k: int) -> State:
        """The stored state of client k; an empty one if there is none."""
        flat = self.store.get(k)
        if flat is None:
            return State(None, {})
        keep: Flat = {}
        memories: Memories = {f.name: {} for f in self.filters.filters if f.name}
        for path, value in flat.items():
            if isinstance(value, Tensor):
                value = value.to(self.device)
            prefix, _, name = path.partition("/")
            if prefix in memories:
                memories[prefix][name] = value
            else:
                keep[path] = value
        kind = keep_type(self.method)
        return State(decode(kind, keep, "keep"), memories)

    def save(self, k: int, state: State) -> None:
        """Store the state of client k; a client with nothing of its own takes no space."""
        if state.is_new:
            return
        flat = encode(own(state.keep), "keep")
        for prefix, memory in state.memories.items():
            for name, value in memory.items():
                flat[f"{prefix}/{name}"] = value
        self.store.put(k, flat)

    # ---------------------------------------------------------------- visits
    def visit(self, k: int, visit: Visit) -> Reply:
        """Run a client function, and store what the client keeps."""
        assert isinstance(visit.function, str)
        function = getattr(self.method, visit.function)
        down, state = self.receive(k, visit.function, visit.down, visit.t)
        client = self.client(k, visit.t, Purpose.CALL, visit.t, visit.call)
        up, keep = function(client, down, state.keep)
        if not finite(up) or not finite(keep):
            raise Refused("its result holds NaN or infinity")
        losses = client.training_losses()
        after = None
        if visit.after:
            after = self.score_after(k, visit.t, down, up, keep)
        kept = State(keep, state.memories)
        reply = self.finish_visit(k, visit, kept, up)
        return reply._replace(report=Report(losses, after))

    def score_after(self, k: int, t: int, down: Tree, up: Tree, keep: Tree) -> Score:
        """The score of the model right after a training that has just been done."""
        client = self.client(k, t, Purpose.EVALUATE, t)
        w = self.method.after_training(client, down, up, keep)
        return score(self.method, client, w, self.test_examples(k))

    def receive(self, k: int, function: str, down: Tree, t: int) -> tuple[Tree, State]:
        """What client k receives of a message, and its state: a first one if it has none."""
        state = self.load(k)
        down = self.filters.client_receives(down, state.memories)
        if state.is_new:
            keep = self.first_keep(k, function, down, t)
            state = State(keep, state.memories)
        return down, state

    def finish_visit(self, k: int, visit: Visit, state: State, up: Tree) -> Reply:
        """Pass what a client sends through the filters, and store what it keeps."""
        if self.filters.filters:
            keep, memories = state
            rng = self.rng(Purpose.FILTER, visit.t, visit.call, k)
            down = visit.down
            n = self.count(k)
            up, memories = self.filters.client_sends(k, n, up, down, memories, rng)
            state = State(keep, memories)
        self.save(k, state)
        return Reply(self.count(k), up)

    def first_keep(self, k: int, function: str, down: Tree, t: int) -> Tree:
        """The first private state of client k, which is sent ``down``."""
        client = self.client(k, t, Purpose.JOIN)
        if function == Method.receive.__name__:
            return self.method.keep_given(client, down)
        return self.method.first_keep(client, down)

    # ---------------------------------------------------------------- looks
    def load_client(self, k: int, down: Tree, t: int) -> tuple[Client, Tree, Tree]:
        """The client as evaluation sees it, what it is sent, and its private state."""
        down, state = self.receive(k, "local", down, t)
        client = self.client(k, t, Purpose.EVALUATE, t)
        return client, down, state.keep
