"""GPFL a second time, in bare PyTorch from the paper alone, and equal to the engine's.

Zhang et al., GPFL, ICCV 2023, Algorithm 1 and Eq. (1)-(11), as printed; and with what the authors'
code does otherwise, which is the default. Taken from the run: data, first values, who takes part
and the order of batches.
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
from fedtailor.methods.gpfl import GPFL
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
LAMBDA = 0.2
MU = 0.3


# ---------------------------------------------------------------- from the paper
class Submodule(nn.Module):
    """CoV_gamma or CoV_beta: FC, ReLU, layer normalisation."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(WIDTH, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)

    def forward(self, condition: Tensor) -> Tensor:
        found: Tensor = self.norm(F.relu(self.fc(condition)))
        return found


class Shared(nn.Module):
    """What the server has: W^fe, V, C."""

    def __init__(self, first: Params) -> None:
        super().__init__()
        self.extractor = nn.Linear(64, WIDTH)
        self.gamma = Submodule()
        self.beta = Submodule()
        self.embeddings = nn.Parameter(first["embed.weight"].clone())
        names = {
            "extractor": "base.1",
            "gamma.fc": "valve.two.0.0",
            "gamma.norm": "valve.two.0.2",
            "beta.fc": "valve.two.1.0",
            "beta.norm": "valve.two.1.2",
        }
        for ours, theirs in names.items():
            install(self.get_submodule(ours), first, theirs)

    def valve(self, f: Tensor, condition: Tensor) -> Tensor:
        """CoV, Eq. (3) and (4)."""
        gamma = self.gamma(condition)
        beta = self.beta(condition)
        return F.relu((gamma + 1) * f + beta)

    def valve_parameters(self) -> list[nn.Parameter]:
        """V."""
        return [*self.gamma.parameters(), *self.beta.parameters()]


def install(layer: nn.Module, values: Params, name: str) -> None:
    """Weight and bias of a layer."""
    assert isinstance(layer, nn.Linear | nn.LayerNorm)
    with torch.no_grad():
        layer.weight.copy_(values[f"{name}.weight"])
        layer.bias.copy_(values[f"{name}.bias"])


class Site:
    """A client: its data, and W_i^h."""

    def __init__(self, x: Tensor, y: Tensor, first: Params, printed: bool) -> None:
        self.x = x.flatten(1)
        self.y = y
        self.head = nn.Linear(WIDTH, CLASSES)
        install(self.head, first, "head")
        self.printed = printed

    def condition(self, embeddings: Tensor) -> Tensor:
        """p_i, Eq. (6) and (7)."""
        p = torch.zeros(WIDTH)
        for u in range(CLASSES):
            alpha = (self.y == u).sum() / len(self.y)
            p = p + alpha * embeddings[u]
        return p / CLASSES if self.printed else p

    def train(self, sent: Shared, batches: Iterable[Tensor]) -> Shared:
        """Lines 4 to 14: what is sent back."""
        mine = copy.deepcopy(sent)
        frozen = sent.embeddings.detach()
        g = frozen.mean(0)  # Eq. (5)
        p = self.condition(frozen)
        plain = [*mine.extractor.parameters(), *self.head.parameters()]
        weighed = [*mine.valve_parameters(), mine.embeddings]
        decay = 0.0 if self.printed else MU  # the code's mu
        optimiser = torch.optim.SGD(
            [{"params": plain}, {"params": weighed, "weight_decay": decay}], lr=RATE
        )
        for index in batches:
            x, y = self.x[index], self.y[index]
            f = F.relu(mine.extractor(x))
            general = mine.valve(f, g)
            loss = F.cross_entropy(self.head(mine.valve(f, p)), y)  # Eq. (10)
            loss = loss + angle_loss(general, mine.embeddings, y)
            gaps = general - frozen[y]
            if self.printed:
                loss = loss + LAMBDA * gaps.norm(dim=1).mean()  # Eq. (9)
                valve = [value.flatten() for value in mine.valve_parameters()]
                loss = loss + MU * torch.cat(valve).norm()  # Eq. (11)
                loss = loss + MU * mine.embeddings.norm()
            else:
                loss = loss + LAMBDA * gaps.norm()
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
        return mine


def angle_loss(f: Tensor, embeddings: Tensor, y: Tensor) -> Tensor:
    """Eq. (8)."""
    cosines = F.cosine_similarity(f[:, None], embeddings[None], dim=-1)
    exponentials = cosines.exp()
    own = exponentials[torch.arange(len(y)), y]
    return -torch.log(own / exponentials.sum(1)).mean()


@torch.no_grad()
def aggregate(uploads: Sequence[Shared], sizes: Sequence[int]) -> Shared:
    """Lines 16 to 18: means weighted by numbers of examples."""
    mean = copy.deepcopy(uploads[0])
    for name, value in mean.named_parameters():
        total = torch.zeros_like(value)
        for upload, n in zip(uploads, sizes, strict=True):
            total += n / sum(sizes) * upload.get_parameter(name)
        value.copy_(total)
    return mean


def play(server: Shared, sites: list[Site], chosen: list[list[int]]) -> Shared:
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
PRINTED = {"divide_p": True, "mlg_reduction": "sample_mean", "penalty": "norm"}


def run_engine(
    share: float, fields: dict[str, Any]
) -> tuple[SmallRun, list[list[int]]]:
    """A run, and who took part in its rounds."""
    tap = Tap()
    base = nn.Sequential(nn.Flatten(), nn.Linear(64, WIDTH), nn.ReLU())
    run = run_small(
        GPFL(lam=LAMBDA, mu=MU, **fields),
        rounds=ROUNDS,
        federation=digits(),
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


@pytest.mark.parametrize(
    ("share", "printed"), [(1.0, False), (0.5, False), (1.0, True)]
)
def test_three_rounds_are_those_of_the_paper(share: float, printed: bool) -> None:
    run, chosen = run_engine(share, PRINTED if printed else {})
    assert len(chosen) == ROUNDS
    first = run.runner.new(0)
    federation = run.runner.world.federation
    sites = []
    for train in federation.train:
        x = federation.x[train].double()
        sites.append(Site(x, federation.y[train], first, printed))
    server = play(Shared(first), sites, chosen)
    for part, name, ours in (
        ("base", "base.1", server.extractor),
        ("valve", "valve.two.0.0", server.gamma.fc),
        ("valve", "valve.two.0.2", server.gamma.norm),
        ("valve", "valve.two.1.0", server.beta.fc),
        ("valve", "valve.two.1.2", server.beta.norm),
    ):
        theirs = getattr(run.server, part)
        assert_close(theirs[f"{name}.weight"], ours.weight)
        assert_close(theirs[f"{name}.bias"], ours.bias)
    assert_close(run.server.embed["embed.weight"], server.embeddings)
    moved = 0.0
    for k, site in enumerate(sites):
        kept = run.keep(k).head
        assert_close(kept["head.weight"], site.head.weight)
        assert_close(kept["head.bias"], site.head.bias)
        change = kept["head.weight"] - first["head.weight"]
        moved = max(moved, float(change.abs().max()))
    assert moved > 0.1
    # prediction: the personalised route with the newest C
    c, down, keep = run.next_visit(5)
    w = run.method.personal(c, down, keep)
    f = F.relu(server.extractor(sites[5].x))
    p = sites[5].condition(server.embeddings)
    logits = sites[5].head(server.valve(f, p))
    assert_close(run.method.predict(c, w, c.x), logits)


def assert_close(ours: Tensor, theirs: Tensor) -> None:
    torch.testing.assert_close(ours, theirs.detach(), rtol=0, atol=1e-9)
