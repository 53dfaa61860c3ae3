"""Sizes, parts and shapes of all architectures, against the papers."""

from __future__ import annotations

import copy
import pickle

import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from fedtailor.core.tree import part
from fedtailor.models import (
    Backbone,
    build,
    catalogue,
    leading_modules,
    suggest_architecture,
)
from fedtailor.models.architectures.resnet import PadShortcut

# spec, shape, classes, vocabulary, parameters
PAPERS = [
    ("cnn", (1, 28, 28), 10, 0, 582_026),
    ("cnn", (3, 32, 32), 10, 0, 878_538),
    ("cnn", (3, 32, 32), 100, 0, 924_708),
    ("cnn", (3, 64, 64), 200, 0, 5_694_600),
    ("cnn", (1, 8, 8), 10, 0, 13_706),
    ("lenet5", (3, 32, 32), 10, 0, 64_102),
    ("lenet5:84", (3, 32, 32), 10, 0, 62_006),
    ("lenet_mgda", (1, 28, 28), 10, 0, 21_330 + 10 * 51),
    ("convnet2", (1, 28, 28), 10, 0, 103_856),
    ("convnet3", (3, 32, 32), 10, 0, 122_570),
    ("convnet3", (3, 32, 32), 100, 0, 128_420),
    ("pflcnn", (3, 32, 32), 10, 0, 1_626_442),
    ("resnet18", (3, 64, 64), 200, 0, 11_279_112),
    ("resnet18:cifar", (3, 32, 32), 10, 0, 11_173_962),
    ("resnet18:cifar", (3, 32, 32), 100, 0, 11_220_132),
    ("resnet18:cifar,50", (3, 32, 32), 20, 0, 11_168_832 + 513 * 50 + 51 * 20),
    ("resnet34:cifar", (3, 32, 32), 100, 0, 21_328_292),
    ("resnet34", (3, 224, 224), 100, 0, 21_335_972),
    ("resnet32", (3, 32, 32), 9, 0, 464_089),
    ("fasttext", (200,), 4, 98_635, 3_157_508),
    ("har_cnn", (9, 128), 6, 0, 2_253_958),
    ("amazon_mlp", (5000,), 2, 0, 5_551_802),
    ("mlp", (1, 28, 28), 10, 0, 101_770),
    ("mlp:200,100", (13,), 2, 0, 14 * 200 + 201 * 100 + 101 * 2),
    ("linear", (3, 32, 32), 10, 0, 30_730),
]

# spec, shape, features, last layer, stages
PARTS = [
    ("cnn", (3, 32, 32), 512, "head", "base.conv1 base.conv2 base.fc1 head"),
    ("cnn", (1, 8, 8), 64, "head", "base.conv1 base.conv2 base.fc1 head"),
    (
        "lenet5",
        (3, 32, 32),
        100,
        "head",
        "base.conv1 base.conv2 base.fc1 base.fc2 head",
    ),
    (
        "lenet5:84",
        (3, 32, 32),
        84,
        "head",
        "base.conv1 base.conv2 base.fc1 base.fc2 head",
    ),
    ("lenet_mgda", (1, 28, 28), 50, "head", "base.conv1 base.conv2 base.fc1 head"),
    ("convnet2", (1, 28, 28), 50, "head", "base.conv1 base.conv2 base.fc1 head"),
    (
        "convnet3",
        (3, 32, 32),
        64,
        "head",
        "base.conv1 base.conv2 base.conv3 base.fc1 head",
    ),
    ("pflcnn", (3, 32, 32), 128, "head", "base.conv1 base.conv2 base.fc1 head"),
    (
        "resnet18",
        (3, 32, 32),
        512,
        "head",
        " ".join(["base.stem", *(f"base.block{i}" for i in range(1, 9)), "head"]),
    ),
    (
        "resnet18:cifar,50",
        (3, 16, 16),
        50,
        "head",
        " ".join(
            ["base.stem", *(f"base.block{i}" for i in range(1, 9)), "base.fc1 head"]
        ),
    ),
    (
        "resnet34",
        (3, 32, 32),
        512,
        "head",
        " ".join(["base.stem", *(f"base.block{i}" for i in range(1, 17)), "head"]),
    ),
    (
        "resnet32",
        (3, 16, 16),
        64,
        "head",
        " ".join(["base.stem", *(f"base.block{i}" for i in range(1, 16)), "head"]),
    ),
    ("fasttext", (200,), 32, "head", "base.embedding base.fc1 head"),
    (
        "har_cnn",
        (9, 128),
        1664,
        "head.fc3",
        "base.conv1 base.conv2 head.fc1 head.fc2 head.fc3",
    ),
    ("amazon_mlp", (5000,), 100, "head", "base.fc1 base.fc2 base.fc3 head"),
    ("mlp", (9, 128), 128, "head", "base.fc1 head"),
    ("mlp:200,100", (3, 8, 8), 100, "head", "base.fc1 base.fc2 head"),
    ("linear", (3, 32, 32), 3072, "head", "head"),
]


def make(spec: str, shape: tuple[int, ...], classes: int = 7, **more: str) -> Backbone:
    return build(
        spec, shape, classes, vocabulary=50 if spec == "fasttext" else 0, **more
    )


def inputs(spec: str, shape: tuple[int, ...], n: int = 2) -> Tensor:
    if spec == "fasttext":
        return torch.randint(
            0, 50, (n, *shape), generator=torch.Generator().manual_seed(1)
        )
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(1)) * 2 - 1


@pytest.mark.parametrize(
    ("spec", "shape", "classes", "vocabulary", "parameters"), PAPERS
)
def test_parameter_counts_are_the_papers(
    spec: str, shape: tuple[int, ...], classes: int, vocabulary: int, parameters: int
) -> None:
    with torch.device("meta"):
        net = build(spec, shape, classes, vocabulary=vocabulary)
    assert sum(p.numel() for p in net.parameters()) == parameters


@pytest.mark.parametrize(("spec", "shape", "features", "last", "stages"), PARTS)
@torch.no_grad()
def test_parts_shapes_and_stages(
    spec: str, shape: tuple[int, ...], features: int, last: str, stages: str
) -> None:
    net, x = make(spec, shape).eval(), inputs(spec, shape)
    h = net.base(x)
    assert h.shape == (2, features) and net.features == features
    assert (
        torch.equal(net(x), net.head(h)) and net(x).shape == (2, 7) and net.classes == 7
    )
    assert isinstance(net.get_submodule(net.last), nn.Linear) and net.last == last
    assert net.stages == tuple(stages.split()) and net.kind == spec.split(":")[0]
    # the stages hold every parameter and buffer exactly once
    w = net.state_dict()
    assert [k for s in net.stages for k in part(w, s)] == list(w)
    assert not [k for k in w if "num_batches_tracked" in k]
    assert leading_modules(net)[-1] == net.last


def test_the_cnn_has_the_papers_maps() -> None:
    for side, maps, flat in (
        (28, (24, 12, 8, 4), 1024),
        (32, (28, 14, 10, 5), 1600),
        (64, (60, 30, 26, 13), 10816),
    ):
        net, x, seen = make("cnn", (3, side, side)), torch.zeros(1, 3, side, side), []
        for name in ("conv1", "pool1", "conv2", "pool2"):
            net.base.get_submodule(name).register_forward_hook(
                lambda m, i, out, seen=seen: seen.append(out.shape[-1])
            )
        net(x)
        assert tuple(seen) == maps
        assert net.base.get_submodule("fc1").in_features == flat


@torch.no_grad()
def test_resnet_maps_shrink_as_published() -> None:
    cases = {
        ("resnet18", 64): [16, 16, 16, 8, 8, 4, 4, 2, 2],
        ("resnet18:cifar", 32): [32, 32, 32, 16, 16, 8, 8, 4, 4],
        ("resnet32", 32): [32] * 6 + [16] * 5 + [8] * 5,
    }
    for (spec, side), expected in cases.items():
        net, seen = make(spec, (3, side, side)).eval(), []
        for stage in net.stages[:-1]:
            net.get_submodule(stage).register_forward_hook(
                lambda m, i, out, seen=seen: seen.append(out.shape[-1])
            )
        net(torch.zeros(1, 3, side, side))
        assert seen == expected


@torch.no_grad()
def test_padded_shortcut_keeps_every_second_pixel_between_new_zero_channels() -> None:
    x = torch.arange(2 * 4 * 6 * 6.0).reshape(2, 4, 6, 6)
    zeros = torch.zeros(2, 2, 3, 3)
    assert torch.equal(
        PadShortcut(4, 8, 2)(x), torch.cat([zeros, x[:, :, ::2, ::2], zeros], 1)
    )


@torch.no_grad()
def test_har_cnn_equals_the_papers_two_dimensional_network() -> None:
    net, x = make("har_cnn", (9, 128), 6), inputs("har_cnn", (9, 128), 3)
    w = net.state_dict()
    h = x[:, :, None]  # 9 x 1 x 128
    for i in (1, 2):
        h = F.conv2d(h, w[f"base.conv{i}.weight"][:, :, None], w[f"base.conv{i}.bias"])
        h = F.max_pool2d(F.relu(h), (1, 2), 2)
    torch.testing.assert_close(net.base(x), h.flatten(1))


@torch.no_grad()
def test_fasttext_averages_over_padding_and_its_features_are_not_rectified() -> None:
    net = make("fasttext", (200,), 4)
    x = torch.zeros(1, 200, dtype=torch.int64)
    x[0, :3] = torch.tensor([5, 6, 7])
    w = net.state_dict()
    mean = w["base.embedding.weight"][5:8].sum(0) / 200
    expected = F.linear(mean, w["base.fc1.weight"], w["base.fc1.bias"])
    torch.testing.assert_close(net.base(x)[0], expected)
    assert (expected < 0).any()
    assert not w["base.embedding.weight"][0].any()


def test_the_padding_vector_of_fasttext_gets_no_gradient() -> None:
    net = make("fasttext", (200,), 4)
    net(torch.tensor([[0, 3, 0, 3]])).square().sum().backward()
    grad = net.base.get_submodule("embedding").weight.grad
    assert not grad[0].any() and grad[3].any()


@torch.no_grad()
def test_mgda_lenet_pools_before_it_rectifies() -> None:
    names = [name for name, _ in make("lenet_mgda", (1, 28, 28)).base.named_children()]
    assert names[:6] == ["conv1", "pool1", "relu1", "conv2", "pool2", "relu2"]


@pytest.mark.parametrize("spec", ["resnet18:cifar", "resnet32"])
def test_group_norm_stands_where_batch_norm_stood(spec: str) -> None:
    with torch.device("meta"):
        batch, group = (
            make(spec, (3, 16, 16), norm=norm) for norm in ("batch", "group")
        )
    where = [name for name, m in batch.named_modules() if isinstance(m, nn.BatchNorm2d)]
    assert (
        where
        == [name for name, m in group.named_modules() if isinstance(m, nn.GroupNorm)]
        != []
    )
    assert not list(group.buffers()) and list(batch.buffers())
    for m in group.modules():
        if isinstance(m, nn.GroupNorm):
            assert (
                m.num_groups == min(32, m.num_channels)
                and m.num_channels % m.num_groups == 0
            )


@torch.no_grad()
def test_group_norm_sees_one_example_at_a_time() -> None:
    net, x = (
        make("resnet32", (3, 16, 16), norm="group"),
        inputs("resnet32", (3, 16, 16), 4),
    )
    torch.testing.assert_close(net(x)[:1], net(x[:1]))


@torch.no_grad()
def test_batch_norm_counts_no_batches_but_keeps_statistics_and_loads_any_state() -> (
    None
):
    net = make("resnet32", (3, 8, 8))
    before = {k: v.clone() for k, v in net.state_dict().items()}
    net.train()(inputs("resnet32", (3, 8, 8), 4))
    after = net.state_dict()
    assert not torch.equal(
        before["base.stem.bn1.running_mean"], after["base.stem.bn1.running_mean"]
    )
    twin = pickle.loads(pickle.dumps(copy.deepcopy(net)))
    stock = dict(before) | {"base.stem.bn1.num_batches_tracked": torch.tensor(3)}
    twin.load_state_dict(stock)
    assert all(torch.equal(before[k], v) for k, v in twin.state_dict().items())
    assert list(twin.state_dict()) == list(before)


def test_building_leaves_the_global_generator_alone_and_repeats() -> None:
    state = torch.get_rng_state()
    one = make("lenet5", (3, 32, 32))
    assert torch.equal(torch.get_rng_state(), state)
    torch.rand(1)
    two = make("lenet5", (3, 32, 32))
    assert all(
        torch.equal(a, b)
        for a, b in zip(one.parameters(), two.parameters(), strict=True)
    )


def test_catalogue_lists_everything_once_with_sizes() -> None:
    entries = {e.name: e for e in catalogue()}
    counts = {(spec, shape, classes): n for spec, shape, classes, _, n in PAPERS}
    assert set(entries) == {spec.split(":")[0] for spec, *_ in PAPERS}
    for name, e in entries.items():
        assert e.parameters == counts[name, e.shape, e.classes] and e.layers
        for variant in e.variants:
            with torch.device("meta"):
                assert build(f"{name}:{variant}", e.shape, e.classes).kind == name


@pytest.mark.parametrize(
    ("kind", "shape", "vocabulary", "name"),
    [
        ("image", (3, 32, 32), 0, "cnn"),
        ("image", (1, 8, 8), 0, "cnn"),
        ("image", (1, 3, 3), 0, "mlp"),
        ("signal", (9, 128), 0, "har_cnn"),
        ("signal", (9, 20), 0, "mlp"),
        ("text", (200,), 98635, "fasttext"),
        ("table", (5000,), 0, "amazon_mlp"),
        ("table", (13,), 0, "mlp"),
    ],
)
def test_suggestions_fit(
    kind: str, shape: tuple[int, ...], vocabulary: int, name: str
) -> None:
    assert suggest_architecture(kind, shape, vocabulary) == name
    with torch.device("meta"):
        assert build(name, shape, 3, vocabulary=vocabulary).kind == name


@torch.no_grad()
@pytest.mark.parametrize(
    ("spec", "smallest"),
    [
        *[
            ("cnn", 4),
            ("lenet5", 16),
            ("lenet_mgda", 16),
            ("convnet2", 16),
            ("convnet3", 18),
            ("pflcnn", 6),
        ],
        *[("resnet18:cifar", 8), ("resnet18", 16), ("resnet32", 8)],
    ],
)
def test_the_smallest_and_oblong_images_fit(spec: str, smallest: int) -> None:
    for h, w in ((smallest, smallest), (smallest + 3, 24), (17, smallest + 1)):
        if min(h, w) >= smallest:
            assert make(spec, (2, h, w)).eval()(torch.zeros(1, 2, h, w)).shape == (1, 7)


def test_the_small_cnn_learns_to_read_digits() -> None:
    digits = load_digits()
    x = torch.tensor(digits.images, dtype=torch.float32)[:, None] / 8 - 1
    y = torch.tensor(digits.target)
    net = make("cnn", (1, 8, 8), 10)
    optimiser = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9)
    for epoch in range(6):
        for rows in torch.randperm(
            1400, generator=torch.Generator().manual_seed(epoch)
        ).split(50):
            optimiser.zero_grad()
            F.cross_entropy(net(x[rows]), y[rows]).backward()
            optimiser.step()
    assert (net(x[1400:]).argmax(1) == y[1400:]).float().mean() > 0.9
