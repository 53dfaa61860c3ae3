"""CD2-pFed a second time, in bare PyTorch from the paper alone, and equal to the engine's.

Shen et al., CD2-pFed, CVPR 2022, Algorithm 1 and Eq. (1)-(7). Private and shared channels are told
apart by masks: a side of the network is the whole network with the other side's activations set to
0. Taken from the run: data, first values and the order of batches.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.methods.cd2pfed import CD2pFed
from fedtailor.models.backbone import Backbone
from fedtailor.testing.small_world import SmallRun, digits, run_small
from fedtailor.training.optim import Plan
from helpers import deal_batches

ROUNDS = 3
EPOCHS = 2
BATCH = 10
RATE = 0.05
MOMENTUM = 0.9
DECAY = 5e-4
P = 0.5  # largest share of private channels
LAMBDA = 1.0
BETA = 0.5
RISE = 0.7  # share of the rounds in which beta_t rises

CHANNELS = 4
HIDDEN = 6
PIXELS = 16  # of a channel after pooling

Values = dict[str, Tensor]


# ---------------------------------------------------------------- from the paper
def private_channels(width: int, t: int) -> Tensor:
    """Which channels of a layer are private in round t: the last p_t = p t / T, Eq. (3)."""
    share = P * t / ROUNDS
    count = min(width - 1, math.ceil(share * width))
    return torch.arange(width) >= width - count


def private_entries(t: int) -> Values:
    """Which entries of every parameter belong to private channels.

    A channel owns its row of weights and its bias. Classes are no channels: the last layer is cut
    by its inputs, and its bias is shared.
    """
    conv = private_channels(CHANNELS, t)
    hidden = private_channels(HIDDEN, t)
    return {
        "base.conv.weight": conv[:, None, None, None].expand(CHANNELS, 1, 3, 3),
        "base.conv.bias": conv,
        "base.fc.weight": hidden[:, None].expand(HIDDEN, CHANNELS * PIXELS),
        "base.fc.bias": hidden,
        "head.weight": hidden.expand(10, HIDDEN),
        "head.bias": torch.zeros(10, dtype=torch.bool),
    }


def forward(w: Values, x: Tensor, conv: Tensor, hidden: Tensor) -> Tensor:
    """The network in which only some channels are alive."""
    h = F.conv2d(x, w["base.conv.weight"], w["base.conv.bias"], padding=1)
    h = h * conv[:, None, None]
    h = F.max_pool2d(F.relu(h), 2).flatten(1)
    h = F.linear(h, w["base.fc.weight"], w["base.fc.bias"])
    h = F.relu(h * hidden)
    return F.linear(h, w["head.weight"], w["head.bias"])


def objective(w: Values, x: Tensor, y: Tensor, t: int) -> Tensor:
    """Eq. (5): cross entropy of the whole network, and Eq. (4), in which both sides learn."""
    conv = private_channels(CHANNELS, t)
    hidden = private_channels(HIDDEN, t)
    everything = forward(w, x, torch.ones(CHANNELS), torch.ones(HIDDEN))
    local = forward(w, x, conv, hidden).log_softmax(-1)
    shared = forward(w, x, ~conv, ~hidden).log_softmax(-1)
    there = F.kl_div(shared, local, log_target=True, reduction="batchmean")
    back = F.kl_div(local, shared, log_target=True, reduction="batchmean")
    return F.cross_entropy(everything, y) + LAMBDA * (there + back) / 2


def smoothing(t: int) -> float:
    """beta_t, Eq. (7)."""
    t0 = RISE * ROUNDS
    if t > t0:
        return BETA
    return BETA * math.exp(-5 * (1 - t / t0) ** 2)


def client_update(w: Values, x: Tensor, y: Tensor, k: int, t: int) -> Values:
    """Local epochs; after each, private channels are averaged with those before it, Eq. (6)."""
    leaves = {name: value.clone().requires_grad_() for name, value in w.items()}
    sgd = torch.optim.SGD(
        leaves.values(),
        lr=RATE,
        momentum=MOMENTUM,
        weight_decay=DECAY,
        nesterov=True,
    )
    is_private = private_entries(t)
    beta = smoothing(t)
    for epoch in deal_batches(t, 1, k, len(y), BATCH, EPOCHS):
        before = {name: leaf.detach().clone() for name, leaf in leaves.items()}
        for index in epoch:
            sgd.zero_grad()
            objective(leaves, x[index], y[index], t).backward()
            sgd.step()
        with torch.no_grad():
            for name, leaf in leaves.items():
                mixed = beta * leaf + (1 - beta) * before[name]
                leaf.copy_(torch.where(is_private[name], mixed, leaf))
    return {name: leaf.detach() for name, leaf in leaves.items()}


def play(
    first: Values, data: list[tuple[Tensor, Tensor]]
) -> tuple[Values, list[Values]]:
    """Algorithm 1: the last global values, and every client's model after the last round."""
    common = dict(first)
    models = [dict(first) for _ in data]
    sizes = [len(y) for _, y in data]
    for t in range(1, ROUNDS + 1):
        was_private = private_entries(t - 1)
        is_private = private_entries(t)
        trained = []
        for k, (x, y) in enumerate(data):
            # channels that turn private now start from the last global values
            start = {
                name: torch.where(was_private[name], models[k][name], common[name])
                for name in common
            }
            trained.append(client_update(start, x, y, k, t))
        for name, value in common.items():
            mean = sum(n * w[name] for n, w in zip(sizes, trained, strict=True))
            mean = mean / sum(sizes)
            common[name] = torch.where(is_private[name], value, mean)
        models = [
            {
                name: torch.where(is_private[name], w[name], common[name])
                for name in common
            }
            for w in trained
        ]
    return common, models


# ---------------------------------------------------------------- the engine's
def run_engine() -> SmallRun:
    layers: dict[str, nn.Module] = {
        "conv": nn.Conv2d(1, CHANNELS, 3, padding=1),
        "relu": nn.ReLU(),
        "pool": nn.MaxPool2d(2),
        "flatten": nn.Flatten(),
        "fc": nn.Linear(CHANNELS * PIXELS, HIDDEN),
        "relu2": nn.ReLU(),
    }
    base = nn.Sequential(OrderedDict(layers))
    return run_small(
        CD2pFed(p=P, lam=LAMBDA, beta=BETA, t0=RISE),
        rounds=ROUNDS,
        federation=digits(),
        backbone=Backbone(base, nn.Linear(HIDDEN, 10), features=HIDDEN),
        plan=Plan(
            lr=RATE,
            batch=BATCH,
            epochs=EPOCHS,
            momentum=MOMENTUM,
            nesterov=True,
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


def test_three_rounds_are_those_of_the_paper() -> None:
    run = run_engine()
    federation = run.runner.world.federation
    data = [(federation.x[i].double(), federation.y[i]) for i in federation.train]
    first = run.runner.new(0)
    common, models = play(first, data)
    assert_close(run.method.shared(run.server), common)
    for k, model in enumerate(models):
        c, down, keep = run.next_visit(k)
        assert_close(run.method.personal(c, down, keep), model)
    moved = common["head.weight"] - first["head.weight"]
    assert float(moved.abs().max()) > 0.05
    # models have parted where channels are private, and only there
    is_private = private_entries(ROUNDS)["base.fc.weight"]
    apart = models[0]["base.fc.weight"] != models[1]["base.fc.weight"]
    assert torch.equal(apart.any(1), is_private.any(1))
    counts = [int(private_channels(HIDDEN, t).sum()) for t in range(ROUNDS + 1)]
    assert counts == [0, 1, 2, 3]


def assert_close(ours: Values, theirs: Values) -> None:
    assert ours.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-9)
