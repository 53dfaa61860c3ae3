"""FedMA: permuted clients are recognised, layers travel one by one, matched ones stay frozen,
and widths may grow.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from fedtailor.core.errors import Unsupported, UserError
from fedtailor.core.rng import Purpose, Rng
from fedtailor.core.torch_settings import torch_settings
from fedtailor.core.tree import Params, tensors
from fedtailor.engine.exchange import Exchange
from fedtailor.engine.upload_checks import UploadChecker
from fedtailor.executors.client_runner import ClientRunner
from fedtailor.executors.sequential import Sequential
from fedtailor.executors.world import World
from fedtailor.filters import FilterChain
from fedtailor.filters.tap import Traffic
from fedtailor.maths.matching import place_units, take_layers, take_units, trace_wiring
from fedtailor.method import Cohort
from fedtailor.methods import find, make
from fedtailor.methods.fedma import Down, FedMA, Keep, Matched, Server
from fedtailor.models import Backbone, build
from fedtailor.models.architectures.resnet import BasicBlock
from fedtailor.models.layers import chain
from fedtailor.storage.private_state import MemoryStore
from fedtailor.testing.method_card import describe_method
from fedtailor.testing.small_world import SmallRun, digits, run_small, small
from fedtailor.training.optim import Plan
from helpers import equal, gap, overhear

STILL = Plan(lr=0.0, batch=10)  # no training: a round is matching alone


def rounds_of(heard: list[Traffic]) -> Iterator[list[Traffic]]:
    """The calls of each round."""
    for t in sorted({s.t for s in heard}):
        yield [s for s in heard if s.t == t]


def residual(norm: str = "batch") -> Backbone:
    with torch.random.fork_rng(devices=[]):
        stem = chain(
            conv1=nn.Conv2d(1, 4, 3, padding=1, bias=False),
            bn1=nn.BatchNorm2d(4),
            relu1=nn.ReLU(),
        )
        blocks = (
            BasicBlock(4, 4, 1, norm, pad=False),
            BasicBlock(4, 8, 2, norm, pad=False),
        )
        base = chain(
            stem=stem,
            block1=blocks[0],
            block2=blocks[1],
            pool=nn.AdaptiveAvgPool2d(2),
            flatten=nn.Flatten(),
        )
        return Backbone(base, nn.Linear(32, 10), features=32)


# -------------------------------------------------------------------- the law
def permute_clients(
    method: FedMA, backbone: Backbone, clients: int
) -> tuple[Exchange, Server, ClientRunner]:
    """A world in which every client's network is the server's with its units in an order of its
    own.
    """
    federation = digits(sizes=(20,) * clients)
    method = method.with_defaults_for(backbone)
    world = World(method, backbone, federation, STILL, 0, 1, (), torch.float64)
    runner = ClientRunner(world, MemoryStore())
    server = method.init(runner.new, clients)
    orders: dict[int, Params] = {}
    for k in range(1, clients):
        orders[k] = {
            stream: Rng.seed(k, i).permutation(len(pick))
            for i, (stream, pick) in enumerate(server.usual.items())
        }
    exchange = Exchange(
        method, Sequential(runner), FilterChain((), runner.template), 0, 1
    )
    return exchange, server._replace(picks=orders), runner


@pytest.mark.parametrize("spec", ["cnn", "mlp:20,10"])
def test_permuted_copies_of_one_network_give_it_back(spec: str) -> None:
    with torch_settings(torch.float64):
        backbone = build(spec, (1, 8, 8), 10)
        exchange, server, runner = permute_clients(FedMA(gamma=1e-300), backbone, 4)
        after = runner.method.round(server, Cohort(exchange, range(4), 1))
    assert gap(after.w, server.w) < 1e-12
    wiring = runner.method.wiring
    first = wiring.steps[0].names[0]
    seen = take_units(server.w, wiring, server.picks[1])
    # it was permuted indeed
    assert not torch.allclose(seen[f"{first}.weight"], server.w[f"{first}.weight"])


@pytest.mark.parametrize("spec", ["cnn", "mlp:20,10"])
def test_the_authors_estimate_shrinks_what_all_agree_on(spec: str) -> None:
    """Four clients have every unit: a fifth, the prior, has weights of 0 and biases of 0.1.
    Last layers are means.
    """
    with torch_settings(torch.float64):
        backbone = build(spec, (1, 8, 8), 10)
        exchange, server, runner = permute_clients(
            FedMA(gamma=1e-300, estimate="map"), backbone, 4
        )
        after = runner.method.round(server, Cohort(exchange, range(4), 1))
    last = backbone.last
    for name, x in server.w.items():
        hidden = 0.8 * x + (0.02 if name.endswith(".bias") else 0)
        assert (
            gap(after.w[name], x if name.startswith(f"{last}.") else hidden) < 1e-12
        ), name


def test_where_layers_grow_the_network_still_does_the_same() -> None:
    with torch_settings(torch.float64):
        exchange, server, runner = permute_clients(
            FedMA(), build("cnn", (1, 8, 8), 10), 4
        )
        after = runner.method.round(server, Cohort(exchange, range(4), 1))
        x = runner.test_examples(0).x
        net = runner.settings.net
        assert torch.allclose(net(after.w, x), net(server.w, x), atol=1e-10)
    assert (
        len(after.w["base.conv1.weight"]) > 16
        and after.w["base.fc1.weight"].shape[1] % 4 == 0
    )
    assert sorted(after.picks) == [0, 1, 2, 3]


@pytest.mark.parametrize("norm", ["batch", "group"])
def test_without_training_a_residual_network_stays_the_same(norm: str) -> None:
    played = run_small(
        FedMA(), rounds=1, backbone=residual(norm), plan=STILL, dtype=torch.float64
    )
    with torch_settings(torch.float64):
        trained = {k: x for k, x in played.runner.new(0).items() if "running" not in k}
    assert gap({k: played.server.w[k] for k in trained}, trained) < 1e-12


# -------------------------------------------------------------------- a round
@pytest.mark.parametrize(("norm", "layers"), [("none", 3), ("batch", 3)])
def test_every_layer_travels_once_a_round(norm: str, layers: int) -> None:
    played, heard = overhear(FedMA(), rounds=2, norm=norm)
    names = dict(small(norm=norm).named_parameters())
    for calls in rounds_of(heard):
        assert len(calls) == layers
        for k in range(6):
            sent = [name for call in calls for name in call.up[k].layer]
            assert sorted(sent) == sorted(names)
            assert calls[-1].up[k].counts.sum() == len(played.runner.indices(k)[0])
            assert set(calls[-1].up[k].statistics) == set(
                played.runner.template.buffers
            )
        outs = [
            call.up[0].layer[name]
            for call in calls
            for name in call.up[0].layer
            if name.endswith(".weight")
        ]
        assert [len(x) for x in outs] == [
            len(x) for name, x in names.items() if name.endswith(".weight")
        ]


def test_clients_keep_nothing_between_rounds() -> None:
    assert all(run_small(FedMA(), rounds=2).keep(k) == Keep({}) for k in range(6))


@pytest.mark.parametrize("norm", ["none", "batch"])
def test_matched_layers_stay_frozen_and_the_others_learn(norm: str) -> None:
    played = run_small(FedMA(), rounds=1, norm=norm)
    made, runner = played.runner.method, played.runner
    wiring = made.wiring
    first, second, last = wiring.steps
    with torch_settings():
        up, keep = made.local(
            runner.client(0, 2, Purpose.CALL, 2, 1),
            made.send(played.server, 0),
            Keep({}),
        )
        width = len(up.layer["base.conv1.bias"])
        layer = {k: x + 0.1 for k, x in up.layer.items()}
        down = Matched(0, layer, torch.arange(width).flip(0), width, {})
        again, kept = made.retrain(runner.client(0, 2, Purpose.CALL, 2, 2), down, keep)
    assert equal(take_layers(kept.w, first), layer)
    moved = place_units(keep.w, wiring, "base.conv1", down.places, width)
    assert gap(take_layers(kept.w, second), take_layers(moved, second)) < gap(
        again.layer, take_layers(keep.w, second)
    )
    for step in (second, last):
        assert not any(
            torch.equal(kept.w[k], moved[k]) for k in take_layers(moved, step)
        )
    assert equal(again.layer, take_layers(kept.w, second))


def test_last_layers_are_averaged_class_by_class() -> None:
    played, heard = overhear(FedMA(), rounds=1, dtype=torch.float64)
    ups = heard[-1].up
    count = torch.stack([ups[k].counts for k in range(6)])
    rows = torch.stack([ups[k].layer["head.weight"] for k in range(6)])
    assert (count.sum(0) > 0).all()
    mean = (rows * (count / count.sum(0))[:, :, None]).sum(0)
    assert torch.allclose(played.server.w["head.weight"], mean, atol=1e-12)


def test_last_layers_can_be_averaged_by_all_samples() -> None:
    """A class's row then also hears of clients without the class, where it learns to stay
    silent.
    """
    played, heard = overhear(FedMA(last="samples"), rounds=1, dtype=torch.float64)
    n = torch.tensor([30.0, 17, 24, 9, 1, 40], dtype=torch.float64)
    rows = torch.stack([heard[-1].up[k].layer["head.weight"] for k in range(6)])
    assert torch.allclose(
        played.server.w["head.weight"],
        torch.einsum("k,kij->ij", n / n.sum(), rows),
        atol=1e-12,
    )


def test_statistics_are_averaged_at_the_end_of_a_round() -> None:
    played, heard = overhear(FedMA(), rounds=1, norm="batch", dtype=torch.float64)
    n = torch.tensor([30.0, 17, 24, 9, 1, 40], dtype=torch.float64)
    for name in ("base.norm1.running_mean", "base.norm1.running_var"):
        each = torch.stack([heard[-1].up[k].statistics[name] for k in range(6)])
        assert torch.allclose(played.server.w[name], (n @ each) / n.sum(), atol=1e-12)
        assert len({tuple(x.tolist()) for x in each}) == 6


# -------------------------------------------------------------------- widths
def test_layers_grow_where_nothing_ties_their_width() -> None:
    shapes = {}
    for norm in ("none", "batch", "group"):
        for grow in (True, False):
            w = run_small(FedMA(grow=grow), rounds=2, norm=norm).server.w
            shapes[norm, grow] = len(w["base.conv1.weight"]), len(w["base.fc1.weight"])
            assert w["base.fc1.weight"].shape[1] == 16 * shapes[norm, grow][0]
            assert w["head.weight"].shape == (10, shapes[norm, grow][1])
    assert all(shapes[norm, False] == (4, 16) for norm in ("none", "batch", "group"))
    assert shapes["none", True][0] > 4 and shapes["none", True][1] > 16
    assert all(
        shapes[norm, True][0] == 4 and shapes[norm, True][1] > 16
        for norm in ("batch", "group")
    )


def test_clients_begin_with_their_own_units_newcomers_with_those_of_most() -> None:
    played, heard = overhear(FedMA(), rounds=1, norm="none")
    made, server = played.runner.method, played.server
    places = {k: heard[2].down[k].places for k in range(6)}  # of fc1's units
    for k in range(6):
        assert torch.equal(made.send(server, k).picks["base.fc1"], places[k].sort()[0])
    owners = torch.bincount(
        torch.cat(list(places.values())), minlength=heard[2].down[0].width
    )
    usual = made.send(server, 99).picks["base.fc1"]
    others = [i for i in range(len(owners)) if i not in set(usual.tolist())]
    assert len(usual) == 16 and owners[usual].min() >= owners[others].max()
    assert equal(made.send(server, 99).w, server.w)


# -------------------------------------------------------------------- executors, and a rough world
def test_clients_train_one_by_one_under_vmap_and_are_evaluated_together() -> None:
    one = run_small(FedMA(), rounds=2)
    many = run_small(FedMA(), rounds=2, executor="vmap")
    assert one.hash == many.hash
    notices = many.executor.notices()
    assert len(notices) == 3 and all("marked one_by_one" in line for line in notices)
    scores = one.scores()
    for k, score in many.scores().items():
        assert torch.equal(score.test.correct, scores[k].test.correct)
    assert many.executor.notices() == []  # wide networks are evaluated under vmap


def test_the_wiring_is_no_hyper_parameter_and_reaches_workers() -> None:
    backbone = small(norm="none")
    method = FedMA(grow=False).with_defaults_for(backbone)
    assert method.wiring == trace_wiring(backbone, grow=False)
    assert pickle.loads(pickle.dumps(method)).wiring == method.wiring
    assert method == FedMA(grow=False) and "wiring" not in repr(method)
    assert "wiring" not in asdict(method)
    assert "wiring" not in {h.name for h in describe_method(FedMA).hyper}
    with pytest.raises(UserError, match="no hyper-parameter of FedMA 'wiring'"):
        make(find("fedma"), {"wiring": "x"})


def test_a_lost_client_is_left_out_of_the_rest_of_the_round() -> None:
    options: dict[str, Any] = dict(rounds=5, share=0.5, drop=0.3, norm="none")
    played, heard = overhear(FedMA(), **options)
    lost, finished = 0, list[int]()
    for calls in rounds_of(heard):
        assert len(calls[0].down) == 3
        for call, following in pairwise(calls):
            assert sorted(following.down) == sorted(call.up)
            lost += len(call.down) - len(call.up)
        if len(calls) == 3 and calls[-1].up:
            finished = sorted(calls[-1].up)
    assert lost > 0 and sorted(played.server.picks) == finished
    assert all(
        why == "its reply got lost (--drop)"
        for why in played.exchange.traffic.lost.values()
    )
    assert all(bool(torch.isfinite(x).all()) for x in tensors(played.server))
    assert run_small(FedMA(), **options).hash == played.hash


def test_an_upload_of_another_shape_is_refused() -> None:
    played, heard = overhear(FedMA(), rounds=2, norm="none")
    last = list(rounds_of(heard))[-1]
    for call in last:
        wanted = played.runner.method.expected_upload(call.down[0], 2)["layer"]
        assert {k: x.shape for k, x in wanted.items()} == {
            k: x.shape for k, x in call.up[0].layer.items()
        }
        wrong = call.up[0]._replace(
            layer={k: x[:-1] for k, x in call.up[0].layer.items()}
        )
        checker = UploadChecker(played.runner.method, call.call.function, 2)
        found = checker.check(
            {0: wrong, 1: call.up[0]}, {0: call.down[0], 1: call.down[0]}
        )
        assert "of shape" in found[0].fault and found[1].fault == ""


def local_statistics(**options: Any) -> tuple[SmallRun, list[Traffic]]:
    return overhear(FedMA(), norm="batch", bn="local", **options)


def test_statistics_that_are_local_stay_with_their_units() -> None:
    played, heard = local_statistics(rounds=2)
    assert not any(
        "running" in name
        for call in heard
        for up in call.up.values()
        for name in up.layer
    )
    assert all(
        call.up[k].statistics == {}
        for call in heard
        if hasattr(call.up[0], "statistics")
        for k in range(6)
    )
    assert played.exchange.traffic.lost == {} and not any(
        "running" in name for name in played.server.w
    )
    made, runner = played.runner.method, played.runner
    with torch_settings():
        means = set()
        for k in range(6):
            _, down, _ = runner.load_client(k, made.send(played.server, k), 3)
            w = down.w
            assert w["base.norm1.running_mean"].shape == (4,)
            h = nn.functional.conv2d(
                runner.client(k, 3).x,
                w["base.conv1.weight"],
                w["base.conv1.bias"],
                padding=1,
            )
            # of the unit in the same place
            near = (w["base.norm1.running_mean"] - h.mean((0, 2, 3))).abs()
            far = (w["base.norm1.running_mean"].flip(0) - h.mean((0, 2, 3))).abs()
            assert near.sum() < far.sum()
            means.add(tuple(w["base.norm1.running_mean"].tolist()))
    assert len(means) == 6


def test_residual_networks_learn() -> None:
    federation = digits(sizes=(30,) * 3)
    options: dict[str, Any] = dict(federation=federation, plan=Plan(lr=0.05, batch=10))
    before, after = (
        run_small(FedMA(), rounds=t, backbone=residual(), **options) for t in (1, 6)
    )
    assert after.accuracy() > max(0.4, before.accuracy())
    assert {k: x.shape for k, x in after.server.w.items()} == {
        k: x.shape for k, x in residual().state_dict().items()
    }


def test_networks_without_units_are_refused_at_once() -> None:
    for ask in (FedMA().with_defaults_for, FedMA().net):
        with pytest.raises(Unsupported, match="take a deeper one"):
            ask(small("linear"))


def test_evaluation_sees_the_matched_network() -> None:
    played = run_small(FedMA(), rounds=1)
    down = played.runner.method.send(played.server, 0)
    assert isinstance(down, Down)
    assert (
        played.runner.method.personal(played.runner.client(0, 2), down, Keep({}))
        is down.w
    )
    shared: Params = played.runner.method.shared(played.server)
    assert shared is played.server.w and isinstance(shared["head.bias"], Tensor)
