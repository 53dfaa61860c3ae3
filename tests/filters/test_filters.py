"""Filters: what every message passes, in a chain, with memory, in every executor."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.tree import Params, Tree, add, fill, leaves, subtract, tmap
from fedtailor.filters import Call, Filter
from fedtailor.filters.tap import Tap
from fedtailor.method import Uploads
from fedtailor.methods.ditto import Ditto
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedclust import FedClust
from fedtailor.methods.fedper import FedPer
from fedtailor.testing.small_world import SmallRun, run_small
from helpers import differences, gap, overhear

EXECUTORS = ["sequential", "processes", "vmap"]
DOUBLE: dict[str, Any] = {"dtype": torch.float64}


# ---------------------------------------------------------------- filters to try
class Grid(Filter):
    """Sends numbers on a coarse grid; what rounding took away is added to the next upload."""

    name = "grid"

    def client_sends(
        self, up: Tree, down: Tree, memory: Params, rng: Rng
    ) -> tuple[Tree, Params]:
        rest = {name: memory.get(name, torch.zeros_like(x)) for name, x in up.w.items()}
        wanted = add(up.w, rest)
        sent = tmap(lambda x: (256 * x).round() / 256, wanted)
        return up._replace(w=sent), subtract(wanted, sent)


class Count(Filter):
    """Counts a client's visits."""

    name = "count"

    def client_sends(
        self, up: Tree, down: Tree, memory: Params, rng: Rng
    ) -> tuple[Tree, Params]:
        visits = memory.get("visits", torch.zeros(()))
        return up, {"visits": visits + 1}


class Noise(Filter):
    """Adds noise to every upload."""

    def client_sends(
        self, up: Tree, down: Tree, memory: Params, rng: Rng
    ) -> tuple[Tree, Params]:
        noisy = [
            x + 0.01 * rng.fold(i).normal(*x.shape) for i, x in enumerate(leaves(up.w))
        ]
        return up._replace(w=fill(up.w, noisy)), memory


class Cipher(Filter):
    """Adds a number to what is sent down, which the client takes away again."""

    def server_sends(self, call: Call, downs: dict[int, Tree]) -> dict[int, Tree]:
        return tmap(lambda x: x + 1, downs)

    def client_receives(self, down: Tree, memory: Params) -> Tree:
        return tmap(lambda x: x - 1, down)


def take_median(trees: Sequence[Tree], weights: Tensor) -> Tree:
    """The median of every number."""
    columns = zip(*map(leaves, trees), strict=True)
    return fill(trees[0], [torch.stack(column).median(0).values for column in columns])


class Median(Filter):
    """Merges by the median instead of the mean."""

    def server_receives(self, call: Call, ups: Uploads[Any]) -> Uploads[Any]:
        return ups.with_reduction(take_median)


@dataclass
class Mark(Filter):
    """Writes down the order in which the hooks of a chain run."""

    mark: str
    seen: list[str]

    def server_sends(self, call: Call, downs: dict[int, Tree]) -> dict[int, Tree]:
        self.seen.append(f"{self.mark}: server sends")
        return downs

    def client_receives(self, down: Tree, memory: Params) -> Tree:
        self.seen.append(f"{self.mark}: client receives")
        return down

    def client_sends(
        self, up: Tree, down: Tree, memory: Params, rng: Rng
    ) -> tuple[Tree, Params]:
        self.seen.append(f"{self.mark}: client sends")
        return up, memory

    def server_receives(self, call: Call, ups: Uploads[Any]) -> Uploads[Any]:
        self.seen.append(f"{self.mark}: server receives")
        return ups


@dataclass
class Record(Filter):
    """Remembers what clients give to the filters before it."""

    uploads: list[Params]

    def client_sends(
        self, up: Tree, down: Tree, memory: Params, rng: Rng
    ) -> tuple[Tree, Params]:
        self.uploads.append(up.w)
        return up, memory


class Unplugged(Filter):
    """Fails at one client."""

    def client_sends(
        self, up: Tree, down: Tree, memory: Params, rng: Rng
    ) -> tuple[Tree, Params]:
        of_client_1 = Rng.seed(0, Purpose.FILTER, 1, 1, 1).fold(0)
        if rng == of_client_1:
            raise RuntimeError("no entropy")
        return up, memory


def assert_same(run: SmallRun, reference: SmallRun, executor: str) -> None:
    """Bit for bit, or up to rounding under vmap."""
    if executor != "vmap":
        assert run.hash == reference.hash
    assert gap(run.server, reference.server) < 1e-9
    for k in range(6):
        assert gap(run.runner.load(k), reference.runner.load(k)) < 1e-9


# ---------------------------------------------------------------- chains
def test_down_in_order_and_up_in_reverse_order():
    seen: list[str] = []
    one_client = {"rounds": 1, "share": 1 / 6}
    run_small(FedAvg(), filters=[Mark("a", seen), Mark("b", seen)], **one_client)
    assert seen == [
        "a: server sends",
        "b: server sends",
        "a: client receives",
        "b: client receives",
        "b: client sends",
        "a: client sends",
        "b: server receives",
        "a: server receives",
    ]


def test_two_filters_of_one_name_are_refused():
    with pytest.raises(AssertionError, match="a filter's name is taken"):
        run_small(FedAvg(), filters=[Count(), Count()])


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", [FedAvg(), Ditto()])
def test_two_filters_with_memory(method, executor):
    options = {"filters": [Grid(), Count()], "norm": "batch", **DOUBLE}
    reference = run_small(method, **options)
    run = run_small(method, **options, executor=executor)
    assert_same(run, reference, executor)
    for k in range(6):
        state = run.runner.load(k)
        assert state.memories["count"]["visits"] == 3
        assert state.memories["grid"].keys() == run.server.w.keys()
        largest = max(float(x.abs().max()) for x in state.memories["grid"].values())
        assert 0 < largest <= 0.5 / 256


def test_a_memory_is_used_in_the_next_round():
    """What is sent in two rounds, and what is left over, is what was to be sent."""
    tap = Tap()
    record = Record([])
    run = run_small(FedAvg(), rounds=2, filters=[Grid(), record, tap], **DOUBLE)
    for k in range(6):
        wanted = add(record.uploads[k], record.uploads[6 + k])
        sent = add(tap.traffic[0].up[k].w, tap.traffic[1].up[k].w)
        left = run.runner.load(k).memories["grid"]
        assert gap(add(sent, left), wanted) < 1e-12
        assert gap(sent, tmap(lambda x: (256 * x).round() / 256, sent)) == 0


@pytest.mark.parametrize("method", [FedAvg(), Ditto()])
def test_memories_are_saved_with_the_private_state(method):
    options = {"filters": [Grid(), Count()], "rounds": 4}
    whole = run_small(method, **options)
    half = run_small(method, **options, until=2)
    rest = run_small(method, **options, since=half.save())
    assert rest.hash == whole.hash


def test_a_memory_does_not_take_the_place_of_a_first_private_state():
    """A client that has a memory, but was never given a private state, gets one."""
    run = run_small(FedPer(), filters=[Count()])
    assert differences(run.keep(0), run_small(FedPer()).keep(0)) == []
    # with the one that gave the state
    assert run.runner.load(0).memories["count"]["visits"] == 4


# ---------------------------------------------------------------- on the client
@pytest.mark.parametrize("executor", EXECUTORS)
def test_noise_is_the_same_in_every_executor(executor):
    options = {"filters": [Noise()], **DOUBLE}
    reference = run_small(FedAvg(), **options)
    assert_same(run_small(FedAvg(), **options, executor=executor), reference, executor)
    assert gap(reference.server, run_small(FedAvg(), **DOUBLE).server) > 1e-3


def noise_in_first_round(filters: list[Filter]) -> dict[int, Params]:
    """What the filters add to the upload of every client."""
    _, plain = overhear(FedAvg(), rounds=1, **DOUBLE)
    tap = Tap()
    run_small(FedAvg(), filters=[*filters, tap], rounds=1, **DOUBLE)
    noisy = tap.traffic[0].up
    return {k: subtract(noisy[k].w, plain[0].up[k].w) for k in noisy}


def test_noise_differs_between_clients_and_filters():
    once = noise_in_first_round([Noise()])
    assert len({float(noise["head.bias"][0]) for noise in once.values()}) == 6
    twice = noise_in_first_round([Noise(), Noise()])
    second = subtract(twice[0], once[0])
    assert gap(second, once[0]) > 1e-3


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", [FedAvg(finetune=1), Ditto()])
def test_what_is_sent_down_passes_the_filters_also_for_an_evaluation(method, executor):
    options = {"rounds": 2, **DOUBLE}
    plain = run_small(method, **options)
    run = run_small(method, filters=[Cipher()], **options, executor=executor)
    assert gap(run.server, plain.server) < 1e-9
    scores = run.scores()
    run.executor.close()
    for k, score in plain.scores().items():
        assert torch.equal(scores[k].test.correct, score.test.correct)
        assert torch.allclose(scores[k].test.loss, score.test.loss, atol=1e-9)


@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_client_whose_filter_fails_is_left_out_by_name(executor):
    run = run_small(FedAvg(), rounds=1, filters=[Unplugged()], executor=executor)
    assert run.exchange.traffic.lost == {1: "RuntimeError: no entropy"}


# ---------------------------------------------------------------- on the server
@pytest.mark.parametrize("executor", EXECUTORS)
def test_a_median_replaces_the_mean(executor):
    tap = Tap()
    options = {"rounds": 1, "norm": "batch", **DOUBLE}
    run = run_small(FedAvg(), filters=[Median(), tap], **options, executor=executor)
    uploads = [up.w for up in tap.traffic[0].up.values()]
    for name, value in run.server.w.items():
        expected = torch.stack([w[name] for w in uploads]).median(0).values
        assert torch.equal(value, expected)
    assert gap(run.server, run_small(FedAvg(), **options).server) > 1e-3


@pytest.mark.parametrize("executor", EXECUTORS)
@pytest.mark.parametrize("method", [Ditto(), FedPer(), FedClust()])
def test_other_methods_merge_by_the_median_too(method, executor):
    options = {"filters": [Median()], **DOUBLE}
    reference = run_small(method, **options)
    run = run_small(method, **options, executor=executor)
    assert_same(run, reference, executor)
    assert reference.hash != run_small(method, **DOUBLE).hash
