"""FedBN: BatchNorm stays at home, recognised by what it owns and not by its name."""

from __future__ import annotations

import pytest
from torch import nn

from fedtailor.core.errors import Unsupported
from fedtailor.core.rng import Rng
from fedtailor.core.tree import Params, average
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.fedbn import FedBN
from fedtailor.models import Backbone, build
from fedtailor.models.backbone import fresh
from fedtailor.testing.small_world import run_small, small
from fedtailor.training.net import Template
from helpers import equal, names, overhear


def test_without_batchnorm_it_is_fedavg() -> None:
    bn, avg = run_small(FedBN()), run_small(FedAvg())
    assert equal(bn.server.w, avg.server.w)
    assert all(bn.keep(k).bn == {} for k in range(6))


def test_batchnorm_never_goes_up() -> None:
    played, heard = overhear(FedBN(), norm="batch")
    mine = {
        f"base.norm1.{k}" for k in ("weight", "bias", "running_mean", "running_var")
    }
    for sent in heard:
        for k in sent.up:
            assert (
                names(sent.up[k])
                == names(sent.down[k])
                == played.runner.new(0).keys() - mine
            )
    assert all(played.keep(k).bn.keys() == mine for k in range(6))
    assert not equal(played.keep(0).bn, played.keep(1).bn)
    last = heard[-1].up
    assert equal(
        played.server.w, average([last[k].w for k in range(6)], [30, 17, 24, 9, 1, 40])
    )


def test_every_batchnorm_layer_of_a_resnet_is_private_whatever_its_name() -> None:
    net = build("resnet18:cifar", (3, 8, 8), 10)
    layers = {name for name, m in net.named_modules() if isinstance(m, nn.BatchNorm2d)}
    module = Template(FedBN().net(net)).module
    server = FedBN().init(lambda i: fresh(module, Rng.seed(i)), 2)
    assert set(server.layers) == layers and any("shortcut" in name for name in layers)
    assert not any(k.rsplit(".", 1)[0] in layers for k in server.w)


def test_a_client_begins_as_every_network_does() -> None:
    played = run_small(FedBN(), rounds=1, norm="batch")
    method, c = played.runner.method, played.runner.client(0, 1)
    keep = method.first_keep(c, method.send(played.server, 99))
    first: Params = played.runner.new(0)
    assert equal(keep.bn, {k: first[k] for k in keep.bn}) and len(keep.bn) == 4


def test_batchnorm_without_statistics_is_refused() -> None:
    base = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4, track_running_stats=False)
    )
    with pytest.raises(Unsupported, match=r"layer 'base.2' keeps none"):
        FedBN().net(Backbone(base, nn.Linear(4, 10), features=4))
    assert isinstance(FedBN().net(small(norm="batch")), nn.Module)
