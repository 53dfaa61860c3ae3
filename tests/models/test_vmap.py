"""Many clients at once under vmap are the same as one after another."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from test_architectures import PARTS
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from fedtailor.core.tree import Params, stack, unstack
from fedtailor.models import Backbone, build

CLIENTS = 2
CASES = [
    (spec, (3, 8, 8) if "cifar" in spec or spec == "resnet32" else shape)
    for spec, shape, *_ in PARTS
]
CASES = [
    (spec, (2, 16, 16) if spec in ("resnet18", "resnet34") else shape)
    for spec, shape in CASES
]
CHEAP = [
    (spec, shape) for spec, shape in CASES if spec not in ("resnet34", "amazon_mlp")
]


@pytest.fixture
def double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def prepare(
    spec: str, shape: tuple[int, ...], norm: str = "batch"
) -> tuple[Backbone, list[Params], Tensor, Tensor]:
    """A network, the parameters, inputs and labels of each client."""
    torch.set_num_threads(1)
    vocabulary = 40 if spec == "fasttext" else 0
    net, g = (
        build(spec, shape, 5, vocabulary=vocabulary, norm=norm),
        torch.Generator().manual_seed(3),
    )
    state = net.state_dict()
    # statistics and scales of BatchNorm away from 0 and 1, so that they count; variances stay
    # positive
    ws = [
        {
            k: v * (1 + 0.3 * torch.rand(v.shape, generator=g)) + 0.01
            for k, v in state.items()
        }
        for _ in range(CLIENTS)
    ]
    size = (CLIENTS, 3, *shape)
    x = (
        torch.randint(0, 40, size, generator=g)
        if vocabulary
        else torch.rand(size, generator=g) * 2 - 1
    )
    return net, ws, x, torch.randint(0, 5, size[:2], generator=g)


@pytest.mark.parametrize(("spec", "shape"), CASES)
@torch.no_grad()
def test_forward(double: None, spec: str, shape: tuple[int, ...]) -> None:
    net, ws, x, _ = prepare(spec, shape)
    net.eval()
    together = vmap(lambda w, x: functional_call(net, w, x))(stack(ws), x)
    alone = torch.stack([functional_call(net, w, x[k]) for k, w in enumerate(ws)])
    assert together.dtype == torch.float64
    torch.testing.assert_close(together, alone, rtol=1e-12, atol=1e-12)
    assert not torch.allclose(alone[0], alone[1])


@pytest.mark.parametrize(
    ("spec", "shape", "norm"),
    [(*c, "batch") for c in CHEAP] + [("resnet32", (3, 8, 8), "group")],
)
def test_gradients_in_training(
    double: None, spec: str, shape: tuple[int, ...], norm: str
) -> None:
    net, ws, x, y = prepare(spec, shape, norm)
    names = {name for name, _ in net.named_parameters()}
    net.train()

    def step(w: Params, x: Tensor, y: Tensor) -> tuple[Params, Params]:
        buffers = {k: v.clone() for k, v in w.items() if k not in names}

        def loss(trained: Params) -> Tensor:
            return F.cross_entropy(functional_call(net, trained | buffers, x), y)

        return grad(loss)({k: v for k, v in w.items() if k in names}), buffers

    together = unstack(vmap(step)(stack(ws), x, y), len(ws))
    for k, w in enumerate(ws):
        slopes, buffers = step(w, x[k], y[k])
        assert all(v.any() for name, v in slopes.items() if name.endswith("weight"))
        # training moved the statistics
        assert not any(torch.equal(v, w[name]) for name, v in buffers.items())
        torch.testing.assert_close(
            together[k], (slopes, buffers), rtol=1e-9, atol=1e-11
        )
