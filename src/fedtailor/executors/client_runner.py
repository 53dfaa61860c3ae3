"""What one place (process or node) needs to run clients: the method, the network, the data, the private states."""

from __future__ import annotations

import torch
from torch import Tensor

from fedtailor.client import Client, Examples
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.tensors import finite
from fedtailor.core.tree import Params, Tree
from fedtailor.core.wire import decode, encode, own
from fedtailor.evaluation.score import PIECE, Score, observe, tally
from fedtailor.executors.visit import Candidate, Reply
from fedtailor.executors.world import World
from fedtailor.filters.local_buffers import LocalBuffers
from fedtailor.method import Method
from fedtailor.method_types import keep_type
from fedtailor.models.backbone import fresh
from fedtailor.storage.private_state import Store
from fedtailor.training.net import Net, Template


class Refused(Exception):
    """A client's result that must not be used."""


class ClientRunner:
    """Runs client functions, one client at a time."""

    def __init__(self, world: World, store: Store) -> None:
        self.world, self.store, self.method = world, store, world.method
        with torch.random.fork_rng(devices=[]):  # modules draw first values that nobody uses
            self.template = Template(world.method.net(world.backbone))
        self.net = Net(self.template)
        self.device = torch.device(world.device)
        f = world.federation
        self.x, self.y = f.x.to(self.device), f.y.to(self.device)
        self.row = None if f.row is None else f.row.to(self.device)
        self.buffers = LocalBuffers(self.template.buffers) if world.bn == "local" else None

    @property
    def stays(self) -> frozenset[str]:
        """Names of the buffers that never leave a client."""
        return self.template.buffers if self.buffers else frozenset()

    # ---------------------------------------------------------------- parts of a client
    def new(self, i: int = 0) -> Params:
        """The i-th set of initial parameters."""
        return fresh(self.template.blank, self.rng(Purpose.INITIAL, i))

    def rng(self, *path: int) -> Rng:
        """A stream of the run's randomness."""
        return Rng.seed(self.world.seed, *path, device=self.device)

    def part(
        self, index: Tensor, n: int | Tensor, layout: torch.memory_format | None = None
    ) -> Examples:
        """Rows of the data, laid out as the network likes it."""
        classes, layout = self.world.federation.classes, layout or self.template.layout
        return Examples(self.x, self.y, self.row, index.to(self.device), n, classes, layout)

    def indices(self, k: int) -> tuple[Tensor, Tensor, Tensor]:
        """Train, validation and test samples of client k."""
        f = self.world.federation
        return f.train[k], f.val[k], f.test[k]

    def test(self, k: int) -> Examples:
        """The test part of client k, which no method sees."""
        index = self.indices(k)[2]
        return self.part(index, len(index))

    def common(self) -> Examples:
        """The official test set, or, where there is none, all clients' test data."""
        f = self.world.federation
        index = f.common if f.common is not None else torch.cat(f.test)
        return self.part(index, len(index))

    def outside(self, name: str) -> Examples:
        """A data set that no client has."""
        x, y = (v.to(self.device) for v in self.world.federation.external[name])
        everything = torch.arange(len(y), device=self.device)
        return Examples(
            x, y, None, everything, len(y), self.world.federation.classes, self.template.layout
        )

    def everybody(self, t: int) -> Client:
        """Nobody in particular: who has all clients' training data."""
        w, index = self.world, torch.cat(self.world.federation.train)
        data, nothing = self.part(index, len(index)), self.part(index[:0], 0)
        return Client(
            self.template,
            self.net,
            data,
            nothing,
            self.rng(Purpose.EVALUATE, t),
            w.plan,
            t,
            w.rounds,
        )

    def client(self, k: int, t: int, *path: int) -> Client:
        """Client k in round t, with the stream of randomness named by ``path``."""
        w, (train, val, _) = self.world, self.indices(k)
        data, held = self.part(train, len(train)), self.part(val, len(val))
        return Client(self.template, self.net, data, held, self.rng(*path, k), w.plan, t, w.rounds)

    # ---------------------------------------------------------------- private state
    def load(self, k: int) -> tuple[Tree, Params] | None:
        """Private state and remembered buffers of client k."""
        flat = self.store.get(k)
        if flat is None:
            return None
        flat = {key: v.to(self.device) if isinstance(v, Tensor) else v for key, v in flat.items()}
        keep = decode(
            keep_type(self.method),
            {k: v for k, v in flat.items() if not k.startswith("buffers/")},
            "keep",
        )
        return keep, {k[8:]: v for k, v in flat.items() if k.startswith("buffers/")}

    def save(self, k: int, keep: Tree, memory: Params) -> None:
        """Remember them; a client with nothing of its own is not remembered."""
        if keep is None and not memory:
            return
        self.store.put(
            k, encode(own(keep), "keep") | {f"buffers/{name}": v for name, v in memory.items()}
        )

    # ---------------------------------------------------------------- visits
    def visit(self, name: str, k: int, down: Tree, t: int, call: int) -> Reply:
        """Run a client function (or an evaluation, '@...') on client k."""
        if name.startswith("@"):
            return Reply(len(self.indices(k)[0]), getattr(self, "_" + name[1:])(k, down, t))
        keep, memory = self.load(k) or (None, {})
        down = self.buffers.enter(down, memory) if self.buffers else down
        if not memory and keep is None:
            keep = self.method.first_keep(self.client(k, t, Purpose.JOIN), down)
        up, keep = getattr(self.method, name)(self.client(k, t, Purpose.CALL, t, call), down, keep)
        if not finite(up) or not finite(keep):
            raise Refused("its result holds NaN or infinity")
        if self.buffers:
            up, memory = self.buffers.leave(up, memory)
        self.save(k, keep, memory)
        return Reply(len(self.indices(k)[0]), up)

    def owned(self, k: int, down: Tree, t: int) -> tuple[Client, Tree, Tree]:
        """The client as evaluation sees it, what it is sent, and its private state (a first one if it has none)."""
        keep, memory = self.load(k) or (None, {})
        down = self.buffers.enter(down, memory) if self.buffers else down
        if not memory and keep is None:
            keep = self.method.first_keep(self.client(k, t, Purpose.JOIN), down)
        return self.client(k, t, Purpose.EVALUATE, t), down, keep

    def _score(self, k: int, down: Tree, t: int) -> Score:
        return self._candidate(k, down, t).score

    def _candidate(self, k: int, down: Tree, t: int) -> Candidate:
        c, down, keep = self.owned(k, down, t)
        w = dict(self.method.personal(c, down, keep))
        return Candidate(self.judge(c, w, self.test(k), notes=True), w)

    def _personal(self, k: int, down: Tree, t: int) -> Params:
        c, down, keep = self.owned(k, down, t)
        return dict(self.method.personal(c, down, keep))

    def _after(self, k: int, down: Tree, t: int) -> Score:
        c, down, keep = self.owned(k, down, t)
        up, keep = self.method.local(c, down, keep)  # thrown away: the stored state stays as it is
        return self.judge(c, self.method.after_training(c, down, up, keep), self.test(k))

    def _global(self, k: int, down: Tree, t: int) -> Score:
        _, memory = self.load(k) or (None, {})
        w = self.buffers.enter(down, memory) if self.buffers else down
        return self.judge(self.client(k, t, Purpose.EVALUATE, t), w, self.test(k))

    def _pool(self, k: int, down: Tree, t: int) -> Params:
        """Log-probabilities of a personal model on data of unknown owners: everybody's test data, external sets."""
        c, down, keep = self.owned(k, down, t)
        w = self.method.personal(c, down, keep)

        def logs(part: Examples) -> Tensor:
            pieces = [
                self.method.predict(c, w, x).log_softmax(-1) for x, _, _ in part.chunks(PIECE)
            ]
            return torch.cat(pieces) if pieces else torch.zeros(0, part.classes)

        with torch.no_grad():
            out = {"new": logs(self.common())}
            for name in self.world.federation.external:
                out[name] = logs(self.outside(name))
        return out

    def judge(self, c: Client, w: Params, test: Examples, notes: bool = False) -> Score:
        """Score a model on a client's validation and test parts."""
        with torch.no_grad():

            def logits(x: Tensor) -> Tensor:
                return self.method.predict(c, w, x)

            seen: dict[str, Tensor] = {}
            if notes and type(self.method).diagnostics is not Method.diagnostics:
                for name, where in (("train", c.data), ("test", test)):
                    seen |= observe(lambda x, y: self.method.diagnostics(c, w, x, y), where, name)
            return Score(tally(logits, c.val), tally(logits, test), seen)
