"""Users' own networks as backbones."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, stack, unstack
from fedtailor.models import build, fresh, wrap_own_network

Make = Callable[[], nn.Module]


class Parted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base = nn.Sequential(
            nn.Flatten(), nn.Linear(12, 8), nn.BatchNorm1d(8), nn.ReLU(inplace=True)
        )
        self.head = nn.Sequential(nn.Linear(8, 6), nn.Tanh(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x))


class Digits(nn.Module):
    """The shape of PyTorch's first example, written with functions."""

    def __init__(self, *, softmax: bool = False) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3)
        self.fc1 = nn.Linear(36, 10)
        self.fc2 = nn.Linear(10, 5)
        self.softmax = softmax

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.conv(x)), 2)
        x = self.fc2(torch.relu(self.fc1(torch.flatten(x, 1))))
        return F.log_softmax(x, 1) if self.softmax else x


class Reader(nn.Module):
    """Tokens through a recurrent net and attention, with a parameter and buffers of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.start = nn.Parameter(torch.linspace(-1, 1, 6).reshape(1, 1, 6))
        self.register_buffer("places", torch.sin(torch.arange(6.0)), persistent=False)
        self.register_buffer("order", torch.tensor([1, 0, 2, 3]))
        self.rnn = nn.GRU(6, 6, batch_first=True)
        self.attention = nn.MultiheadAttention(6, 2, batch_first=True)
        self.classify = nn.Sequential(nn.LayerNorm(6), nn.Linear(6, 4))

    def forward(self, x: Tensor) -> Tensor:
        h = self.embedding(x[:, self.order]) + self.places
        h = self.rnn(torch.cat([self.start.expand(len(x), 1, 6), h], 1))[0]
        h = self.attention(h, h, h)[0]
        return self.classify(h[:, 0])


class Moody(nn.Module):
    """A forward that cannot be read without values."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(3, 3)
        self.out = nn.Linear(3, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.fc(x)
        return self.out(
            h if x.shape[0] > 1 and bool(h.isfinite().all()) else h.nan_to_num()
        )


CASES = [
    (Parted, None, torch.rand(4, 3, 4), 8, "head.2", "base.1 base.2 head.0 head.2"),
    (Digits, "fc2", torch.rand(4, 1, 8, 8), 10, "head", "base.conv base.fc1 head"),
    (Reader, "classify.1", torch.randint(0, 11, (4, 4)), 6, "head", "base head"),
    (Moody, "out", torch.rand(4, 3), 3, "head", "base.fc head"),
    (lambda: nn.Linear(5, 2), None, torch.rand(4, 5), 5, "head", "head"),
    (
        lambda: nn.Sequential(nn.Linear(5, 7), nn.PReLU(), nn.Linear(7, 2)),
        "2",
        torch.rand(4, 5),
        7,
        "head",
        None,
    ),
]


@pytest.mark.parametrize(("make", "last", "x", "features", "path", "stages"), CASES)
@torch.no_grad()
def test_adopted_networks_compute_the_same(
    make: Make,
    last: str | None,
    x: Tensor,
    features: int,
    path: str,
    stages: str | None,
) -> None:
    user = make().eval()
    before = {k: v.clone() for k, v in user.state_dict().items()}
    net = wrap_own_network(user, last).eval()
    assert torch.equal(net(x), user(x))
    assert net.base(x).shape == (4, features) and net.features == features
    assert net.last == path and net.classes == user(x).shape[1] and net.kind == ""
    assert stages is None or net.stages == tuple(stages.split())
    # the user's object stays as it was, and is not shared
    for p in net.parameters():
        p.zero_()
    assert list(user.state_dict()) == list(before)
    assert all(torch.equal(v, before[k]) for k, v in user.state_dict().items())


@pytest.mark.parametrize(("make", "last", "x", "features", "path", "stages"), CASES)
def test_adopted_networks_run_from_the_meta_device(
    make: Make,
    last: str | None,
    x: Tensor,
    features: int,
    path: str,
    stages: str | None,
) -> None:
    net = wrap_own_network(make(), last, init="fresh").eval()
    names = list(net.state_dict())
    net, names_of_parameters = net.to("meta"), {k for k, _ in net.named_parameters()}
    ws = [fresh(net, Rng.seed(1, k)) for k in range(2)]
    assert list(ws[0]) == names
    alone = torch.stack([functional_call(net, w, x, strict=True) for w in ws])
    assert alone.isfinite().all() and not torch.equal(alone[0], alone[1])

    def slope(
        w: Params,
    ) -> Params:  # recurrent layers know no vmap but around a gradient
        trained = {k: v for k, v in w.items() if k in names_of_parameters}
        return grad(
            lambda new: functional_call(net, w | new, x, strict=True).square().sum()
        )(trained)

    if make is not Moody:
        together = vmap(slope)(stack(ws))
        for w, found in zip(ws, unstack(together, len(ws)), strict=True):
            torch.testing.assert_close(found, slope(w), rtol=1e-4, atol=1e-5)


def test_own_parameters_and_buffers_keep_their_values() -> None:
    net = wrap_own_network(Reader(), "classify.1").to("meta")
    w = fresh(net, Rng.seed(4))
    assert torch.equal(w["base.start"], torch.linspace(-1, 1, 6).reshape(1, 1, 6))
    assert torch.equal(w["base.places"], torch.sin(torch.arange(6.0)))
    assert "base.order" not in w and all(v.is_floating_point() for v in w.values())


def test_a_head_does_not_write_into_its_features() -> None:
    class Early(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.base, self.head = (
                nn.Linear(4, 6),
                nn.Sequential(nn.ReLU(inplace=True), nn.Linear(6, 2)),
            )

        def forward(self, x: Tensor) -> Tensor:
            return self.head(self.base(x))

    net = wrap_own_network(Early())
    h = net.base(torch.rand(3, 4))
    kept = h.clone()
    net.head(h)
    assert torch.equal(h, kept) and net.last == "head.1" and net.features == 6


def test_a_backbone_is_adopted_whole_or_cut_elsewhere() -> None:
    har = build("har_cnn", (9, 128), 6)
    same, cut = wrap_own_network(har), wrap_own_network(har, "head.fc3")
    assert same is not har and (same.stages, same.kind, same.features) == (
        har.stages,
        "har_cnn",
        1664,
    )
    assert (cut.features, cut.last) == (512, "head")
    x = torch.rand(2, 9, 128)
    assert torch.equal(cut(x), har(x)) and torch.equal(same(x), har(x))


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Linear(4, 4), nn.Linear(4, 4)
        self.two.weight = self.one.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x))


class Between(Parted):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.sigmoid(self.base(x)))


class After(Parted):
    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.base(x)).softmax(1)


class Loose(Parted):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.ones(1))


class Two(Digits):
    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return super().forward(x), x


class Convolved(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.base, self.head = nn.Conv2d(1, 2, 3), nn.Conv2d(2, 5, 1)


class Uncopyable(Digits):
    def __deepcopy__(self, memo: object) -> Digits:
        raise RuntimeError("a lock\nand more lines")


def frozen() -> nn.Module:
    net = Digits()
    return net.requires_grad_(False)


def sequence(*layers: nn.Module) -> nn.Module:
    return nn.Sequential(*layers, nn.Linear(4, 2))


@pytest.mark.parametrize(
    ("make", "last", "message"),
    [
        (
            lambda: Digits,
            None,
            "Digits is a class, not a network: give an instance, Digits(...)",
        ),
        (
            lambda: len,
            None,
            "a network is an instance of torch.nn.Module, not of builtin_function_or_method",
        ),
        (
            Digits,
            None,
            "network Digits has no parts 'base' and 'head': "
            "name its last linear layer, such as 'fc2'",
        ),
        (
            Digits,
            "fc3",
            "no layer in network Digits named 'fc3'; did you mean fc2 or fc1?",
        ),
        (
            Digits,
            "conv",
            "layer 'conv' of network Digits is a Conv2d: name the last Linear layer",
        ),
        (
            Digits,
            "fc1",
            "network Digits ends with 'fc2', not with layer 'fc1': "
            "name the layer whose output is returned",
        ),
        (
            lambda: Digits(softmax=True),
            "fc2",
            "network Digits ends with 'log_softmax', not with layer 'fc2'",
        ),
        (Two, "fc2", "network Two ends with 'tuple', not with layer 'fc2'"),
        (
            Between,
            None,
            "network Between is not head(base(x)): move 'sigmoid' into its base or head",
        ),
        (
            After,
            None,
            "network After is not head(base(x)): move 'softmax' into its base or head",
        ),
        (
            Loose,
            None,
            "network Loose has 'temperature' outside of 'base' and 'head': move it into one",
        ),
        (
            Convolved,
            None,
            "the head of network Convolved has no Linear layer: let it end with one",
        ),
        (
            frozen,
            "fc2",
            "all parameters of network Digits are frozen: there is nothing to train",
        ),
        (
            lambda: sequence(nn.LazyLinear(4)),
            "1",
            "'0.weight' of network Sequential has no shape yet: run the network",
        ),
        (
            lambda: sequence(nn.GRU(4, 4, 2, dropout=0.1)),
            "1",
            "could repeat: set its dropout to 0",
        ),
        (
            lambda: sequence(nn.BatchNorm1d(4, momentum=None)),
            "1",
            "counts its batches: give BatchNorm1d a momentum",
        ),
        (
            Uncopyable,
            "fc2",
            "network Uncopyable cannot be copied, build it from copyable parts: a lock",
        ),
    ],
)
@pytest.mark.filterwarnings("ignore:Lazy modules are a new feature")
def test_what_cannot_be_adopted_is_said_in_one_line(
    make: Make, last: str | None, message: str
) -> None:
    with pytest.raises(UserError) as caught:
        wrap_own_network(make(), last)
    assert message in str(caught.value) and "\n" not in str(caught.value)


def test_dropout_that_drops_nothing_is_welcome() -> None:
    assert wrap_own_network(sequence(nn.Dropout(0.0)), "1").features == 4
