"""pFedC a second time, in bare PyTorch from the papers alone, and equal to the engine's.

Algorithm 1 of pFedC (ICLR 2023 submission) with MGDA-UB (Sener and Koltun, NeurIPS 2018,
Algorithm 2): one linear head a class, one backward pass a task, and the weights by trying out which
tasks may have weight 0. Taken from the run: data, first values and the order of batches.
"""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.methods.pfedc import PFedC
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


# ---------------------------------------------------------------- from the papers
def shortest_mixture(gradients: Tensor) -> Tensor:
    """The weights on the simplex of the shortest mixture of the rows, exactly.

    For every set of rows that may have weight, the shortest mixture of its affine hull; the best of
    those whose weights are not negative.
    """
    gram = gradients @ gradients.T
    best = torch.zeros(len(gram))
    shortest = torch.inf
    for size in range(1, len(gram) + 1):
        for chosen in itertools.combinations(range(len(gram)), size):
            rows = list(chosen)
            ones = torch.ones(size)
            solved = torch.linalg.solve(gram[rows][:, rows], ones)
            weights = torch.zeros(len(gram))
            weights[rows] = solved / solved.sum()
            length = float(weights @ gram @ weights)
            if bool((weights >= 0).all()) and length < shortest:
                shortest = length
                best = weights
    return best


class Site:
    """A client: its data, phi, and a head for every task it has."""

    def __init__(self, x: Tensor, y: Tensor, first: dict[str, Tensor]) -> None:
        self.x = x
        self.y = y
        self.phi = nn.Linear(64, WIDTH)
        self.heads = {c: nn.Linear(WIDTH, 1) for c in sorted(set(y.tolist()))}
        self.install_phi(first["base.1.weight"], first["base.1.bias"])
        for c in self.heads:
            self.install(c, first["head.weight"][c], first["head.bias"][c])

    @torch.no_grad()
    def install_phi(self, weight: Tensor, bias: Tensor) -> None:
        self.phi.weight.copy_(weight)
        self.phi.bias.copy_(bias)

    @torch.no_grad()
    def install(self, c: int, weight: Tensor, bias: Tensor) -> None:
        self.heads[c].weight.copy_(weight[None])
        self.heads[c].bias.copy_(bias[None])

    def step(self, index: Tensor, unit: bool, scale_heads: bool) -> None:
        """One step on a batch: MGDA-UB, Algorithm 2."""
        x = self.x[index].flatten(1)
        y = self.y[index]
        z = F.relu(self.phi(x))
        gradients = []
        for c, head in self.heads.items():
            inner = z.detach().requires_grad_()
            logit = head(inner).squeeze(1)
            target = (y == c).to(z.dtype)
            loss = F.binary_cross_entropy_with_logits(logit, target)
            head.zero_grad()
            loss.backward()  # lines 1 to 3: the task's own parameters
            assert inner.grad is not None
            gradients.append(inner.grad)
        rows = torch.stack([g.flatten() for g in gradients])
        if unit:  # an option of the authors' code
            weights = shortest_mixture(rows / rows.norm(dim=1, keepdim=True))
        else:
            weights = shortest_mixture(rows)  # line 4
        mixed = sum(weight * g for weight, g in zip(weights, gradients, strict=True))
        self.phi.zero_grad()
        z.backward(mixed)  # line 5: the shared parameters
        torch.optim.SGD(self.phi.parameters(), lr=RATE).step()
        for weight, head in zip(weights, self.heads.values(), strict=True):
            rate = RATE * float(weight) if scale_heads else RATE
            torch.optim.SGD(head.parameters(), lr=rate).step()


def play(sites: list[Site], unit: bool, scale_heads: bool) -> None:
    """Algorithm 1; afterwards every site has its model as CLIENTUPDATE leaves it."""
    for t in range(1, ROUNDS + 1):
        if t > 1:
            aggregate(sites)  # lines 4 to 8
        for k, site in enumerate(sites):
            epochs = deal_batches(t, 1, k, len(site.y), BATCH, EPOCHS)
            for index in itertools.chain.from_iterable(epochs):
                site.step(index, unit, scale_heads)


@torch.no_grad()
def aggregate(sites: list[Site]) -> None:
    """Eq. (6) for phi, Eq. (7) for heads, and what everybody is sent."""
    total = sum(len(site.y) for site in sites)
    weight = sum(len(site.y) / total * site.phi.weight for site in sites)
    bias = sum(len(site.y) / total * site.phi.bias for site in sites)
    means = {}
    for c in range(CLASSES):
        owners = [site.heads[c] for site in sites if c in site.heads]
        if owners:
            means[c] = (
                torch.stack([head.weight[0] for head in owners]).mean(0),
                torch.stack([head.bias[0] for head in owners]).mean(0),
            )
    for site in sites:
        site.install_phi(weight, bias)
        for c in site.heads:
            site.install(c, *means[c])


# ---------------------------------------------------------------- the engine's
def run_engine(**fields: Any) -> SmallRun:
    base = nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU())
    return run_small(
        # more steps of its solver, so that it gets to the optimum
        PFedC(solver_steps=20, **fields),
        rounds=ROUNDS,
        federation=digits(),
        backbone=Backbone(base, nn.Linear(WIDTH, CLASSES), features=WIDTH),
        plan=Plan(lr=RATE, batch=BATCH, epochs=EPOCHS),
        dtype=torch.float64,
    )


def make_sites(run: SmallRun) -> list[Site]:
    federation = run.runner.world.federation
    first = run.runner.new(0)
    sites = []
    for train in federation.train:
        x = federation.x[train].double()
        sites.append(Site(x, federation.y[train], first))
    return sites


@pytest.fixture(autouse=True)
def in_float64() -> Any:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


@pytest.mark.parametrize(
    ("fields", "unit", "scale_heads"),
    [
        ({}, True, False),
        ({"grad_norm": "none"}, False, False),
        ({"head_step": "lambda"}, True, True),
    ],
)
def test_three_rounds_are_those_of_the_papers(
    fields: dict[str, Any], unit: bool, scale_heads: bool
) -> None:
    run = run_engine(**fields)
    sites = make_sites(run)
    assert {len(site.heads) for site in sites} == {1, 3, 4}
    first = run.runner.new(0)
    play(sites, unit, scale_heads)
    moved = 0.0
    for k, site in enumerate(sites):  # theta_i as line 12 returns it
        kept = run.keep(k).own
        for c, head in site.heads.items():
            assert_close(kept["head.weight"][c], head.weight[0])
            assert_close(kept["head.bias"][c], head.bias[0])
            change = head.weight[0] - first["head.weight"][c]
            moved = max(moved, float(change.detach().abs().max()))
    assert moved > 0.1
    aggregate(sites)  # as the next round would begin
    for k, site in enumerate(sites):
        c, down, keep = run.next_visit(k)
        w = run.method.personal(c, down, keep)
        assert_close(w["base.1.weight"], site.phi.weight)
        assert_close(w["base.1.bias"], site.phi.bias)
        for number, head in site.heads.items():
            assert_close(w["head.weight"][number], head.weight[0])
            assert_close(w["head.bias"][number], head.bias[0])


def test_the_two_readings_of_a_head_step_differ() -> None:
    """So that the comparison above can tell them apart."""
    run = run_engine()
    sites = make_sites(run)
    play(sites, unit=True, scale_heads=True)
    kept = run.keep(0).own["head.weight"]
    gaps = [
        float((kept[c] - head.weight[0].detach()).abs().max())
        for c, head in sites[0].heads.items()
    ]
    assert max(gaps) > 1e-2


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-9)
