"""Heads of tasks on a backbone: which layers they stand on, their size, and their names."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from fedtailor.maths.class_tasks import CPU, divide_classes, lay_out
from fedtailor.models.registry import build
from fedtailor.models.task_heads import mount_heads
from fedtailor.testing.small_world import small


@pytest.fixture(autouse=True)
def double() -> Iterator[None]:
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(before)


def test_heads_stand_on_all_layers_but_the_last() -> None:
    backbone = build("har_cnn", (9, 128), 6)
    before = {k: v.shape for k, v in backbone.state_dict().items()}
    net = mount_heads(backbone, 4, None)
    assert net.features == 512 and net.classes == 4
    heads = {
        k: tuple(v.shape) for k, v in net.state_dict().items() if k.startswith("head.")
    }
    assert heads == {"head.weight": (4, 512), "head.bias": (4,)}
    assert sum(p.numel() for p in net.base.parameters()) == sum(
        p.numel() for p in backbone.parameters()
    ) - 6 * (512 + 1)
    assert {k: v.shape for k, v in backbone.state_dict().items()} == before
    x = torch.zeros(2, 9, 128)
    neck = nn.Sequential(*list(backbone.head.children())[:-1])  # type: ignore[arg-type]
    net.base.double(), backbone.double()
    torch.testing.assert_close(net.base(x), neck(backbone.base(x)))


def test_a_bottleneck_has_the_papers_size() -> None:
    """20 heads instead of one on 50 features: 8 870 396 - 8 869 427 = 19 (50 + 1) parameters."""
    backbone = build("lenet5", (3, 32, 32), 100)
    groups = divide_classes("superclass", None, 100)
    tasks = lay_out(groups, True, CPU)
    one, twenty = (mount_heads(backbone, logits, 50) for logits in (1, tasks.logits))
    sizes = [sum(p.numel() for p in net.parameters()) for net in (one, twenty)]
    assert sizes[1] - sizes[0] == 8_870_396 - 8_869_427 and one.features == 50


def test_a_plain_network_keeps_its_names_and_draws_no_random_numbers() -> None:
    backbone, before = small(), torch.get_rng_state()
    net = mount_heads(backbone, 10, None)
    mount_heads(backbone, 10, 8)
    assert torch.equal(torch.get_rng_state(), before)
    assert list(net.state_dict()) == list(backbone.state_dict())
    plain = small("linear")
    plain.head = nn.Linear(64, 10, bias=False)
    assert list(mount_heads(plain, 10, None).state_dict()) == ["head.weight"]
