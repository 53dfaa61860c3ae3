"""Blocks of similar clients under ``vmap``: the whole client function runs once for all clients of a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedtailor.client import Client, Examples
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.tensors import finite
from fedtailor.core.tree import Params, Tree, fill, leaves, stack, unstack
from fedtailor.evaluation.score import Score
from fedtailor.executors import Tick
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.sequential import Sequential, attempt, describe
from fedtailor.executors.vectorized_blocks import cut
from fedtailor.executors.visit import Reply
from fedtailor.method import Method

BUDGET = 1 << 30  # bytes of parameters, gradients and private state that one block may take
BLOCKS = 64  # blocks whose samples are remembered
COPIES = (
    8  # parameters, gradients, momentum, new values, uploads, private state ... per client, roughly
)


class _Samples(NamedTuple):
    """Whose samples a block trains and is judged on: rows padded to one length, by part (train, validation, test)."""

    rows: tuple[Tensor, ...]
    n: tuple[Tensor, ...]  # how many of a row are real
    least: int
    most: int


class Vectorized:
    """Clients of similar size in blocks, padded to the largest; data and results as in Sequential to rounding."""

    def __init__(self, site: ClientRunner, block: int = 0) -> None:
        self.site, self.store = site, site.store
        self._alone = Sequential(site)
        self._block = block or self._fit()
        self._failed: dict[str, str] = {}  # function -> why it cannot be vectorised
        self._notices: list[str] = []
        self._known: dict[tuple[int, ...], _Samples] = {}

    def _fit(self) -> int:
        """As many clients as the budget allows."""
        model = (
            sum(p.numel() for p in self.site.template.module.parameters())
            * self.site.world.dtype.itemsize
        )
        return int(max(1, min(128, BUDGET // (COPIES * max(model, 1)))))

    def call(
        self, name: str, downs: Mapping[int, Tree], t: int, call: int, tick: Tick
    ) -> dict[int, Reply]:
        """The replies by client, in client order."""
        function = self._function(name)
        if function is None:
            return self._alone.call(name, downs, t, call, tick)
        sizes = {k: len(self.site.indices(k)[0]) for k in downs}
        order = sorted(downs, key=lambda k: (-sizes[k], k))
        plan, out, at = self.site.world.plan, dict[int, Reply](), 0
        for size in cut(tuple(int(plan.steps(sizes[k], plan.batch)) for k in order), self._block):
            ids = order[at : at + size]
            at += size
            out |= self._run(name, function, ids, downs, t, call)
            for _ in ids:
                tick()
        return {k: out[k] for k in sorted(out)}

    def notices(self) -> list[str]:
        """Functions that had to run one client at a time."""
        news, self._notices = self._notices, []
        return news

    def close(self) -> None:
        """Nothing to let go of."""

    # ---------------------------------------------------------------- inside
    def _function(self, name: str) -> Callable[..., Any] | None:
        if name in self._failed:
            return None
        if name.startswith("@"):
            return self._score if name == "@score" else None
        function: Callable[..., Any] = getattr(self.site.method, name)
        if getattr(function, "one_by_one", False):
            self._give_up(name, "it is marked one_by_one")
            return None
        return lambda c, _, down, keep: function(c, down, keep)

    def _give_up(self, name: str, why: str) -> None:
        self._failed[name] = why
        self._notices.append(f"vmap: '{name}' runs one client at a time, because {why}")

    def _run(
        self,
        name: str,
        function: Callable[..., Any],
        ids: list[int],
        downs: Mapping[int, Tree],
        t: int,
        call: int,
    ) -> dict[int, Reply]:
        site = self.site
        try:
            downs, keeps, memories = self._gather(ids, downs, t)
            path = (Purpose.EVALUATE, t) if name == "@score" else (Purpose.CALL, t, call)
            result = self._map(
                function,
                ids,
                t,
                path,
                stack([downs[k] for k in ids]),
                stack([keeps[k] for k in ids]),
            )
        except Exception as error:
            self._give_up(name, describe(error))
            return {k: attempt(site, name, k, downs[k], t, call) for k in ids}
        out: dict[int, Reply] = {}
        sound = name == "@score" or finite(result)
        for k, one in zip(ids, unstack(result, len(ids)), strict=True):
            n = len(site.indices(k)[0])
            if name == "@score":
                out[k] = Reply(n, one)
                continue
            up, keep = one
            if not sound and not (finite(up) and finite(keep)):
                out[k] = Reply(0, None, "Refused: its result holds NaN or infinity")
                continue
            if site.buffers:
                up, memories[k] = site.buffers.leave(up, memories[k])
            site.save(k, keep, memories[k])
            out[k] = Reply(n, up)
        return out

    def _gather(
        self, ids: list[int], downs: Mapping[int, Tree], t: int
    ) -> tuple[dict[int, Tree], dict[int, Tree], dict[int, Params]]:
        """Downloads, private states (first ones for newcomers) and remembered buffers of a block."""
        site = self.site
        entered, keeps, memories = dict(downs), dict[int, Tree](), dict[int, Params]()
        for k in ids:
            keeps[k], memories[k] = site.load(k) or (None, {})
            if site.buffers:
                entered[k] = site.buffers.enter(downs[k], memories[k])
        new = [k for k in ids if keeps[k] is None and not memories[k]]
        if new and type(site.method).first_keep is not Method.first_keep:
            joined = self._map(
                lambda c, _, down: site.method.first_keep(c, down),
                new,
                t,
                (Purpose.JOIN,),
                stack([entered[k] for k in new]),
            )
            keeps |= dict(zip(new, unstack(joined, len(new)), strict=True))
        return entered, keeps, memories

    def _map(
        self, f: Callable[..., Any], ids: Sequence[int], t: int, path: tuple[int, ...], *trees: Tree
    ) -> Tree:
        """vmap f(client, its test part, *trees); tensors carry the client axis, plain values are the same for all."""
        site, shape = self.site, list[Tree]()
        index, n, least, most = self._samples(tuple(ids))
        keys = site.rng(*path).split(ids)
        flat = leaves(list(trees))
        at = [i for i, x in enumerate(flat) if isinstance(x, Tensor)]

        def one(
            index: tuple[Tensor, ...], n: tuple[Tensor, ...], key: Tensor, *given: Tensor
        ) -> tuple[Tensor, ...]:
            flat_layout = (
                torch.contiguous_format
            )  # vmap adds an axis that channels-last knows nothing of
            parts = [site.part(i, m, flat_layout) for i, m in zip(index, n, strict=True)]
            count: Any = n[0] if least < most else most
            data = site.part(index[0], count, flat_layout)
            w = site.world
            c = Client(
                site.template,
                site.net,
                data,
                parts[1],
                Rng(key, site.device),
                w.plan,
                t,
                w.rounds,
                vmapped=True,
                least=least if least < most else None,
            )
            values = list(flat)
            for i, x in zip(at, given, strict=True):
                values[i] = x
            result = f(c, parts[2], *fill(list(trees), values))
            shape.append(result)
            return n[0], *(x for x in leaves(result) if isinstance(x, Tensor))

        _, *out = torch.func.vmap(one)(index, n, keys, *(flat[i] for i in at))
        it = iter(out)
        return fill(shape[0], [next(it) if isinstance(x, Tensor) else x for x in leaves(shape[0])])

    def _samples(self, ids: tuple[int, ...]) -> _Samples:
        """Train, validation and test samples of a block, and how many its smallest and largest client train on.

        The last blocks are remembered: where all take part they are the same in every round.
        """
        if ids not in self._known:
            site, parts = (
                self.site,
                [_pad([self.site.indices(k)[i] for k in ids]) for i in range(3)],
            )
            least, most = (int(n) for n in torch.aminmax(parts[0][1]))
            index, n = (tuple(p[i].to(site.device) for p in parts) for i in range(2))
            while len(self._known) >= BLOCKS:
                del self._known[next(iter(self._known))]
            self._known[ids] = _Samples(index, n, least, most)
        return self._known[ids]

    def _score(self, c: Client, test: Examples, down: Tree, keep: Tree) -> Score:
        return self.site.judge(c, self.site.method.personal(c, down, keep), test, notes=True)


def _pad(indices: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Index vectors of one length, and how many entries of each are real."""
    n = torch.tensor([i.shape[0] for i in indices])
    rows = pad_sequence(indices, batch_first=True, padding_value=-1)
    return torch.where(rows < 0, rows[:, :1].clamp(min=0), rows), n
