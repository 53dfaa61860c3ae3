"""Blocks of similar clients under ``vmap``: one call for all clients of a block."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from fedtailor.client import Client, Examples
from fedtailor.core.errors import NoRoom, describe_error
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.tensors import finite
from fedtailor.core.tree import Params, Tree, combine, partition, stack, unstack
from fedtailor.evaluation.score import Score
from fedtailor.executors import Done, Executor
from fedtailor.executors.client_runner import ClientRunner, State
from fedtailor.executors.failures import describe_failure
from fedtailor.executors.scoring import score
from fedtailor.executors.sequential import attempt
from fedtailor.executors.vectorized_blocks import plan_blocks
from fedtailor.executors.visit import Look, Reply, Report, Visit
from fedtailor.method import Method
from fedtailor.training import kept_state
from fedtailor.training.kept_state import KeptStates

# bytes of parameters, gradients and private state that one block may take
BUDGET = 1 << 30
COPIES = 8  # of the parameters per client: gradients, momentum, new values, uploads ..., roughly
LARGEST_BLOCK = 128  # clients
REMEMBERED_BLOCKS = 64  # whose samples are kept from round to round
AFTER = Method.after_training.__name__

ClientFunction = Callable[..., Any]  # (client, its test examples, *trees) -> tree


class _Block(NamedTuple):
    """Samples of several clients, padded to one length; train, validation and test."""

    rows: tuple[Tensor, ...]
    n: tuple[Tensor, ...]  # how many of a client's row are not padding
    fewest: int  # training examples of the smallest client
    most: int


class Vectorized(Executor):
    """Same data and results as Sequential, up to rounding."""

    def __init__(self, runner: ClientRunner, block_size: int = 0) -> None:
        self.runner = runner
        self.store = runner.store
        self.block_size = block_size or self._affordable_block()
        # functions that vmap cannot run, and why
        self._one_by_one: dict[str | Look, str] = {}
        self._notices: list[str] = []
        self._blocks: dict[tuple[int, ...], _Block] = {}

    def _affordable_block(self) -> int:
        """As many clients as the budget of memory allows."""
        parameters = sum(p.numel() for p in self.runner.template.module.parameters())
        model = parameters * self.runner.world.dtype.itemsize
        return int(max(1, min(LARGEST_BLOCK, BUDGET // (COPIES * max(model, 1)))))

    def run(
        self, visits: Mapping[int, Sequence[Visit]], done: Done
    ) -> dict[int, list[Reply]]:
        """Make every client's visits, in order; equal visits of many clients run together."""
        replies: dict[int, list[Reply]] = {k: [] for k in sorted(visits)}
        longest = max((len(bundle) for bundle in visits.values()), default=0)
        for i in range(longest):
            alike: dict[tuple[Any, ...], dict[int, Visit]] = {}
            for k, bundle in visits.items():
                if i < len(bundle):
                    visit = bundle[i]
                    alike.setdefault((visit.function, visit.t, visit.call), {})[k] = (
                        visit
                    )
            for same in alike.values():
                for k, reply in self._run_alike(same).items():
                    replies[k].append(reply)
                    if len(replies[k]) == len(visits[k]):
                        done(k, replies[k])
        return replies

    def notices(self) -> list[str]:
        """Functions that had to run one client at a time."""
        notices = self._notices
        self._notices = []
        return notices

    # ---------------------------------------------------------------- blocks
    def _run_alike(self, visits: Mapping[int, Visit]) -> dict[int, Reply]:
        """Visits that differ only in the client and what it is sent."""
        function = next(iter(visits.values())).function
        mapped = self._vectorizable(function)
        if mapped is None:
            return {k: attempt(self.runner, k, visits[k]) for k in sorted(visits)}
        replies: dict[int, Reply] = {}
        for alike in self._group_by_memory(visits):
            for clients in self._plan(alike):
                replies |= self._run_block(mapped, {k: visits[k] for k in clients})
        return replies

    def _group_by_memory(
        self, visits: Mapping[int, Visit]
    ) -> list[Mapping[int, Visit]]:
        """Clients whose optimisers remember something apart from those that train first."""
        if not self.runner.world.plan.keeps_state:
            return [visits]
        groups: dict[tuple[str, ...], dict[int, Visit]] = {}
        for k, visit in visits.items():
            memory = self.runner.load(k).memories.get(kept_state.NAME, {})
            groups.setdefault(tuple(sorted(memory)), {})[k] = visit
        return list(groups.values())

    def _plan(self, visits: Mapping[int, Visit]) -> list[list[int]]:
        """Clients in blocks of similar size, the largest first."""
        plan = self.runner.world.plan
        order = sorted(visits, key=lambda k: (-self.runner.count(k), k))
        steps = tuple(int(plan.steps(self.runner.count(k), plan.batch)) for k in order)
        blocks: list[list[int]] = []
        start = 0
        for size in plan_blocks(steps, self.block_size):
            blocks.append(order[start : start + size])
            start += size
        return blocks

    def _vectorizable(self, function: str | Look) -> ClientFunction | None:
        """The function to map over clients, or None if it must run one client at a time."""
        if function in self._one_by_one:
            return None
        if function is Look.SCORE:
            return self._score
        if isinstance(function, Look):
            return None
        method_function = getattr(self.runner.method, function)
        if getattr(method_function, "one_by_one", False):
            self._give_up(function, "it is marked one_by_one")
            return None

        def call(
            c: Client, test: Examples, down: Tree, keep: Tree, memory: Params
        ) -> Tree:
            if self.runner.world.plan.keeps_state:
                c.kept_states = KeptStates(function, memory)
            up, keep = method_function(c, down, keep)
            kept = c.kept_states.memory if c.kept_states else {}
            return up, keep, c.training_losses(), kept

        return call

    def _give_up(self, function: str | Look, why: str) -> None:
        if function in self._one_by_one:  # another block of the same call failed before
            return
        name = function.value if isinstance(function, Look) else function
        self._one_by_one[function] = why
        self._notices.append(f"vmap: '{name}' runs one client at a time, because {why}")

    def _run_block(
        self, mapped: ClientFunction, visits: Mapping[int, Visit]
    ) -> dict[int, Reply]:
        """Run one block; if that fails, one client at a time from now on."""
        clients = list(visits)
        first = visits[clients[0]]
        if first.is_look:
            path: tuple[int, ...] = (Purpose.EVALUATE, first.t)
        else:
            path = (Purpose.CALL, first.t, first.call)
        try:
            downs, states = self._load_block(visits)
            inputs = stack([downs[k] for k in clients])
            keeps = stack([states[k].keep for k in clients])
            trees = [inputs, keeps]
            if not first.is_look:
                trees.append(stack([_memory_of(states[k]) for k in clients]))
            result = self._map(mapped, clients, first.t, path, *trees)
        except Exception as error:
            self._give_up(first.function, describe_error(error))
        if first.function in self._one_by_one:
            return {k: attempt(self.runner, k, visits[k]) for k in clients}
        results = dict(zip(clients, unstack(result, len(clients)), strict=True))
        if first.is_look:
            return {
                k: Reply(self.runner.count(k), score) for k, score in results.items()
            }
        afters: dict[int, Score | None] = dict.fromkeys(clients)
        if first.after:
            afters = self._score_after(clients, first.t, inputs, result)
        all_finite = finite(result)
        replies = {}
        for k, (up, keep, losses, memory) in results.items():
            state = _remember(states[k], memory)
            reply = self._try_to_finish(k, visits[k], state, up, keep, all_finite)
            replies[k] = reply._replace(report=Report(losses, afters[k]))
        return replies

    def _score_after(
        self, clients: Sequence[int], t: int, downs: Tree, result: Tree
    ) -> dict[int, Score | None]:
        """Scores right after training; on its own, so that training runs as without it."""
        ups, keeps, _, _ = result
        trees = unstack((downs, ups, keeps), len(clients))
        one_by_one = dict(zip(clients, trees, strict=True))
        if AFTER in self._one_by_one:
            return self._score_after_one_by_one(t, one_by_one)
        try:
            path = (Purpose.EVALUATE, t)
            found = self._map(self._after, clients, t, path, downs, ups, keeps)
            return dict(zip(clients, unstack(found, len(clients)), strict=True))
        except Exception as error:
            self._give_up(AFTER, describe_error(error))
            return self._score_after_one_by_one(t, one_by_one)

    def _score_after_one_by_one(
        self, t: int, trees: Mapping[int, Tree]
    ) -> dict[int, Score | None]:
        scores: dict[int, Score | None] = {}
        for k, (down, up, keep) in trees.items():
            scores[k] = self.runner.score_after(k, t, down, up, keep)
        return scores

    def _after(
        self, c: Client, test: Examples, down: Tree, up: Tree, keep: Tree
    ) -> Score:
        method = self.runner.method
        w = method.after_training(c, down, up, keep)
        return score(method, c, w, test)

    def _try_to_finish(
        self, k: int, visit: Visit, state: State, up: Tree, keep: Tree, is_finite: bool
    ) -> Reply:
        """``_finish``, in which a filter that fails is the failure of one client."""
        try:
            return self._finish(k, visit, state, up, keep, is_finite)
        except NoRoom:
            raise
        except Exception as error:
            return describe_failure(error, self.runner.method, visit.function)

    def _finish(
        self, k: int, visit: Visit, state: State, up: Tree, keep: Tree, is_finite: bool
    ) -> Reply:
        """Save what a client keeps, and pass on what it sends."""
        if not is_finite and not (finite(up) and finite(keep)):
            return Reply(0, None, "Refused: its result holds NaN or infinity")
        return self.runner.finish_visit(k, visit, State(keep, state.memories), up)

    def _load_block(
        self, visits: Mapping[int, Visit]
    ) -> tuple[dict[int, Tree], dict[int, State]]:
        """What the clients receive, and their states; clients without one get a first state."""
        runner = self.runner
        downs: dict[int, Tree] = {}
        states: dict[int, State] = {}
        for k, visit in visits.items():
            states[k] = runner.load(k)
            downs[k] = runner.filters.client_receives(visit.down, states[k].memories)
        new = [k for k, state in states.items() if state.is_new]
        visit = next(iter(visits.values()))
        is_given = visit.function == Method.receive.__name__
        has_first_keep = (
            is_given or type(runner.method).first_keep is not Method.first_keep
        )
        if not new or not has_first_keep:
            return downs, states

        def first_keep(c: Client, test: Examples, down: Tree) -> Tree:
            if is_given:
                return runner.method.keep_given(c, down)
            return runner.method.first_keep(c, down)

        inputs = stack([downs[k] for k in new])
        keeps = self._map(first_keep, new, visit.t, (Purpose.JOIN,), inputs)
        for k, keep in zip(new, unstack(keeps, len(new)), strict=True):
            states[k] = State(keep, states[k].memories)
        return downs, states

    def _map(
        self,
        function: ClientFunction,
        clients: Sequence[int],
        t: int,
        path: tuple[int, ...],
        *trees: Tree,
    ) -> Tree:
        """vmap a function over clients; tensors have a client axis, plain values none."""
        runner = self.runner
        block = self._block(tuple(clients))
        keys = runner.rng(*path).split(clients)
        tensors, rest = partition(list(trees))
        structure: list[Tree] = []  # of the result: vmap itself passes only tensors out

        def one(
            rows: tuple[Tensor, ...],
            n: tuple[Tensor, ...],
            key: Tensor,
            given: list[Tensor],
        ) -> tuple[Tensor, list[Tensor]]:
            # channels-last images are no option: vmap adds an axis that they know nothing of
            layout = torch.contiguous_format
            has_one_size = block.fewest == block.most
            data = runner.examples(
                rows[0], block.most if has_one_size else n[0], layout
            )
            val = runner.examples(rows[1], n[1], layout)
            test = runner.examples(rows[2], n[2], layout)
            client = runner.make_client(
                path[0],
                data,
                val,
                Rng(key, runner.device),
                t,
                vmapped=True,
                fewest=None if has_one_size else block.fewest,
            )
            result = function(client, test, *combine(given, rest))
            found, plain = partition(result)
            structure.append(plain)
            return n[0], found

        _, found = torch.func.vmap(one)(block.rows, block.n, keys, tensors)
        return combine(found, structure[0])

    def _block(self, clients: tuple[int, ...]) -> _Block:
        """The samples of a block; the last blocks are remembered, since they often come again."""
        if clients in self._blocks:
            return self._blocks[clients]
        indices = [self.runner.indices(k) for k in clients]
        padded = [_pad(list(part)) for part in zip(*indices, strict=True)]
        fewest, most = torch.aminmax(padded[0][1])
        device = self.runner.device
        block = _Block(
            tuple(rows.to(device) for rows, _ in padded),
            tuple(n.to(device) for _, n in padded),
            int(fewest),
            int(most),
        )
        while len(self._blocks) >= REMEMBERED_BLOCKS:
            del self._blocks[next(iter(self._blocks))]
        self._blocks[clients] = block
        return block

    def _score(self, c: Client, test: Examples, down: Tree, keep: Tree) -> Score:
        w = self.runner.method.personal(c, down, keep)
        return score(self.runner.method, c, w, test, diagnostics=True)


def _memory_of(state: State) -> Params:
    """What a client's optimisers remember."""
    return state.memories.get(kept_state.NAME, {})


def _remember(state: State, memory: Params) -> State:
    """The state with what the client's optimisers remember now."""
    if not memory:
        return state
    return state._replace(memories={**state.memories, kept_state.NAME: memory})


def _pad(indices: list[Tensor]) -> tuple[Tensor, Tensor]:
    """Index vectors of one length, and how many entries of each are not padding."""
    lengths = [len(index) for index in indices]
    rows = pad_sequence(indices, batch_first=True, padding_value=-1)
    first = rows[:, :1].clamp(min=0)
    is_padding = rows < 0
    padded = torch.where(is_padding, first, rows)
    return padded, torch.tensor(lengths)
