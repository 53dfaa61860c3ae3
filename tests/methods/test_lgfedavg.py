"""LG-FedAvg: private representations under shared layers, or, as its code has it, the other way
round.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fedtailor.core.errors import UserError
from fedtailor.core.rng import Purpose
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import average, part, tensors, without
from fedtailor.methods import make
from fedtailor.methods.fedavg import FedAvg
from fedtailor.methods.lgfedavg import LGFedAvg
from fedtailor.models import build
from fedtailor.testing.small_world import run_small, small
from helpers import equal, gap, names, overhear


@pytest.mark.parametrize(
    ("method_", "shared"),
    [
        (LGFedAvg(), {"head"}),
        (LGFedAvg(layers=2), {"base.fc1", "head"}),
        (LGFedAvg(share="conv"), {"base.conv1", "base.norm1"}),
    ],
)
def test_private_layers_never_go_up(method_: LGFedAvg, shared: set[str]) -> None:
    played, heard = overhear(method_, norm="batch")
    w = played.runner.new(0)
    travels = {k for k in w if k.rsplit(".", 1)[0] in shared}
    for sent in heard[1:]:
        for k in sent.up:
            assert names(sent.up[k]) == names(sent.down[k]) == travels
    private = [x for k in range(6) for x in tensors(played.keep(k)) if x.numel() > 1]
    sent_up = [x for sent in heard for up in sent.up.values() for x in tensors(up)]
    assert not any(
        torch.equal(x, y)
        for x in private
        for y in sent_up
        if x.shape == y.shape and bool(y.std() > 0)
    )
    assert all(played.keep(k).own.keys() == w.keys() - travels for k in range(6))


def test_on_lenet_the_code_shares_convolutions_and_the_text_the_top() -> None:
    lenet = build("lenet5", (3, 32, 32), 10)
    assert (
        LGFedAvg(share="conv").with_defaults_for(lenet).private
        == "base.fc1,base.fc2,head"
    )
    assert (
        LGFedAvg(layers=2).with_defaults_for(lenet).private
        == "base.conv1,base.conv2,base.fc1"
    )


@pytest.mark.parametrize(
    ("weights", "n"), [("equal", [1.0] * 6), ("data", [30, 17, 24, 9, 1, 40])]
)
def test_weights_of_the_mean(weights: str, n: list[float]) -> None:
    played, heard = overhear(LGFedAvg(weights=weights), rounds=1)  # type: ignore[arg-type]
    assert equal(played.server.w, average([heard[1].up[k].w for k in range(6)], n))


def test_only_shared_layers_are_downloaded_after_the_beginning() -> None:
    bytes_down = [
        run_small(LGFedAvg(), rounds=t).exchange.traffic.bytes_down for t in (1, 2)
    ]
    assert bytes_down[1] - bytes_down[0] == 6 * 4 * (16 * 10 + 10)


# -------------------------------------------------------------------- a FedAvg model to begin with
@pytest.mark.parametrize("norm", ["group", "batch"])
def test_a_warm_up_is_fedavg(norm: str) -> None:
    options: dict[str, Any] = dict(rounds=3, share=0.5, norm=norm)
    lg, avg = (
        run_small(LGFedAvg(warmup=3, weights="data"), **options),
        run_small(FedAvg(), **options),
    )
    assert equal(lg.server.w, avg.server.w) and not lg.exchange.traffic.lost
    made = lg.runner.method
    for k in (*range(6), 99):
        down = made.send(lg.server, k)
        keep = (
            made.first_keep(lg.runner.client(0, 3), down)
            if k == 99 or lg.keep(k) is None
            else lg.keep(k)
        )
        assert equal(made.personal(lg.runner.client(0, 3), down, keep), avg.server.w)


@pytest.mark.parametrize("share", ["top", "conv"])
def test_after_a_warm_up_private_layers_start_from_fedavg_and_stay_at_home(
    share: str,
) -> None:
    method, avg = (
        LGFedAvg(warmup=2, share=share, weights="data"),
        run_small(FedAvg(), rounds=2, share=0.5).server.w,
    )  # type: ignore[arg-type]
    played, heard = overhear(method, rounds=4, share=0.5)
    made = played.runner.method
    private = made.private.split(",")
    assert [s.t for s in heard] == [1, 2, 3, 4] and not played.exchange.traffic.lost
    assert all(names(up) == set(avg) for s in heard[:2] for up in s.up.values())
    assert all(
        names(up) == set(without(avg, *private))
        for s in heard[2:]
        for up in s.up.values()
    )
    assert equal(part(played.server.w, *private), part(avg, *private))
    assert not any(
        torch.equal(played.server.w[k], avg[k]) for k in without(avg, *private)
    )
    since = {k for s in heard[2:] for k in s.down}
    assert since != set(range(6))
    for k in range(6):
        c, down, keep = played.runner.load_client(k, made.send(played.server, k), 4)
        mine = part(made.personal(c, down, keep), *private)
        assert equal(mine, part(avg, *private)) == (k not in since)


def test_a_client_goes_on_from_its_own_private_layers_after_a_warm_up() -> None:
    played = run_small(LGFedAvg(warmup=1), rounds=4, until=2, dtype=torch.float64)
    made, site = played.runner.method, played.runner
    with torch_settings(torch.float64):
        down, keep = made.send(played.server, 0), played.keep(0)
        w = made.personal(site.client(0, 3), down, keep)
        up, new = made.local(site.client(0, 3, Purpose.CALL, 3, 1), down, keep)
        c = site.client(0, 3, Purpose.CALL, 3, 1)
        by_hand = c.train(c.loss, w)
        assert gap(made.after_training(c, down, up, new), by_hand) < 1e-12
        assert gap(part(w, "base"), part(down.w, "base")) > 1e-3


@pytest.mark.parametrize("bn", ["average", "local"])
def test_a_warm_up_agrees_under_vmap_and_after_a_checkpoint(bn: str) -> None:
    options: dict[str, Any] = dict(
        rounds=4, share=0.7, norm="batch", bn=bn, dtype=torch.float64, late=True
    )
    method = LGFedAvg(warmup=2)
    one, many = (
        run_small(method, **options),
        run_small(method, **options, executor="vmap"),
    )
    assert (
        many.executor.notices() == []
        and not one.exchange.traffic.lost
        and gap(one.server, many.server) < 1e-9
    )
    assert max(gap(one.keep(k), many.keep(k)) for k in one.store.clients()) < 1e-9
    half = run_small(method, **options, until=3)
    assert run_small(method, **options, since=half.save()).hash == one.hash


def test_mistakes_are_told() -> None:
    with pytest.raises(
        UserError, match=r"share=conv needs a network that begins with convolutions"
    ):
        LGFedAvg(share="conv").with_defaults_for(small("linear"))
    with pytest.raises(
        UserError, match=r"layers=4 leaves nothing private.*choose at most 3"
    ):
        LGFedAvg(layers=4).with_defaults_for(small())
    with pytest.raises(
        UserError, match=r"no layer of this network 'haed'; did you mean head"
    ):
        LGFedAvg(private="haed").with_defaults_for(small())
    with pytest.raises(UserError, match="warmup=-1"):
        make(LGFedAvg, {"warmup": -1})
