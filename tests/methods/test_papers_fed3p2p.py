"""Fed3+2p a second time, in bare PyTorch from the paper alone, and equal to the engine's.

Fed3+2p (ICLR 2025 submission), Section 4, Eq. (4)-(13). Groups are found by trying all of them.
Taken from the run: data, first values (of the network, and of filters and P-Heads in phase 2), the
order of batches and of clients in a chain.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.rng import Purpose, Rng
from fedtailor.filters.tap import Traffic
from fedtailor.methods.fed3p2p import Fed3p2p
from fedtailor.models.backbone import Backbone
from fedtailor.testing.small_world import SmallRun, digits
from fedtailor.training.optim import Plan
from helpers import deal_batches, overhear

PHASE_1 = 2  # rounds
PHASE_2 = 2
EPOCHS = 2
BATCH = 10
RATE = 0.05
FADING = 0.9  # factor on the learning rate per round
MOMENTUM = 0.9
DECAY = 1e-3
GROUPS = 3  # of either kind, two clients each on average

Values = list[Tensor]  # weights and biases of extractor, filter and head
Data = list[tuple[Tensor, Tensor]]
Groups = list[list[int]]


# ---------------------------------------------------------------- groups
def all_groups(clients: int, groups: int) -> Iterator[Groups]:
    """All ways to put clients into groups, none of which is empty; some ways more than once."""
    for labels in itertools.product(range(groups), repeat=clients):
        found = [[k for k in range(clients) if labels[k] == g] for g in range(groups)]
        if all(found):
            yield found


def choose(
    cost: Callable[[Groups], float], clients: int, largest: int
) -> set[frozenset[int]]:
    """The groups with the least cost; no others may be as good."""
    costs = {}
    for groups in all_groups(clients, GROUPS):
        if max(map(len, groups)) <= largest:
            costs[frozenset(map(frozenset, groups))] = cost(groups)
    first, second = sorted(costs.values())[:2]
    assert second > first + 1e-6
    best = min(costs, key=lambda way: costs[way])
    return set(best)


def kl(p: Tensor, q: Tensor) -> float:
    inside = p > 0
    return float((p[inside] * (p[inside] / q[inside]).log()).sum())


def js(p: Tensor, q: Tensor) -> float:
    middle = (p + q) / 2
    return (kl(p, middle) + kl(q, middle)) / 2


def type_a_groups(data: Data) -> set[frozenset[int]]:
    """Eq. (5): labels of every group, taken together, like those of all; equal sizes."""
    counts = [torch.bincount(y, minlength=10).double() for _, y in data]
    everybody = sum(counts) / sum(counts).sum()  # type: ignore[union-attr]

    def cost(groups: Groups) -> float:
        total = 0.0
        for group in groups:
            joint = torch.stack([counts[k] for k in group]).sum(0)
            total += kl(joint / joint.sum(), everybody)
        return total

    return choose(cost, len(data), largest=len(data) // GROUPS)


def type_b_groups(data: Data) -> set[frozenset[int]]:
    """Eq. (10): clients of a group have similar labels."""
    shares = [torch.bincount(y, minlength=10) / len(y) for _, y in data]

    def cost(groups: Groups) -> float:
        total = 0.0
        for group in groups:
            for i, j in itertools.product(group, group):
                total += js(shares[i], shares[j])
        return total

    return choose(cost, len(data), largest=len(data))


# ---------------------------------------------------------------- training
def extract(w: Values, x: Tensor) -> Tensor:
    return F.relu(F.linear(x.flatten(1), w[0], w[1]))


def train(
    w: Values, trained: list[int], x: Tensor, y: Tensor, rate: float, epochs: Any
) -> Values:
    """Stochastic gradient descent on some of the parameters, Eq. (9), (12) and (13)."""
    new = [value.clone() for value in w]
    leaves = [new[i].requires_grad_() for i in trained]
    sgd = torch.optim.SGD(leaves, lr=rate, momentum=MOMENTUM, weight_decay=DECAY)
    for index in itertools.chain.from_iterable(epochs):
        filtered = F.relu(F.linear(extract(new, x[index]), new[2], new[3]))
        loss = F.cross_entropy(F.linear(filtered, new[4], new[5]), y[index])
        sgd.zero_grad()
        loss.backward()
        sgd.step()
    return [value.detach() for value in new]


def mean_by_data(models: list[Values], sizes: list[int]) -> Values:
    total = sum(sizes)
    return [
        sum(n / total * value for n, value in zip(sizes, values, strict=True))  # type: ignore[misc]
        for values in zip(*models, strict=True)
    ]


def shuffle(group: list[int], t: int) -> list[int]:
    """A chain's order, from the run's randomness."""
    rng = Rng.seed(0, Purpose.SERVER, t).fold(min(group))
    return [group[i] for i in rng.permutation(len(group)).tolist()]


def play_phase_1(w: Values, data: Data, groups: set[frozenset[int]]) -> Values:
    """Section 4.1: a model goes along the clients of a group; the ends are averaged."""
    everything = list(range(6))
    for t in range(1, PHASE_1 + 1):
        rate = RATE * FADING ** (t - 1)
        ends = []
        sizes = []
        for group in groups:
            model = w  # Eq. (6)
            for place, k in enumerate(shuffle(sorted(group), t)):
                x, y = data[k]
                epochs = deal_batches(t, place + 1, k, len(y), BATCH, EPOCHS)
                model = train(model, everything, x, y, rate, epochs)  # Eq. (7), (9)
            ends.append(model)
            sizes.append(sum(len(data[k][1]) for k in group))
        w = mean_by_data(ends, sizes)  # Eq. (4) and (8)
    return w


def play_phase_2(
    w: Values,
    data: Data,
    groups: set[frozenset[int]],
    filters: list[Values],
    heads: list[Values],
) -> list[Values]:
    """Section 4.2: filters are averaged in groups, heads stay; the rest is frozen.

    Gives every client's model.
    """
    models = [[*w[:2], *filters[k], *heads[k]] for k in range(len(data))]
    for t in range(PHASE_1 + 1, PHASE_1 + PHASE_2 + 1):
        rate = RATE * FADING ** (t - 1 - PHASE_1)  # begins anew
        for k, (x, y) in enumerate(data):
            epochs = deal_batches(t, 1, k, len(y), BATCH, EPOCHS)
            models[k] = train(models[k], [2, 3, 4, 5], x, y, rate, epochs)
        for group in groups:
            sizes = [len(data[k][1]) for k in group]
            mean = mean_by_data([models[k][2:4] for k in group], sizes)  # Eq. (11)
            for k in group:
                models[k][2:4] = mean
    return models


# ---------------------------------------------------------------- the engine's
def run_engine() -> tuple[SmallRun, list[Traffic]]:
    base = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 8), nn.ReLU(), nn.Linear(8, 6), nn.ReLU()
    )
    return overhear(
        Fed3p2p(phase1=PHASE_1),
        rounds=PHASE_1 + PHASE_2,
        federation=digits(),
        backbone=Backbone(base, nn.Linear(6, 10), features=6),
        plan=Plan(
            lr=RATE,
            lr_decay=FADING,
            batch=BATCH,
            epochs=EPOCHS,
            momentum=MOMENTUM,
            weight_decay=DECAY,
        ),
        dtype=torch.float64,
    )


@pytest.fixture(autouse=True)
def in_float64() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def test_both_phases_are_those_of_the_paper() -> None:
    run, heard = run_engine()
    federation = run.runner.world.federation
    data = [(federation.x[i].double(), federation.y[i]) for i in federation.train]
    assert set(map(frozenset, run.server.roster.a)) == type_a_groups(data)
    type_b = type_b_groups(data)
    assert set(map(frozenset, run.server.roster.b)) == type_b

    first = list(run.runner.new(0).values())
    w = play_phase_1(first, data, type_a_groups(data))
    assert_close(list(run.server.w.values()), w)  # the global model
    assert float((w[0] - first[0]).abs().max()) > 0.05

    begun = next(call for call in heard if call.t == PHASE_1 + 1)
    filters = []
    heads = []
    for k in range(len(data)):
        received = begun.down[k].w
        filters.append([received["filter.weight"], received["filter.bias"]])
        newcomer = run.runner.client(k, 0, Purpose.JOIN)
        heads.append(list(newcomer.fresh("head").values()))
    for group in type_b:  # one filter a group, drawn anew
        for k in group:
            assert torch.equal(filters[k][0], filters[min(group)][0])
            assert not torch.equal(filters[k][0], w[2])
    models = play_phase_2(w, data, type_b, filters, heads)
    for k, model in enumerate(models):
        c, down, keep = run.next_visit(k)
        assert_close(list(run.method.personal(c, down, keep).values()), model)


def assert_close(ours: Values, theirs: Values) -> None:
    for mine, yours in zip(ours, theirs, strict=True):
        torch.testing.assert_close(mine, yours, rtol=0, atol=1e-9)
