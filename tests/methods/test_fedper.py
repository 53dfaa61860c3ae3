"""FedPer: the last layers stay at home, the others are averaged."""

from __future__ import annotations

import pytest
from torch import nn

from fedtailor.core.errors import UserError
from fedtailor.core.tree import average
from fedtailor.methods.fedper import FedPer
from fedtailor.models import Backbone, build
from fedtailor.testing.small_world import small
from helpers import equal, names, overhear


@pytest.mark.parametrize(
    ("layers", "private"),
    [(1, {"head"}), (2, {"head", "base.fc1"}), (3, {"head", "base.fc1", "base.norm1"})],
)
def test_private_layers_never_go_up_and_the_rest_always_does(
    layers: int, private: set[str]
) -> None:
    played, heard = overhear(FedPer(layers=layers), norm="batch")
    w = played.runner.new(0)
    at_home = {k for k in w if k.rsplit(".", 1)[0] in private}
    for sent in heard[1:]:
        for k in sent.up:
            assert names(sent.up[k]) == names(sent.down[k]) == w.keys() - at_home
    assert all(played.keep(k).own.keys() == at_home for k in range(6))


def test_private_layers_differ_and_shared_ones_are_the_weighted_mean() -> None:
    played, heard = overhear(FedPer(), rounds=1)
    assert equal(
        played.server.base,
        average([heard[1].up[k].base for k in range(6)], [30, 17, 24, 9, 1, 40]),
    )
    assert not equal(played.keep(0).own, played.keep(1).own)


def test_all_begin_with_the_same_private_layers() -> None:
    _, heard = overhear(FedPer(), rounds=1)
    assert heard[0].t == 0 and all(
        equal(down, heard[0].down[0]) for down in heard[0].down.values()
    )
    assert names(heard[0].down[0]) == {"head.weight", "head.bias"}


@pytest.mark.parametrize(
    ("layers", "block"), [(1, "head"), (2, "base.block8"), (4, "base.block6")]
)
def test_a_layer_of_a_resnet_is_a_block(layers: int, block: str) -> None:
    network = build("resnet18:cifar", (3, 16, 16), 10)
    private = FedPer(layers=layers).with_defaults_for(network).private_layers
    assert len(private) == layers and private[0] == block and private[-1] == "head"


def test_a_head_of_several_layers_is_cut_inside() -> None:
    head = nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 10))
    played, heard = overhear(
        FedPer(), backbone=Backbone(nn.Flatten(), head, features=64, last="head.2")
    )
    assert names(heard[-1].up[0]) == {"head.0.weight", "head.0.bias"}
    assert played.keep(0).own.keys() == {"head.2.weight", "head.2.bias"}


def test_private_layers_may_be_named() -> None:
    assert (
        FedPer(private="base.conv1,head").with_defaults_for(small()).private
        == "base.conv1,head"
    )
    with pytest.raises(
        UserError,
        match=r"no layer of this network 'base.conv2'; did you mean base.conv1",
    ):
        FedPer(private="base.conv2").with_defaults_for(small())


def test_something_must_be_shared() -> None:
    with pytest.raises(
        UserError, match=r"layers=4 leaves nothing to share.*choose at most 3"
    ):
        FedPer(layers=4).with_defaults_for(small())
