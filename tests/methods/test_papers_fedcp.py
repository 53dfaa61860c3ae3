"""FedCP a second time, in bare PyTorch from the paper alone, and equal to the engine's.

Zhang et al., FedCP, KDD 2023, Algorithm 1 and Eq. (1)-(9), with the squared discrepancy of two
batches for Eq. (7) (Gretton et al., JMLR 2012, the biased estimate, over all pairs of samples).
Taken from the run: data, first values, who takes part and the order of batches.
"""

from __future__ import annotations

import copy
import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.tree import Params
from fedtailor.filters.tap import Tap
from fedtailor.methods.fedcp import FedCP
from fedtailor.models.backbone import Backbone
from fedtailor.testing.small_world import SmallRun, digits, run_small
from fedtailor.training.optim import Plan
from helpers import deal_batches

CLASSES = 10
WIDTH = 12
ROUNDS = 3
EPOCHS = 2
BATCH = 10
RATE = 0.1
LAMBDA = 2.0
SIZES = (30, 17, 24, 9, 12, 40)


# ---------------------------------------------------------------- from the paper
def mean_kernel(one: Tensor, other: Tensor) -> Tensor:
    """The mean over all pairs of a sum of Gaussians."""
    square = (one[:, None] - other[None]).square().sum(-1)
    gaussians = [torch.exp(-square / (2 * s)) for s in (10, 15, 20, 50)]
    return torch.stack(gaussians).sum(0).mean()


def discrepancy(a: Tensor, b: Tensor) -> Tensor:
    """The squared maximum mean discrepancy of two batches."""
    return mean_kernel(a, a) + mean_kernel(b, b) - 2 * mean_kernel(a, b)


class Policy(nn.Module):
    """CPN: a fully connected layer, layer normalisation, ReLU."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, 2 * WIDTH)
        self.norm = nn.LayerNorm(2 * WIDTH)

    def forward(self, context: Tensor) -> tuple[Tensor, Tensor]:
        """r and s, Eq. (3) and (4)."""
        a = F.relu(self.norm(self.fc(context)))
        one, two = a[:, :WIDTH], a[:, WIDTH:]
        total = one.exp() + two.exp()
        return one.exp() / total, two.exp() / total


class Global(nn.Module):
    """What the server has: W^fe, W^hd, Theta."""

    def __init__(self, first: Params) -> None:
        super().__init__()
        self.extractor = nn.Linear(64, WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES)
        self.policy = Policy()
        names = {
            "extractor": "base.1",
            "head": "head",
            "policy.fc": "policy.0",
            "policy.norm": "policy.1",
        }
        with torch.no_grad():
            for ours, theirs in names.items():
                layer = self.get_submodule(ours)
                assert isinstance(layer, nn.Linear | nn.LayerNorm)
                layer.weight.copy_(first[f"{theirs}.weight"])
                layer.bias.copy_(first[f"{theirs}.bias"])


class Site:
    """A client: its data, and W_i^hd."""

    def __init__(self, x: Tensor, y: Tensor, head: nn.Linear) -> None:
        self.x = x.flatten(1)
        self.y = y
        self.head = copy.deepcopy(head)  # line 1

    def train(self, sent: Global, batches: Iterable[Tensor]) -> Global:
        """Lines 6 to 16: what is sent back."""
        frozen = copy.deepcopy(sent)
        mine = copy.deepcopy(sent)
        v = self.head.weight.detach().sum(0)  # line 10
        trained = [mine.extractor, self.head, mine.policy]
        optimiser = torch.optim.SGD(
            [p for module in trained for p in module.parameters()], lr=RATE
        )
        for index in batches:
            x, y = self.x[index], self.y[index]
            h = F.relu(mine.extractor(x))  # Eq. (2)
            r, s = mine.policy(v / v.norm() * h)
            out = frozen.head(r * h) + self.head(s * h)
            loss = F.cross_entropy(out, y)  # Eq. (5)
            with torch.no_grad():
                fixed = F.relu(frozen.extractor(x))
            loss = loss + LAMBDA * discrepancy(h, fixed)  # Eq. (7), (8)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        with torch.no_grad():  # Eq. (6)
            mine.head.weight.copy_((frozen.head.weight + self.head.weight) / 2)
            mine.head.bias.copy_((frozen.head.bias + self.head.bias) / 2)
        return mine


@torch.no_grad()
def aggregate(uploads: Sequence[Global], sizes: Sequence[int]) -> Global:
    """Lines 18 to 21: means weighted by numbers of examples."""
    mean = copy.deepcopy(uploads[0])
    for name, value in mean.named_parameters():
        total = torch.zeros_like(value)
        for upload, n in zip(uploads, sizes, strict=True):
            total += n / sum(sizes) * upload.get_parameter(name)
        value.copy_(total)
    return mean


def play(server: Global, sites: list[Site], chosen: list[list[int]]) -> Global:
    """Algorithm 1."""
    for t, clients in enumerate(chosen, 1):
        uploads = []
        for k in clients:
            n = len(sites[k].y)
            epochs = deal_batches(t, 1, k, n, BATCH, EPOCHS)
            batches = itertools.chain.from_iterable(epochs)
            uploads.append(sites[k].train(server, batches))
        server = aggregate(uploads, [len(sites[k].y) for k in clients])
    return server


# ---------------------------------------------------------------- the engine's
def run_engine(share: float) -> tuple[SmallRun, list[list[int]]]:
    """A run, and who took part in its rounds."""
    tap = Tap()
    base = nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU())
    run = run_small(
        FedCP(lam=LAMBDA),
        rounds=ROUNDS,
        federation=digits(SIZES),
        backbone=Backbone(base, nn.Linear(WIDTH, CLASSES), features=WIDTH),
        plan=Plan(lr=RATE, batch=BATCH, epochs=EPOCHS),
        dtype=torch.float64,
        share=share,
        filters=[tap],
    )
    return run, [sorted(heard.up) for heard in tap.traffic if heard.t]


@pytest.fixture(autouse=True)
def in_float64() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_three_rounds_are_those_of_the_paper(share: float) -> None:
    run, chosen = run_engine(share)
    assert len(chosen) == ROUNDS
    first = Global(run.runner.new(0))
    federation = run.runner.world.federation
    sites = []
    for train in federation.train:
        x = federation.x[train].double()
        sites.append(Site(x, federation.y[train], first.head))
    server = play(first, sites, chosen)
    for name, ours in {
        "base.1": server.extractor,
        "shared": server.head,
        "policy.0": server.policy.fc,
        "policy.1": server.policy.norm,
    }.items():
        part = name.partition(".")[0]
        theirs = getattr(run.server, part)
        assert_close(theirs[f"{name}.weight"], ours.weight)
        assert_close(theirs[f"{name}.bias"], ours.bias)
    moved = 0.0
    for k, site in enumerate(sites):
        kept = run.keep(k).head
        assert_close(kept["head.weight"], site.head.weight)
        assert_close(kept["head.bias"], site.head.bias)
        change = kept["head.weight"] - first.head.weight
        moved = max(moved, float(change.detach().abs().max()))
    assert moved > 0.1
    # prediction: the newest extractor and policy, both heads
    c, down, keep = run.next_visit(5)
    w = run.method.personal(c, down, keep)
    h = F.relu(server.extractor(sites[5].x))
    v = sites[5].head.weight.sum(0)
    r, s = server.policy(v / v.norm() * h)
    logits = server.head(r * h) + sites[5].head(s * h)
    assert_close(run.method.predict(c, w, c.x), logits)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-9)
