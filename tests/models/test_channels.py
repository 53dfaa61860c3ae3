"""Every channel has one owner; a side is a smaller network that computes what masks would."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.utils.flop_counter import FlopCounterMode

from fedtailor.core.errors import Unsupported
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params
from fedtailor.models import Backbone, build, wrap_own_network
from fedtailor.models.architectures.resnet import BasicBlock, PadShortcut
from fedtailor.models.backbone import fresh
from fedtailor.models.channels import (
    Border,
    Decoupled,
    Side,
    choose_channels,
    count_shared,
    draw_borders,
    has_two_sides,
    join_channels,
    overlay_channels,
    smooth_private,
    split_channels,
    take_channels,
)
from fedtailor.models.layers import Mean, chain

PLAIN = [
    ("lenet5", (3, 32, 32)),
    ("lenet5:84", (1, 28, 28)),
    ("cnn", (1, 8, 8)),
    ("cnn", (3, 32, 32)),
    ("convnet2", (1, 28, 28)),
    ("convnet3", (3, 32, 32)),
    ("pflcnn", (3, 12, 12)),
    ("lenet_mgda", (1, 28, 28)),
    ("mlp", (1, 8, 8)),
    ("mlp:20,30", (5,)),
    ("amazon_mlp", (40,)),
    ("har_cnn", (9, 128)),
    ("fasttext", (20,)),
]
RESIDUAL = [
    ("resnet32", (3, 8, 8)),
    ("resnet18:cifar,50", (3, 8, 8)),
    ("resnet34", (3, 32, 32)),
]
SIDES = [Side(private, p) for private in (True, False) for p in (0.02, 0.3, 0.5, 0.8)]


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def make(
    spec: str, shape: tuple[int, ...], norm: str = "batch"
) -> tuple[Backbone, Params, Tensor]:
    """A network, parameters and inputs; scales and statistics are not 0 or 1, so they count."""
    words = 30 if spec == "fasttext" else 0
    net, rng = build(spec, shape, 5, norm=norm, vocabulary=words), Rng.seed(3)
    w = {
        k: v + 0.1 * rng.fold(i).uniform(*v.shape)
        for i, (k, v) in enumerate(fresh(net, rng).items())
    }
    x = rng.fold(-1).uniform(4, *shape)
    return net.eval(), w, (x * words).long() if words else x * 2 - 1


def identify(w: Params) -> Params:
    """A number of its own for every entry of every tensor."""
    ends = torch.tensor([0, *(x.numel() for x in w.values())]).cumsum(0).tolist()
    return {
        k: torch.arange(start, start + x.numel()).reshape(x.shape)
        for (k, x), start in zip(w.items(), ends, strict=False)
    }


def count_entries(part: Params, marks: Params) -> Tensor:
    """How often each entry is in a part."""
    held = torch.cat(
        [torch.zeros(0, dtype=torch.int64), *(x.flatten() for x in part.values())]
    )
    return held.bincount(minlength=sum(x.numel() for x in marks.values()))


def mask(side: Side, width: int) -> Tensor:
    low, high = side.bounds(width)
    return ((torch.arange(width) >= low) & (torch.arange(width) < high)).to(
        torch.get_default_dtype()
    )


def run_masked(net: Backbone, w: Params, x: Tensor, side: Side) -> Tensor:
    """The whole stock network, with the other side's channels set to zero behind every layer."""

    def hide(m: nn.Module, _: object, out: Tensor) -> Tensor:
        return out * mask(side, out.shape[1]).reshape(-1, *[1] * (out.dim() - 2))

    layers = (nn.Linear, nn.Conv1d, nn.Conv2d, PadShortcut, Mean)
    hooks = [
        m.register_forward_hook(hide)
        for k, m in net.named_modules()
        if isinstance(m, layers) and k != net.last
    ]
    try:
        out: Tensor = functional_call(net, w, x)
    finally:
        for hook in hooks:
            hook.remove()
    return out


def without_norms(net: Backbone) -> Backbone:
    net = copy.deepcopy(net)
    for name, m in list(net.named_modules()):
        if isinstance(m, nn.BatchNorm2d):
            net.set_submodule(name, nn.Identity())
    return net


# -------------------------------------------------------------------- ownership
def test_counts() -> None:
    assert [count_shared(6, p) for p in (0, 0.01, 0.5, 0.51, 0.8, 0.999, 1)] == [
        6,
        5,
        3,
        2,
        1,
        1,
        0,
    ]
    # 0.30000000000000004 of ten channels are three
    assert count_shared(10, 0.1 * 3) == 7
    assert [count_shared(1, p) for p in (0, 0.5, 1)] == [1, 1, 0]
    for width in range(2, 70):
        shared = [count_shared(width, t / 50) for t in range(51)]
        assert (
            shared == sorted(shared, reverse=True)
            and shared[49] > 0
            and shared[1] < width
        )


@pytest.mark.parametrize(
    ("spec", "shape"),
    [
        ("lenet5", (3, 32, 32)),
        ("resnet32", (3, 8, 8)),
        ("har_cnn", (9, 128)),
        ("fasttext", (20,)),
    ],
)
@pytest.mark.parametrize("p", [0.0, 0.02, 0.3, 0.5, 1.0])
def test_owners_cover_every_parameter_once(
    spec: str, shape: tuple[int, ...], p: float
) -> None:
    net, w, _ = make(spec, shape)
    marks = identify(w)
    parts = split_channels(marks, draw_borders(w, p))
    shared, private = (count_entries(part, marks) for part in parts)
    assert bool((shared + private == 1).all())
    joined = join_channels(*parts)
    assert list(joined) == list(w) and all(torch.equal(joined[k], marks[k]) for k in w)
    for name, m in net.named_modules():
        if (
            isinstance(m, nn.Conv1d | nn.Conv2d | nn.Linear | nn.BatchNorm2d)
            and name != net.last
        ):
            at = count_shared(len(m.weight), p)
            for k in (k for k in w if k.rsplit(".", 1)[0] == name):
                assert bool(shared[marks[k][:at]].all()) and bool(
                    private[marks[k][at:]].all()
                )
        if isinstance(m, nn.Embedding):  # a word has a number for every channel
            words, at = marks[f"{name}.weight"], count_shared(m.embedding_dim, p)
            assert bool(shared[words[:, :at]].all()) and bool(
                private[words[:, at:]].all()
            )
    columns, bias = marks[f"{net.last}.weight"], marks[f"{net.last}.bias"]
    at = count_shared(columns.shape[1], p)
    assert bool(shared[columns[:, :at]].all()) and bool(private[columns[:, at:]].all())
    assert bool((private if p == 1 else shared)[bias].all())


def test_a_feature_map_that_feeds_the_last_layer_is_cut_where_its_channels_are() -> (
    None
):
    net = wrap_own_network(
        nn.Sequential(
            nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Flatten(), nn.Linear(4 * 36, 5)
        ),
        last="3",
    )
    w = fresh(net, Rng.seed(0))
    assert draw_borders(w, 0.5)["head.weight"] == Border(1, 2 * 36, 4 * 36)
    x = Rng.seed(1).uniform(3, 1, 8, 8)
    for side in SIDES:
        torch.testing.assert_close(
            functional_call(Decoupled(net), w, (x, side)), run_masked(net, w, x, side)
        )


def test_private_channels_are_nested() -> None:
    _, w, _ = make("resnet32", (3, 8, 8))
    marks = identify(w)
    private = [
        count_entries(split_channels(marks, draw_borders(w, t / 10))[1], marks)
        for t in range(11)
    ]
    for before, after in pairwise(private):
        assert bool((before <= after).all()) and before.sum() < after.sum()
    assert private[0].sum() == 0 and bool((private[-1] == 1).all())


@pytest.mark.parametrize(
    ("spec", "shape"), [("resnet32", (3, 8, 8)), ("fasttext", (20,))]
)
def test_channels_between_two_borders_are_those_that_changed_sides(
    spec: str, shape: tuple[int, ...]
) -> None:
    _, w, _ = make(spec, shape)
    now, then = draw_borders(w, 0.5), draw_borders(w, 0.2)
    shared, turned, old = (
        take_channels(w, stop=now),
        take_channels(w, start=now, stop=then),
        take_channels(w, start=then),
    )
    # it has not changed sides: there is nothing in between
    assert "head.bias" not in turned
    for k, border in now.items():
        sizes = [
            border.shared,
            then[k].shared - border.shared,
            border.size - then[k].shared,
        ]
        pieces = w[k].split(sizes, border.axis)
        for part, piece in zip((shared, turned, old), pieces, strict=True):
            assert torch.equal(part[k], piece) if piece.numel() else k not in part
    assert list(join_channels(shared, turned, old)) == list(w)
    assert list(take_channels(w)) == list(w)


def test_parts_have_memory_of_their_own() -> None:
    _, w, _ = make("lenet5", (3, 32, 32))
    for part in split_channels(w, draw_borders(w, 0.5)):
        assert all(x.untyped_storage().nbytes() == x.nbytes for x in part.values())


@pytest.mark.parametrize(("spec", "shape"), [("mlp:4", (3,)), ("fasttext", (20,))])
def test_overlay_choose_and_smooth(spec: str, shape: tuple[int, ...]) -> None:
    _, w, _ = make(spec, shape)
    other = {k: x + 100 for k, x in w.items()}
    borders = draw_borders(w, 0.5)
    part, _ = split_channels(other, borders)
    mixed = overlay_channels(w, part)
    at = torch.tensor([b.shared for b in borders.values()])
    chosen = choose_channels(w, other, at)
    for k, b in borders.items():
        first, rest = mixed[k].split([b.shared, b.size - b.shared], b.axis)
        assert bool((first > 50).all()) and bool((rest < 50).all())
        assert torch.equal(chosen[k], mixed[k])
    # every client its own border
    several = vmap(lambda n: choose_channels(w, other, n))(torch.stack([at, at * 0]))
    assert all(
        torch.equal(several[k][0], mixed[k]) and torch.equal(several[k][1], w[k])
        for k in w
    )
    assert all(
        torch.equal(overlay_channels(w, join_channels(other, other))[k], other[k])
        for k in w
    )  # what is too much is cut off

    smooth = smooth_private(w, other, borders, 0.25)
    for k, b in borders.items():
        first, rest = smooth[k].split([b.shared, b.size - b.shared], b.axis)
        assert torch.equal(first, other[k].narrow(b.axis, 0, b.shared))
        torch.testing.assert_close(
            rest, w[k].narrow(b.axis, b.shared, b.size - b.shared) + 25
        )
    assert all(
        torch.equal(smooth_private(w, other, borders, 1.0)[k], other[k]) for k in w
    )


# -------------------------------------------------------------------- sides
@pytest.mark.parametrize(("spec", "shape"), PLAIN)
def test_slices_compute_what_masks_do(spec: str, shape: tuple[int, ...]) -> None:
    net, w, x = make(spec, shape)
    cut = Decoupled(net)
    assert torch.equal(functional_call(cut, w, x), functional_call(net, w, x))
    for side in SIDES:
        sliced = functional_call(cut, w, (x, side))
        torch.testing.assert_close(
            sliced, run_masked(net, w, x, side), rtol=1e-9, atol=1e-9
        )
        assert not torch.allclose(sliced, functional_call(net, w, x))


@pytest.mark.parametrize(("spec", "shape"), RESIDUAL)
def test_slices_compute_what_masks_do_in_residual_streams(
    spec: str, shape: tuple[int, ...]
) -> None:
    net, w, x = make(spec, shape)
    net = without_norms(net)
    # without BatchNorm a deep network grows
    w = {k: 0.5 * w[k] for k in net.state_dict()}
    cut = Decoupled(net)
    for side in SIDES if spec == "resnet32" else SIDES[1::4]:
        masked = run_masked(net, w, x, side)
        assert bool(masked.isfinite().all())
        torch.testing.assert_close(
            functional_call(cut, w, (x, side)), masked, rtol=1e-9, atol=1e-9
        )


def test_a_padded_shortcut_loses_channels_that_would_change_sides() -> None:
    net = build("resnet32", (3, 8, 8), 9)
    block = next(
        m
        for m in net.modules()
        if isinstance(m, BasicBlock) and isinstance(m.shortcut, PadShortcut)
    )
    assert block.shortcut.before == 8  # 16 channels become the middle of 32
    assert Side(True, 0.3).bounds(16) == (11, 16) and Side(True, 0.3).bounds(32) == (
        22,
        32,
    )  # 11..15 would be 19..23
    assert Side(False, 0.3).bounds(16) == (0, 11) and Side(False, 0.3).bounds(32) == (
        0,
        22,
    )  # 0..10 are 8..18
    wide = nn.Sequential(
        nn.Conv2d(3, 16, 1, bias=False),
        copy.deepcopy(block),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
    )
    for conv in (wide[1].conv1, wide[1].conv2):
        nn.init.zeros_(conv.weight)  # the shortcut alone
    nn.init.ones_(wide[0].weight)
    last = nn.Linear(32, 32)
    nn.init.eye_(last.weight)
    nn.init.zeros_(last.bias)
    cut = Decoupled(Backbone(wide, last, features=32).double()).train()
    ones = torch.ones(2, 3, 8, 8)
    alive = {
        private: cut(ones, Side(private, 0.3))[0].nonzero().flatten().tolist()
        for private in (True, False)
    }
    assert alive == {True: [22, 23], False: list(range(8, 19))}


@pytest.mark.parametrize("side", SIDES)
def test_batch_norm_of_a_side_is_that_of_a_small_network(side: Side) -> None:
    blocks = {
        f"block{i}": BasicBlock(n, m, stride, "batch", pad=False)
        for i, n, m, stride in ((1, 8, 8, 1), (2, 8, 12, 2))
    }
    stem = chain(conv=nn.Conv2d(3, 8, 3), bn=nn.BatchNorm2d(8), relu=nn.ReLU())
    base = chain(
        stem=stem, **blocks, pool=nn.AdaptiveAvgPool2d(1), flatten=nn.Flatten()
    )
    net, rng = Backbone(base, nn.Linear(12, 5), features=12), Rng.seed(3)
    w = {
        k: v + 0.1 * rng.fold(i).uniform(*v.shape)
        for i, (k, v) in enumerate(fresh(net, rng).items())
    }
    x = rng.fold(-1).uniform(6, 3, 8, 8)

    def cut_out(
        k: str, v: Tensor
    ) -> Tensor:  # by their widths, all but colours and classes
        v = v if k.startswith("head") else v[slice(*side.bounds(len(v)))]
        return (
            v.clone()
            if v.dim() == 1 or v.shape[1] == 3
            else v[:, slice(*side.bounds(v.shape[1]))]
        )

    before, tiny = (
        {k: v.clone() for k, v in w.items()},
        {k: cut_out(k, v) for k, v in w.items()},
    )
    cut = Decoupled(net).train()
    torch.testing.assert_close(
        functional_call(cut, w, (x, side)), functional_call(net, tiny, x)
    )
    # no statistic of the whole network has moved
    assert all(torch.equal(w[k], before[k]) for k in w)
    functional_call(cut, w, x)
    # as they do when the whole network learns
    assert all(torch.equal(w[k], before[k]) != ("running" in k) for k in w)

    cut.eval()
    tiny = {k: cut_out(k, v) for k, v in w.items()}
    torch.testing.assert_close(
        functional_call(cut, w, (x, side)), functional_call(net, tiny, x)
    )


@pytest.mark.parametrize("side", SIDES)
def test_group_norm_of_a_side_stays_within_groups_and_owners(side: Side) -> None:
    layer = nn.GroupNorm(3, 12)
    nn.init.uniform_(layer.weight)
    nn.init.uniform_(layer.bias)
    net = Backbone(
        chain(conv=nn.Conv2d(1, 12, 3), norm=layer, flatten=nn.Flatten()),
        nn.Linear(12 * 4, 12),
        features=48,
    )
    nn.init.zeros_(net.head.bias)
    x = Rng.seed(1).uniform(3, 1, 4, 4)
    low, high = side.bounds(12)
    h = net.base.conv(x)
    out = torch.zeros_like(h)
    for group in range(3):
        inside = [i for i in range(4 * group, 4 * group + 4) if low <= i < high]
        if inside:
            part = h[:, inside]
            mean, var = (
                part.mean((1, 2, 3), keepdim=True),
                part.var((1, 2, 3), keepdim=True, unbiased=False),
            )
            affine = layer.weight[inside, None, None], layer.bias[inside, None, None]
            out[:, inside] = (part - mean) / (var + layer.eps).sqrt() * affine[
                0
            ] + affine[1]
    torch.testing.assert_close(Decoupled(net)(x, side), net.head(out.flatten(1)))


def test_sides_are_smaller_computations() -> None:
    def flops(net: Backbone, x: Tensor, *side: Side) -> int:
        with FlopCounterMode(display=False) as counter:
            Decoupled(net)(x, *side)
        return counter.get_total_flops()

    mlp = build("mlp:200,100", (50,), 10)
    x = torch.zeros(1, 50)
    assert flops(mlp, x) == 2 * (50 * 200 + 200 * 100 + 100 * 10)
    assert flops(mlp, x, Side(True, 0.3)) == 2 * (50 * 60 + 60 * 30 + 30 * 10)
    assert flops(mlp, x, Side(False, 0.3)) == 2 * (50 * 140 + 140 * 70 + 70 * 10)
    resnet, image = build("resnet32", (3, 8, 8), 9), torch.zeros(2, 3, 8, 8)
    both = flops(resnet, image, Side(True, 0.5)) + flops(
        resnet, image, Side(False, 0.5)
    )
    assert both < 0.51 * flops(resnet, image)


def test_word_vectors_may_feed_the_last_layer_and_their_gradient_names_only_words_that_occur() -> (
    None
):
    base = chain(embedding=nn.Embedding(30, 6, sparse=True), mean=Mean())
    net = Backbone(base, nn.Linear(6, 5), features=6)
    w = {k: v.requires_grad_() for k, v in fresh(net, Rng.seed(0)).items()}
    borders, x = draw_borders(w, 0.4), torch.tensor([[1, 2], [2, 3]])
    assert borders["base.embedding.weight"] == Border(1, 3, 6) and borders[
        "head.weight"
    ] == Border(1, 3, 6)
    for side, low, high in ((Side(False, 0.4), 0, 3), (Side(True, 0.4), 3, 6)):
        out = functional_call(Decoupled(net), w, (x, side))
        torch.testing.assert_close(out, run_masked(net, w, x, side))
        (g,) = torch.autograd.grad(out.sum(), w["base.embedding.weight"])
        assert g.is_sparse and g.coalesce().indices().tolist() == [[1, 2, 3]]
        seen = g.to_dense().any(0).tolist()
        assert seen == [low <= i < high for i in range(6)]


def test_a_side_needs_channels_in_every_layer() -> None:
    for width, p, two in (
        (4, 0.0, False),
        (4, 0.1, True),
        (4, 0.99, True),
        (4, 1.0, False),
        (1, 0.5, False),
    ):
        _, w, _ = make(f"mlp:6,{width}", (3,))
        assert has_two_sides(w, draw_borders(w, p)) is two


def test_names_and_first_values_are_the_backbones() -> None:
    net = build("resnet32", (3, 8, 8), 9)
    mine, theirs = fresh(Decoupled(net), Rng.seed(5)), fresh(net, Rng.seed(5))
    assert list(mine) == list(theirs) and all(
        torch.equal(mine[k], theirs[k]) for k in theirs
    )


# -------------------------------------------------------------------- refusals
def network(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4, 3))


@pytest.mark.parametrize(
    ("net", "why"),
    [
        (build("linear", (3, 8, 8), 5), "has none"),
        (
            wrap_own_network(
                nn.Sequential(nn.Embedding(9, 4), Mean(), nn.Linear(4, 3)), last="2"
            ),
            "'base.0': call word vectors",
        ),
        (
            Backbone(chain(embedding=nn.Linear(3, 4)), nn.Linear(4, 3), features=4),
            "'base.embedding': call word vectors",
        ),
        (
            Backbone(chain(embedding=nn.Embedding(9, 4)), nn.Linear(4, 3), features=4),
            "'head': Mean must",
        ),
        (
            Backbone(
                chain(a=nn.Conv1d(3, 4, 1), b=Mean()), nn.Linear(8, 3), features=8
            ),
            "'base.b': Mean must",
        ),
        (
            wrap_own_network(
                network(nn.Conv2d(3, 4, 1), nn.Conv2d(4, 4, 8, groups=2)), last="3"
            ),
            "'base.1' by channel (Conv2d)",
        ),
        (
            wrap_own_network(network(nn.BatchNorm2d(3), nn.Conv2d(3, 4, 8)), last="3"),
            "'base.0': put BatchNorm2d right behind",
        ),
        (
            wrap_own_network(
                network(nn.Conv2d(3, 4, 8), nn.LayerNorm([4, 1, 1])), last="3"
            ),
            "'base.1' by channel (LayerNorm)",
        ),
        (
            wrap_own_network(
                nn.Sequential(nn.Linear(3, 4), nn.Softmax(-1), nn.Linear(4, 3)),
                last="2",
            ),
            "(Softmax)",
        ),
        (
            wrap_own_network(
                nn.Sequential(nn.Linear(3, 4), nn.PReLU(), nn.Linear(4, 3)), last="2"
            ),
            "(PReLU)",
        ),
        (
            Backbone(
                nn.Linear(3, 4),
                chain(a=nn.Linear(4, 4), b=nn.Linear(4, 3)),
                features=4,
                last="head.a",
            ),
            "'head.a'",
        ),
    ],
)
def test_networks_that_cannot_be_split_are_refused_by_name(
    net: Backbone, why: str
) -> None:
    with pytest.raises(Unsupported, match=re.escape(why)) as refusal:
        Decoupled(net)
    assert "\n" not in str(refusal.value)
