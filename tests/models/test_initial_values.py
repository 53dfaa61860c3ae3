"""First values: distributed as PyTorch's own, and the same names and shapes."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator

import pytest
import torch
from scipy.stats import ks_2samp
from torch import Tensor, nn

from fedtailor.core.rng import Purpose, Rng
from fedtailor.models import Backbone, build, fresh

LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(30, 20),
    "bilinear": lambda: nn.Bilinear(6, 9, 10),
    "conv1d": lambda: nn.Conv1d(6, 8, 5),
    "conv2d": lambda: nn.Conv2d(4, 8, 3),
    "conv2d grouped": lambda: nn.Conv2d(8, 8, 3, groups=4),
    "conv3d": lambda: nn.Conv3d(2, 8, 3),
    "transposed 1d": lambda: nn.ConvTranspose1d(8, 6, 5),
    "transposed 2d": lambda: nn.ConvTranspose2d(8, 4, 3),
    "transposed 3d": lambda: nn.ConvTranspose3d(8, 2, 3, groups=2),
    "embedding": lambda: nn.Embedding(20, 16),
    "padded embedding": lambda: nn.Embedding(20, 16, padding_idx=3),
    "embedding bag": lambda: nn.EmbeddingBag(20, 16, padding_idx=-1),
    "batch 1d": lambda: nn.BatchNorm1d(5),
    "batch 2d": lambda: nn.BatchNorm2d(5),
    "batch 3d": lambda: nn.BatchNorm3d(5, affine=False),
    "instance": lambda: nn.InstanceNorm2d(5, affine=True, track_running_stats=True),
    "group": lambda: nn.GroupNorm(2, 6),
    "layer": lambda: nn.LayerNorm([3, 4]),
    "root mean square": lambda: nn.RMSNorm(7),
    "prelu": lambda: nn.PReLU(4, init=0.1),
    "rnn": lambda: nn.RNN(5, 12),
    "gru": lambda: nn.GRU(5, 12, bidirectional=True),
    "lstm": lambda: nn.LSTM(5, 12, num_layers=2, proj_size=4),
    "lstm cell": lambda: nn.LSTMCell(5, 12),
    "attention": lambda: nn.MultiheadAttention(12, 3, add_bias_kv=True),
    "attention of other widths": lambda: nn.MultiheadAttention(12, 3, kdim=8, vdim=5),
    "transformer": lambda: nn.TransformerEncoderLayer(12, 3, dim_feedforward=16),
    "both": lambda: nn.Sequential(
        nn.Linear(4, 9), nn.BatchNorm1d(9), nn.PReLU(), nn.Linear(9, 3, bias=False)
    ),
}


@pytest.fixture
def double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def state(module: nn.Module) -> dict[str, Tensor]:
    return {
        k: v
        for k, v in module.state_dict().items()
        if not k.endswith("num_batches_tracked")
    }


@pytest.mark.parametrize("name", LAYERS)
def test_first_values_are_distributed_as_pytorchs(name: str) -> None:
    make = LAYERS[name]
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(11)
        stock = [state(make()) for _ in range(150)]
    module = make().to("meta")  # no value to copy from
    ours = [fresh(module, Rng.seed(3, Purpose.INITIAL, i)) for i in range(150)]
    assert {k: v.shape for k, v in ours[0].items()} == {
        k: v.shape for k, v in stock[0].items()
    }
    for key in stock[0]:
        a, b = (
            torch.stack([w[key] for w in ws]).double().flatten() for ws in (ours, stock)
        )
        if b.std() == 0:
            assert torch.equal(a, b)
            continue
        n, spread = len(b), float(b.std())
        assert abs(a.mean() - b.mean()) < 6 * spread * math.sqrt(2 / n)
        # of a normal distribution sd(std) = std / sqrt(2 n); of a uniform one it is less
        assert float(a.std()) == pytest.approx(spread, rel=6 / math.sqrt(n))
        assert ks_2samp(a.numpy(), b.numpy()).pvalue > 1e-4
        # uniform: its bound is sqrt(3) standard deviations away
        if spread * 1.8 > b.abs().max():
            assert float(a.abs().max()) == pytest.approx(
                float(b.abs().max()), rel=20 / n
            )
            assert float(a.min()) < 0 < float(a.max())


RESNETS = [
    ("resnet18", (3, 64, 64)),
    ("resnet18:cifar,50", (3, 32, 32)),
    ("resnet34:cifar", (3, 32, 32)),
    ("resnet32", (3, 32, 32)),
]


@pytest.mark.parametrize("norm", ["batch", "group"])
@pytest.mark.parametrize(("spec", "shape"), RESNETS)
def test_first_values_of_resnets_are_torchvisions(
    spec: str, shape: tuple[int, ...], norm: str
) -> None:
    """torchvision: kaiming_normal_(weight, mode="fan_out", nonlinearity="relu"), norms 1 and 0."""
    net = build(spec, shape, 10, norm=norm)
    w = fresh(copy.deepcopy(net).to("meta"), Rng.seed(7))
    checked = 0
    for path, m in net.named_modules():
        if isinstance(m, nn.Conv2d):
            kernel = m.kernel_size[0] * m.kernel_size[1]
            variance = 2 / (m.out_channels * kernel)
            value = w[path + ".weight"].double()
            noise = math.sqrt(2 / value.numel())  # of the variance, relative
            assert float(value.var()) == pytest.approx(variance, rel=6 * noise)
            assert abs(value.mean()) < 6 * math.sqrt(variance / value.numel())
            assert m.bias is None
        elif isinstance(m, nn.BatchNorm2d | nn.GroupNorm):
            assert (w[path + ".weight"] == 1).all()
            assert (w[path + ".bias"] == 0).all()
        elif isinstance(m, nn.Linear):
            bound = 1 / math.sqrt(m.in_features)
            value = w[path + ".weight"]
            assert 0.98 * bound < float(value.abs().max()) <= bound
            assert float(w[path + ".bias"].abs().max()) <= bound
        checked += len([name for name in w if name.rpartition(".")[0] == path])
    assert checked == len(w)


def test_one_layer_of_a_resnet_is_normal_as_pytorchs_he() -> None:
    net = build("resnet32", (3, 8, 8), 3)
    name = "base.block15.conv2.weight"
    ours = fresh(net, Rng.seed(1))[name].flatten()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        theirs = torch.empty(64, 64, 3, 3)
        nn.init.kaiming_normal_(theirs, mode="fan_out", nonlinearity="relu")
    assert ks_2samp(ours.numpy(), theirs.flatten().numpy()).pvalue > 1e-3


def test_padding_rows_are_zero_and_no_others() -> None:
    for module, row in (
        (nn.Embedding(6, 9, padding_idx=2), 2),
        (nn.EmbeddingBag(6, 9, padding_idx=-1), 5),
    ):
        w = fresh(module, Rng.seed(1))["weight"]
        assert [i for i in range(6) if not w[i].any()] == [row]


def test_streams_differ_by_layer_and_parameter_and_repeat() -> None:
    net = nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8))
    one, two, other = (
        fresh(net, Rng.seed(1)),
        fresh(net, Rng.seed(1)),
        fresh(net, Rng.seed(2)),
    )
    assert all(torch.equal(one[k], two[k]) for k in one)
    assert not any(torch.equal(one[k], other[k]) for k in one)
    assert not torch.equal(one["0.weight"], one["1.weight"])
    assert not torch.equal(one["0.weight"][0], one["0.bias"])


def test_a_prefix_goes_before_every_name_and_the_meta_device_changes_nothing() -> None:
    net = build("resnet32", (3, 8, 8), 3)
    whole = fresh(net.to("meta"), Rng.seed(5))
    assert {k: v.shape for k, v in whole.items()} == {
        k: v.shape for k, v in net.state_dict().items()
    }
    assert {v.device.type for v in whole.values()} == {"cpu"}
    head = fresh(net.head, Rng.seed(5), "head.")
    assert list(head) == ["head.weight", "head.bias"]
    net.load_state_dict(whole, assign=True)
    assert net.eval()(torch.zeros(2, 3, 8, 8)).isfinite().all()


@pytest.mark.parametrize(
    "name", ["linear", "padded embedding", "attention", "lstm", "both"]
)
def test_many_clients_at_once_draw_what_each_draws_alone(name: str) -> None:
    module = LAYERS[name]()
    keys = [Rng.seed(9, i).key for i in range(3)]
    together = torch.func.vmap(lambda key: fresh(module, Rng(key)))(torch.tensor(keys))
    for i in range(3):
        for key, value in fresh(module, Rng.seed(9, i)).items():
            torch.testing.assert_close(together[key][i], value, rtol=1e-6, atol=1e-6)


def test_float64_starts_where_float32_does(double: None) -> None:
    net = nn.Linear(5, 4)
    wide = fresh(net, Rng.seed(2))
    torch.set_default_dtype(torch.float32)
    narrow = fresh(net, Rng.seed(2))
    assert (
        wide["weight"].dtype == torch.float64
        and narrow["weight"].dtype == torch.float32
    )
    torch.testing.assert_close(wide["weight"].float(), narrow["weight"])


class Scaled(nn.Module):
    """A layer with values of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(4, 4)
        self.scale = nn.Parameter(torch.tensor([1.0, 2.0, 3.0, 4.0]))
        self.register_buffer("shift", torch.tensor([0.5]))
        self.register_buffer("scratch", torch.tensor([7.0]), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * self.scale + self.shift


class Wished(nn.Module):
    """A layer that knows how it wants to start."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3))
        self.other = nn.Parameter(torch.full((2,), 8.0))

    def fresh(self, name: str, shape: tuple[int, ...], rng: Rng) -> Tensor | None:
        return 5 + rng.uniform(*shape) if name == "weight" else None


def test_values_without_a_rule_are_the_modules_own_even_from_the_meta_device() -> None:
    backbone = Backbone(Scaled(), nn.Linear(4, 2), features=4)
    for net in (backbone, backbone.to("meta")):
        w = fresh(net, Rng.seed(1))
        assert list(w) == list(net.state_dict())
        assert w["base.scale"].tolist() == [1, 2, 3, 4] and w[
            "base.shift"
        ].tolist() == [0.5]
    w["base.scale"].zero_()  # what was drawn is the caller's
    assert fresh(backbone.base, Rng.seed(1))["scale"].tolist() == [1, 2, 3, 4]


def test_a_module_may_wish_and_a_bare_module_may_not_be_forgotten() -> None:
    w = fresh(Wished(), Rng.seed(1))
    assert bool(((w["weight"] >= 5) & (w["weight"] < 6)).all()) and w[
        "other"
    ].tolist() == [8, 8]
    with pytest.raises(TypeError, match="'other' in Wished: give it a method 'fresh'"):
        fresh(Wished().to("meta"), Rng.seed(1))
