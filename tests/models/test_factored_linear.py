"""Gradients of large linear layers stay in factors: faster, and the same up to rounding."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from fedtailor import methods
from fedtailor.client import Client, RunSettings
from fedtailor.core.rng import Rng
from fedtailor.core.wire import encode
from fedtailor.models.backbone import Backbone
from fedtailor.models.factored_linear import (
    LARGE_WEIGHT,
    Collector,
    FactoredLinear,
    replace_linear_layers,
)
from fedtailor.testing.small_world import run_small
from fedtailor.training.client_data import Examples
from fedtailor.training.fast_steps import accepts_factors
from fedtailor.training.net import Net, Template
from fedtailor.training.optim import SGD, Groups, Plan, pull
from fedtailor.training.task import Classification

WIDE = 512
HIGH = LARGE_WEIGHT // WIDE  # just large enough


@pytest.fixture(autouse=True)
def in_double():
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


def make_net(bias=True):
    torch.manual_seed(0)
    layers = [
        nn.Linear(8, WIDE, bias),
        nn.Tanh(),
        nn.Linear(WIDE, HIGH, bias),
        nn.Tanh(),
        nn.Linear(HIGH, 3, bias),
    ]
    return nn.Sequential(*layers)


def make_client(net, n=12, t=1):
    template = Template(net)
    plan = Plan(lr=0.05, batch=4)
    settings = RunSettings(template, Net(template), plan, Classification(3), rounds=1)
    x = Rng.seed(1).normal(n, 8)
    y = torch.arange(n) % 3
    examples = Examples(x, y, None, torch.arange(n), n, 3)
    return Client(settings, examples, examples, Rng.seed(5), t)


def values(net):
    return {k: v.detach().clone() for k, v in net.named_parameters()}


def written_out(gradient, like):
    out = torch.zeros_like(like)
    gradient.add_to_(out, 1, 1)
    return out


def collected(net, loss, wanted=lambda name: True):
    """The gradients of ``loss``, dense and in factors, of the same network with replaced layers."""
    net = copy.deepcopy(net)
    collector = Collector(dict(net.named_parameters()), wanted)
    for m in replace_linear_layers(net):
        m.collector = collector
    return collector.grad(loss(net))


LOSSES = {
    "once": lambda net, x: net(x).square().sum(),
    "twice": lambda net, x: (net(x) * net(2 * x)).sum(),  # two products of one weight
    "and elsewhere": lambda net, x: (
        net(x).sum() + net[2].weight.cos().sum()
    ),  # a product, and a rest
    "not": lambda net, x: net[0](x).sum(),
}


@pytest.mark.parametrize("transposed", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("name", LOSSES)
def test_factors_multiplied_are_the_gradient(name, bias, transposed, monkeypatch):
    # what another machine does
    monkeypatch.setattr("fedtailor.models.factored_linear.TRANSPOSED", transposed)
    net, x = make_net(bias), Rng.seed(3).normal(4, 8)
    want = plain_gradient_or_zeros(net, lambda net: LOSSES[name](net, x))
    dense, factored = collected(net, lambda net: LOSSES[name](net, x))
    assert set(factored) == (set() if name == "not" else {"2.weight"})
    got = dense | {k: written_out(g, want[k]) for k, g in factored.items()}
    assert all(torch.allclose(got[k], want[k], rtol=1e-12, atol=1e-12) for k in want)


def plain_gradient_or_zeros(net, loss):
    found = torch.autograd.grad(
        loss(net), list(net.parameters()), allow_unused=True, materialize_grads=True
    )
    return dict(zip(dict(net.named_parameters()), found, strict=True))


def test_small_layers_and_unwanted_ones_are_dense():
    net, x = make_net(), Rng.seed(3).normal(4, 8)
    dense, factored = collected(
        net, lambda net: net(x).sum(), wanted=lambda name: False
    )
    assert not factored and set(dense) == set(dict(net.named_parameters()))
    want = plain_gradient_or_zeros(net, lambda net: net(x).sum())
    assert all(torch.allclose(dense[k], want[k], rtol=1e-12, atol=1e-12) for k in want)


@pytest.mark.parametrize("wanted", [True, False])
def test_parts_of_a_layer(wanted):
    rows, columns = slice(100, HIGH), slice(30, 300)
    net, x = make_net()[2], Rng.seed(3).normal(4, 270)

    def slow(net):
        return (
            F.linear(x, net.weight[rows, columns], net.bias[rows]).cos().sum()
            + net(Rng.seed(4).normal(2, WIDE)).sum()
        )

    def fast(net):
        return (
            net.forward_block(x, rows, columns).cos().sum()
            + net(Rng.seed(4).normal(2, WIDE)).sum()
        )

    want = plain_gradient_or_zeros(net, slow)
    dense, factored = collected(net, fast, wanted=lambda name: wanted)
    assert set(factored) == ({"weight"} if wanted else set())
    got = dense | {k: written_out(g, want[k]) for k, g in factored.items()}
    assert all(torch.allclose(got[k], want[k], rtol=1e-12, atol=1e-12) for k in want)


@pytest.mark.parametrize("first", ["part", "whole"])
def test_adding_to_a_weight_scales_all_of_it(first):
    net, x = make_net()[2], Rng.seed(3).normal(4, 270)

    def loss(net):
        some, all_ = (
            net.forward_block(x, slice(9, 20), slice(30, 300)).sum(),
            net(Rng.seed(4).normal(2, WIDE)).sum(),
        )
        return all_ + some if first == "part" else some + all_

    (gradient,) = collected(net, loss)[1].values()
    w = net.weight.detach().clone()
    want = 0.9 * w - 0.05 * written_out(gradient, w)
    gradient.add_to_(w, 0.9, -0.05)
    assert torch.allclose(w, want, rtol=0, atol=1e-13)


def test_a_gradient_within_a_loss_is_dense_and_has_a_gradient():
    net, x = make_net(), Rng.seed(3).normal(4, 8)

    def loss(net):
        g = torch.autograd.grad(
            net(x).square().sum(), list(net.parameters()), create_graph=True
        )
        return sum(v.square().sum() for v in g)

    want = plain_gradient_or_zeros(net, loss)
    dense, factored = collected(net, loss)
    got = dense | {k: written_out(g, want[k]) for k, g in factored.items()}
    assert all(torch.allclose(got[k], want[k], rtol=1e-9, atol=1e-9) for k in want)


HOW = [
    {},
    {"weight_decay": 0.1},
    {"momentum": 0.9},
    {"momentum": 0.9, "weight_decay": 0.1, "nesterov": True},
]


def make_optimiser(how, w, strength):
    """SGD, pulled to zero if asked for."""
    optimiser = SGD(0.05, **how)
    if not strength:
        return optimiser
    return pull(optimiser, {k: torch.zeros_like(v) for k, v in w.items()}, strength)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("strength", [0.0, 0.7])
def test_training_equals_torch(how, strength):
    net = make_net()
    c, w = make_client(net), values(net)
    got = c.train(c.loss, w, opt=make_optimiser(how, w, strength))
    reference = torch.optim.SGD(net.parameters(), lr=0.05, **how)

    def step(_, batch):
        reference.zero_grad()
        loss = F.cross_entropy(net(batch.x), batch.y)
        loss = loss + strength / 2 * sum(p.square().sum() for p in net.parameters())
        loss.backward()
        reference.step()

    make_client(net).each_batch(step, None)
    assert all(
        torch.allclose(got[k], v, rtol=0, atol=1e-12) for k, v in values(net).items()
    )
    assert not any(v.requires_grad for v in got.values())


@pytest.mark.parametrize("how", HOW)
def test_a_loop_of_single_steps_is_training_bit_for_bit(how):
    net = make_net()
    w, opt = values(net), SGD(0.05, **how)
    c = make_client(net)
    want = c.train(c.loss, w, opt=opt)
    c = make_client(net)
    got, _ = c.each_batch(
        lambda carry, batch: c.step(c.loss, carry[0], batch, opt, carry[1]),
        (w, opt.init(w)),
    )
    assert all(torch.equal(got[k], want[k]) for k in want)
    # nothing was written into what was given
    assert all(torch.equal(w[k], v) for k, v in values(net).items())


def test_which_optimisers_accept_factors():
    w = {"a.weight": torch.zeros(2)}
    assert accepts_factors(SGD(0.1), "a.weight")
    assert accepts_factors(SGD(0.1, weight_decay=0.1), "a.weight")
    assert accepts_factors(pull(SGD(0.1), w, 0.5), "a.weight")
    assert not accepts_factors(SGD(0.1, momentum=0.5), "a.weight")
    assert not accepts_factors(pull(SGD(0.1, weight_decay=0.1), w, 0.5), "a.weight")
    assert not accepts_factors(pull(pull(SGD(0.1), w, 0.5), w, 0.5), "a.weight")


def test_groups_accept_factors_where_their_members_do():
    groups = Groups({"a": SGD(0.1), "b": SGD(0.1, momentum=0.9)})
    assert accepts_factors(groups, "a.weight")
    for name in ("b.weight", "c.weight", "ab.weight"):
        assert not accepts_factors(groups, name)


def test_a_derived_optimiser_runs_as_it_is():
    """What it does is not known, so it is given whole gradients and its own ``step`` is called."""

    class Still(SGD):
        def step(self, w, gradient, state):
            return w, state

    assert not accepts_factors(Still(0.1), "a.weight")
    net = make_net()
    c, w = make_client(net), values(net)
    for optimiser in (Still(0.1), pull(Still(0.1), w, 0.7), Groups({"2": Still(0.1)})):
        got = c.train(c.loss, w, opt=optimiser)
        assert all(torch.equal(got[k], w[k]) for k in w)


def test_groups_train_large_layers_by_their_own_rule():
    net = make_net()
    c, w = make_client(net), values(net)
    opt = Groups({"0": SGD(0.05), "2": SGD(0.2, weight_decay=0.3)})
    got = c.train(c.loss, w, opt=opt)
    rules = [
        {"params": net[0].parameters()},
        {"params": net[2].parameters(), "lr": 0.2, "weight_decay": 0.3},
    ]
    reference = torch.optim.SGD(rules, lr=0.05)

    def step(_, batch):
        reference.zero_grad()
        F.cross_entropy(net(batch.x), batch.y).backward()
        reference.step()

    make_client(net).each_batch(step, None)
    assert all(
        torch.allclose(got[k], v, rtol=0, atol=1e-12) for k, v in values(net).items()
    )
    assert not any(v.requires_grad for v in got.values())


def test_a_template_replaces_its_own_layers_and_leaves_the_callers_alone():
    class Special(nn.Linear):
        pass

    net = nn.Sequential(nn.Linear(2, 2), Special(2, 2))
    template = Template(net)
    assert [type(m) for m in template.module] == [FactoredLinear, Special]
    assert type(net[0]) is nn.Linear
    assert [type(m) for m in template.blank] == [nn.Linear, Special]


def test_plain_layers_are_used_where_they_are_asked_for(monkeypatch):
    monkeypatch.setenv("FEDTAILOR_PLAIN", "1")
    net, x = make_net(), Rng.seed(3).normal(4, 8)
    assert replace_linear_layers(net) == []
    assert type(net[2]) is nn.Linear
    dense, factored = collected(net, lambda net: net(x).sum())
    want = plain_gradient_or_zeros(net, lambda net: net(x).sum())
    assert not factored
    assert all(torch.equal(dense[k], want[k]) for k in want)


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("strength", [0.0, 0.7])
def test_plain_and_factored_training_agree(how, strength, monkeypatch):
    w = values(make_net())
    opt = make_optimiser(how, w, strength)

    def train():
        c = make_client(make_net())
        return c.train(c.loss, w, opt=opt)

    factored = train()
    monkeypatch.setenv("FEDTAILOR_PLAIN", "1")
    plain = train()
    assert all(torch.allclose(factored[k], plain[k], rtol=0, atol=1e-12) for k in w)
    assert any(not torch.equal(plain[k], w[k]) for k in w)


@pytest.mark.parametrize("name", ["fedavg", "cd2pfed", "perfedavg"])
def test_plain_and_factored_runs_agree(name, monkeypatch):
    """Whole runs, in which layers are also used in part and gradients are part of losses."""
    base = nn.Sequential(
        nn.Flatten(), nn.Linear(64, WIDE), nn.Tanh(), nn.Linear(WIDE, HIGH)
    )
    backbone = Backbone(base, nn.Linear(HIGH, 10), features=HIGH)

    def run():
        method = methods.make(methods.find(name), {})
        return run_small(method, rounds=2, backbone=backbone, dtype=torch.float64)

    factored = encode(run().server)
    monkeypatch.setenv("FEDTAILOR_PLAIN", "1")
    plain = encode(run().server)
    assert list(plain) == list(factored)
    for key, value in plain.items():
        if isinstance(value, torch.Tensor) and value.is_floating_point():
            assert torch.allclose(value, factored[key], rtol=0, atol=1e-11)
