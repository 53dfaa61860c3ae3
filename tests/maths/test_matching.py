"""Matching: the costs by hand, permutations recovered, and networks whose units move without
changing what they do.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections import OrderedDict

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.errors import Unsupported
from fedtailor.core.rng import Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, average
from fedtailor.maths.matching import (
    Prior,
    Wiring,
    average_classes,
    average_layers,
    average_units,
    match_layer,
    match_units,
    place_units,
    shrink_layers,
    take_layers,
    take_units,
    trace_wiring,
)
from fedtailor.maths.matching.bbp import GlobalUnits, weigh_places
from fedtailor.maths.matching.wiring import INPUT, Layer, Step, Stream
from fedtailor.models import Backbone, build, fresh, wrap_own_network
from fedtailor.models.architectures.resnet import BasicBlock
from fedtailor.models.layers import chain
from fedtailor.testing.small_world import small
from fedtailor.training.net import Net, Template

CODE = Prior(7.0, 1.0, 1.0, 5)  # the authors' constants
NEVER_NEW = Prior(1e-300, 1.0, 1.0, 5)


def draw(seed: int, *shape: int) -> Tensor:
    return Rng.seed(seed).normal(*shape).double()


def shuffle(seed: int, n: int, run: int | None = None) -> Tensor:
    """A permutation of range(n), within runs of so many."""
    run = run or n
    return torch.cat([i + Rng.seed(seed, i).permutation(run) for i in range(0, n, run)])


def residual(norm: str, *, pad: bool = False) -> Backbone:
    """A ResNet in small: a stem, three blocks, two residual streams."""
    with torch.random.fork_rng(devices=[]):
        base = chain(
            stem=chain(
                conv1=nn.Conv2d(1, 4, 3, padding=1),
                bn1=nn.BatchNorm2d(4),
                relu1=nn.ReLU(),
            ),
            block1=BasicBlock(4, 4, 1, norm, pad=pad),
            block2=BasicBlock(4, 8, 2, norm, pad=pad),
            block3=BasicBlock(8, 8, 1, norm, pad=pad),
            pool=nn.AdaptiveAvgPool2d(2),
            flatten=nn.Flatten(),
        )
        return Backbone(base, nn.Linear(32, 10), features=32)


def networks() -> dict[str, tuple[Backbone, tuple[int, ...]]]:
    made = {
        "plain": (small(norm="none"), (1, 8, 8)),
        "group": (small(norm="group"), (1, 8, 8)),
        "batch": (small(norm="batch"), (1, 8, 8)),
        "residual": (residual("batch"), (1, 8, 8)),
        "residual, groups": (residual("group"), (1, 8, 8)),
        "residual, padded": (residual("batch", pad=True), (1, 8, 8)),
    }
    for spec, shape in {
        "cnn": (1, 8, 8),
        "lenet5": (1, 16, 16),
        "mlp:20,10": (1, 8, 8),
        "resnet32": (1, 8, 8),
    }.items():
        made[spec] = build(spec, shape, 10), shape
    return made | {"har_cnn": (build("har_cnn", (9, 28), 6), (9, 28))}


NETWORKS = networks()
GROWING = ("plain", "cnn", "lenet5", "mlp:20,10")


def instance(name: str) -> tuple[Wiring, Net, Params, Tensor]:
    """A network's wiring, the network, values for it (with statistics that are not all alike),
    and inputs.
    """
    backbone, shape = NETWORKS[name]
    wiring = trace_wiring(backbone)
    with torch_settings(torch.float64):
        template = Template(copy.deepcopy(backbone))
        w = fresh(template.module, Rng.seed(3))
        for i, (k, x) in enumerate(w.items()):
            if k.endswith(("running_var", "running_mean")) or x.dim() == 1:
                w[k] = x + 0.5 * Rng.seed(4, i).uniform(*x.shape)
    return wiring, Net(template), w, draw(5, 3, *shape)


# -------------------------------------------------------------------- which units are the same
@pytest.mark.parametrize(("sigma", "sigma0"), [(1.0, 1.0), (0.5, 2.0)])
def test_what_a_place_gains_is_the_posterior(sigma: float, sigma0: float) -> None:
    prior, networks, mean = Prior(7.0, sigma, sigma0, 1), 5, draw(1, 4)
    groups = [draw(2, 3, 4), draw(3, 1, 4)]  # units that two global ones have already
    v = draw(4, 2, 4)

    def fit(units: Tensor) -> float:  # the best global unit's log posterior, twice
        theta = (mean / sigma0 + units.sum(0) / sigma) / (
            1 / sigma0 + len(units) / sigma
        )
        return -float(
            ((units - theta) ** 2).sum() / sigma + ((theta - mean) ** 2).sum() / sigma0
        )

    total = torch.stack([mean / sigma0 + g.sum(0) / sigma for g in groups])
    found = GlobalUnits(total, torch.tensor([3, 1]))
    gain = weigh_places(found, v / sigma, mean / sigma0, prior, networks, grow=True)
    for i in range(2):
        alone = float(v[i].square().sum() / sigma)
        for k, g in enumerate(groups):
            odds = math.log(len(g) / (networks - len(g)))
            assert float(gain[i, k]) == pytest.approx(
                fit(torch.cat([g, v[i : i + 1]])) - fit(g) + alone + odds
            )
        for m in (1, 2):
            odds = 2 * math.log(7.0 / networks / m)
            assert float(gain[i, 1 + m]) == pytest.approx(
                fit(v[i : i + 1]) - fit(v[:0]) + alone + odds
            )


def test_two_networks_are_matched_as_well_as_can_be() -> None:
    a, b = draw(1, 5, 3), draw(2, 5, 3)
    at, width = match_units(
        [a, b], torch.zeros(3), CODE, np.random.default_rng(0), grow=False
    )
    best = min(
        itertools.permutations(range(5)),
        key=lambda p: float((a[list(p)] - b).square().sum()),
    )
    assert (
        width == 5
        and at[0][at[1].argsort()].tolist()
        == at[0][torch.tensor(best).argsort()].tolist()
    )


@pytest.mark.parametrize("grow", [True, False])
def test_permuted_copies_are_recognised(grow: bool) -> None:
    units, orders = draw(1, 12, 7), [shuffle(j, 12) for j in range(6)]
    sure = Prior(7.0, 0.01, 0.1, 5)  # units are far apart, and far from the prior mean
    at, width = match_units(
        [units[o] for o in orders],
        torch.zeros(7),
        sure,
        np.random.default_rng(0),
        grow=grow,
    )
    assert width == 12
    assert torch.allclose(
        average_units([units[o] for o in orders], at, width)[at[0]], units[orders[0]]
    )
    for o, a in zip(orders, at, strict=True):
        # unit by unit, the same place
        assert torch.equal(a[o.argsort()], at[0][orders[0].argsort()])


def test_more_sweeps_fit_no_worse() -> None:
    base = draw(1, 10, 6)
    noisy = [base[shuffle(j, 10)] + 0.8 * draw(10 + j, 10, 6) for j in range(6)]

    def fit(sweeps: int) -> float:
        prior = Prior(7.0, 1.0, 1.0, sweeps)
        at, width = match_units(
            noisy, torch.zeros(6), prior, np.random.default_rng(0), grow=False
        )
        total = average_units(noisy, at, width) * 6
        return float(total.square().sum() / 7)

    fits = [fit(s) for s in range(5)]
    assert (
        all(b >= a - 1e-9 for a, b in itertools.pairwise(fits))
        and fits[-1] > fits[0] + 0.1
    )


def test_units_keep_to_their_runs() -> None:
    units = draw(1, 12, 4)
    others = units[shuffle(2, 12)]
    at, _ = match_units(
        [units, others],
        torch.zeros(4),
        CODE,
        np.random.default_rng(0),
        grow=False,
        groups=3,
    )
    assert all(torch.equal(a // 4, torch.arange(12) // 4) for a in at)
    inside = units[shuffle(2, 12, 4)]
    at, _ = match_units(
        [units, inside],
        torch.zeros(4),
        CODE,
        np.random.default_rng(0),
        grow=False,
        groups=3,
    )
    assert torch.equal(inside[at[1].argsort()], units[at[0].argsort()])


def test_networks_that_differ_make_more_units_and_gamma_more_still() -> None:
    alike, unlike = (
        [draw(1, 16, 9) + 0.01 * draw(j, 16, 9) for j in range(4)],
        [draw(j, 16, 9) for j in range(4)],
    )

    def width(units: list[Tensor], gamma: float) -> int:
        prior = Prior(gamma, 0.2, 1.0, 3)
        at, width = match_units(
            units, torch.zeros(9), prior, np.random.default_rng(0), grow=True
        )
        # no two units of a network in one place
        assert all(len(set(a.tolist())) == 16 for a in at)
        assert set(torch.cat(at).tolist()) == set(range(width))  # and no place empty
        return width

    assert width(alike, 1e-3) == 16 < width(unlike, 1e-3) < width(unlike, 1e3) <= 64
    assert (
        match_units(
            [draw(1, 5, 2)], torch.zeros(2), CODE, np.random.default_rng(0), grow=True
        )[1]
        == 5
    )


def test_a_unit_is_the_mean_of_its_owners() -> None:
    a, b = draw(1, 2, 3, 2), draw(2, 2, 3, 2)
    mean = average_units([a, b], [torch.tensor([2, 0]), torch.tensor([1, 2])], 3)
    assert torch.allclose(mean, torch.stack([a[1], b[0], (a[0] + b[1]) / 2]))


@pytest.mark.parametrize(("sigma", "sigma0"), [(1.0, 1.0), (0.5, 2.0)])
def test_the_authors_estimate_is_the_map(sigma: float, sigma0: float) -> None:
    """By hand from the owners' units, with the prior mean of a layer's bias and of all else."""
    step = trace_wiring(small(norm="batch")).steps[0]
    shapes = {
        "base.conv1.weight": (2, 1, 3, 3),
        "base.conv1.bias": (2,),
        "base.norm1.weight": (2,),
        "base.norm1.bias": (2,),
    }
    layers = [
        {k: draw(i + 7 * j, *shape) for i, (k, shape) in enumerate(shapes.items())}
        for j in range(2)
    ]
    # only the last of three units has two owners
    at = [
        torch.tensor([2, 0]),
        torch.tensor([1, 2]),
    ]
    means, owners = average_layers(layers, at, 3), torch.tensor([1, 1, 2])
    found = shrink_layers(means, step, owners, Prior(7.0, sigma, sigma0, 5))
    for k in shapes:
        mu = 0.1 if k == "base.conv1.bias" else 0.0
        units = [
            [layers[0][k][1]],
            [layers[1][k][0]],
            [layers[0][k][0], layers[1][k][1]],
        ]
        by_hand = [
            (mu / sigma0 + sum(u) / sigma) / (1 / sigma0 + len(u) / sigma)
            for u in units
        ]
        assert torch.allclose(found[k], torch.stack(by_hand))


def test_classes_are_weighed_by_their_examples() -> None:
    heads = [{"weight": draw(i, 3, 2), "bias": draw(9 + i, 3)} for i in range(2)]
    counts = [torch.tensor([3.0, 0.0, 0.0]), torch.tensor([1.0, 5.0, 0.0])]
    mean = average_classes(heads, counts, torch.tensor([3.0, 6.0], dtype=torch.float64))
    for k in ("weight", "bias"):
        a, b = heads[0][k], heads[1][k]
        # of the third class nobody has any
        rows = [
            (3 * a[0] + b[0]) / 4,
            b[1],
            (a[2] + 2 * b[2]) / 3,
        ]
        assert torch.allclose(mean[k], torch.stack(rows))


# -------------------------------------------------------------------- how layers are connected
def test_wiring_of_the_small_network() -> None:
    conv1, norm1 = Layer("base.conv1", INPUT), Layer("base.norm1", None)
    fc1, head = Layer("base.fc1", "base.conv1"), Layer("head", "base.fc1")
    streams = {
        "none": Stream(4, 1, True),
        "batch": Stream(4, 1, False),
        "group": Stream(4, 2, False),
    }
    for norm, stream in streams.items():
        wiring = trace_wiring(small(norm=norm))
        first = (conv1,) if norm == "none" else (conv1, norm1)
        assert wiring.steps == (
            Step(first, "base.conv1", True),
            Step((fc1,), "base.fc1", True),
            Step((head,), "", False),
        )
        assert wiring.streams == {"base.conv1": stream, "base.fc1": Stream(16, 1, True)}
        assert wiring.layers_after(0) == ["base.fc1", "head"]
    fixed = trace_wiring(small(norm="none"), grow=False)
    assert not any(stream.grows for stream in fixed.streams.values())


def test_a_residual_stream_has_one_order_and_nothing_grows() -> None:
    wiring = trace_wiring(residual("batch"))
    makers = {
        name: [s.names for s in wiring.steps if s.stream == name]
        for name in wiring.streams
    }
    assert [names[0] for names in makers["base.stem.conv1"]] == [
        "base.stem.conv1",
        "base.block1.conv2",
    ]
    both = (
        "base.block2.conv2",
        "base.block2.bn2",
        "base.block2.shortcut.conv",
        "base.block2.shortcut.bn",
    )
    assert makers["base.block2.conv2"] == [
        both,
        ("base.block3.conv2", "base.block3.bn2"),
    ]
    assert [s.decides for s in wiring.steps if s.stream == "base.block2.conv2"] == [
        True,
        False,
    ]
    assert not any(s.grows for s in wiring.streams.values())
    # zeros are added in the middle: no unit can move
    padded = trace_wiring(residual("batch", pad=True)).streams
    assert [
        s.groups == s.width
        for n, s in padded.items()
        if "conv1" not in n or "stem" in n
    ] == [
        True,
        True,
    ]
    assert padded["base.block1.conv1"].groups == 1


@pytest.mark.parametrize("name", NETWORKS)
def test_units_in_other_places_do_the_same(name: str) -> None:
    wiring, net, w, x = instance(name)
    moved = w
    for i, (stream, (width, groups, _)) in enumerate(wiring.streams.items()):
        moved = place_units(
            moved, wiring, stream, shuffle(i, width, width // groups), width
        )
    assert sum(not torch.equal(moved[k], w[k]) for k in w) >= len(wiring.streams) // 2
    assert torch.allclose(net(moved, x), net(w, x), atol=1e-10)


@pytest.mark.parametrize("name", GROWING)
def test_units_among_others_do_the_same_and_come_back(name: str) -> None:
    wiring, net, w, x = instance(name)
    wide, picks = w, {}
    for i, (stream, (width, _, grows)) in enumerate(wiring.streams.items()):
        assert grows
        picks[stream] = shuffle(i, width + 3)[:width]
        wide = place_units(wide, wiring, stream, picks[stream], width + 3)
    assert all(
        len(wide[f"{s}.weight"]) == len(w[f"{s}.weight"]) + 3 for s in wiring.streams
    )
    assert torch.allclose(net(wide, x), net(w, x), atol=1e-10)
    back = take_units(wide, wiring, picks)
    assert all(torch.equal(back[k], w[k]) for k in w)


def test_a_unit_that_leaves_its_group_does_not_do_the_same() -> None:
    wiring, net, w, x = instance("group")
    swapped = place_units(w, wiring, "base.conv1", torch.tensor([2, 1, 0, 3]), 4)
    assert not torch.allclose(net(swapped, x), net(w, x), atol=1e-3)


# -------------------------------------------------------------------- whole networks
def merge(models: list[Params], wiring: Wiring, prior: Prior) -> Params:
    """Matched averaging without any training in between."""
    models, w = list(models), {}
    for n, step in enumerate(wiring.steps[:-1]):
        layers = [take_layers(m, step) for m in models]
        at, width = match_layer(layers, step, wiring, prior, Rng.seed(n))
        w |= average_layers(layers, at, width)
        if step.decides:
            models = [
                place_units(m, wiring, step.stream, a, width)
                for m, a in zip(models, at, strict=True)
            ]
    heads = [take_layers(m, wiring.steps[-1]) for m in models]
    counts = [torch.ones(len(h[f"{wiring.steps[-1].names[0]}.bias"])) for h in heads]
    return models[0] | w | average_classes(heads, counts, torch.ones(len(heads)))


def copies(wiring: Wiring, w: Params, many: int) -> list[Params]:
    """The network, and the same with its units in other orders."""
    out = [w]
    for j in range(1, many):
        moved = w
        for i, (stream, (width, groups, _)) in enumerate(wiring.streams.items()):
            moved = place_units(
                moved,
                wiring,
                stream,
                shuffle(100 * j + i, width, width // groups),
                width,
            )
        out.append(moved)
    return out


@pytest.mark.parametrize("name", NETWORKS)
def test_permuted_copies_of_a_network_are_merged_to_it(name: str) -> None:
    wiring, _, w, _ = instance(name)
    models = copies(wiring, w, 4)
    merged = merge(models, wiring, NEVER_NEW)
    assert max(float((merged[k] - w[k]).abs().max()) for k in w) < 1e-12
    mean = average(models, torch.ones(4))
    # a mean place by place is another network
    assert max(float((mean[k] - w[k]).abs().max()) for k in w) > 0.1


@pytest.mark.parametrize("name", ["cnn", "lenet5", "mlp:20,10"])
def test_layers_that_grow_keep_what_the_network_does(name: str) -> None:
    wiring, net, w, x = instance(name)
    merged = merge(copies(wiring, w, 3), wiring, CODE)
    assert all(
        len(merged[f"{s}.weight"]) > len(w[f"{s}.weight"]) for s in wiring.streams
    )
    assert torch.allclose(net(merged, x), net(w, x), atol=1e-9)


# -------------------------------------------------------------------- other people's networks
class Functional(nn.Module):
    """As people write them: functions, a reshape, and a residual connection between linear
    layers.
    """

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc1, self.fc2 = (
            nn.Conv2d(1, 3, 3),
            nn.Linear(27, 6),
            nn.Linear(6, 6),
        )
        self.out = nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), 2).view(x.size(0), -1)
        x = torch.relu(self.fc1(x))
        out: Tensor = self.out(x + torch.tanh(self.fc2(x)))
        return out


def test_networks_in_functions_are_followed() -> None:
    with torch.random.fork_rng(devices=[]):
        backbone = wrap_own_network(Functional(), "out")
    wiring = trace_wiring(backbone)
    assert wiring.steps == (
        Step((Layer("base.conv", INPUT),), "base.conv", True),
        Step((Layer("base.fc1", "base.conv"),), "base.fc1", True),
        Step((Layer("base.fc2", "base.fc1"),), "base.fc1", False),
        Step((Layer("head", "base.fc1"),), "", False),
    )
    assert wiring.streams == {
        "base.conv": Stream(3, 1, False),
        "base.fc1": Stream(6, 1, False),
    }
    template = Template(backbone)
    w, net, x = (
        fresh(template.module, Rng.seed(1)),
        Net(template),
        draw(2, 5, 1, 8, 8).float(),
    )
    moved = place_units(w, wiring, "base.fc1", shuffle(3, 6), 6)
    assert torch.allclose(net(moved, x), net(w, x), atol=1e-6)


class Odd(nn.Module):
    """Hidden layers, and whatever a test puts between them."""

    def __init__(
        self, middle: nn.Module, *, twice: bool = False, idle: bool = False
    ) -> None:
        super().__init__()
        self.fc1, self.middle, self.out, self.twice = (
            nn.Linear(8, 8),
            middle,
            nn.Linear(8, 3),
            twice,
        )
        if idle:
            self.idle = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> Tensor:
        x = self.middle(torch.relu(self.fc1(x)))
        out: Tensor = self.out(self.fc1(x) if self.twice else x)
        return out


class Branch(nn.Module):
    """A forward that looks at values."""

    def forward(self, x: Tensor) -> Tensor:
        return x if x.sum() > 0 else -x


@pytest.mark.parametrize(
    ("middle", "options", "words"),
    [
        (
            nn.Softmax(-1),
            {},
            r"through 'base.middle' \(Softmax\): it takes networks of linear",
        ),
        (nn.LayerNorm(8), {}, r"through 'base.middle' \(LayerNorm\)"),
        (
            Branch(),
            {},
            "this network's forward: symbolically traced variables cannot be used",
        ),
        (nn.Identity(), {"twice": True}, "'base.fc1', as this network uses it twice"),
        (
            nn.Identity(),
            {"idle": True},
            "'base.idle.weight', as this network's forward does not use it",
        ),
        (nn.Sequential(nn.Unflatten(1, (2, 4)), nn.BatchNorm1d(2)), {}, "Unflatten"),
    ],
)
def test_networks_that_cannot_be_followed_are_refused(
    middle: nn.Module, options: dict[str, bool], words: str
) -> None:
    with torch.random.fork_rng(devices=[]):
        backbone = wrap_own_network(Odd(middle, **options), "out")
    with pytest.raises(Unsupported, match=words) as told:
        trace_wiring(backbone)
    assert "\n" not in str(told.value)


def test_networks_without_hidden_units_are_refused() -> None:
    with pytest.raises(Unsupported, match="this network has none: take a deeper one"):
        trace_wiring(small("linear"))
    with pytest.raises(Unsupported, match=r"'base\.embedding'"):
        trace_wiring(build("fasttext", (20,), 4, vocabulary=50))
    grouped = nn.Sequential(
        OrderedDict(
            conv=nn.Conv2d(2, 4, 3, groups=2),
            pool=nn.AdaptiveAvgPool2d(1),
            f=nn.Flatten(),
        )
    )
    with pytest.raises(Unsupported, match=r"'base.conv' \(Conv2d\)"):
        trace_wiring(Backbone(grouped, nn.Linear(4, 3), features=4))
    flat = nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.BatchNorm1d(8), nn.ReLU())
    with pytest.raises(Unsupported, match="put BatchNorm1d behind the layer it is for"):
        trace_wiring(Backbone(flat, nn.Linear(8, 3), features=8))
